"""`trimtab top`: what it shows, its keys, and how it stays with a server that comes and goes."""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.cells import cell_len

from api.embedded import EmbeddedServer
from commands.cli import build_parser, main
from commands.remote.client import Client, Refusal, RemoteFailure
from commands.remote.top import top
from commands.remote.top_screen import SORTS, View, cut, ordered, plan_lines, screen, sparkline, text_of
from commands.remote.watching import Sight, Watching
from tests.checkers.served import Served, measured, until
from tests.simulation.data_plane import DataPlane
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis
Json = dict[str, Any]
HOSTILE = "\x1b[2J\u202eevil[/bold]\n"
NOW_MS = 1_767_225_600_000


def worker(number: int, share: float, **changes: Any) -> Json:
    plain: Json = {
        "worker": number,
        "executor": f"host-{number}",
        "up": True,
        "excluded": False,
        "groups": 2,
        "moving": 0,
        "share": share,
        "cpu_ms_per_s": 100.0 * share,
        "rows_per_s": 1000.0 * share,
        "results_per_s": 10.0,
        "state_rows": 100,
        "state_bytes": 1_000_000 * (number + 1),
        "combined_rows": 7,
        "late_rows": 0,
        "plan": "((A B) C)",
        "plan_states": [{"state": name, "rows": 10} for name in ("A", "B", "A B", "C")],
        "batch": 7,
        "resident": "hit",
    }
    return plain | changes


def move(**changes: Any) -> Json:
    plain: Json = {
        "id": "r-1-1",
        "strategy": "mslb",
        "from": 0,
        "to": 1,
        "groups": [0, 2],
        "amount": None,
        "moved": [],
        "waves": [],
        "step": 3,
        "steps": 8,
        "message": "DeactivatePartitions",
        "outcome": None,
        "eta_s": 4.2,
        "waits_for_event_time": False,
        "held_rows": 12,
        "copied_rows": 0,
        "created_ms": 1,
        "audit": {"lost": 0, "doubled": 0, "problems": [], "clean": False},
    }
    return plain | changes


def document(**changes: Any) -> Json:
    plain: Json = {
        "seq": 1,
        "at_ms": NOW_MS,
        "query": {
            "name": "orders",
            "running": True,
            "epoch": 12,
            "workers": 2,
            "workers_up": 2,
            "committed_batch": 7,
            "manager": {"leader": "host:1:ab", "fence": 1},
            "alarms": [],
        },
        "imbalance": {"ratio": 1.52, "measure": "cpu", "start_ratio": 1.2, "stop_ratio": 1.08, "auto": True},
        "why": {"text": "It rests for another 3.2 s.", "code": "cooling-down", "act": False},
        "workers": [worker(0, 0.2), worker(1, 0.8)],
        "owners": [0, 1, 0, 1],
        "loads": [1000.0, 5000.0, 1000.0, 3000.0],
        "moves": [],
        "batches": [[NOW_MS, 6, 800.0, 2000.0, 50.0, 1.5], [NOW_MS, 7, 400.0, 4000.0, 60.0, 1.5]],
        "events": [{"id": "1-0", "at_ms": NOW_MS, "kind": "leader", "text": "host leads", "data": {}}],
    }
    return plain | changes


def shown(body: Json, view: View | None = None, width: int = 120, height: int = 40, problem: str = "") -> str:
    lines = screen(Sight(body, problem), view or View(), width, height, NOW_MS + 5000)
    assert len(lines) <= height
    assert all(cell_len("".join(text for text, _ in line)) <= width for line in lines)
    return text_of(lines)


def test_the_front_page_in_a_terminal() -> None:
    text = shown(document(moves=[move(), move(id="r-0-1", outcome="committed", step=8, held_rows=0)]))
    assert "orders  running  epoch 12  batch 7  workers 2/2  leader host:1:ab  live" in text
    assert "imbalance 1.52 of cpu (acts from 1.2, until 1.08)  auto on  4,000 rows/s  60 results/s" in text
    assert "batch 400 ms █▃" in text or "batch 400 ms █▄" in text
    assert "why: It rests for another 3.2 s." in text
    assert "     1 host-1          2    80% ███████████████████·····      80.0       800       2.0" in text
    assert "MSLB 0 → 1 (2 groups) ■■■□□□□□ step 3/8 DeactivatePartitions, about 4 s left  12 rows held" in text
    assert "MSLB 0 → 1 (2 groups) ■■■■■■■■ committed" in text
    assert "leader: host leads" in text
    assert "AUDIT" not in text
    wrong = move(audit={"lost": 1, "doubled": 0, "problems": ["x"], "clean": False}, groups=[], amount=0.25)
    assert "(25% of the load)" in shown(document(moves=[wrong])) and "AUDIT: lost 1" in shown(document(moves=[wrong]))


