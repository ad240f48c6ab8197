"""Commands about plans as the user types them, against a real server whose manager works on a plane without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from commands.cli import main
from commands.remote.planning import dry_lines, progress_lines, summary
from tests.checkers.served import Served, until
from tests.simulation.data_plane import DataPlane
from tests.unit.test_remote import RunningQuery, Type
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis
OLD = "((A B) C)"


@pytest.fixture(scope="module")
def plane() -> Iterator[DataPlane]:
    with EmbeddedRedis() as server:
        plane = DataPlane(server.url, streams="ABC", window=2)
        plane.rates |= {"B": 6}
        for _ in range(8):
            plane.step()
        yield plane


@pytest.fixture(scope="module")
def served(plane: DataPlane) -> Iterator[Served]:
    with Served(plane.store.url, manager=True) as running:
        until(lambda: plane.store.client.exists(redis_keys.planning("orders")) == 1, plane)
        query = RunningQuery(plane)
        yield running
        query.stop()


@pytest.fixture
def run(served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Type:
    monkeypatch.setenv("TRIMTAB_URL", served.url)
    monkeypatch.setenv("TRIMTAB_KEY", served.key("operate"))

    def typed(text: str, *more: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*text.split(), *more])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return typed


def test_plans(run: Type) -> None:
    code, out, _ = run("plans --query orders")
    lines = out.splitlines()
    assert code == 0 and lines[0].split()[:2] == ["worker", "plan"]
    assert lines[1].startswith("     0  ((A B) C)") and "A B: " in lines[1]
    assert any(line.startswith("worker 0: ") and f"instead of {OLD}" in line and "saves" in line for line in lines)
    code, out, _ = run("plans --json")
    assert code == 0 and len(json.loads(out)[0]["workers"]) == 3


def test_a_replan_with_its_steps_and_back(run: Type) -> None:
    code, out, _ = run("replan --query orders --worker 0 --dry-run")
    assert code == 0 and "instead of" in out and "strategy " in out
    code, out, _ = run("replan --query orders --worker 0 --strategy ms --reason test --plan", "((A C) B)")
    assert code == 0, out
    lines = out.splitlines()
    assert "Accept -> waiting (test)" in lines[0] and any("OrderPlan -> ordered" in line for line in lines)
    assert "committed: worker 0 runs ((A C) B) after" in lines[-1]
    code, out, err = run("replan --query orders --worker 0 --plan", "((A C) B)")
    assert code == 2 and "is what worker 0 has already" in err
    code, out, _ = run("replan --query orders --worker 0 --strategy hybmig --json --plan", OLD)
    assert code == 0 and json.loads(out)["state"] == "committed"


def test_cancel(run: Type, plane: DataPlane) -> None:
    plane.plays_orders, plane.followers[2] = True, replace(plane.followers[2], stands=True)
    code, out, _ = run("replan --query orders --worker 2 --no-wait --strategy hybmig --plan", "((A C) B)")
    name = out.strip()
    assert code == 0 and name.startswith("p-")
    code, out, _ = run(f"cancel {name} --reason slow")
    assert code == 0 and "trimtab plans --query orders" in out
    until(lambda: plane.followers[2].order in ("", f"{name}.p2") and plane.followers[2].plan == OLD)


def test_the_optimiser_on_live_statistics(run: Type) -> None:
    code, out, _ = run("plan --query orders --worker 1 --what-if rate.B=0.1 --what-if rate.C=50 --memory 300MB")
    assert code == 0 and "B 0.1/s" in out and "Not taken:" in out
    code, out, _ = run("plan --query orders --worker 1 --json --cpu 1.0")
    assert code == 0 and json.loads(out)["now"]["plan"] == OLD
    code, out, _ = run("plan --query orders --worker 1 --memory 1")
    assert code == 2 and "No plan qualifies" in out


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["plan"], "is not one thing to plan for"),
        (["plan", "x.yaml", "--query", "orders"], "is not one thing to plan for"),
        (["plan", "x.yaml", "--worker", "1"], "is for a running query"),
        (["plan", "--query", "orders"], "--worker = None: is missing"),
        (["plan", "--query", "orders", "--worker", "1", "--what-if", "B=5"], "is not a change of a rate"),
        (["plan", "--query", "orders", "--worker", "1", "--what-if", "rate.B=-5"], "is not a change of a rate"),
        (["plan", "--query", "orders", "--worker", "1", "--what-if", "rate.X=5"], "is not a stream"),
        (["plan", "--query", "orders", "--worker", "1", "--memory", "0MB"], "is not positive"),
        (["plan", "--query", "orders", "--worker", "7"], "is not a worker"),
        (["replan", "--query", "orders", "--worker", "1", "--plan", "((A B) A)"], "Name each stream once"),
        (["replan", "--query", "orders", "--worker", "1", "--plan", "(A B C)", "--budget", "0ms"], "is not a duration"),
        (["pin", "--query", "orders", "--groups", "1", "--plan"], "is not what can be pinned"),
        (["pin", "--query", "orders", "--workers", "1"], "is not what can be pinned"),
    ],
)
def test_bad_input(run: Type, typed: list[str], said: str) -> None:
    code, _, err = run("", *typed)
    assert code == 2 and said in err


def test_a_pinned_plan_stays(run: Type) -> None:
    code, out, _ = run("pin --query orders --workers 1 --plan")
    assert code == 0 and "workers with a pinned plan: 1" in out
    code, _, err = run("replan --query orders --worker 1 --plan", "(A B C)")
    assert code == 2 and "has a pinned plan" in err and "trimtab unpin --workers 1 --plan" in err
    code, out, _ = run("unpin --query orders --workers 1 --plan")
    assert code == 0 and "workers with a pinned plan: none" in out


def test_the_optimiser_is_switched_by_itself(run: Type) -> None:
    code, out, _ = run("auto on --query orders --plans --set plan_hold_s=3600")
    assert code == 0 and "automatic balancing is off, automatic planning is on" in out
    code, out, _ = run("auto off --query orders --plans")
    assert code == 0 and "automatic planning is off" in out


def test_lines_for_people() -> None:
    entry = {"at_ms": 1, "message": "Migrating", "state": "migrating", "note": ""}
    body: dict[str, Any] = {
        "id": "p", "state": "migrating", "story": [entry], "done": 1, "total": 4, "waits_for": "B",
        "worker": 1, "plan": "new", "former": "old", "problem": "why", "strategy": "ms", "refusal": None,
        "created_ms": 0, "closed_ms": 1500,
    }  # fmt: skip
    assert progress_lines(body) == ["p: Migrating -> migrating", "p: 25% of 4 tuples computed, waits for stream B"]
    assert summary({**body, "state": "cancelled"}) == "p cancelled: worker 1 runs old after 1.5 s (ms): why"
    refusal = {"problem": "bad", "remedy": "Mend it."}
    assert summary({**body, "state": "refused", "refusal": refusal}) == "p refused: bad. Mend it."
    assert "not known yet" in dry_lines({"worker": 1, "plan": "new", "change": None})[0]
