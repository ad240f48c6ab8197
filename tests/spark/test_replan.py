"""Workers of a real query change their plans while groups move and processes die, and the results are the oracle's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from balancing.replans.requests import CancelReplan
from manager.embedded import EmbeddedManager
from tests.checkers.steered import PLANS, QUICK, Steered
from trimtab.embedded import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def redis() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def manager(redis: EmbeddedRedis) -> Iterator[EmbeddedManager]:
    with EmbeddedManager(redis.url, QUICK) as embedded:
        yield embedded


def test_plans_change_while_groups_move_and_an_executor_dies(
    spark: SparkSession, redis: EmbeddedRedis, manager: EmbeddedManager, tmp_path: Path
) -> None:
    """Each worker begins with a plan of its own and takes another's, by both strategies, beside moves by both protocols
    between them; then once more with an executor killed while the orders are at work."""
    join = Steered(tmp_path, spark, redis.url, "replanned", plan=PLANS, gated=True).begun()
    asked = {
        0: join.ask_plan(manager, 0, "((B C) A)", "hybmig", budget_ms=1),
        1: join.ask_plan(manager, 1, "((A C) B)", "ms", budget_ms=1),
        2: join.ask_plan(manager, 2, "(A (B C))", "hybmig"),
    }
    moves = [
        join.ask(manager, "ptlb", 0, 1, (join.owned(0)[0],)),
        join.ask(manager, "mslb", 1, 2, (join.owned(1)[0],)),
    ]
    for worker, name in asked.items():
        record = join.end_of_replan(manager, name)
        assert (record.state, record.problem) == ("committed", "")
        assert join.store.reports(join.name)[worker].plan == record.plan
    for name in moves:
        assert join.end_of(manager, name).state == "committed"
        join.check_audits(manager, name)

    again = {
        0: join.ask_plan(manager, 0, "((A B) C)", "hybmig", budget_ms=1),
        2: join.ask_plan(manager, 2, "(A B C)", "ms", budget_ms=1),
    }
    join.until(lambda: _ordered(join) >= {f"{name}.p1" for name in again.values()}, "an epoch with the orders")
    join.gate.shut("output")
    join.hand_out()
    with join.gate.holding("output", join.run, join.running) as batch:
        with suppress(psutil.NoSuchProcess):
            join.executor_of(0).kill()
        assert not join.run.committed(batch)
    join.take_all()
    for name in again.values():
        assert join.end_of_replan(manager, name).state == "committed"
    join.finish()


def _ordered(join: Steered) -> set[str]:
    return {order.id for order in join.bound().plans}


def test_a_change_that_is_taken_back(
    spark: SparkSession, redis: EmbeddedRedis, manager: EmbeddedManager, tmp_path: Path
) -> None:
    """The worker has the plan that the record says, whether it had the order by then or not; the query stopped, too."""
    join = Steered(tmp_path, spark, redis.url, "taken-back").begun()
    name = join.ask_plan(manager, 1, "((B C) A)", "hybmig", budget_ms=1)
    manager.cancel(CancelReplan(id=f"c-{name}", query=join.name, replan=name, reason="too slow", by="test"))
    assert join.running is not None
    join.running.stop()
    join.start()
    record = join.end_of_replan(manager, name)
    kept = {"cancelled": "((A B) C)", "committed": "((B C) A)"}[record.state]
    join.until(lambda: join.store.reports(join.name)[1].plan == kept, "the plan that the record says")
    join.finish()
