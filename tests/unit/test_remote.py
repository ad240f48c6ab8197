"""Each command as the user types it, against a real server whose manager works on a data plane without Spark."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from rich.console import Console

from commands.cli import main
from commands.remote import reading
from commands.remote.client import Client, Refusal, RemoteFailure
from commands.remote.commands import groups
from commands.remote.follow import Bars, Lines, follow, step_words, summary
from commands.remote.tables import (
    audit_words,
    auto_lines,
    event_line,
    is_doubtful,
    number,
    numbers,
    percent,
    proposal_lines,
)
from tests.checkers.served import Served, measured, until
from tests.simulation.data_plane import DataPlane
from trimtab.embedded import EmbeddedRedis
from trimtab.errors import InvalidInput

pytestmark = pytest.mark.redis


class RunningQuery:
    """A query whose batches go on by themselves, so that commands that wait come to their end."""

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            self.plane.step()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)


Type = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with EmbeddedRedis() as server:
        plane = DataPlane(server.url, weights=(9, 1, 1, 6, 1, 1))
        for _ in range(8):
            plane.step()
        measured(server.url)
        with Served(server.url, manager=True) as running:
            query = RunningQuery(plane)
            yield running
            query.stop()
            assert plane.verdict() == (0, 0)


@pytest.fixture
def run(served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Type:
    monkeypatch.setenv("TRIMTAB_URL", served.url)
    monkeypatch.setenv("TRIMTAB_KEY", served.key("operate"))
    monkeypatch.setenv("TRIMTAB_REDIS", served.redis_url)

    def typed(text: str, *more: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*text.split(), *more])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return typed


def test_looking(run: Type) -> None:
    code, out, _ = run("queries")
    assert code == 0 and out.splitlines()[1].split()[:2] == ["orders", "yes"]
    code, out, _ = run("workers")
    assert code == 0 and len(out.splitlines()) == 4
    code, out, _ = run("partitions")
    assert code == 0 and len(out.splitlines()) == 7
    code, out, _ = run("partitions --query orders --json")
    assert [each["partition"] for each in json.loads(out)["partitions"]] == list(range(6))
    code, out, _ = run("explain --query orders")
    assert code == 0 and "balancing is off" in out
    code, out, _ = run("explain --query orders --group 3")
    assert code == 0 and out.startswith("Group 3 belongs to worker ")
    code, out, _ = run("events")
    assert code == 0 and " leader: " in out


def test_propose_then_rebalance(run: Type) -> None:
    code, out, _ = run("propose --query orders")
    assert code == 0
    assert "largest load over mean" in out and "strategy" in out and "rows duplicated" in out
    code, out, _ = run("propose --query orders --json")
    name = json.loads(out)["id"]
    code, out, _ = run(f"rebalance --query orders --proposal {name}")
    assert code == 0, out
    assert " committed: " in out and "lost 0, doubled 0" in out
    code, out, err = run(f"rebalance --query orders --proposal {name}")
    assert code == 2 and "is stale" in err


def test_rebalance_by_name_and_by_amount(run: Type) -> None:
    owners = {
        each["partition"]: each["owner"]
        for each in json.loads(run("partitions --query orders --json")[1])["partitions"]
    }
    sender = owners[0]
    receiver = (sender + 1) % 3
    mine = ",".join(str(group) for group, owner in owners.items() if owner == sender)
    command = f"rebalance --query orders --from {sender} --to {receiver}"
    code, out, _ = run(f"{command} --groups {mine} --strategy ptlb", "--reason", "too hot")
    assert code == 0, out
    for step in ("step 1/5 ComputePartitionsToMove", "step 3/5 DuplicatePartitions", "step 5/5 DeletePartitions"):
        assert step in out
    command = f"rebalance --query orders --from {receiver} --to {sender}"
    code, out, _ = run(f"{command} --amount 25% --strategy mslb --max-pause 500")
    assert code == 0, out
    assert "step 8/8 ReactivatePartitions" in out
    code, out, _ = run("migrations")
    assert code == 0 and "too hot" in out and "committed" in out


def test_drain_fill_and_the_way_back(run: Type) -> None:
    code, out, _ = run("drain --query orders --worker 2")
    assert code == 0, out
    workers = json.loads(run("workers --query orders --json")[1])["workers"]
    assert workers[2]["groups"] == []
    code, out, _ = run("drain --query orders --worker 2")
    assert code == 0 and "nothing to move" in out
    code, out, _ = run("fill --query orders --worker 2 --no-wait")
    assert code == 0
    name = out.strip()
    assert name.startswith("r-")
    code, out, err = run(f"cancel {name}")
    assert code in (0, 2)  # it may be over already
    assert name in out or "cannot be cancelled" in err


def test_auto_and_rules(run: Type) -> None:
    assert run("auto status --query orders")[1].startswith("orders: automatic balancing is off")
    until(lambda: "balancing is off" in run("auto status --query orders")[1].splitlines()[-1])  # what it decided last
    assert run("auto on --query orders --set start_ratio=500 --reason night")[1].startswith(
        "orders: automatic balancing is on"
    )
    code, out, _ = run("auto off --query orders --json")
    assert json.loads(out)["start_ratio"] == 500
    code, _, err = run("auto on --query orders --set start_ratio=0.1")
    assert code == 2 and err.startswith("trimtab: start_ratio = 0.1: is out of range.")
    code, _, err = run("auto on --query orders --set nonsense")
    assert code == 2 and "NAME=VALUE" in err
    assert run("pin --query orders --groups 1-2,5")[1].startswith("pinned groups: 1,2,5;")
    assert run("unpin --query orders --groups 1,2,5")[1].startswith("pinned groups: none;")
    assert "excluded workers: 1" in run("exclude --query orders --workers 1")[1]
    assert "excluded workers: none" in run("include --query orders --workers 1")[1]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("workers --query nobody", "query = 'nobody': is not known. There are: orders."),
        ("rebalance --query orders --from 0 --to 0 --groups 0", "to = 0: is the sender itself"),
        ("rebalance --query orders --from 0 --to 9 --groups 0", "to = 9: is not a worker of this query. Use a number"),
        ("rebalance --query orders --from 0 --to 1 --amount 250%", "amount = '250%': is out of range."),
        ("rebalance --query orders --strategy magic", "strategy = 'magic': is not known. Choose one of"),
        (
            "rebalance --query orders --from 0 --to 1 --groups 0 --max-pause soon",
            "max_pause = 'soon': is not a duration of up to an hour.",
        ),
        ("rebalance --query orders --expected-epoch 9999", "expected_epoch = 9999: is not the query's epoch"),
        ("drain --query orders --worker 7", "worker = 7: is not a worker of this query. Use a number from 0 to 2."),
        ("cancel m-0", "MIGRATION = 'm-0': is not known."),
        ("cancel m-0 --query orders", "MIGRATION = 'm-0': is not known."),
    ],
)
def test_mistakes_are_told_in_one_line(run: Type, command: str, words: str) -> None:
    code, out, err = run(command)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_keys(run: Type, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run("keys create --scope read --name watcher")
    assert code == 0
    key = out.strip()
    assert key.startswith("trimtab_") and "\n" not in key
    assert key not in err and "shown only once" in err
    monkeypatch.setenv("TRIMTAB_KEY", key)
    assert run("workers")[0] == 0
    code, _, err = run("auto on --query orders")
    assert code == 2 and "needs the scope operate" in err and "--scope operate" in err
    code, out, _ = run("keys list")
    assert "watcher" in out and key not in out
    assert all(each["name"] != "" for each in json.loads(run("keys list --json")[1]))
    code, out, _ = run("keys revoke watcher")
    assert code == 0 and "revoked" in out
    code, _, err = run("keys revoke watcher")
    assert code == 2 and "is not a key" in err
    assert run("keys create --scope root --name x")[0] == 2
    monkeypatch.setenv("TRIMTAB_KEY", "trimtab_nonsense")
    code, _, err = run("workers")
    assert code == 2 and "trimtab keys create" in err and "nonsense" not in err
    monkeypatch.delenv("TRIMTAB_KEY")
    code, _, err = run("workers")
    assert code == 2 and "The request has no key" in err
    monkeypatch.setenv("TRIMTAB_REDIS", "redis://:secret@127.0.0.1:1/0")
    code, _, err = run("keys list")
    assert code == 2 and "does not answer" in err and "secret" not in err


def test_a_server_that_is_not_there(run: Type) -> None:
    code, out, err = run("workers --url http://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert "Start it with `trimtab serve`" in err
    code, _, err = run("workers --url nowhere")
    assert code == 2 and "--url = 'nowhere'" in err
    code, _, err = run("workers --url http://me:canary@127.0.0.1:1")
    assert code == 2 and "has a user or a password" in err and "canary" not in err


def test_the_first_events_are_seen_at_once_in_a_pipe(run: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe's buffer would hold them back until the next event comes."""
    pipe = io.BytesIO()
    at_once: list[bytes] = []
    monkeypatch.setattr(reading, "_follow", lambda *arguments: at_once.append(pipe.getvalue()))
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", io.TextIOWrapper(pipe))
        main(["events", "--follow"])
    assert at_once[0].endswith(b"\n")


