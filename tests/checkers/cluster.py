"""Several workers in one process, through `run_batch` as Spark would call it: routing, packages, replays and all.

What is not here is Spark: a batch's workers run one after the other, durable state is a dictionary, and a repeated
attempt starts from a copy of it.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from split_union.routing import Routes, routes_of
from split_union.split import Watcher
from trimtab import frames
from trimtab.epochs import first_epoch
from trimtab.errors import CorruptState
from trimtab.evidence import Evidence, Seen, Tally
from trimtab.keys import GROUP, KeySpec
from trimtab.moves import Kind, Move, Way
from trimtab.plan_orders import PlanOrder
from trimtab.reports import MoveReport
from worker import reference
from worker.batch import BatchInput, BatchOutcome, run_batch
from worker.durable import Record, parse_record
from worker.payload import DurableKey
from worker.resident import Residence
from worker.spec import JoinSpec, StreamSpec
from worker.transfers import TransferStore

TIME = pa.timestamp("us", tz="UTC")
Row = tuple[int, int, int]
"""Key, time, id."""


@dataclass
class HeapState:
    """A state store on the heap: what Spark's does."""

    rows_kept: dict[DurableKey, tuple[str, bytes]] = field(default_factory=dict)
    text: str | None = None

    def record(self) -> Record | None:
        return None if self.text is None else parse_record(self.text)

    def put_record(self, record: Record) -> None:
        self.text = record.to_text()

    def put_rows(self, key: DurableKey, stream: str, frame: bytes) -> None:
        assert key not in self.rows_kept, f"{key} is filed twice"
        self.rows_kept[key] = (stream, frame)

    def get_rows(self, key: DurableKey) -> tuple[str, bytes]:
        if key not in self.rows_kept:
            raise CorruptState(f"no rows {key}")
        return self.rows_kept[key]

    def has_rows(self, key: DurableKey) -> bool:
        return key in self.rows_kept

    def remove_rows(self, key: DurableKey) -> None:
        del self.rows_kept[key]

    def rows(self) -> Iterator[tuple[DurableKey, str, bytes]]:
        for key in sorted(self.rows_kept):
            yield key, *self.rows_kept[key]


