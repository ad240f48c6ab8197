"""Groups move between real executors while rows arrive, and the results are the oracle's."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from manager.embedded import EmbeddedManager
from manager.requests import CancelRequest
from tests.checkers.harness import poll
from tests.checkers.steered import PLANS, QUICK, Steered, check_audit
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis
from trimtab.moves import moves_of

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


def begun(tmp_path: Path, spark: SparkSession, redis: EmbeddedRedis, name: str, **more: object) -> Steered:
    join = Steered(tmp_path, spark, redis.url, name, **more)  # type: ignore[arg-type]
    join.start()
    for _ in range(3):
        join.advance()
    return join


def test_every_pair_there_and_back_with_plans_that_differ(
    spark: SparkSession, redis: EmbeddedRedis, manager: EmbeddedManager, tmp_path: Path
) -> None:
    """`(A B) C` here, `(B C) A` there, one multi-way operator elsewhere; one group or several; both protocols."""
    join = begun(tmp_path, spark, redis, "pairs", plan=PLANS)
    for sender, receiver in itertools.permutations(range(3), 2):
        first, second, *_ = join.owned(sender)
        join.move(manager, "mslb", sender, receiver, first, second)
    join.move(manager, "ptlb", 0, 1, join.owned(0)[0])
    join.move(manager, "ptlb", 1, 2, *join.owned(1)[:2])
    # There and back: what the first move left behind must not come up again.
    group = join.owned(2)[0]
    record = join.move(manager, "mslb", 2, 0, group)
    assert [entry["step"] for entry in record["story"] if entry["step"]] == list(range(1, 9))
    join.move(manager, "mslb", 0, 2, group)
    join.finish()


def test_moves_side_by_side_with_every_batch_rebuilt(
    spark: SparkSession, redis: EmbeddedRedis, manager: EmbeddedManager, tmp_path: Path
) -> None:
    """The same plan everywhere; steps of disjoint migrations share epochs; each batch is made from durable state."""
    join = begun(tmp_path, spark, redis, "rebuilt", rebuild=True)
    asked = [
        join.ask(manager, "mslb", 0, 1, share=0.5),
        join.ask(manager, "ptlb", 1, 2, (join.owned(1)[0],)),
        join.ask(manager, "mslb", 2, 0, (join.owned(2)[0], join.owned(2)[1])),
    ]
    shared = False
    for each in asked:
        while not join.ended(manager, each)():
            shared = shared or len(moves_of(join.bound())) > 1
            join.advance()
        outcome = manager.outcome(join.name, each)
        assert outcome is not None and outcome.state == "committed"
        check_audit(manager.migrations(join.name)[outcome.migrations[0]])
    assert shared
    join.finish()


@pytest.mark.parametrize("strategy", ["mslb", "ptlb"])
def test_processes_killed_in_mid_migration(
    strategy: str, spark: SparkSession, redis: EmbeddedRedis, manager: EmbeddedManager, tmp_path: Path
) -> None:
    """The executor of the receiver, then of the sender, then a Python worker, each in a batch with the move open."""
    join = begun(tmp_path, spark, redis, f"killed-{strategy}", plan=PLANS)
    for victim in ("receiver", "sender", "python"):
        sender, receiver = 0, 1
        if len(join.owned(0)) < 2:
            sender, receiver = 1, 0
        asked = join.ask(manager, strategy, sender, receiver, tuple(join.owned(sender)[:2]))
        join.until(lambda: moves_of(join.bound()), "an epoch with the move")
        worker = sender if victim == "sender" else receiver
        doomed = join.process_of(worker) if victim == "python" else join.executor_of(worker)
        join.gate.shut("output")
        join.hand_out()
        with join.gate.holding("output", join.run, join.running):
            doomed.kill()
        assert join.running is not None
        join.running.processAllAvailable()
        outcome = join.until(join.ended(manager, asked), f"the end of {asked}")
        assert outcome.state in ("committed", "rolled-back")
    join.finish()


def test_redis_lost_in_mid_migration(spark: SparkSession, redis: EmbeddedRedis, tmp_path: Path) -> None:
    """Emptied while groups are on their way, then killed and started again: the epochs in the offset log are enough."""
    join = begun(tmp_path, spark, redis, "forgetful")
    with EmbeddedManager(redis.url, QUICK) as manager:
        for fault in ("emptied", "killed"):
            sender = 0 if len(join.owned(0)) > 2 else 1
            join.ask(manager, "mslb", sender, 2, (join.owned(sender)[0],))
            join.until(lambda: moves_of(join.bound()), "an epoch with the move")
            if fault == "emptied":
                join.store.client.flushall()
            else:
                redis.kill()
                join.advance()
                redis.start()
            join.until(lambda: not moves_of(join.bound()), f"no open move, after Redis was {fault}")
    kinds = {alarm["kind"] for alarm in join.store.alarms(join.name)}
    assert "redis-went-back" in kinds
    join.finish()


@pytest.mark.parametrize("point", ["after:mslb:3", "before:mslb:8", "before:ptlb:3", "after:ptlb:5"])
def test_manager_killed_at_a_step(point: str, spark: SparkSession, redis: EmbeddedRedis, tmp_path: Path) -> None:
    """Another manager finds the journal and ends the move. The other 22 points: tests/simulation."""
    _, strategy, _ = point.split(":")
    join = begun(tmp_path, spark, redis, point.replace(":", "-"))
    script = ROOT / "tests" / "spark" / "manager_to_kill.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, str(script), redis.url, point], env=environment) as doomed:
        poll(lambda: join.store.client.exists(redis_keys.lease(join.name)), "a leader")
        with EmbeddedManager(redis.url, QUICK) as other:
            # The other one leads; this one hands the request in and stands by.
            asked = join.ask(other, strategy, 0, 2, (join.owned(0)[0],))
            join.until(lambda: doomed.poll() is not None, f"the death of the manager at {point}")
            assert doomed.returncode == 9
            outcome = join.until(join.ended(other, asked), f"the end of {asked}")
            assert outcome.state == "committed"
            check_audit(other.migrations(join.name)[outcome.migrations[0]])
    join.finish()


def test_cancelled_and_rolled_back(
    spark: SparkSession, redis: EmbeddedRedis, manager: EmbeddedManager, tmp_path: Path
) -> None:
    """Both protocols cancelled half-way, and a transfer store that takes nothing: the owner is who it was."""
    join = begun(tmp_path, spark, redis, "back", plan=PLANS)
    owners = join.bound().owners
    for strategy in ("ptlb", "mslb"):
        asked = join.ask(manager, strategy, 0, 1, tuple(join.owned(0)[:2]))
        join.until(lambda: moves_of(join.bound()), "an epoch with the move")
        manager.cancel(CancelRequest(id=f"c-{strategy}", query=join.name, rebalance=asked, reason="test"))
        outcome = join.until(join.ended(manager, asked), f"the end of {asked}")
        assert outcome.state in ("rolled-back", "committed")
        if strategy == "ptlb":
            assert outcome.state == "rolled-back"
            assert join.bound().owners == owners
    blocked = join.run.checkpoint / "trimtab" / "transfers"
    for path in sorted(blocked.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    if blocked.exists():
        blocked.rmdir()
    blocked.touch()
    owners = join.bound().owners
    sender = 0 if join.owned(0) else 1
    asked = join.ask(manager, "mslb", sender, 2, (join.owned(sender)[0],))
    join.until(lambda: "undo" in str(moves_of(join.bound())), "the way back")
    # The rows that waited cannot go back either, until there is room.
    join.advance()
    blocked.unlink()
    outcome = join.until(join.ended(manager, asked), f"the end of {asked}")
    assert outcome.state == "rolled-back"
    assert join.bound().owners == owners
    events = manager.call(lambda store: store.newest_events(join.name, 200))
    assert any("takes no package" in event.text for event in events)
    join.finish()