def test_events_are_followed(served: Served, run: Type, capsys: pytest.CaptureFixture[str]) -> None:
    """In a thread of its own, as Ctrl-C in another terminal would end it; here the test's end does."""
    thread = threading.Thread(target=main, args=(["events", "--follow", "--json"],), daemon=True)
    thread.start()
    output = ""
    deadline = time.monotonic() + 10
    client = Client(served.url, served.key("operate"))
    while '"kind": "rebalance"' not in output:
        assert time.monotonic() < deadline
        output += capsys.readouterr().out
        owners = [each["owner"] for each in client.get("/v1/queries/orders/partitions")["partitions"]]
        body = {"from": owners[0], "to": (owners[0] + 1) % 3, "groups": [0]}
        with contextlib.suppress(Refusal):  # it is under way from the last turn
            client.post("/v1/queries/orders/rebalances", body)
    client.close()
    events = [json.loads(line) for line in output.splitlines()]
    assert all(each["query"] == "orders" for each in events)


def answering(handler: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client("http://127.0.0.1:9", "k", transport=httpx.MockTransport(handler))


def test_a_server_that_is_not_ours() -> None:
    """Such as a login page of a proxy's."""
    client = answering(lambda request: httpx.Response(200, text="<html>hello"))
    with pytest.raises(RemoteFailure, match="does not answer like a Trimtab server"):
        client.get("/v1/queries")
    with pytest.raises(RemoteFailure, match="does not answer like a Trimtab server"):
        list(client.events("orders", None))


def test_a_server_that_is_restarted_while_a_rebalance_is_followed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal requests
        requests += 1
        if requests in (2, 3):
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json={"open": requests < 5, "migrations": []})

    assert follow(answering(answer), "orders", "r-1", sleep=lambda seconds: None)["open"] is False
    assert capsys.readouterr().out.count("the server does not answer") == 1

    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    monkeypatch.setattr("commands.remote.follow.AWAY_S", 0.0)
    with pytest.raises(RemoteFailure, match="r-1 continues without it"):
        follow(answering(away), "orders", "r-1", sleep=lambda seconds: None)