class Cluster:
    """Workers with plans of their own, and the epochs that they are bound to.

    Every batch also runs from rebuilt state, on copies of everything: what it does must be the same.
    """

    def __init__(self, directory: Path, names: str, window: int, partitions: int, plans: Sequence[str]) -> None:
        self.names, self.partitions, self.plans = names, partitions, plans
        key = KeySpec(("key",), "exact")
        streams = tuple(StreamSpec(name, "at", key, ("key", "at", "id")) for name in names)
        self.spec = JoinSpec(streams, window, partitions)
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        self.transfers = TransferStore(str(self.checkpoint), b"key")
        self.durable = [HeapState() for _ in plans]
        self.epoch = first_epoch("query", "life", [group % len(plans) for group in range(partitions)])
        self.epoch_before = 0
        self.epoch_bound_before = 0
        """`epoch_before` of the last batch."""
        self.batch = 0
        self.watermark = 0
        self.on_time: dict[str, list[Row]] = {name: [] for name in names}
        self.got: list[tuple[int, ...]] = []
        self.last: list[BatchOutcome] = []
        self.checking = True
        """Whether every batch is compared with its twin: not where workers are damaged on purpose."""
        self.order: list[int] | None = None
        """In which order the workers run, where a step does not say."""
        self.clock: Callable[[], int] = time.perf_counter_ns
        """Tells workers how long background work takes."""
        self.seen: dict[int, Seen] = {}
        """What split tasks saw of moving groups in the last batch."""

    def publish(
        self,
        moves: Sequence[Move],
        owners: Mapping[int, int] | None = None,
        plans: Sequence[PlanOrder] | None = None,
    ) -> None:
        """The next epoch, to be bound with the next batch. Plan orders stay where none are given."""
        table = list(self.epoch.owners)
        for group, owner in (owners or {}).items():
            table[group] = owner
        self.epoch = self.epoch.successor(table, moves=moves, plans=plans)

    def move(self, name: str, kind: str, groups: Sequence[int], sender: int, receiver: int) -> Move:
        """A move that the next epoch opens."""
        number = self.epoch.number + 1
        return Move(id=name, kind=Kind(kind), groups=tuple(groups), sender=sender, receiver=receiver, epoch=number)

    def go_way(self, move: str, way: Way) -> None:
        """The next epoch, in which a transfer goes another way."""
        self.publish([replace(each, way=way) if each.id == move else each for each in self.moves])

    @property
    def moves(self) -> tuple[Move, ...]:
        return self.epoch.moves

    def step(
        self,
        rows: Mapping[str, Sequence[Row]],
        watermark: int,
        *,
        rebuild: Sequence[int] = (),
        repeated: Sequence[int] = (),
        zombies: Sequence[int] = (),
        order: Sequence[int] | None = None,
    ) -> list[BatchOutcome]:
        """One batch. Workers in `repeated` run once in vain before: an attempt that Spark lost. Those in `zombies` do
        so when the batch is over: an attempt that Spark gave up, and that does not know it."""
        late = self.watermark if self.batch else watermark
        routes = routes_of(self.epoch, self.epoch_before)
        outcomes: dict[int, BatchOutcome] = {}
        given_up = {worker: copy.deepcopy(self.durable[worker]) for worker in zombies}
        for worker in order or self.order or range(len(self.plans)):
            if worker in repeated:
                self._run(worker, copy.deepcopy(self.durable[worker]), rows, routes, watermark, rebuild)
            twin = self._run_twin(worker, rows, routes, watermark) if self.checking else None
            outcome = self._run(worker, self.durable[worker], rows, routes, watermark, rebuild)
            if self.checking:
                self._check_twin(self._view(outcome, self.durable[worker]), twin, worker)
            self.got += self.ids(outcome)
            outcomes[worker] = outcome
        for worker, durable in given_up.items():
            self._run(worker, durable, rows, routes, watermark, rebuild)
        self.last = [outcomes[worker] for worker in range(len(self.plans))]
        if self.checking:
            self._check_late(rows, routes, late)
        self.seen = self._seen_by_split(rows, late)
        for name, each in rows.items():
            self.on_time[name] += [row for row in each if row[1] > late]
        self.batch += 1
        self.watermark = watermark
        self.epoch_bound_before, self.epoch_before = self.epoch_before, self.epoch.number
        return self.last

    def skip(self, watermark: int) -> None:
        """A batch that runs no task at all."""
        self.batch += 1
        self.watermark = watermark
        self.epoch_before = self.epoch.number

    def _check_late(self, rows: Mapping[str, Sequence[Row]], routes: Routes, late: int) -> None:
        """Late rows are counted by whoever gets them, by the one rule, wherever their group is on its way."""
        for name, each in rows.items():
            groups = [self.group(row) for row in each if row[1] <= late]
            copies = sum(2 if routes.also[group] >= 0 else 1 for group in groups)
            assert sum(outcome.late.get(name, 0) for outcome in self.last) == copies, (self.batch, name)

    def _seen_by_split(self, rows: Mapping[str, Sequence[Row]], late: int) -> dict[int, Seen]:
        """What split tasks count of moving groups."""
        seen: dict[int, Seen] = {}
        for name, each in rows.items():
            watcher = Watcher(name, sorted(self.epoch.moving), self.partitions, late)
            if each:
                batch = frames.decode(self.frame(each))
                watcher.add(batch.column(GROUP), batch.column("at"))
            for group, counted in watcher.seen.items():
                seen[group] = seen.get(group, Seen()) + counted
        return seen

    def ids(self, outcome: BatchOutcome) -> Iterator[tuple[int, ...]]:
        for piece in outcome.pieces:
            yield from zip(*(piece.column(f"{name}_id").to_pylist() for name in self.names), strict=True)

    def _run_twin(self, worker: int, rows: Mapping[str, Sequence[Row]], routes: Routes, watermark: int) -> Any:
        """What the batch does from durable state alone, nothing of it being kept."""
        kept = self.directory, self.transfers
        with tempfile.TemporaryDirectory() as scratch:
            shadow = Path(scratch) / "checkpoint"
            if self.checkpoint.exists():
                shutil.copytree(self.checkpoint, shadow)
            self.directory, self.transfers = Path(scratch), TransferStore(str(shadow), b"key")
            durable = copy.deepcopy(self.durable[worker])
            try:
                outcome = self._run(worker, durable, rows, routes, watermark, [worker])
            finally:
                self.directory, self.transfers = kept
            return self._view(outcome, durable)

    def _check_twin(self, mine: Any, twin: Any, worker: int) -> None:
        for one, other in zip(mine, twin, strict=True):
            assert one == other, (self.batch, worker)

    def _view(self, outcome: BatchOutcome, durable: HeapState) -> Any:
        """All of a batch that must not depend on how its state was come by."""
        record = durable.record()
        assert record is not None
        # Chunks are cut and ordered otherwise: stamps, sizes, and how long a barrier is wanted may differ. Problems
        # name files, which lie elsewhere.
        roles = [replace(role, bytes=0, problem=str(bool(role.problem))) for role in record.roles]
        return (
            Counter(self.ids(outcome)),
            (outcome.state_rows, outcome.combined_rows),
            replace(record, stamp="", barriers={}, roles=roles),
            {report.move: _unnumbered(report.evidence) for report in outcome.moves},
        )

    def told(self, move: str, worker: int) -> MoveReport:
        """What the worker counted in the last batch, with the role as that batch has left it.

        A report has the role as the batch found it: what is seen here is what the next report will say.
        """
        report = self.report(move, worker)
        record = self.durable[worker].record()
        assert record is not None
        role = next(role for role in record.roles if role.move == move)
        return replace(
            report,
            state=role.state,
            rows=role.rows,
            bytes=role.bytes,
            digest=role.digest,
            held_rows=role.aside_rows.rows,
            newest_old_us=role.newest_old_us,
            newest_old_stream=role.newest_old_stream,
            problem=role.problem,
        )

    def report(self, move: str, worker: int) -> MoveReport:
        """As the worker sends it."""
        return next(report for report in self.last[worker].moves if report.move == move)

    def check(self) -> None:
        expected = Counter(reference.join(self.on_time, self.spec.window_us))
        got = Counter(self.got)
        missing, extra = expected - got, got - expected
        assert not missing and not extra, f"missing {missing.most_common(5)}, extra {extra.most_common(5)}"

    def _run(
        self,
        worker: int,
        durable: HeapState,
        rows: Mapping[str, Sequence[Row]],
        routes: Routes,
        watermark: int,
        rebuild: Sequence[int],
    ) -> BatchOutcome:
        frames_in: list[tuple[str, bytes]] = []
        for name, each in rows.items():
            mine = [row for row in each if worker in (routes.owner[self.group(row)], routes.also[self.group(row)])]
            if mine:
                frames_in.append((name, self.frame(mine)))
        given = BatchInput(
            batch=self.batch,
            worker=worker,
            epoch=self.epoch,
            epoch_before=self.epoch_before,
            watermark_us=watermark,
            watermark_before_us=lambda: self.watermark,
            frames=frames_in,
            plan=self.plans[worker],
            clock=self.clock,
            rebuild=worker in rebuild,
        )
        residence = Residence(self.directory, "query", worker)
        return run_batch(self.spec, given, durable, residence, self.transfers, self._schema())

    def group(self, row: Row) -> int:
        return row[0] % self.partitions

    def frame(self, rows: Sequence[Row]) -> bytes:
        columns = {
            "key": pa.array([row[0] for row in rows], pa.int64()),
            "at": pa.array([row[1] for row in rows], TIME),
            "id": pa.array([row[2] for row in rows], pa.int64()),
            GROUP: pa.array(np.array([self.group(row) for row in rows], np.int16)),
        }
        return bytes(frames.encode(pa.RecordBatch.from_pydict(columns)).to_pybytes())

    def _schema(self) -> pa.Schema:
        columns = (("key", pa.int64()), ("at", TIME), ("id", pa.int64()))
        return pa.schema([(f"{name}_{column}", kind) for name in self.names for column, kind in columns])


def _unnumbered(evidence: Evidence) -> Evidence:
    """Results are digested by the numbers of their rows, and a rebuild numbers rows anew."""
    expected, made = Tally(rows=evidence.sampled_expected.rows), Tally(rows=evidence.sampled_made.rows)
    return replace(evidence, sampled_expected=expected, sampled_made=made)
