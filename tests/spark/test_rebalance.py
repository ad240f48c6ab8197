"""Groups move between real executors while rows arrive, and the results are the oracle's.

Starting a query costs more than moving groups in it: each test moves several, side by side where that is the point.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from balancing.requests import CancelRequest
from manager.embedded import EmbeddedManager
from tests.checkers.harness import poll
from tests.checkers.steered import PLANS, QUICK, Steered
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def redis() -> Iterator[EmbeddedRedis]:
    """A server of the test's own, to be ill-treated."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def manager(redis: EmbeddedRedis) -> Iterator[EmbeddedManager]:
    with EmbeddedManager(redis.url, QUICK) as embedded:
        yield embedded


def test_every_pair_there_and_back(
    spark: SparkSession, redis: EmbeddedRedis, manager: EmbeddedManager, tmp_path: Path
) -> None:
    """`(A B) C` here, `(B C) A` there, one multi-way operator elsewhere: all six ways by both protocols at once, steps
    of disjoint migrations sharing epochs; then every group back by the protocol that it did not come by."""
    join = Steered(tmp_path, spark, redis.url, "pairs", plan=PLANS).begun()
    ways = [(strategy, distance) for strategy in ("mslb", "ptlb") for distance in (1, 2)]
    there = {
        (strategy, worker, (worker + distance) % 3): [group]
        for worker in range(3)
        for (strategy, distance), group in zip(ways, join.owned(worker), strict=True)
    }
    records = join.move_all(manager, there)
    for strategy, last_step in (("mslb", 8), ("ptlb", 5)):
        story = next(record.story for record in records if record.strategy == strategy)
        assert [line.step for line in story if line.step] == list(range(1, last_step + 1))
    # What was left behind must not come up again.
    other = {"mslb": "ptlb", "ptlb": "mslb"}
    back = {(other[strategy], to, by): groups for (strategy, by, to), groups in there.items()}
    join.move_all(manager, back)
    assert join.shared_epochs
    join.finish()


def test_query_stopped_in_mid_migration(
    spark: SparkSession, redis: EmbeddedRedis, manager: EmbeddedManager, tmp_path: Path
) -> None:
    """Stopping never hangs; moves of each kind park, and go on with the query. One plan everywhere, several groups."""
    join = Steered(tmp_path, spark, redis.url, "parked").begun()
    asked = [
        join.ask(manager, "mslb", 0, 1, tuple(join.owned(0)[:2])),
        join.ask(manager, "ptlb", 2, 1, tuple(join.owned(2)[:2])),
    ]
    join.until(lambda: len(join.bound().moves) >= 2, "an epoch with both moves")
    assert join.running is not None
    join.running.stop()
    assert not join.running.isActive
    join.start()
    for each in asked:
        assert join.end_of(manager, each).state == "committed"
        join.check_audits(manager, each)
    join.finish()


def test_processes_killed_in_mid_migration(
    spark: SparkSession, redis: EmbeddedRedis, manager: EmbeddedManager, tmp_path: Path
) -> None:
    """The receivers' executor, then the senders' and a Python worker of the receiver: with a move of each kind open."""
    join = Steered(tmp_path, spark, redis.url, "killed", plan=PLANS, gated=True).begun()
    for victim in ("receiver", "sender"):
        sender = 0 if len(join.owned(0)) >= 3 else 1
        first, second, *_ = join.owned(sender)
        asked = [
            join.ask(manager, "mslb", sender, 2, (first,)),
            join.ask(manager, "ptlb", sender, 2, (second,)),
        ]
        join.until(lambda: len(join.bound().moves) == 2, "an epoch with both moves")
        doomed = [join.executor_of(2)] if victim == "receiver" else [join.executor_of(sender), join.process_of(2)]
        join.gate.shut("output")
        join.hand_out()
        with join.gate.holding("output", join.run, join.running) as batch:
            for process in doomed:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            assert not join.run.committed(batch)
        join.take_all()
        # What was killed had the resident state of its workers.
        assert "rebuild" in {report.resident for report in join.store.reports(join.name, batch).values()}
        for each in asked:
            assert join.end_of(manager, each).state in ("committed", "rolled-back")
    join.finish()