def test_a_change_is_sent_again_to_a_server_that_died_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        names.append(request.headers["Idempotency-Key"])
        if len(names) == 1:
            raise httpx.ReadError("reset")
        if len(names) == 2:
            raise httpx.ConnectError("refused")
        return httpx.Response(202, json={"id": "r-1"})

    monkeypatch.setattr("commands.remote.client.time.sleep", lambda seconds: None)
    assert answering(answer).post("/v1/queries/orders/rebalances", {}) == {"id": "r-1"}
    assert len(names) == 3 and len(set(names)) == 1


def test_every_line_of_a_long_story_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The record keeps the beginning and the newest lines."""
    lines = Lines()
    for length in range(1, 500, 7):
        story = [
            {"at_ms": at, "wave": 0, "step": 1, "message": f"s{at}", "state": "x", "note": ""} for at in range(length)
        ]
        kept = story[:20] + story[max(20, length - 280) :]
        lines.show({"id": "m", "steps": 8, "story": kept})
    names = [line.split()[3] for line in capsys.readouterr().out.splitlines() if line.startswith("m: ")]
    assert names == [f"s{at}" for at in range(498)]


def test_bars_on_a_terminal() -> None:
    out = io.StringIO()
    bars = Bars(Console(file=out, force_terminal=True, width=160))
    migration: dict[str, Any] = {
        "id": "m-1", "strategy": "ptlb", "from": 0, "to": 1, "groups": [], "amount": 0.25, "moved": [], "outcome": None,
        "waves": [], "eta_s": None, "message": None, "step": 0, "steps": 5, "progress": 0.0, "state": "new",
        "waits_for_event_time": False,
    }  # fmt: skip
    with bars:
        bars.show(migration)
        bars.show({**migration, "groups": [4, 9], "step": 3, "message": "DuplicatePartitions", "progress": 0.4})
        bars.show({**migration, "groups": [4, 9], "outcome": "committed", "progress": 1.0})
    assert "ptlb 0 -> 1 (4,9)" in out.getvalue() and "committed" in out.getvalue() and "100%" in out.getvalue()


def test_groups_as_typed() -> None:
    assert groups("4,9,17") == [4, 9, 17]
    assert groups("4-7, 9") == [4, 5, 6, 7, 9]
    for bad in ("", "a", "1,,2", "-3", "1-x", "0-99999"):
        with pytest.raises(Exception, match="numbers"):
            groups(bad)


def test_a_key_does_not_leave_in_the_open_unnoticed(capsys: pytest.CaptureFixture[str]) -> None:
    Client("http://example.org", "trimtab_x").close()
    errors = capsys.readouterr().err
    assert "without encryption" in errors and "trimtab_x" not in errors
    with pytest.raises(InvalidInput) as caught:
        Client("http://127.0.0.1", "bad\nkey")
    assert "bad" not in str(caught.value)


def test_words() -> None:
    assert (number(None), number(1234.5), number(1.25, 1)) == ("-", "1,234", "1.2")
    assert (percent(None), percent(0.5), percent(0.012), percent(0)) == ("-", "50%", "1.2%", "0%")
    assert numbers(list(range(20)), 3) == "0,1,2 and 17 more"
    assert event_line({"at_ms": 0, "kind": "step", "text": "x"}, "orders").endswith(" orders step: x")
    waiting: dict[str, Any] = {
        "outcome": None, "moved": [1], "groups": [1, 2, 3], "waves": [{}, {}], "eta_s": 4.2, "message": "Received",
        "step": 7, "steps": 8, "state": "receiving", "waits_for_event_time": False,
    }  # fmt: skip
    assert step_words(waiting) == "step 7/8 Received, 1 of 3 groups moved, about 4 s left"
    held_up = {**waiting, "waits_for_event_time": True, "eta_s": None}
    assert step_words(held_up) == "step 7/8 Received, 1 of 3 groups moved, waits for event time to advance"
    audit: dict[str, Any] = {
        "lost": 0, "doubled": 0, "unchecked_batches": 0, "problems": [], "finished": True, "clean": True,
    }  # fmt: skip
    assert audit_words(audit) == "lost 0, doubled 0"
    unchecked = {**audit, "unchecked_batches": 3, "clean": False}
    assert audit_words(unchecked) == "lost 0, doubled 0, 3 batches unchecked !"
    so_far = {**audit, "finished": False, "clean": False}
    assert audit_words(so_far) == "lost 0, doubled 0 so far" and not is_doubtful(so_far)
    assert audit_words({**so_far, "lost": 1}) == "lost 1, doubled 0 so far !" and is_doubtful({**so_far, "lost": 1})
    assert is_doubtful({**audit, "clean": False}), "a move was open, and nobody looked"
    auto = {"query": "orders", "enabled": True, "start_ratio": 1.2}
    assert auto_lines({**auto, "last_decision": None})[1:] == ["  start_ratio 1.2"]
    decided = auto_lines({**auto, "last_decision": {"at_ms": 0, "act": False, "why": "It is level."}})
    assert decided[1] == "  start_ratio 1.2" and decided[2].endswith("did nothing: It is level.")
    refused = {"id": "r-1", "state": "refused", "refusal": {"problem": "is stale", "remedy": "Ask again."}}
    assert summary(refused) == "r-1 refused: is stale. Ask again."
    nothing = {"moves": [], "findings": [{"text": "Group 3 is too hot."}], "forecast": {}}
    assert proposal_lines(nothing) == ["nothing to move", "note: Group 3 is too hot."]
    assert str(Refusal("", None, "gone", "Look again.", 404)) == "gone. Look again."
    assert isinstance(RemoteFailure("x"), Exception)
