"""Exact results after faults: each hits a batch that is running for certain (see `Gate`)."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from manager.embedded import EmbeddedManager
from tests.checkers.cases import IN_JOIN, Case, Theme, make_case
from tests.checkers.harness import Gate, Run, kill_tree, poll, python_workers
from tests.checkers.steered import QUICK
from trimtab.embedded import EmbeddedRedis
from trimtab.epochs import Epoch
from trimtab.moves import Kind, Move
from trimtab.offset_log import Checkpoint
from trimtab.store import Store
from worker.resident import local_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
FILES = 6


@pytest.fixture
def redis() -> Iterator[EmbeddedRedis]:
    """A server of the test's own, to be ill-treated."""
    with EmbeddedRedis() as server:
        yield server


class Running:
    """A three-way join that reads its files one by one, as the test hands them out."""

    def __init__(self, case: Case, base: Path, spark: SparkSession | None, redis: str, *, ahead: int = 2) -> None:
        self.case = case
        self.spark = spark
        self.run = Run(base, case.query, case.schemas)
        self.gate = Gate(base / "gate")
        self.store = Store(redis)
        self.query: StreamingQuery | None = None
        self._redis = redis
        self._files = {
            name: [rows for phase in case.phases for rows in phase[name]] for name in case.query.stream_names
        }
        self._handed = 0
        for _ in range(ahead):
            self.hand_out()

    def hand_out(self) -> None:
        for name, files in self._files.items():
            if self._handed < len(files):
                self.run.write(name, files[self._handed])
        self._handed += 1

    def start(self) -> StreamingQuery:
        assert self.spark is not None
        frames = self.run.inputs(self.spark)
        frames["A"] = self.gate.at("input", frames["A"])
        result = self.case.query.join(self.spark, frames, checkpoint=str(self.run.checkpoint), redis=self._redis)
        self.query = self.run.start(self.gate.at("output", result))
        return self.query

    def finish(self) -> None:
        """Hand out the rest, wait, stop, and compare with the oracle."""
        assert self.query is not None and self.spark is not None
        try:
            while self._handed < FILES:
                self.hand_out()
                self.query.processAllAvailable()
        finally:
            self.query.stop()
        self.run.check(self.spark, self.run.oracle(self.case.conditions), at_least=50)


def three_way(name: str, seed: int = 21, **changes: Any) -> Case:
    theme = Theme(key="string", streams=3, conditions=(IN_JOIN[0],), window="1 second", rows=100, **changes)
    return make_case(seed, theme, name)


def kill_python_workers(holder: psutil.Process) -> None:
    executor = holder.parents()[1]
    forks = python_workers(executor)
    assert holder in forks
    for fork in forks:
        fork.kill()


def test_python_workers_killed_before_the_join(spark: SparkSession, redis: EmbeddedRedis, tmp_path: Path) -> None:
    """At the input nothing is joined yet. Killed after the join, and executors killed: test_rebalance.py."""
    running = Running(three_way("killed-early"), tmp_path, spark, redis.url)
    query = running.start()
    query.processAllAvailable()
    sockets = executors_sockets(running.store, running.run.query.name)
    running.gate.shut("input")
    running.hand_out()
    with running.gate.holding("input", running.run, query) as batch:
        kill_python_workers(running.gate.holder("input"))
        assert not running.run.committed(batch)
    query.processAllAvailable()
    assert running.run.committed(batch)
    for _ in range(2):
        running.hand_out()
        query.processAllAvailable()
    # Nothing of the dead stays behind: no connection in the executors, no state but that of the last batch.
    assert executors_sockets(running.store, running.run.query.name) <= sockets + 4
    for worker, directories in resident_directories(running.store, running.run).items():
        assert [name.partition("-")[0] for name in directories] == ["ready"], (worker, directories)
    running.finish()


def executors_sockets(store: Store, query: str) -> int:
    """Of the executors' JVMs: fork, daemon, JVM."""
    executors = {psutil.Process(report.process).parents()[1] for report in store.reports(query).values()}
    return sum(len(executor.net_connections(kind="all")) for executor in executors)


def resident_directories(store: Store, run: Run) -> dict[int, list[str]]:
    found = {}
    for worker, report in store.reports(run.query.name).items():
        local = local_directory(psutil.Process(report.process).environ())
        home = local / "trimtab" / str(Checkpoint(str(run.checkpoint)).query_id()) / str(worker)
        found[worker] = sorted(path.name for path in home.iterdir())
    return found


def test_driver_killed_in_mid_batch(spark: SparkSession, redis: EmbeddedRedis, tmp_path: Path) -> None:
    """The whole driver tree dies in mid-batch and mid-migration, Redis forgets all; another driver and a manager that
    knows nothing but the offset log's epoch go on."""
    running = Running(three_way("driver"), tmp_path, spark, redis.url, ahead=FILES)
    script = ROOT / "tests" / "spark" / "driver_to_kill.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), redis.url],
        env=environment,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:

        def alive(done: Callable[[], bool]) -> Callable[[], bool]:
            def look() -> bool:
                assert driver.poll() is None, driver.stderr and driver.stderr.read()[-3000:]
                return done()

            return look

        poll(alive(lambda: running.run.committed(1)), "two batches of the other driver")
        first = Checkpoint(str(running.run.checkpoint)).bound_epoch(0)
        running.store.publish(first.successor(first.owners, moves=opening_moves(first)))
        poll(alive(lambda: bound_numbers(running.run)[-1] == 2), "a batch with open moves")
        running.gate.shut("output")
        poll(alive(lambda: running.gate.reached("output")), "a batch at the gate")
        batch = running.run.last_bound()
        kill_tree(psutil.Process(driver.pid))
        driver.communicate()
    running.gate.open("output")
    assert batch >= 2
    assert not running.run.committed(batch)
    bound = Checkpoint(str(running.run.checkpoint)).bound_epoch(batch)
    running.store.client.flushall()

    query = running.start()
    query.processAllAvailable()
    assert Checkpoint(str(running.run.checkpoint)).bound_epoch(batch) == bound
    assert running.store.epoch("driver", 2) == bound
    with EmbeddedManager(redis.url, QUICK):
        poll(lambda: "by-hand" not in open_migrations(running.run), "the end of the transfer")
        running.finish()