def test_redis_lost_in_mid_migration(spark: SparkSession, redis: EmbeddedRedis, tmp_path: Path) -> None:
    """Emptied while groups are on their way, then killed and started again: the epochs in the offset log are enough."""
    join = Steered(tmp_path, spark, redis.url, "forgetful").begun()
    with EmbeddedManager(redis.url, QUICK) as manager:
        for fault, strategy in (("emptied", "mslb"), ("killed", "ptlb")):
            join.ask(manager, strategy, 0, 2, (join.owned(0)[0],))
            join.until(lambda: join.bound().moves, "an epoch with the move")
            if fault == "emptied":
                join.store.client.flushall()
            else:
                redis.kill()
                join.advance()
                redis.start()
            join.until(lambda: not join.bound().moves, f"no open move, after Redis was {fault}")
    # Those of before are forgotten with the rest: the second time Redis was away, and came back empty.
    assert {"redis-went-back", "redis-away"} <= {alarm["kind"] for alarm in join.store.alarms(join.name)}
    bound = join.bound()
    assert join.store.epoch(join.name, bound.number) == bound
    definition = join.store.definition(join.name)
    assert definition is not None and definition["checkpoint"] == str(join.run.checkpoint)
    join.finish()


def test_manager_killed_at_a_step(spark: SparkSession, redis: EmbeddedRedis, tmp_path: Path) -> None:
    """Another manager finds the journal and ends the move (all 26 points: tests/simulation), with the same plan
    everywhere and every batch made from durable state alone."""
    join = Steered(tmp_path, spark, redis.url, "managers", rebuild=True).begun()
    script = ROOT / "tests" / "spark" / "manager_to_kill.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for point in ("after:mslb:3", "before:mslb:8", "before:ptlb:3", "after:ptlb:5"):
        poll(lambda: not join.store.client.exists(redis_keys.lease(join.name)), "no leader")
        with subprocess.Popen([sys.executable, str(script), redis.url, point], env=environment) as doomed:
            poll(lambda: join.store.client.exists(redis_keys.lease(join.name)), "a leader")
            with EmbeddedManager(redis.url, QUICK) as other:
                # The other one leads; this one hands the request in and stands by.
                sender = 0 if len(join.owned(0)) > 1 else 1
                asked = join.ask(other, point.split(":")[1], sender, 2, (join.owned(sender)[0],))
                join.until(lambda: doomed.poll() is not None, f"the death of the manager at {point}")
                assert doomed.returncode == 9
                assert join.end_of(other, asked).state == "committed"
                join.check_audits(other, asked)
    join.finish()


def test_cancelled_and_rolled_back(
    spark: SparkSession, redis: EmbeddedRedis, manager: EmbeddedManager, tmp_path: Path
) -> None:
    """A transfer store that takes nothing is refused before anything is opened. Moves of both protocols that are
    cancelled half-way go back, the transfer without its store: the owner is who it was."""
    join = Steered(tmp_path, spark, redis.url, "back", plan=PLANS).begun()
    owners = join.bound().owners
    store = join.run.checkpoint / "trimtab" / "transfers"
    store.touch()
    refused = join.ask(manager, "mslb", 1, 2, tuple(join.owned(1)[:1]))
    assert join.end_of(manager, refused).state == "rolled-back"
    assert not join.bound().moves
    events = manager.call(lambda each: each.newest_events(join.name, 200))
    assert any("cannot use the transfer store" in event.text for event in events if event.kind == "refused")
    store.unlink()
    asked = [
        join.ask(manager, "ptlb", 0, 1, tuple(join.owned(0)[:2])),
        join.ask(manager, "mslb", 1, 2, tuple(join.owned(1)[:1])),
    ]
    join.until(lambda: len(join.bound().moves) >= 2, "an epoch with both moves")
    for each in asked:
        manager.cancel(CancelRequest(id=f"cancel-{each}", query=join.name, rebalance=each, reason="test"))
    # It stays gone: the way back needs the two workers and nothing else.
    store.rename(store.with_name("gone"))
    store.touch()
    for each in asked:
        assert join.end_of(manager, each).state == "rolled-back"
    assert join.bound().owners == owners
    join.finish()
