"""Production workers without Spark: durable state on the heap, attempts that win, lose or linger."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.checkers.cluster import HeapState
from tests.simulator.files import MemoryFiles, transfer_store
from tests.simulator.shape import Shape
from trimtab.epochs import Epoch
from trimtab.reports import WorkerReport
from worker.arriving import SplitCounts, read_rows
from worker.batch import BatchInput, BatchOutcome, run_batch
from worker.reporting import Attempt, worker_report
from worker.resident import Residence
from worker.transfers import insists

CPU_NS_PER_TUPLE: Final = 1_000_000
CPU_NS_FIXED: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What one worker is to do in one batch; several attempts may do it."""

    batch: int
    worker: int
    epoch: Epoch
    epoch_before: int
    watermark_us: int
    watermark_before_us: int
    arriving: Mapping[str, list[Any]]
    """Columns of what split tasks sent here."""
    run: str
    attempt: int
    """Spark's number, given when the attempt is launched."""
    executor: int
    number: int = 0
    """Among the attempts at the task, as Spark counts them."""
    rebuild: bool = False


@dataclass(frozen=True)
class Lingering:
    """An attempt that Spark has given up, and that does not know it."""

    assignment: Assignment
    durable: HeapState


class Workers:
    """The workers of one query, wherever they run."""

    def __init__(self, query: str, shape: Shape, directory: Path, files: MemoryFiles) -> None:
        self.query, self.shape, self.files = query, shape, files
        self.durable = [HeapState() for _ in range(shape.workers)]
        """As of the last committed batch."""
        self.executor = [worker % shape.executors for worker in range(shape.workers)]
        self.lingering: list[Lingering] = []
        self.last: list[BatchOutcome | None] = [None] * shape.workers
        """Of each worker, the outcome of its newest committed batch."""
        self._directory = directory
        self._time_ns = 0

    def copy_of_state(self, worker: int) -> HeapState:
        """What the worker's last committed batch left, for an attempt to work on."""
        committed = self.durable[worker]
        return HeapState(dict(committed.rows_kept), committed.text)

    def attempt(self, assignment: Assignment, durable: HeapState, at_ms: int) -> tuple[BatchOutcome, WorkerReport]:
        """Run the batch on this durable state, which is changed; what the attempt would report."""
        counts = SplitCounts()
        batch = BatchInput(
            batch=assignment.batch,
            worker=assignment.worker,
            epoch=assignment.epoch,
            epoch_before=assignment.epoch_before,
            watermark_us=assignment.watermark_us,
            watermark_before_us=lambda: assignment.watermark_before_us,
            frames=read_rows([assignment.arriving], self.shape.spec.names, counts),
            plan=self.shape.plans[assignment.worker],
            clock=self._tick,
            rebuild=assignment.rebuild,
        )
        residence = Residence(self._executor_directory(assignment.executor), self.query, assignment.worker)
        transfers = transfer_store(self.files, insists=insists(assignment.number, self.shape.attempts))
        outcome = run_batch(self.shape.spec, batch, durable, residence, transfers, self.shape.result_schema)
        load = outcome.load
        assert load is not None
        who = Attempt(
            query=self.query,
            attempt=assignment.attempt,
            executor=f"executor-{assignment.executor}",
            process=1,
            run=assignment.run,
            at_ms=at_ms,
            cpu_ns=CPU_NS_FIXED + CPU_NS_PER_TUPLE * int((load.rows + load.probes + load.results).sum()),
        )
        return outcome, worker_report(
            who, batch, outcome, counts, emitted=sum(piece.num_rows for piece in outcome.pieces)
        )

    def _tick(self) -> int:
        """How long background work takes: some pieces fit into a budget."""
        self._time_ns += 400_000
        return self._time_ns

    def kill_executor(self, executor: int) -> None:
        """What was resident there is gone."""
        shutil.rmtree(self._executor_directory(executor), ignore_errors=True)

    def _executor_directory(self, executor: int) -> Path:
        return self._directory / f"executor-{executor}"

    def ids(self, outcome: BatchOutcome) -> Iterator[tuple[int, ...]]:
        for piece in outcome.pieces:
            yield from zip(*(piece.column(f"{name}_id").to_pylist() for name in self.shape.names), strict=True)