def test_what_is_not_live_says_so() -> None:
    assert "NOT LIVE for 5 s: the server is away" in shown(document(), problem="the server is away")
    assert "connecting" in text_of(screen(Sight(None, "connecting"), View(), 80, 24, 0))
    stopped = document(query=document()["query"] | {"running": False, "manager": None, "alarms": [{}]})
    assert "STOPPED" in shown(stopped) and "leader none" in shown(stopped) and "alarms: 1" in shown(stopped)
    unknown = document(
        imbalance=document()["imbalance"] | {"ratio": None},
        loads=[],
        batches=[],
        workers=[worker(0, 0.0) | {"share": None}],
    )
    assert "imbalance - of cpu" in shown(unknown)
    assert "groups: 0,2" in shown(unknown, View(opened=0))


@pytest.mark.parametrize("width", [1, 10, 40, 200])
@pytest.mark.parametrize("height", [1, 3, 10, 100])
def test_any_size_of_terminal(width: int, height: int) -> None:
    body = document(moves=[move()] * 12, why={"text": "word " * 200, "act": True, "code": "act"})
    shown(body, View(), width, height)
    shown(body, View(opened=1), width, height)


def test_text_from_users_is_text() -> None:
    body = document(
        workers=[worker(0, 0.5, executor=HOSTILE, plan=HOSTILE, plan_states=[], resident=HOSTILE)],
        why={"text": HOSTILE, "code": "off", "act": False},
        moves=[move(message=HOSTILE)],
        events=[{"id": "1-0", "at_ms": NOW_MS, "kind": HOSTILE, "text": HOSTILE, "data": {}}],
        query=document()["query"] | {"name": HOSTILE, "manager": {"leader": HOSTILE, "fence": 1}},
    )
    for view in (View(), View(opened=0)):
        text = shown(body, view, problem=HOSTILE)
        assert "\x1b" not in text and "\u202e" not in text
        assert "\\x1b[2J\\u202eevil" in text


def test_keys() -> None:
    body, view = document(), View()
    assert [each["worker"] for each in ordered(body, "load")] == [1, 0]
    view = view.key("sort", body)
    assert view.sort == "load"
    view = view.key("up", body).key("down", body).key("down", body)
    assert view.chosen == 1
    opened = view.key("open", body)
    assert opened.opened == 0
    text = shown(body, opened)
    assert "worker 0 on executor host-0" in text and "groups: 2, hottest first" in text
    assert "├─ A B  10 rows" in text
    assert opened.key("back", body).opened is None
    assert View().key("open", None) == View()
    for _ in SORTS:
        view = view.key("sort", body)
        shown(body, view)
    assert view.sort == "load"


def test_small_things() -> None:
    assert plan_lines("(A B C)", [{"state": name, "rows": 1} for name in "ABC"])[0] == "  A B C  results"
    assert plan_lines("nonsense", []) == ["  nonsense"]
    assert (sparkline([]) == "" and sparkline([1.0, 8.0]) == "▁█") or sparkline([1.0, 8.0])[1] == "█"
    assert cut((("注文", ""), ("abc", "bold")), 5) == (("注文", ""), ("a", "bold"))


# -- against a real server


@pytest.fixture(scope="module")
def plane(server: EmbeddedRedis) -> DataPlane:
    plane = DataPlane(server.url)
    for _ in range(4):
        plane.step()
    measured(server.url)
    return plane


def test_it_stays_with_a_server_that_comes_back(plane: DataPlane, server: EmbeddedRedis) -> None:
    with Served(server.url) as served:
        key, url = served.key("read"), served.url
        watching = Watching(lambda: Client(url, key), "orders")
        watching.start()
        assert watching.first(20).problem == ""
        first = watching.sight.document
        assert first is not None and first["query"]["name"] == "orders"
    until(lambda: bool(watching.sight.problem))
    assert watching.sight.document is not None, "what was known stays on the screen"
    port = int(url.rpartition(":")[2])
    with EmbeddedServer(server.url, port=port, with_manager=False):
        until(lambda: not watching.sight.problem)
        plane.step()
        until(lambda: (watching.sight.document or {})["query"]["committed_batch"] == plane.committed)
        watching.end()


def test_a_wrong_key_is_told_at_once(plane: DataPlane, server: EmbeddedRedis) -> None:
    with Served(server.url) as served:
        for key, query in (("nonsense", "orders"), (served.key("read"), "nothing")):
            watching = Watching(lambda key=key: Client(served.url, key), query)  # type: ignore[misc]
            watching.start()
            with pytest.raises(Refusal):
                watching.first(20)
    unreachable = Watching(lambda: Client("http://127.0.0.1:1", None), "orders")
    unreachable.start()
    assert "does not answer" in unreachable.first(1.0).problem
    unreachable.end()


