"""What is requested is done: proposals, rebalances, drain, fill, cancel, settings, events, idempotency.

A real manager carries it out on a data plane without Spark; the verdict on its results must be exact.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.answers import HttpAnswer, RecentAnswers, parse_answer
from api.progress import eta_s, migration_view
from balancing.protocols.migration import StoryLine
from tests.checkers.migrations import parallel_track
from tests.checkers.served import Served, cleared, measured, until
from tests.simulation.data_plane import DataPlane
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis
BASE = "/v1/queries/orders"
SKEW = (9, 1, 1, 6, 1, 1)


@pytest.fixture
def plane(server: EmbeddedRedis) -> DataPlane:
    cleared(server.url)
    plane = DataPlane(server.url, weights=SKEW)
    for _ in range(8):
        plane.step()
    return plane


@pytest.fixture
def served(server: EmbeddedRedis, plane: DataPlane) -> Iterator[Served]:
    """With a manager."""
    measured(server.url)
    with Served(server.url, manager=True) as running:
        yield running


@pytest.fixture
def unmanaged(server: EmbeddedRedis, plane: DataPlane) -> Iterator[Served]:
    """Without a manager: requests stay in the list."""
    measured(server.url)
    with Served(server.url) as running:
        yield running


def ended(client: httpx.Client, plane: DataPlane, answer: httpx.Response) -> dict[str, Any]:
    """The rebalance, once it is over."""
    assert answer.status_code == 202, answer.text
    location = answer.headers["Location"]
    until(lambda: not client.get(location).json()["open"], plane)
    rebalance: dict[str, Any] = client.get(location).json()
    return rebalance


@pytest.mark.parametrize("strategy", ["mslb", "ptlb"])
def test_groups_by_name(plane: DataPlane, served: Served, strategy: str) -> None:
    client = served.client("operate")
    body = {"from": 0, "to": 2, "groups": [0], "strategy": strategy, "reason": "by hand"}
    done = ended(client, plane, client.post(f"{BASE}/rebalances", json=body))
    assert (done["state"], done["reason"], done["progress"], done["eta_s"]) == ("committed", "by hand", 1.0, 0.0)
    (migration,) = done["migrations"]
    steps = [entry["step"] for entry in migration["story"] if entry["step"]]
    assert steps == list(range(1, 9 if strategy == "mslb" else 6))
    times = [entry["at_ms"] for entry in migration["story"]]
    assert times == sorted(times)
    location = f"{BASE}/rebalances/{done['id']}"
    until(lambda: client.get(location).json()["audit"]["finished"], plane)
    assert client.get(location).json()["audit"]["clean"] and (done["audit"]["lost"], done["audit"]["doubled"]) == (0, 0)
    assert plane.owners[0] == 2
    assert client.get(f"{BASE}/partitions/0").json()["owner"] == 2
    assert migration["id"] in client.get(f"{BASE}/partitions/0/explain").json()["text"]
    assert client.get(f"{BASE}/migrations/{migration['id']}").json()["outcome"] == "committed"
    history = client.get(f"{BASE}/history").json()["history"]
    assert {(each["kind"], each["id"]) for each in history} == {
        ("rebalance", done["id"]),
        ("migration", migration["id"]),
    }
    plane.step()
    assert plane.verdict() == (0, 0)


def test_an_amount(plane: DataPlane, served: Served) -> None:
    client = served.client("operate")
    body = {"from": 0, "to": 1, "amount": "40%", "strategy": "mslb", "max_pause": "500ms", "order": "hot-last"}
    done = ended(client, plane, client.post(f"{BASE}/rebalances", json=body))
    assert done["state"] == "committed"
    assert done["migrations"][0]["moved"] == [3]
    assert plane.verdict() == (0, 0)


def test_a_proposal_is_read_and_approved_by_executing_it(plane: DataPlane, served: Served) -> None:
    client = served.client("operate")
    made = client.post(f"{BASE}/proposals", json={"reason": "evening"})
    assert made.status_code == 201
    proposal = client.get(made.headers["Location"]).json()
    assert proposal["id"] == made.json()["id"] and proposal["stale"] == []
    forecast = proposal["forecast"]
    assert forecast["ratio_after"] < forecast["ratio_before"]
    assert {"bytes", "groups", "rows_duplicated", "pause_ms", "seconds"} <= set(forecast)
    assert proposal["explanation"]
    assert [each["id"] for each in client.get(f"{BASE}/proposals").json()["proposals"]] == [proposal["id"]]
    done = ended(client, plane, client.post(f"{BASE}/rebalances", json={"proposal": proposal["id"]}))
    assert (done["state"], done["proposal"], done["reason"]) == ("committed", proposal["id"], "evening")
    assert plane.owners != (0, 1, 2, 0, 1, 2)
    # The groups it touches have changed: the same proposal again is stale.
    again = client.post(f"{BASE}/rebalances", json={"proposal": proposal["id"]})
    assert (again.status_code, again.json()["type"]) == (409, "urn:trimtab:problem:stale")
    assert plane.verdict() == (0, 0)


def test_propose_and_do_in_one(plane: DataPlane, served: Served) -> None:
    client = served.client("operate")
    done = ended(client, plane, client.post(f"{BASE}/rebalances"))
    assert done["state"] == "committed"
    assert done["proposal"].startswith("p-")
    assert plane.verdict() == (0, 0)


def test_drain_and_fill(plane: DataPlane, served: Served) -> None:
    client = served.client("operate")
    done = ended(client, plane, client.post(f"{BASE}/drain", json={"worker": 2, "strategy": "mslb"}))
    assert done["state"] == "committed"
    assert 2 not in plane.owners
    done = ended(client, plane, client.post(f"{BASE}/fill", json={"worker": 2, "strategy": "mslb"}))
    assert done["state"] == "committed"
    assert 2 in plane.owners
    assert plane.verdict() == (0, 0)


def test_cancelled_before_the_point_of_no_return(plane: DataPlane, served: Served) -> None:
    client = served.client("operate")
    plane.watermark_stalls = True  # an idle stream: PTLB's old rows are never purged
    answer = client.post(f"{BASE}/rebalances", json={"from": 0, "to": 1, "groups": [0], "strategy": "ptlb"})
    location = answer.headers["Location"]

    def duplicating() -> bool:
        migrations = client.get(location).json()["migrations"]
        return bool(migrations) and migrations[0]["state"] == "duplicating"

    until(duplicating, plane)
    (migration,) = client.get(location).json()["migrations"]
    assert migration["can_be_cancelled"] and 0 < migration["progress"] < 1
    path = f"{BASE}/migrations/{migration['id']}"
    assert client.post(f"{path}/cancel", json={"reason": "idle"}).status_code == 202
    until(lambda: client.get(path).json()["outcome"] is not None, plane)
    migration = client.get(path).json()
    assert migration["outcome"] == "rolled-back"
    assert "idle" in migration["problem"]
    late = client.post(f"{path}/cancel", json={})
    assert (late.status_code, late.json()["field"], late.json()["value"]) == (409, "migration", migration["id"])
    late = client.post(f"{location}/cancel", json={})
    assert (late.status_code, late.json()["field"]) == (409, "rebalance")
    assert plane.owners[0] == 0
    assert plane.verdict() == (0, 0)


def test_a_second_move_of_the_same_group(plane: DataPlane, served: Served) -> None:
    client = served.client("operate")
    body = {"from": 0, "to": 1, "groups": [0]}
    first = client.post(f"{BASE}/rebalances", json=body)
    until(lambda: bool(client.get(first.headers["Location"]).json()["migrations"]))
    second = client.post(f"{BASE}/rebalances", json=body)
    assert (second.status_code, second.json()["field"], second.json()["value"]) == (409, "groups", 0)
    assert ended(client, plane, first)["state"] == "committed"


def test_the_same_request_is_done_once(plane: DataPlane, unmanaged: Served) -> None:
    client = unmanaged.client("operate")
    body = {"from": 0, "to": 1, "groups": [0]}
    headers = {"Idempotency-Key": "one"}
    first = client.post(f"{BASE}/rebalances", json=body, headers=headers)
    again = client.post(f"{BASE}/rebalances", json=body, headers=headers)
    assert first.status_code == again.status_code == 202
    assert first.content == again.content
    assert first.headers["Location"] == again.headers["Location"]
    assert "Idempotency-Replayed" not in first.headers and again.headers["Idempotency-Replayed"] == "true"
    assert plane.store.client.llen(redis_keys.requests("orders")) == 1
    assert 86_000 < plane.store.client.ttl(next(plane.store.client.scan_iter("trimtab:api:idempotency:*"))) <= 86_400

    other = client.post(f"{BASE}/rebalances", json={**body, "groups": [3]}, headers=headers)
    assert (other.status_code, other.json()["field"]) == (422, "Idempotency-Key")
    assert plane.store.client.llen(redis_keys.requests("orders")) == 1

    # Another caller's key is another name.
    stranger = unmanaged.client("operate")
    assert stranger.post(f"{BASE}/rebalances", json={**body, "groups": [3]}, headers=headers).status_code == 202
    assert plane.store.client.llen(redis_keys.requests("orders")) == 2


def test_a_request_whose_answer_was_lost_with_the_server_is_not_done_twice(plane: DataPlane, unmanaged: Served) -> None:
    """The server died between handing the request on and noting the answer: the id is the same, so it is known."""
    client = unmanaged.client("operate")
    body = {"from": 0, "to": 1, "groups": [0]}
    first = client.post(f"{BASE}/rebalances", json=body, headers={"Idempotency-Key": "one"})
    for name in plane.store.client.scan_iter("trimtab:api:idempotency:*"):
        plane.store.client.delete(name)
    again = client.post(f"{BASE}/rebalances", json=body, headers={"Idempotency-Key": "one"})
    assert again.headers["Location"] == first.headers["Location"]
    assert plane.store.client.llen(redis_keys.requests("orders")) == 1


def lost(plane: DataPlane) -> None:
    """The answers that the server had kept, as if it had died before it kept them."""
    for name in plane.store.client.scan_iter("trimtab:api:idempotency:*"):
        if plane.store.client.ttl(name) > 0 and "answer" in str(plane.store.client.get(name)):
            plane.store.client.delete(name)


@pytest.mark.parametrize(
    ("path", "body"), [("rebalances", {"strategy": "ptlb"}), ("drain", {"worker": 2}), ("fill", {"worker": 1})]
)
def test_a_wish_whose_answer_was_lost_is_known_when_it_is_under_way(
    plane: DataPlane, served: Served, path: str, body: dict[str, Any]
) -> None:
    """Asked again it would be refused, since its groups are on their way: it must not be judged again."""
    client = served.client("operate")
    plane.watermark_stalls = True
    headers = {"Idempotency-Key": path}
    first = client.post(f"{BASE}/{path}", json=body | {"strategy": "ptlb"}, headers=headers)
    assert first.status_code == 202, first.text
    until(lambda: bool(client.get(first.headers["Location"]).json()["migrations"]), plane)
    proposal = client.get(f"{BASE}/proposals/{first.json()['proposal']}").json()
    lost(plane)
    again = client.post(f"{BASE}/{path}", json=body | {"strategy": "ptlb"}, headers=headers)
    assert (again.status_code, again.headers["Location"]) == (202, first.headers["Location"])
    assert again.json()["id"] == first.json()["id"] and again.json()["migrations"]
    assert client.get(f"{BASE}/proposals/{first.json()['proposal']}").json()["made_at_ms"] == proposal["made_at_ms"]
    assert len(client.get(f"{BASE}/rebalances").json()["rebalances"]) == 1


def test_a_proposal_carried_out_whose_answer_was_lost(plane: DataPlane, served: Served) -> None:
    client = served.client("operate")
    headers = {"Idempotency-Key": "p"}
    made = client.post(f"{BASE}/proposals", json={"policy": "drain", "worker": 2}, headers=headers).json()
    lost(plane)
    again = client.post(f"{BASE}/proposals", json={"policy": "drain", "worker": 2}, headers=headers)
    assert (again.status_code, again.json()["made_at_ms"]) == (201, made["made_at_ms"])
    headers = {"Idempotency-Key": "r"}
    first = client.post(f"{BASE}/rebalances", json={"proposal": made["id"]}, headers=headers)
    ended(client, plane, first)
    lost(plane)
    repeated = client.post(f"{BASE}/rebalances", json={"proposal": made["id"]}, headers=headers)
    assert (repeated.status_code, repeated.json()["id"]) == (202, first.json()["id"])
    # The same name for another wish names another thing.
    lost(plane)
    other = client.post(f"{BASE}/drain", json={"worker": 1}, headers=headers)
    assert other.json()["id"] != first.json()["id"]


@pytest.mark.parametrize("kind", ["migrations", "rebalances"])
def test_a_cancel_whose_answer_was_lost(plane: DataPlane, served: Served, kind: str) -> None:
    client = served.client("operate")
    plane.watermark_stalls = True
    body = {"from": 0, "to": 1, "groups": [0], "strategy": "ptlb"}
    location = client.post(f"{BASE}/rebalances", json=body).headers["Location"]
    until(lambda: bool(client.get(location).json()["migrations"]), plane)
    rebalance = client.get(location).json()
    path = f"{BASE}/{kind}/{rebalance['id'] if kind == 'rebalances' else rebalance['migrations'][0]['id']}/cancel"
    headers = {"Idempotency-Key": "c"}
    assert client.post(path, json={}, headers=headers).status_code == 202
    until(lambda: not client.get(location).json()["open"], plane)
    lost(plane)
    assert client.post(path, json={}, headers=headers).status_code == 202
    assert client.post(path, json={}).status_code == 409
    assert client.get(location).json()["state"] == "rolled-back"


def test_a_refused_request_is_judged_anew(plane: DataPlane, unmanaged: Served) -> None:
    client = unmanaged.client("operate")
    headers = {"Idempotency-Key": "one"}
    body = {"from": 0, "to": 1, "groups": [0]}
    assert client.put(f"{BASE}/rules", json={"pinned": [0]}).status_code == 200
    assert client.post(f"{BASE}/rebalances", json=body, headers=headers).status_code == 409
    assert client.put(f"{BASE}/rules", json={"pinned": []}).status_code == 200
    assert client.post(f"{BASE}/rebalances", json=body, headers=headers).status_code == 202


def test_an_idempotency_key_in_use_or_malformed(plane: DataPlane, unmanaged: Served) -> None:
    client = unmanaged.client("operate")
    body = {"enabled": True}
    for bad in ("x" * 256, "a b"):
        answer = client.put(f"{BASE}/auto", json=body, headers={"Idempotency-Key": bad})
        assert (answer.status_code, answer.json()["field"]) == (400, "Idempotency-Key")
    assert client.put(f"{BASE}/auto", json=body, headers={"Idempotency-Key": "one"}).status_code == 200
    (name,) = plane.store.client.scan_iter("trimtab:api:idempotency:*")
    claim = json.loads(str(plane.store.client.get(name)))
    del claim["answer"]
    plane.store.client.set(name, json.dumps(claim))
    answer = client.put(f"{BASE}/auto", json=body, headers={"Idempotency-Key": "one"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (409, "1")


def test_settings_are_kept_and_merged(plane: DataPlane, unmanaged: Served) -> None:
    client = unmanaged.client("operate")
    assert client.get(f"{BASE}/auto").json()["enabled"] is False
    assert client.get(f"{BASE}/auto").json()["last_decision"] is None
    settings = client.put(f"{BASE}/auto", json={"enabled": True, "max_pause": "250ms", "start_ratio": 1.5}).json()
    assert (settings["enabled"], settings["max_pause"], settings["start_ratio"]) == (True, 250.0, 1.5)
    assert client.put(f"{BASE}/auto", json={"enabled": False}).json()["start_ratio"] == 1.5
    assert client.get(f"{BASE}/auto").json()["enabled"] is False
    assert client.put(f"{BASE}/rules", json={"pinned": [3, 1]}).json()["pinned"] == [1, 3]
    assert client.put(f"{BASE}/rules", json={"excluded": [2]}).json() == {
        "query": "orders",
        "pinned": [1, 3],
        "excluded": [2],
        "plans": [],
    }
    assert client.get(f"{BASE}/partitions/3").json()["pinned"] is True
    assert client.get(f"{BASE}/workers").json()["workers"][2]["excluded"] is True


def test_the_balancer_acts_by_itself_when_told_to(plane: DataPlane, served: Served) -> None:
    client = served.client("operate")
    assert "off" in client.get(f"{BASE}/explain").json()["text"]
    client.put(f"{BASE}/auto", json={"enabled": True, "min_batches": 1, "cool_down_s": 0})
    until(lambda: any(each["automatic"] for each in client.get(f"{BASE}/rebalances").json()["rebalances"]), plane)
    until(lambda: client.get(BASE).json()["open_migrations"] == [], plane)
    client.put(f"{BASE}/auto", json={"enabled": False})
    until(lambda: client.get(BASE).json()["open_migrations"] == [], plane)
    assert plane.owners != (0, 1, 2, 0, 1, 2)
    assert plane.verdict() == (0, 0)


def test_events_as_they_come_and_from_where_one_was(plane: DataPlane, served: Served) -> None:
    client = served.client("operate")
    heard: list[tuple[str, dict[str, Any]]] = []
    listening = threading.Event()

    def listen() -> None:
        with client.stream("GET", f"{BASE}/events", timeout=20) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            name = ""
            for line in answer.iter_lines():
                listening.set()
                if line.startswith("id: "):
                    name = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    heard.append((name, json.loads(line.removeprefix("data: "))))
                    if heard[-1][1]["kind"] == "finished":
                        return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert listening.wait(10)
    other = served.client("operate")
    ended(other, plane, other.post(f"{BASE}/rebalances", json={"from": 0, "to": 1, "groups": [0], "strategy": "mslb"}))
    thread.join(10)
    assert not thread.is_alive()
    steps = [event["data"]["step"] for _, event in heard if event["kind"] == "step" and event["data"]["step"]]
    assert steps == list(range(1, 9))

    listed = other.get(f"{BASE}/events", headers={"Accept": "application/json"}).json()["events"]
    assert {name for name, _ in heard} <= {each["id"] for each in listed}
    after = {"Accept": "application/json", "Last-Event-ID": heard[0][0]}
    rest = other.get(f"{BASE}/events", headers=after).json()["events"]
    assert [each["id"] for each in rest][: len(heard) - 1] == [name for name, _ in heard[1:]]
    bad = other.get(f"{BASE}/events", headers={"Last-Event-ID": "yesterday"})
    assert (bad.status_code, bad.json()["field"]) == (422, "Last-Event-ID")
    # Resumed as a stream: the first event after the one that was seen last comes at once.
    with other.stream("GET", f"{BASE}/events", headers={"Last-Event-ID": heard[0][0]}) as answer:
        first = next(line for line in answer.iter_lines() if line.startswith("id: "))
    assert first == f"id: {heard[1][0]}"


def test_open_event_streams_do_not_keep_the_server_from_ending(server: EmbeddedRedis, plane: DataPlane) -> None:
    measured(server.url)
    with Served(server.url) as served:
        # A client that `Served` does not know, so that it stays connected to the end.
        client = httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {served.key('read')}"})
        stream = client.stream("GET", f"{BASE}/events", timeout=20)
        lines = stream.__enter__().iter_lines()
        assert next(lines) == "retry: 2000"
    # `Served` has seen the server end, and the client sees the end of the stream.
    assert [line for line in lines if line.startswith("data")] == []
    client.close()


def test_openapi_has_examples_and_names_the_key(plane: DataPlane, unmanaged: Served) -> None:
    document = unmanaged.client("read").get("/v1/openapi.json").json()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path in ("/healthz", "/readyz", "/metrics"):  # neither JSON nor, the first two, behind a key
                continue
            good = next(body for status, body in operation["responses"].items() if status.startswith("2"))
            assert good["content"]["application/json"]["example"], (method, path)
            assert "401" in operation["responses"]
            named = {each["name"] for each in operation.get("parameters", ())}
            once = method in ("post", "put", "delete") and path != "/v1/session"
            assert ("Idempotency-Key" in named) == once, (method, path)
    assert document["components"]["schemas"]["RebalanceBody"]["examples"]


def test_every_path_is_described(plane: DataPlane, unmanaged: Served) -> None:
    text = (Path(__file__).parents[2] / "docs" / "rest.md").read_text()
    for path, operations in unmanaged.client("read").get("/v1/openapi.json").json()["paths"].items():
        short = path.replace("/v1/queries/{query}", "Q")
        for method in operations:
            assert f"{method.upper()} `{short}`" in text, f"{method.upper()} {path} is not in docs/rest.md"


def test_the_time_to_go_is_not_told_when_it_is_over() -> None:
    """PTLB waits for event time, which an idle stream holds up."""
    begun = StoryLine(at_ms=1_000, wave=1, step=3, message="DuplicatePartitions", state="duplicating")
    migration = parallel_track(begun)
    assert eta_s(migration, 3_000, 10.0) == 8.0
    assert eta_s(migration, 20_000, 10.0) is None
    assert migration_view(migration, 20_000, 10.0)["waits_for_event_time"]


def test_answers_survive_being_kept() -> None:
    answer = HttpAnswer(202, ((b"location", b"/v1/x"), (b"content-type", b"application/json")), b'{"a":"\xc3\xa9"}')
    assert parse_answer(answer.to_text()) == answer


def test_reads_within_a_moment_share_one_answer() -> None:
    now_s = 0.0
    made = 0

    async def make() -> HttpAnswer:
        nonlocal made
        made += 1
        await asyncio.sleep(0)
        return HttpAnswer(200, (), str(made).encode())

    async def ask() -> list[bytes]:
        nonlocal now_s
        recent = RecentAnswers(0.25, lambda: now_s)
        together = [answer.body for answer in await asyncio.gather(*(recent.get("a", make) for _ in range(5)))]
        now_s = 0.2
        soon = (await recent.get("a", make)).body
        now_s = 0.3
        later = (await recent.get("a", make)).body
        recent.forget()
        changed = (await recent.get("a", make)).body
        return [*together, soon, later, changed]

    assert asyncio.run(ask()) == [b"1"] * 6 + [b"2", b"3"]
