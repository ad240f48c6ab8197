"""A Spark without Spark: offset log, commits, the production control source, split tasks and workers.

Batches are bound as in production: the control source is asked, its answer and the watermark are written to
`offsets/N`, split tasks and workers read them from there. State is versioned: an attempt works on a copy of what the
last committed batch left, and the copies of the winners count once all workers are done. A batch that is bound and not
committed is run again, with the same rows, by whichever driver comes next.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch

import redis

import split_union.control_source
import split_union.split
from split_union.control_source import ControlReader
from split_union.definition import claim_checkpoint
from split_union.query import JoinQuery
from split_union.session import worker_keys
from split_union.split import SplitTask
from tests.checkers.cluster import HeapState
from tests.simulator.files import MemoryFiles, transfer_store
from tests.simulator.shape import Row, Shape
from tests.simulator.workers import Assignment, Lingering, Workers
from trimtab import __version__, offset_log
from trimtab.epochs import Epoch
from trimtab.keys import CODE, GROUP
from trimtab.plan_orders import PlanOrder
from trimtab.store import Store
from worker.arriving import SCHEMA, WORKER_KEY
from worker.batch import BatchOutcome

QUERY: Final = "orders"
QUERY_ID: Final = "a-query"


class Fate(StrEnum):
    """Of an attempt that does not win."""

    DIES = "dies"
    """It has done everything but report and commit."""
    GIVEN_UP = "given-up"
    """It has reported, too."""
    LINGERS = "lingers"
    """It goes on to run and to report at some later time."""


@dataclass(frozen=True, kw_only=True)
class BatchFaults:
    """What goes wrong in one batch."""

    losers: tuple[tuple[int, Fate], ...] = ()
    """Attempts before the winner's: worker and fate."""
    unreported: tuple[int, ...] = ()
    """Workers whose winner cannot report."""
    rebuilt: tuple[int, ...] = ()
    """Workers that make nothing of their resident state."""
    elsewhere: tuple[int, ...] = ()
    """Workers that run on another executor from now on."""
    no_task: bool = False
    """The batch runs no task, if it has no rows."""
    order: int = 0
    """Which worker comes first."""