def opening_moves(epoch: Epoch) -> tuple[Move, ...]:
    """A transfer of worker 0's first group, and a parallel track of worker 1's, named as a manager would."""
    mine = [next(group for group, owner in enumerate(epoch.owners) if owner == worker) for worker in range(2)]
    number = epoch.number + 1
    return (
        Move(id="by-hand.w1", kind=Kind.TRANSFER, groups=(mine[0],), sender=0, receiver=1, epoch=number),
        Move(id="track.w1", kind=Kind.DUPLICATE, groups=(mine[1],), sender=1, receiver=0, epoch=number),
    )


def open_migrations(run: Run) -> set[str]:
    epoch = Checkpoint(str(run.checkpoint)).bound_epoch(run.last_bound())
    return {move.id.partition(".")[0] for move in epoch.moves}


def test_redis_gone_for_good(spark: SparkSession, redis: EmbeddedRedis, tmp_path: Path) -> None:
    running = Running(three_way("gone"), tmp_path, spark, redis.url)
    query = running.start()
    query.processAllAvailable()
    running.gate.shut("output")
    running.hand_out()
    with running.gate.holding("output", running.run, query):
        redis.stop()
    running.finish()


def assert_published(store: Store, epoch: Epoch) -> None:
    assert store.current_number(epoch.query) == epoch.number
    assert store.epoch(epoch.query, epoch.number) == epoch
    mapping = store.client.hgetall(f"trimtab:{{{epoch.query}}}:mapping")
    assert mapping == {str(group): str(owner) for group, owner in enumerate(epoch.owners)}


def bound_numbers(run: Run) -> list[int]:
    checkpoint = Checkpoint(str(run.checkpoint))
    return [checkpoint.bound_epoch(batch).number for batch in range(run.last_bound() + 1)]


def test_epochs_are_bound_one_by_one(spark: SparkSession, redis: EmbeddedRedis, tmp_path: Path) -> None:
    running = Running(three_way("epochs"), tmp_path, spark, redis.url)
    query = running.start()
    query.processAllAvailable()
    assert set(bound_numbers(running.run)) == {1}
    first = Checkpoint(str(running.run.checkpoint)).bound_epoch(0)
    second = first.successor(first.owners)
    running.store.publish(second)
    poll(lambda: bound_numbers(running.run)[-1] == 2, "epoch 2 in the offset log")
    running.hand_out()
    query.processAllAvailable()

    third = second.successor(second.owners)
    running.store.publish(third)
    running.store.publish(third.successor(third.owners))
    poll(lambda: bound_numbers(running.run)[-1] == 4, "epoch 4 in the offset log")

    # Follows by number and by nothing else: of an earlier life of the name, or of a manager that lost its lease.
    stray = replace(third.successor(third.owners).successor(third.owners), predecessor=first.digest)
    running.store.publish(stray)
    running.hand_out()
    query.processAllAvailable()
    numbers = bound_numbers(running.run)
    assert numbers[-1] == 4
    assert all(later - earlier in (0, 1) for earlier, later in itertools.pairwise(numbers)), numbers
    assert set(numbers) == {1, 2, 3, 4}
    running.finish()
    assert bound_numbers(running.run)[-1] == 4


def test_a_mapping_too_large_for_the_offset_log(spark: SparkSession, redis: EmbeddedRedis, tmp_path: Path) -> None:
    """20,000 partitions; the query also stops and goes on, since a restart has to find the text again."""
    running = Running(three_way("large", partitions=20_000), tmp_path, spark, redis.url)
    query = running.start()
    query.processAllAvailable()
    first = Checkpoint(str(running.run.checkpoint)).bound_epoch(0)
    assert len(first.owners) == 20_000
    assert len(first.to_text()) > 16_384
    assert max(path.stat().st_size for path in (running.run.checkpoint / "offsets").iterdir()) < 4096
    assert len(list((running.run.checkpoint / "trimtab" / "epochs").glob("*.json"))) == 1
    query.stop()
    assert running.spark is not None
    running.spark = running.spark.newSession()
    query = running.start()
    running.store.publish(first.successor(first.owners))
    poll(lambda: bound_numbers(running.run)[-1] == 2, "epoch 2 in the offset log")
    running.finish()
    assert_published(running.store, first.successor(first.owners))
    assert len(list((running.run.checkpoint / "trimtab" / "epochs").glob("*.json"))) == 2


def test_resident_state_survives_with_many_processes(tmp_path: Path) -> None:
    """Executors of two cores hand a worker's tasks to different Python processes, which find its state all the same."""
    script = ROOT / "tests" / "spark" / "resident_hit_rate.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["batches"] >= 17
    assert found["workers"] == 4
    assert found["tasks"] >= 17 * 4
    assert found["processes"] > 1
    assert found["hit_rate"] > 0.99, found
    assert found["rebuilds"] == [], found
