"""A running join whose groups a manager moves, fed file by file: what tests of rebalancing on Spark are made of."""

from __future__ import annotations

import datetime
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa

from balancing.protocols.migration import Migration
from balancing.replans.replan import Replan
from balancing.replans.requests import ReplanRequest
from balancing.requests import MoveRequest, Rebalance, RebalanceRequest
from manager.embedded import EmbeddedManager
from manager.settings import ManagerSettings
from manager.store import now_ms
from tests.checkers.harness import Gate, Run
from tests.checkers.oracle import Row
from trimtab import JoinQuery, Stream
from trimtab.epochs import Epoch
from trimtab.offset_log import Checkpoint
from trimtab.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUICK = ManagerSettings(poll_s=0.02, discover_s=0.05, lease_ttl_s=1.5, lease_renew_s=0.4, snapshot_s=0.2)
SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int32())])
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
FILE_S = 1.0
"""Event time that a file covers; window and lateness are a second each."""
PLANS = {0: "((A B) C)", 1: "((B C) A)", 2: "(A B C)"}


class Steered:
    """One three-way join on real executors. Files are handed out by `advance`, so rows arrive while groups move."""

    def __init__(
        self,
        base: Path,
        spark: SparkSession,
        redis: str,
        name: str,
        *,
        plan: str | Mapping[int, str] = "left-deep",
        seed: int = 1,
        rebuild: bool = False,
        gated: bool = False,
    ) -> None:
        streams = tuple(Stream(s, key="k", time="at") for s in "ABC")
        self.query = JoinQuery(
            name=name,
            streams=streams,
            window="1 second",
            lateness="1 second",
            partitions=12,
            workers=3,
            plan=plan if isinstance(plan, str) else dict(plan),
        )
        self.run = Run(base, self.query, dict.fromkeys("ABC", SCHEMA))
        self.gate = Gate(base / "gate")
        self.store = Store(redis)
        self.redis = redis
        self.spark = spark
        self.running: StreamingQuery | None = None
        self.shared_epochs = False
        """Whether an epoch had moves of several migrations."""
        self._rebuild = rebuild
        self._gated = gated
        self._random = random.Random(seed)
        self._files = 0
        self._rows = 0
        for _ in range(2):
            self.hand_out()

    @property
    def name(self) -> str:
        return self.query.name

    def start(self) -> None:
        frames = self.run.inputs(self.spark)
        result = self.query.join(
            self.spark, frames, checkpoint=str(self.run.checkpoint), redis=self.redis, rebuild=self._rebuild
        )
        self.running = self.run.start(self.gate.at("output", result) if self._gated else result)

    def begun(self) -> Steered:
        """Running, with something in the window."""
        self.start()
        for _ in range(2):
            self.advance()
        return self

    def hand_out(self) -> None:
        """The next file of each stream."""
        for stream in "ABC":
            self.run.write(stream, [self._row() for _ in range(self._random.randrange(40, 70))])
        self._files += 1

    def _row(self) -> Row:
        self._rows += 1
        late = self._random.random() < 0.03
        offset_s = self._random.uniform(-6, -3) if late else self._random.uniform(-0.8, FILE_S)
        at = START + datetime.timedelta(seconds=self._files * FILE_S + offset_s)
        return {"id": self._rows, "k": self._random.randrange(48), "at": at, "n": self._random.randrange(10)}

    def advance(self) -> None:
        """Hand out a file of each stream and let the query take all there is, epochs included."""
        self.hand_out()
        self.take_all()

    def take_all(self) -> None:
        assert self.running is not None
        self.running.processAllAvailable()
        self.shared_epochs |= len({move.migration for move in self.bound().moves} - {""}) > 1

    def until(self, done: Callable[[], Any], what: str, files: int = 60) -> Any:
        for _ in range(files):
            result = done()
            if result:
                return result
            self.advance()
        raise AssertionError(f"not after {files} files: {what}")

    def bound(self) -> Epoch:
        return Checkpoint(str(self.run.checkpoint)).bound_epoch(self.run.last_bound())

    def owned(self, worker: int) -> list[int]:
        return [group for group, owner in enumerate(self.bound().owners) if owner == worker]

    def ask(
        self,
        manager: EmbeddedManager,
        strategy: Any,
        sender: int,
        receiver: int,
        groups: tuple[int, ...] = (),
        **more: Any,
    ) -> str:
        """Send a request to the manager; returns the rebalance's id."""
        move = MoveRequest(sender=sender, receiver=receiver, groups=groups, **more)
        name = f"t-{secrets.token_hex(4)}"
        request = RebalanceRequest(id=name, query=self.name, moves=(move,), strategy=strategy, at_ms=now_ms())
        manager.rebalance(request)
        return request.id

    def ended(self, manager: EmbeddedManager, rebalance: str) -> Callable[[], Rebalance | None]:
        def look() -> Rebalance | None:
            outcome = manager.outcome(self.name, rebalance)
            return outcome if outcome is not None and not outcome.open else None

        return look

    def end_of(self, manager: EmbeddedManager, rebalance: str) -> Rebalance:
        """Rows arrive until the rebalance has ended."""
        outcome: Rebalance = self.until(self.ended(manager, rebalance), f"the end of {rebalance}")
        return outcome

    def move_all(
        self, manager: EmbeddedManager, groups: Mapping[tuple[str, int, int], Sequence[int]]
    ) -> list[Migration]:
        """Move groups by (strategy, sender, receiver), all at once; returns the migrations' records."""
        names = [self.ask(manager, *way, tuple(each)) for way, each in groups.items()]
        records: list[Migration] = []
        for each in names:
            assert self.end_of(manager, each).state == "committed"
            records += self.check_audits(manager, each)
        owners = self.bound().owners
        assert all(owners[group] == receiver for (_, _, receiver), each in groups.items() for group in each)
        return records

    def ask_plan(self, manager: EmbeddedManager, worker: int, plan: str, strategy: str, budget_ms: int = 100) -> str:
        """Ask for another plan of a worker; returns the replan's id."""
        name = f"p-{secrets.token_hex(4)}"
        manager.replan(
            ReplanRequest(
                id=name,
                query=self.name,
                worker=worker,
                plan=plan,
                strategy=strategy,
                budget_ms=budget_ms,
                at_ms=now_ms(),
            )
        )
        return name

    def end_of_replan(self, manager: EmbeddedManager, replan: str) -> Replan:
        """Rows arrive until the worker has the plan, or has its old one back."""

        def look() -> Replan | None:
            record = manager.replanned(self.name, replan)
            return record if record is not None and record.done else None

        record: Replan = self.until(look, f"the end of {replan}")
        return record

    def check_audits(self, manager: EmbeddedManager, rebalance: str) -> list[Migration]:
        """The migrations' audits: nothing was lost or doubled, and some batches were checked."""
        outcome = manager.outcome(self.name, rebalance)
        assert outcome is not None
        migrations = manager.migrations(self.name)
        records = [migrations[name] for name in outcome.migrations]
        for record in records:
            audit = record.audit
            assert (audit.lost, audit.doubled, list(audit.problems)) == (0, 0, []), audit
            assert audit.checked_batches > 0, audit
        return records

    def process_of(self, worker: int) -> psutil.Process:
        """The Python worker that ran `worker` last."""
        return psutil.Process(self.store.reports(self.name)[worker].process)

    def executor_of(self, worker: int) -> psutil.Process:
        """The executor's JVM: fork, daemon, JVM."""
        executor = self.process_of(worker).parents()[1]
        assert "CoarseGrainedExecutorBackend" in " ".join(executor.cmdline())
        return executor

    def finish(self, at_least: int = 200) -> None:
        """Some more rows, stop, and compare with the oracle."""
        assert self.running is not None
        try:
            for _ in range(3):
                self.advance()
        finally:
            self.running.stop()
        self.run.check(self.spark, at_least=at_least)