def test_a_pipe_and_json(
    plane: DataPlane, server: EmbeddedRedis, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served(server.url) as served:
        monkeypatch.setenv("TRIMTAB_URL", served.url)
        monkeypatch.setenv("TRIMTAB_KEY", served.key("read"))
        assert main(["top"]) == 0
        assert "orders  running" in capsys.readouterr().out
        assert main(["top", "--query", "orders", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["query"]["name"] == "orders"
        assert main(["top", "--query", "nothing"]) == 2


def test_a_real_terminal(plane: DataPlane, server: EmbeddedRedis) -> None:
    """Keys reach it, and it leaves the terminal as it was."""
    with Served(server.url) as served:
        ours, theirs = pty.openpty()
        environ = os.environ | {"TERM": "xterm", "TRIMTAB_URL": served.url, "TRIMTAB_KEY": served.key("read")}
        environ |= {"LINES": "40", "COLUMNS": "120", "LC_ALL": "C.UTF-8"}
        command = [sys.executable, "-m", "commands.cli", "top"]
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
        os.close(theirs)
        seen = b""

        def wait_for(text: bytes) -> None:
            nonlocal seen
            deadline = time.monotonic() + 60
            while text not in seen:
                assert time.monotonic() < deadline, seen[-2000:]
                if select.select([ours], [], [], 0.2)[0]:
                    seen += os.read(ours, 65536)
            seen = b""

        wait_for(b"sorted by worker")
        os.write(ours, b"s")
        wait_for(b"load")
        os.write(ours, b"\n")
        wait_for(b"plan")
        os.write(ours, b"\x1b")
        wait_for(b"executor")
        os.write(ours, b"q")
        assert process.wait(30) == 0
        os.close(ours)


def test_hostile_names_written_straight_into_redis(
    plane: DataPlane, server: EmbeddedRedis, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.store.client.sadd(redis_keys.QUERIES, HOSTILE)
    event = {"at_ms": 1, "kind": "step", "text": HOSTILE, "data": {}}
    plane.store.client.xadd(redis_keys.events("orders"), {"event": json.dumps(event)})
    try:
        with Served(server.url) as served:
            monkeypatch.setenv("TRIMTAB_URL", served.url)
            monkeypatch.setenv("TRIMTAB_KEY", served.key("read"))
            for command in (["queries"], ["events", "--query", "orders"], ["top", "--query", "orders"]):
                assert main(command) == 0
                out = capsys.readouterr().out
                assert "\x1b" not in out and "\u202e" not in out
            assert main(["workers", "--query", HOSTILE]) == 2
            assert "\x1b" not in capsys.readouterr().err
    finally:
        plane.store.client.srem(redis_keys.QUERIES, HOSTILE)


def test_a_query_that_cannot_be_asked_about_does_not_hide_the_others(
    plane: DataPlane, server: EmbeddedRedis, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody wrote a whole query into Redis, under a name that no path can have; it comes first in the list."""
    name = f"!{HOSTILE}/.."
    DataPlane(server.url, query=name).step()
    try:
        with Served(server.url) as served:
            monkeypatch.setenv("TRIMTAB_URL", served.url)
            monkeypatch.setenv("TRIMTAB_KEY", served.key("operate"))
            assert [each["name"] for each in Client(served.url, served.key("read")).get("/v1/queries")["queries"]] == [
                name,
                "orders",
            ]
            for command in (["workers"], ["partitions"], ["migrations"], ["events"], ["top"]):
                assert main(command) == 0
                assert (
                    "left out, not a name for a query: !\\x1b[2J\\u202eevil[/bold]\\x0a/.." in capsys.readouterr().err
                )
            assert main(["cancel", "r-1-1"]) == 2
            assert "'r-1-1': is not known" in capsys.readouterr().err
    finally:
        plane.store.client.srem(redis_keys.QUERIES, name)


def test_a_server_that_is_not_there_is_a_failure_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commands.remote.top.FIRST_S", 0.2)
    assert main(["top", "--query", "orders", "--url", "http://127.0.0.1:1"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and "does not answer" in printed.err


def test_every_command_that_prints_has_json() -> None:
    def leaves(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
        nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if not nested:
            yield name, parser
        for action in nested:
            for part, child in action.choices.items():
                yield from leaves(child, f"{name} {part}")

    without = {
        name
        for name, parser in leaves(build_parser(), "trimtab")
        if not any("--json" in action.option_strings for action in parser._actions)
    }
    # A server prints its log; the demo has a parser of its own, with --json FILE.
    assert without == {"trimtab serve", "trimtab demo"}


def test_no_query_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedRedis() as empty, Served(empty.url) as served:
        monkeypatch.setenv("TRIMTAB_KEY", served.key("read"))
        options = argparse.Namespace(url=served.url, key_file=None, query=None, json=False)
        with pytest.raises(RemoteFailure):
            top(options)
