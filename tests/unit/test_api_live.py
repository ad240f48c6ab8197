"""One reader, many clients: the front page and the events of a query, live, and what happens to those who lag."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx
import pytest
import redis
from hypothesis import example, given
from hypothesis import strategies as st

from api.deltas import EVENTS_SHOWN, MARKS_SHOWN, applied, delta
from api.events import event_order
from api.front import why_now
from api.keys import KeyStore
from api.live import LiveStreams
from api.streaming import WAITING_BYTES_MAX, Piece, Stream, Wire
from api.tails import Client, Tail
from balancing.settings import Settings
from balancing.situation import Situation
from balancing.triggers import TriggerState
from manager.history import BATCHES_KEPT
from manager.store import ManagerStore
from tests.checkers.clock import ManualClock
from tests.checkers.served import Served, cleared, measured, until
from tests.simulation.data_plane import DataPlane
from tests.unit.balancing_snapshots import snapshot
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis
from trimtab.epochs import first_epoch

pytestmark = pytest.mark.redis
BASE = "/v1/queries/orders"
SKEW = (9, 1, 1, 6, 1, 1)
Json = dict[str, Any]


@pytest.fixture
def plane(server: EmbeddedRedis) -> DataPlane:
    cleared(server.url)
    plane = DataPlane(server.url, weights=SKEW)
    for _ in range(8):
        plane.step()
    measured(server.url)
    return plane


def add_event(plane: DataPlane, text: str) -> str:
    body = {"at_ms": 1, "kind": "step", "text": text, "data": {}}
    return str(plane.store.client.xadd(redis_keys.events("orders"), {"event": json.dumps(body)}))


class Follower(threading.Thread):
    """A client that applies every delta."""

    def __init__(self, client: httpx.Client) -> None:
        super().__init__(daemon=True)
        self.document: Json = {}
        self.seqs: list[int] = []
        self.names: list[str] = []
        self._client = client
        self._done = False

    def run(self) -> None:
        with self._client.stream("GET", f"{BASE}/live", timeout=30) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            name = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    body = json.loads(line.removeprefix("data: "))
                    self.names.append(name)
                    self.seqs.append(body["seq"])
                    self.document = body if name == "front" else applied(self.document, body)
                if self._done:
                    return

    def end(self) -> None:
        self._done = True
        self.join(20)
        assert not self.is_alive()


class Listener(Wire):
    """A client in this process. Unless it `reads`, everything waits."""

    def __init__(self, *, reads: bool = True) -> None:
        self.heard: list[bytes] = []
        self.over = False
        self._reads = reads
        self._news = asyncio.Event()

    def waiting(self) -> int:
        return 0 if self._reads else sum(map(len, self.heard))

    def write(self, piece: Piece) -> None:
        assert piece.chunk == b"%x\r\n" % len(piece.data) + piece.data + b"\r\n"
        self.heard.append(piece.data)
        self._news.set()

    def end(self) -> None:
        self.over = True

    async def take(self, stream: Stream) -> None:
        """As `StreamAnswer` does."""
        async for data in stream.past():
            self.heard.append(data)
        stream.connect(self)

    async def until(self, condition: Callable[[list[bytes]], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition(self.heard):
                self._news.clear()
                await self._news.wait()


def ids(heard: list[bytes]) -> list[str]:
    return [line[4:] for line in b"".join(heard).decode().splitlines() if line.startswith("id: ")]


def test_a_rebalance_is_seen_live_from_the_first_step_to_the_outcome(plane: DataPlane, server: EmbeddedRedis) -> None:
    with Served(server.url, manager=True) as served:
        client = served.client("operate")
        follower = Follower(served.client("read"))
        follower.start()
        until(lambda: bool(follower.document))
        assert follower.document["imbalance"]["ratio"] > 1.2
        assert follower.document["why"]["code"] == "off"
        assert follower.document["workers"][0]["plan_states"][0]["state"] == "A"
        name = client.post(f"{BASE}/rebalances", json={"reason": "see it"}).json()["id"]
        steps: set[int] = set()

        def committed() -> bool:
            moves = [move for move in follower.document["moves"] if move["rebalance"] == name]
            steps.update(move["step"] for move in moves)
            return bool(moves) and all(move["outcome"] == "committed" for move in moves)

        until(committed, plane)
        assert len(steps) > 1
        until(lambda: tuple(follower.document["owners"]) == plane.owners, plane)
        until(lambda: any(row[1] > 8 for row in follower.document["batches"]), plane)
        moves = [move for move in follower.document["moves"] if move["rebalance"] == name]
        marks = {mark["id"]: mark for mark in follower.document["marks"]}
        for move in moves:
            mark = marks[move["id"]]
            assert (mark["from_ms"], mark["to_ms"]) == (move["created_ms"], move["ended_ms"])
            assert (mark["outcome"], mark["groups"]) == ("committed", len(move["groups"]))
        # Forecast against outcome, once some batches have run under the new mapping.
        until(lambda: client.get(f"{BASE}/rebalances/{name}").json()["measured"] is not None, plane)
        record = client.get(f"{BASE}/rebalances/{name}").json()
        assert set(record["forecast"]) == set(record["measured"])
        assert record["forecast"]["ratio_before"] > record["forecast"]["ratio_after"]
        assert record["measured"]["seconds"] > 0
        ended = [each for each in client.get(f"{BASE}/history").json()["history"] if each["kind"] == "rebalance"]
        assert ended[0]["measured"] == record["measured"]
        heat = client.get(f"{BASE}/history?minutes=5").json()
        assert len(heat["columns"][0]["loads"]) == len(heat["columns"][0]["owners"]) == 6
        assert {move["outcome"] for move in heat["moves"]} == {"committed"}
        assert client.get(f"{BASE}/history?minutes=721").status_code == 422
        # Who comes later begins with what the first one has by now.
        until(lambda: client.get(f"{BASE}/front").json()["seq"] == follower.seqs[-1])
        assert client.get(f"{BASE}/front").json()["owners"] == follower.document["owners"]
        follower.end()
    assert follower.names[0] == "front" and set(follower.names[1:]) == {"delta"}
    assert follower.seqs == list(range(1, len(follower.seqs) + 1))
    assert plane.verdict() == (0, 0)


def test_a_front_page_without_measurements_or_with_a_query_that_is_unknown(
    plane: DataPlane, server: EmbeddedRedis
) -> None:
    plane.store.client.delete(redis_keys.snapshot("orders"), redis_keys.latest_reports("orders"))
    with Served(server.url) as served:
        client = served.client("read")
        front = client.get(f"{BASE}/front").json()
        assert (front["seq"], front["imbalance"]["ratio"], front["loads"]) == (0, None, [])
        assert front["why"]["code"] == "unmeasured"
        assert front["workers"][0]["plan_states"] == []
        for path in ("front", "live", "history?minutes=5"):
            assert client.get(f"/v1/queries/nothing/{path}").status_code == 404


def test_clients_hold_no_connection_to_redis_and_the_reader_ends_after_the_last(
    plane: DataPlane, server: EmbeddedRedis
) -> None:
    async def follow() -> None:
        store = ManagerStore(server.url)
        streams = LiveStreams(store)
        followers = [await streams.follow_events("orders", "k", None) for _ in range(200)]
        listeners = [Listener() for _ in followers]
        for listener, each in zip(listeners, followers, strict=True):
            await listener.take(each)
            assert listener.heard == [b"retry: 2000\n\n"]
        listed: Any = plane.store.client.client_list()
        blocked = [each for each in listed if each["cmd"].startswith("xread")]
        assert len(blocked) <= 1
        name = add_event(plane, "all of them hear it")
        for listener in listeners:
            await listener.until(lambda heard: len(heard) == 2)
        assert len({id(listener.heard[1]) for listener in listeners}) == 1, "the same bytes, made once"
        assert listeners[0].heard[1].startswith(f"id: {name}\n".encode())
        for each in followers:
            each.leave()
        await asyncio.wait_for(asyncio.gather(*streams._tasks), 5)
        assert not streams._tails
        await store.close()

    asyncio.run(follow())


def test_a_client_that_comes_back_misses_nothing_and_hears_nothing_twice(
    plane: DataPlane, server: EmbeddedRedis
) -> None:
    names = [add_event(plane, f"event {number}") for number in range(1200)]

    async def follow() -> None:
        store = ManagerStore(server.url)
        streams = LiveStreams(store)
        # Somebody else is there already: the reader has gone on.
        other, listener = await streams.follow_events("orders", "k", None), Listener()
        await Listener().take(other)
        stream = await streams.follow_events("orders", "k", names[0])
        async for data in stream.past():
            listener.heard.append(data)
            if len(names) < 1210:
                names.append(await asyncio.to_thread(add_event, plane, "meanwhile"))
        stream.connect(listener)
        names.append(await asyncio.to_thread(add_event, plane, "afterwards"))
        await listener.until(lambda heard: ids(heard)[-1:] == names[-1:])
        assert ids(listener.heard) == names[1:]
        stream.leave()
        other.leave()
        streams.stop()
        await store.close()

    asyncio.run(follow())


def test_events_that_the_client_has_already_do_not_come_again_from_the_reader(
    plane: DataPlane, server: EmbeddedRedis
) -> None:
    names = [add_event(plane, f"event {number}") for number in range(4)]

    async def tell() -> list[str]:
        store = ManagerStore(server.url)
        tail, listener = Tail(store, KeyStore(store.client), "orders", time.monotonic), Listener()
        client = Client(key="k", live=False, told=event_order(names[1]))
        client.connect(listener)
        tail.clients.add(client)
        task = asyncio.create_task(tail.run(lambda: not listener.heard))
        await task
        await store.close()
        assert listener.over
        return ids(listener.heard)

    assert asyncio.run(tell()) == names[2:]


def test_a_client_that_waits_for_events_which_redis_has_lost(plane: DataPlane, server: EmbeddedRedis) -> None:
    first, _ = add_event(plane, "one"), add_event(plane, "two")

    async def follow() -> list[str]:
        store = ManagerStore(server.url)
        streams, listener = LiveStreams(store), Listener()
        stream = await streams.follow_events("orders", "k", first)
        await asyncio.to_thread(plane.store.client.delete, redis_keys.events("orders"))
        await listener.take(stream)
        name = await asyncio.to_thread(add_event, plane, "three")
        await listener.until(lambda heard: ids(heard) == [name])
        stream.leave()
        await store.close()
        return ids(listener.heard)

    assert len(asyncio.run(follow())) == 1


def test_a_slow_client_is_told_and_dropped_by_what_waits_for_it() -> None:
    client, listener = Client(key="k", live=True), Listener(reads=False)
    client.connect(listener)
    delta_bytes = 48_000  # one of 4,096 groups
    fit = WAITING_BYTES_MAX // delta_bytes + 1
    assert all(client.put(Piece(b"x" * delta_bytes)) for _ in range(fit))
    assert client.put(Piece(b"x")) is False
    assert client.put(Piece(b"late")) is True
    assert listener.heard[fit].startswith(b"event: dropped\n") and len(listener.heard) == fit + 1
    assert listener.over
    assert sum(map(len, listener.heard[:fit])) <= WAITING_BYTES_MAX + delta_bytes


def test_small_messages_may_wait_in_any_number() -> None:
    client = Client(key="k", live=True)
    client.connect(Listener(reads=False))
    assert all(client.put(Piece(b"x")) for _ in range(1000))


def test_a_client_that_reads_nothing_does_not_hold_up_the_others(plane: DataPlane, server: EmbeddedRedis) -> None:
    with Served(server.url) as served, closing(socket.socket()) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = served.url.removeprefix("http://").split(":")
        slow.connect((host, int(port)))
        head = f"GET {BASE}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key('read')}\r\n\r\n"
        slow.sendall(head.encode())
        assert slow.recv(200)
        text = "x" * 20_000
        client = served.client("read")
        heard = 0
        with client.stream("GET", f"{BASE}/events", timeout=20) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "retry: 2000"
            for _ in range(64):
                name = add_event(plane, text)
                while next(lines) != f"id: {name}":
                    pass
                heard += 1
        assert heard == 64
        # The slow one finds out as soon as it reads on.
        slow.settimeout(10)
        rest = b""
        while chunk := slow.recv(1 << 20):
            rest = rest[-1000:] + chunk
            if b"event: dropped" in rest:
                break
        assert b"event: dropped" in rest


def test_a_proxy_that_speaks_an_older_http_gets_no_chunks(plane: DataPlane, server: EmbeddedRedis) -> None:
    with Served(server.url) as served, closing(socket.socket()) as old:
        host, port = served.url.removeprefix("http://").split(":")
        old.connect((host, int(port)))
        old.settimeout(10)
        old.sendall(f"GET {BASE}/live HTTP/1.0\r\nAuthorization: Bearer {served.key('read')}\r\n\r\n".encode())
        received = b""
        while not received.endswith(b"}\n\n"):
            received += old.recv(1 << 20)
        head, _, body = received.partition(b"\r\n\r\n")
        assert b"chunked" not in head.lower()
        assert body.startswith(b"retry: 2000\n\nevent: front\ndata: {")
        assert json.loads(body.partition(b"data: ")[2])["seq"] == 1


def test_a_revoked_key_and_a_lost_redis_end_the_stream() -> None:
    clock = ManualClock()
    with EmbeddedRedis() as server:
        plane = DataPlane(server.url)
        plane.step()
        measured(server.url)
        with Served(server.url, clock=clock) as served:
            one, other = served.client("read"), served.client("read")
            with one.stream("GET", f"{BASE}/live") as first, other.stream("GET", f"{BASE}/live", timeout=20) as second:
                lines, rest = first.iter_lines(), second.iter_lines()
                assert next(lines) == next(rest) == "retry: 2000"
                plane.store.client.hdel(redis_keys.API_KEYS, one.headers["Authorization"].split("_")[1])
                clock.now_s += 11.0
                assert not any(line.startswith(":") for line in lines)
                assert ": still here" in rest
                server.kill()
                assert [line for line in rest if line][-1].startswith(": Redis does not answer")


def test_a_disconnected_client_leaves_its_place(plane: DataPlane, server: EmbeddedRedis) -> None:
    with Served(server.url) as served:
        client = served.client("read")
        for _ in range(3):
            with client.stream("GET", f"{BASE}/live") as answer:
                assert next(answer.iter_lines()) == "retry: 2000"
        # The reader asks Redis four times a second while there is somebody, and not at all afterwards.
        until(lambda: not _reads(server.url))


def _reads(url: str) -> bool:
    """Whether anybody reads events just now."""
    with redis.Redis.from_url(url) as client:
        counts = []
        for _ in range(2):
            statistics: Any = client.info("commandstats")
            counts.append(statistics.get("cmdstat_xread", {}).get("calls", 0))
            time.sleep(0.4)
    return bool(counts[0] != counts[1])


# -- documents and deltas


def document(**changes: Any) -> Json:
    plain: Json = {
        "at_ms": 1,
        "query": {"name": "orders"},
        "why": {"text": "level"},
        "owners": [0, 1, 2, 0],
        "loads": [1.0, 2.0, 3.0, 4.0],
        "batches": [[1, 1, 2.0], [2, 2, 2.0]],
        "events": [{"id": "1-0"}, {"id": "2-0"}],
        "marks": [],
    }
    return plain | changes


def test_only_what_has_changed_is_told() -> None:
    before = document()
    assert delta(before, document(at_ms=9)) is None
    after = document(
        at_ms=9,
        why={"text": "skewed"},
        owners=[0, 1, 2, 1],
        loads=[1.0, 5.0, 6.0, 7.0],
        batches=[*before["batches"], [3, 3, 2.0]],
        events=[*before["events"], {"id": "3-0"}],
    )
    assert delta(before, after) == {
        "at_ms": 9,
        "set": {"why": {"text": "skewed"}, "loads": [1.0, 5.0, 6.0, 7.0]},
        "owners": [[3, 1]],
        "batches": [[3, 3, 2.0]],
        "events": [{"id": "3-0"}],
    }


_NUMBERS = st.lists(st.integers(0, 3), max_size=6)
_GROWN = st.lists(st.integers(0, 4).map(lambda number: [number, 1.0]), max_size=6)
_TEXTS = st.sampled_from("abc").map(lambda text: {"text": text})
_FIELDS = {"why": _TEXTS, "owners": _NUMBERS, "loads": _NUMBERS, "batches": _GROWN, "events": _GROWN, "marks": _GROWN}
_DOCUMENTS = st.builds(document, at_ms=st.integers(0, 9), **_FIELDS)


@st.composite
def followed(draw: st.DrawFn) -> tuple[Json, Json]:
    """Two documents: the second has nothing to do with the first, or its lists have grown and lost their beginning."""
    before, after = draw(_DOCUMENTS), draw(_DOCUMENTS)
    for name in ("batches", "events", "marks"):
        if draw(st.booleans()):
            after[name] = [*before[name], *after[name]][draw(st.integers(0, 8)) :]
    return before, after


@given(followed())
@example((document(batches=[[1], [2], [3]]), document(batches=[[3], [4]])))
@example((document(batches=[[1], [2], [1]]), document(batches=[[1], [2], [1], [4]])))
def test_whoever_applies_every_delta_has_the_newest_document(documents: tuple[Json, Json]) -> None:
    before, after = documents
    change = delta(before, after)
    assert (before | {"at_ms": after["at_ms"]} if change is None else applied(before, change)) == after


@pytest.mark.parametrize(
    ("name", "kept"), [("batches", BATCHES_KEPT), ("events", EVENTS_SHOWN), ("marks", MARKS_SHOWN)]
)
def test_a_full_list_that_goes_on_is_told_by_its_new_entries_alone(name: str, kept: int) -> None:
    entries = [{"id": f"{number}-0"} for number in range(kept + 2)]
    change = delta(document(**{name: entries[:kept]}), document(**{name: entries[2:]}))
    assert change == {"at_ms": 1, name: entries[kept:]}
    assert applied(document(**{name: entries[:kept]}), change)[name] == entries[2:]


def test_lists_that_grow_are_cut() -> None:
    before = document(events=[{"id": f"{number}-0"} for number in range(EVENTS_SHOWN)])
    assert len(applied(before, {"at_ms": 2, "events": [{"id": "99-0"}]})["events"]) == EVENTS_SHOWN


def test_moves_of_long_ago_are_marked_still(plane: DataPlane, server: EmbeddedRedis, monkeypatch: Any) -> None:
    """A page that is opened now marks what moved while its batches were joined, though its steps are not shown."""
    with Served(server.url, manager=True) as served:
        client = served.client("operate")
        name = client.post(f"{BASE}/rebalances", json={"reason": "see it"}).json()["id"]
        until(lambda: client.get(f"{BASE}/rebalances/{name}").json()["state"] == "committed", plane)
        until(lambda: bool(client.get(f"{BASE}/front").json()["batches"]), plane)  # written once a second
        monkeypatch.setattr("api.front.ENDED_SHOWN_MS", -1)
        front = client.get(f"{BASE}/front").json()
        assert front["moves"] == []
        ids = {each["id"] for each in client.get(f"{BASE}/rebalances/{name}").json()["migrations"]}
        assert {mark["id"] for mark in front["marks"]} == ids
        assert all(mark["to_ms"] >= front["batches"][0][0] for mark in front["marks"])


def test_why_nothing_moves_in_words() -> None:
    load = snapshot((0, 1, 0, 1), (6e8, 1e8, 2e8, 1e8), ["a", "b"])
    situation = Situation(query="q", workers=2, epoch=first_epoch("q", "i", (0, 1, 0, 1)), up=frozenset({0, 1}))
    on = Settings(auto=True)

    def why(settings: Settings, state: TriggerState | None = None, last: Json | None = None) -> Json:
        return why_now(situation, load, settings, state or TriggerState(), last, at_ms=1000)

    assert why(Settings())["code"] == "off"
    acting = why(on)
    assert (acting["code"], acting["act"]) == ("act", True) and "looks for moves" in acting["text"]
    resting = TriggerState(rest_until_ms=4000)
    assert why(on, resting)["text"].startswith("It rests for another 3.0 s.")
    refused = {"code": "no-moves", "why": "The largest load is 1.5. But no move would lower it."}
    assert why(on, resting, refused)["text"].startswith(refused["why"])
    assert why_now(situation, None, on, resting, None, 0)["code"] == "unmeasured"
    stopped = Situation(query="q", workers=2, epoch=situation.epoch, stopped=True)
    assert why_now(stopped, load, on, resting, None, 0)["code"] == "stopped"


def test_the_document_as_json_for_those_who_want_no_stream(plane: DataPlane, server: EmbeddedRedis) -> None:
    with Served(server.url) as served:
        client = served.client("read")
        live = client.get(f"{BASE}/live", headers={"Accept": "application/json"}).json()
        assert live.keys() == client.get(f"{BASE}/front").json().keys()


def test_a_leader_dies_in_the_middle_of_a_move_and_the_page_goes_on(plane: DataPlane, server: EmbeddedRedis) -> None:
    """The instance that the page talks to takes over. The stream does not even end."""
    with Served(server.url, manager=True) as leading:
        until(lambda: leading.client("read").get(BASE).json()["manager"] is not None, plane)
        with Served(server.url, manager=True) as standby:
            follower = Follower(standby.client("read"))
            follower.start()
            until(lambda: bool(follower.document), plane)
            fence = follower.document["query"]["manager"]["fence"]
            body = {"from": 0, "to": 1, "groups": [0], "strategy": "ptlb"}
            name = leading.client("operate").post(f"{BASE}/rebalances", json=body).json()["id"]

            def of_mine() -> list[Json]:
                return [move for move in follower.document["moves"] if move["rebalance"] == name]

            until(lambda: any(move["step"] >= 3 for move in of_mine()), plane)
            leading.__exit__(None, None, None)
            until(lambda: all(move["outcome"] == "committed" for move in of_mine()), plane)
            until(lambda: follower.document["query"]["manager"] is not None, plane)
            assert follower.document["query"]["manager"]["fence"] > fence
            # The forecast of the first leader stays, and the second one measures.
            client = standby.client("read")
            until(lambda: client.get(f"{BASE}/rebalances/{name}").json()["measured"] is not None, plane)
            assert client.get(f"{BASE}/rebalances/{name}").json()["forecast"] is not None
            follower.end()
    assert follower.seqs == list(range(1, len(follower.seqs) + 1))
    assert plane.verdict() == (0, 0)


def test_an_event_that_somebody_else_wrote(plane: DataPlane, server: EmbeddedRedis) -> None:
    """It neither ends the stream nor begins fields of its own."""
    first = add_event(plane, "before")
    key = redis_keys.events("orders")
    evil = {"at_ms": 1, "kind": "x\ndata: {}\n\nevent: front", "text": "\u202e<b>", "data": {}}
    entries: list[dict[Any, Any]] = [{"event": "no JSON"}, {"other": "x"}, {"event": "[]"}, {"event": json.dumps(evil)}]
    for fields in entries:
        plane.store.client.xadd(key, fields)
    last = add_event(plane, "after")
    with Served(server.url) as served:
        client = served.client("read")
        lines = []
        with client.stream("GET", f"{BASE}/events", headers={"Last-Event-ID": first}) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                if line == f"id: {last}":
                    break
        assert [line for line in lines if line.startswith("event: ")] == ["event: unreadable"] * 3 + ["event: other"]
        assert all(json.loads(line[6:])["id"] for line in lines if line.startswith("data: "))
        shown = client.get(f"{BASE}/front").json()["events"]
        assert [each["kind"] for each in shown][-2] == evil["kind"]