class FakeSpark:
    """One query's driver and executors. `batch()` runs one batch, step by step."""

    def __init__(
        self,
        directory: Path,
        shape: Shape,
        store: Store,
        files: MemoryFiles,
        now_ms: Callable[[], int],
        *,
        query: str = QUERY,
        tick_s: float = 10.0,
    ) -> None:
        self.shape, self.store, self.query = shape, store, query
        self.location = str(directory / "checkpoint")
        self.checkpoint = offset_log.Checkpoint(self.location)
        self.workers = Workers(query, shape, directory, files)
        self.committed = -1
        self.epochs: list[Epoch] = []
        """That each batch is bound to."""
        self.results: Counter[tuple[int, ...]] = Counter()
        self.on_time: dict[str, list[Row]] = {name: [] for name in shape.names}
        self.late = 0
        self.reader: ControlReader | None = None
        self.reports_lost = 0
        self.orders: dict[int, PlanOrder] = {}
        """The plan that each worker shall have from the next batch on: as if the epochs said so."""
        self.quick_polls = False
        """Redis is asked before every batch, however soon it comes."""
        self._now_ms, self._tick_s = now_ms, tick_s
        self._keys = worker_keys(shape.workers)
        self._backlog: dict[str, list[Row]] = {name: [] for name in shape.names}
        self._rows: list[Mapping[str, Sequence[Row]]] = []
        self._offsets: list[dict[str, Any]] = []
        self._orders: list[tuple[PlanOrder, ...]] = []
        """That each batch is bound to."""
        self._watermarks_us: list[int] = []
        self._newest_us: dict[str, int] = {}
        self._pending: dict[str, Any] | None = None
        self._run = self._attempts = 0
        self.checkpoint.write("metadata", json.dumps({"id": QUERY_ID}))

    # -- the driver

    def start(self) -> bool:
        """As `join` does; False where Redis does not answer."""
        shape = self.shape
        query = SimpleNamespace(name=self.query, owners=None, first_owners=shape.owners)
        body = {
            "window": shape.window_us,
            "lateness": shape.lateness_us,
            "partitions": shape.partitions,
            "workers": shape.workers,
        }
        try:
            epoch, _ = claim_checkpoint(cast(JoinQuery, query), body, self.location, self.store)
        except redis.RedisError:
            return False
        self._run += 1
        self._attempts = 0
        self.reader = ControlReader(
            query=self.query,
            checkpoint=self.location,
            redis_url=None,
            first=epoch.to_text(),
            workers=shape.workers,
            streams=tuple(shape.names),
            tick_s=self._tick_s,
        )
        self.reader._store = self.store
        return True

    def stop(self) -> None:
        """The driver ends, at any point of a batch."""
        self.reader = self._pending = None

    @property
    def bound(self) -> Epoch:
        return self.epochs[-1]

    def arrive(self, rows: Mapping[str, Sequence[Row]]) -> None:
        """Rows come in: the next batch that is bound has them."""
        for name, each in rows.items():
            self._backlog[name] += each

    def batch(self, faults: BatchFaults) -> Iterator[str]:
        """One batch; yields wherever others may act, or the driver may end."""
        if self.reader is None:
            if not self.start():
                return
            yield "started"
        number = self.committed + 1
        if len(self._offsets) == number:
            offset = self._pending or self._ask()
            yield "asked"
            self._bind(number, offset)
            yield "bound"
        wins: dict[int, tuple[HeapState, BatchOutcome]] = {}
        if not (faults.no_task and not any(self._rows[number].values())):
            inputs = self._split(number)
            for offset_of_worker in range(self.shape.workers):
                worker = (faults.order + offset_of_worker) % self.shape.workers
                for _ in self._losers(number, worker, inputs[worker], faults):
                    yield "lost"
                won = self._winner(number, worker, inputs[worker], faults)
                if won is None:
                    self.stop()
                    return
                wins[worker] = won
                yield "ran"
        self._commit(number, wins)
        yield "committed"
        # Spark asks on, and what differs from before is what the next batch is bound to.
        offset = self._ask()
        self._pending = offset if offset != self._offsets[-1] else None

    def linger(self, number: int) -> None:
        """One attempt that was given up goes on."""
        workers = self.workers
        if not workers.lingering:
            return
        zombie = workers.lingering.pop(number % len(workers.lingering))
        with _failing_tasks():
            _, report = workers.attempt(zombie.assignment, zombie.durable, self._now_ms())
            self._send(report)

    def strangers(self) -> Iterator[str]:
        """Rows that a worker has, as of its newest batch, of groups that it neither owns nor takes part in moving."""
        for worker, outcome in enumerate(self.workers.last):
            record = self.workers.durable[worker].record()
            if outcome is None or record is None or outcome.group_state_rows is None:
                continue
            for group in outcome.group_state_rows.nonzero()[0].tolist():
                if group not in record.groups:
                    yield f"batch {self.committed}: worker {worker} has rows of group {group} and no part in it"

    # -- binding

    def _ask(self) -> dict[str, Any]:
        assert self.reader is not None
        start = self._offsets[-1] if self._offsets else self.reader.initialOffset()
        if self.quick_polls:
            self.reader._polled_at = self.reader._quiet_until = -1.0
        with patch.object(split_union.control_source, "TransferStore", lambda *_: transfer_store(self.workers.files)):
            offset: dict[str, Any] = self.reader.latestOffset(start, cast(Any, None))
        self.reader.partitions(start, offset)
        return offset

    def _bind(self, number: int, offset: dict[str, Any]) -> None:
        watermark_ms = self._watermark_ms()
        lines = ["v1", json.dumps({"batchWatermarkMs": watermark_ms, "conf": {}}), json.dumps(offset)]
        self.checkpoint.write(f"offsets/{number}", "\n".join(lines))
        self._offsets.append(offset)
        self._orders.append(tuple(self.orders[worker] for worker in sorted(self.orders)))
        self._pending = None
        self._watermarks_us.append(watermark_ms * 1000)
        self._rows.append(self._backlog)
        self._backlog = {name: [] for name in self.shape.names}
        self.epochs.append(self.checkpoint.bound_epoch(number))

    def _watermark_ms(self) -> int:
        """Spark's: the least of the streams' newest times, less the lateness; it never goes back."""
        before = self._watermarks_us[-1] // 1000 if self._watermarks_us else 0
        newest = [self._newest_us.get(name) for name in self.shape.names]
        known = [0 if each is None else max(0, (each - self.shape.lateness_us) // 1000) for each in newest]
        return max(before, min(known))

    # -- running

    def _split(self, number: int) -> list[dict[str, list[Any]]]:
        """What each worker gets, by the production split task: one for each stream."""
        shape = self.shape
        arriving = ("key", "at", "id", GROUP, *((CODE,) if shape.text_keys else ()))
        inputs: list[dict[str, list[Any]]] = [{name: [] for name in SCHEMA.names} for _ in self._keys]
        for index, name in enumerate(shape.names):
            task = SplitTask(
                stream=index,
                name=name,
                arriving=arriving,
                key=shape.key,
                time="at",
                key_source=("key",),
                columns=("key", "at", "id"),
                checkpoint=self.location,
                worker_keys=self._keys,
                version=__version__,
            )
            rows = self._rows[number][name]
            with _as_task(number, partition=number + index):
                for sent in task([shape.table(rows)] if rows else []):
                    columns = sent.to_pydict()
                    for place, key in enumerate(columns[WORKER_KEY]):
                        for column, values in columns.items():
                            inputs[self._keys.index(key)][column].append(values[place])
        return inputs

    def _assignment(
        self, number: int, worker: int, arriving: Mapping[str, list[Any]], faults: BatchFaults
    ) -> Assignment:
        bound = offset_log.binding(self.location, QUERY_ID, number)
        if worker in faults.elsewhere:
            self.workers.executor[worker] = (self.workers.executor[worker] + 1) % self.shape.executors
        return Assignment(
            batch=number,
            worker=worker,
            epoch=replace(bound.epoch, plans=self._orders[number]) if self._orders[number] else bound.epoch,
            epoch_before=offset_log.epoch_before(self.location, QUERY_ID, number, bound.epoch),
            watermark_us=bound.watermark_us,
            watermark_before_us=self._watermarks_us[number - 1] if number else bound.watermark_us,
            arriving=arriving,
            run=f"run-{self._run}",
            attempt=self._next_attempt(),
            executor=self.workers.executor[worker],
            rebuild=worker in faults.rebuilt,
        )

    def _next_attempt(self) -> int:
        self._attempts += 1
        return self._attempts

    def _losers(
        self, number: int, worker: int, arriving: Mapping[str, list[Any]], faults: BatchFaults
    ) -> Iterator[None]:
        workers = self.workers
        for fate in (fate for loser, fate in faults.losers if loser == worker):
            assignment = self._assignment(number, worker, arriving, replace(faults, elsewhere=()))
            durable = workers.copy_of_state(worker)
            if fate == Fate.LINGERS:
                workers.lingering.append(Lingering(assignment, durable))
                continue
            with _failing_tasks():
                _, report = workers.attempt(assignment, durable, self._now_ms())
                if fate == Fate.GIVEN_UP:
                    self._send(report)
            yield

    def _winner(
        self, number: int, worker: int, arriving: Mapping[str, list[Any]], faults: BatchFaults
    ) -> tuple[HeapState, BatchOutcome] | None:
        """The attempt that counts; None where Spark gives the query up."""
        assignment = self._assignment(number, worker, arriving, faults)
        for attempt in range(self.shape.attempts):
            assignment = replace(assignment, attempt=self._next_attempt(), number=attempt)
            durable = self.workers.copy_of_state(worker)
            with _failing_tasks():
                outcome, report = self.workers.attempt(assignment, durable, self._now_ms())
                if worker not in faults.unreported:
                    self._send(report)
                return durable, outcome
        return None

    def _send(self, report: Any) -> None:
        try:
            self.store.report(report)
        except redis.RedisError:
            self.reports_lost += 1

    def _commit(self, number: int, wins: Mapping[int, tuple[HeapState, BatchOutcome]]) -> None:
        self.checkpoint.write(f"commits/{number}", "v1\n{}")
        self.committed = number
        for worker, (durable, outcome) in wins.items():
            self.workers.durable[worker] = durable
            self.workers.last[worker] = outcome
            self.results.update(self.workers.ids(outcome))
        late_us = self._watermarks_us[number - 1] if number else self._watermarks_us[0]
        for name, rows in self._rows[number].items():
            on_time = [row for row in rows if row[1] > late_us]
            self.on_time[name] += on_time
            self.late += len(rows) - len(on_time)
            if rows:
                self._newest_us[name] = max(self._newest_us.get(name, 0), *(row[1] for row in rows))


@contextmanager
def _failing_tasks() -> Iterator[None]:
    """A task whose store cannot be read fails, and Spark tries it again."""
    try:
        yield
    except OSError:
        return


@contextmanager
def _as_task(batch: int, partition: int) -> Iterator[None]:
    """Production code that asks Spark which task it is hears this."""
    properties = {"streaming.sql.batchId": str(batch), "sql.streaming.queryId": QUERY_ID}
    context = SimpleNamespace(getLocalProperty=properties.get, partitionId=lambda: partition)
    with patch.object(split_union.split, "TaskContext", SimpleNamespace(get=lambda: context)):
        yield
