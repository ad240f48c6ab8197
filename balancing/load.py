"""The load model: what reports of committed batches say about groups, workers and executors, smoothed.

Three loads are kept: CPU (the default), rows and bytes of state (the one that PTLB/MSLB section 3.2 balances).

A worker costs something before it does anything: Python start-up, state-store calls, frames. Its report apportions that
fixed cost to its groups too, but it stays where it is when they go. So the fixed cost is estimated, as the intercept of
cpu = fixed + cost x work over all workers of the recent batches, and is kept apart from the load that can be moved.
A group's CPU is therefore what moves with it.

Rates are decayed sums of work over decayed sums of seconds: no start-up bias, and a long batch weighs what it lasts.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from balancing.pacing import budget
from balancing.smoothing import DecayedRates, FixedCost, Floats, Ratio
from balancing.words import Measure
from trimtab.epochs import Epoch
from trimtab.reports import WorkerReport

EXPORT_PHASE: Final = "pack"
IMPORT_PHASE: Final = "take in"
"""Names in `WorkerReport.phase_ns` under which a worker (worker/batch.py) counts packing and unpacking."""
HALF_LIFE_S: Final = 10.0
RECENT_BATCHES: Final = 31
"""Batches whose median counts as *the* batch time."""
REBUILDS_IGNORED: Final = 3
"""A worker that lost its resident state spends one batch on making it again; that is not load, unless it goes on."""
SILENT_BATCHES: Final = 3
"""A worker that was not heard of for so many batches counts as down, where the manager does not say."""
NS_PER_BYTE: Final = 40.0
"""Assumed cost of packing, and of unpacking, a byte of state until it was measured. More than has been seen (20 to 30
with the state store's share, benchmarks/rebalance.py): a wave that is too small costs less than one too large."""
NS_PER_WORK: Final = 500.0
"""Assumed cost of a row, a probe or a result until it was measured."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class WorkerLoad:
    """What was measured of one worker."""

    worker: int
    executor: str
    """Empty where no report was seen yet."""
    alive: bool
    cpu_ns_per_s: float
    """All of it, fixed cost included."""
    rows_per_s: float
    results_per_s: float
    state_bytes: int
    state_rows: int
    combined_rows: int
    batch: int
    """Of its newest report; -1 where there is none."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All that decisions are made from: one mapping, and the loads measured so far. Lists are indexed by number."""

    query: str
    incarnation: str
    epoch: int
    batch: int
    at_ms: int
    owners: tuple[int, ...]
    moving: Mapping[int, int]
    """Group -> worker it is on its way to. Such a group counts as being there already, and is left alone."""
    pinned: frozenset[int]
    """Groups that stay where they are."""
    excluded: frozenset[int]
    """Workers that take part in no balancing: they get nothing, and give only when drained by name."""
    workers: tuple[WorkerLoad, ...]
    group_cpu: tuple[float, ...]
    """Nanoseconds per second, without the worker's fixed cost."""
    group_rows: tuple[float, ...]
    """Per second."""
    group_bytes: tuple[float, ...]
    group_state_rows: tuple[float, ...]
    fixed_cpu_ns_per_s: float
    """What a worker costs that has nothing to do."""
    slots: Mapping[str, int]
    """Executor -> workers that it runs side by side, as far as seen: one where they share one Python process."""
    plans: Mapping[int, str] = field(default_factory=dict)
    """Worker -> the plan that it runs: a package has the states of the sender's."""
    ordered: Mapping[int, str] = field(default_factory=dict)
    """Worker -> the plan that the epoch orders: states that only it has are recomputed after a transfer."""
    plan_states: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Worker -> state of its plan, as "A B" -> live tuples."""
    batches: int = 0
    """With rows, measured since the mapping last changed."""
    batch_ms: float = 1000.0
    """Median."""
    window_s: float = 0.0
    lateness_s: float = 0.0
    event_time_rate: float = 1.0
    """Seconds of event time that the watermark advances per second; 0 where a stream is idle."""
    export_ns_per_byte: float = NS_PER_BYTE
    import_ns_per_byte: float = NS_PER_BYTE
    ns_per_work: float = NS_PER_WORK
    """Of a row, a probe or a result."""
    measured: frozenset[str] = frozenset()
    """Which of export, import, work and watermark are measured and not assumed."""

    def group_load(self, measure: Measure) -> Floats:
        column = {"cpu": self.group_cpu, "bytes": self.group_bytes, "rows": self.group_rows}[measure]
        return np.array(column, np.float64)

    def wave_bytes(self, max_pause_ms: float | None) -> int | None:
        """How much state an executor may ship at a time so that no batch takes too much longer."""
        return budget(
            max_pause_ms=max_pause_ms,
            median_batch_ms=self.batch_ms,
            # Workers measure packing and unpacking, not what Spark does with the bytes afterwards (changelog, commit):
            # what they say may make waves smaller than the assumption does, never larger.
            ns_per_byte=max(self.export_ns_per_byte, self.import_ns_per_byte, NS_PER_BYTE),
        )

    def placed(self) -> Ints:
        """The worker of each group once the open moves have ended."""
        owners = np.array(self.owners, np.int64)
        for group, receiver in self.moving.items():
            owners[group] = receiver
        return owners

    def base_load(self, measure: Measure) -> float:
        """Load of a worker that owns nothing."""
        return self.fixed_cpu_ns_per_s if measure == "cpu" else 0.0

    def worker_loads(self, measure: Measure, owners: Ints | None = None) -> Floats:
        """Load of each worker under `owners` (where the groups are going, if not given), fixed cost included."""
        owners = self.placed() if owners is None else owners
        moved = np.bincount(owners, weights=self.group_load(measure), minlength=len(self.workers))
        return np.asarray(moved + self.base_load(measure), np.float64)

    def executor_loads(self, measure: Measure, owners: Ints | None = None) -> dict[str, float]:
        loads: dict[str, float] = {}
        for worker, load in enumerate(self.worker_loads(measure, owners).tolist()):
            executor = self.executor_of(worker)
            loads[executor] = loads.get(executor, 0.0) + load
        return loads

    def executor_of(self, worker: int) -> str:
        """A worker that never reported is an executor of its own: nobody knows who shares it."""
        return self.workers[worker].executor or f"unknown-{worker}"

    def takes_part(self, worker: int) -> bool:
        """Whether policies may move groups from and to this worker."""
        return self.workers[worker].alive and worker not in self.excluded

    def movable(self, group: int) -> bool:
        return group not in self.pinned and group not in self.moving


@dataclass(frozen=True, kw_only=True)
class Context:
    """What the manager knows and reports do not say."""

    now_ms: int
    alive: Collection[int] | None = None
    """None: those that were heard of lately."""
    moving: Mapping[int, int] = field(default_factory=dict)
    """Of migrations that no epoch shows yet; open moves of the epoch are added."""
    pinned: Collection[int] = ()
    excluded: Collection[int] = ()
    window_s: float = 0.0
    lateness_s: float = 0.0


class LoadModel:
    """Takes in reports of committed batches in order; gives snapshots."""

    def __init__(self, *, partitions: int, workers: int, half_life_s: float = HALF_LIFE_S) -> None:
        self._partitions = partitions
        self._half_life_s = half_life_s
        self._group = DecayedRates(("cpu", "rows"), partitions)
        self._worker = DecayedRates(("cpu", "rows", "results"), workers)
        self._newest: list[WorkerReport | None] = [None] * workers
        self._group_bytes = np.zeros(partitions, np.float64)
        self._group_state_rows = np.zeros(partitions, np.float64)
        self._rebuilds = [0] * workers
        self._has_hit = [False] * workers
        self._cost = FixedCost()
        self._export = Ratio()
        self._import = Ratio()
        self._event_time = Ratio()
        self._watermark_us: int | None = None
        self._batch_s: deque[float] = deque(maxlen=RECENT_BATCHES)
        self._slots: dict[str, deque[int]] = {}
        self._batch = -1
        self._heard = [-1] * workers
        self._heard_batches = 0
        self._owners: tuple[int, ...] = ()
        self._batches = 0

    def add(
        self, reports: Mapping[int, WorkerReport], epoch: Epoch, *, span_s: float, batch_s: float | None = None
    ) -> bool:
        """Take in one committed batch, bound to `epoch`, that ended `span_s` after the one before it.

        Returns whether it counted: a batch without rows says nothing about load, nor does one without reports.
        """
        reports = {worker: report for worker, report in reports.items() if 0 <= worker < len(self._newest)}
        if not reports:
            return False
        if epoch.owners != self._owners:
            self._owners, self._batches = epoch.owners, 0
        self._note(reports)
        rows = sum(sum(report.rows.values()) for report in reports.values())
        if rows == 0 or span_s <= 0:
            return False
        decay = 0.5 ** (span_s / self._half_life_s)
        usable = {worker: report for worker, report in reports.items() if self._is_typical(report)}
        used = list(usable.values())
        self._cost.add([each.work for each in used], [joining_ns(each) for each in used], span_s, decay)
        self._add_workers(usable, span_s, decay)
        self._add_groups(usable, epoch, span_s, decay)
        self._add_watermark(reports, span_s, decay)
        self._batch_s.append(span_s if batch_s is None else batch_s)
        self._batches += 1
        return True

    def snapshot(self, epoch: Epoch, context: Context) -> Snapshot:
        """The loads under `epoch`, which may be newer than the last batch's."""
        moving = {**context.moving, **{group: move.destination for group, move in epoch.moving.items()}}
        measured = {"export": self._export, "import": self._import, "watermark": self._event_time}
        names = {name for name, ratio in measured.items() if ratio.known}
        return Snapshot(
            query=epoch.query,
            incarnation=epoch.incarnation,
            epoch=epoch.number,
            batch=self._batch,
            at_ms=context.now_ms,
            owners=epoch.owners,
            moving=moving,
            pinned=frozenset(context.pinned),
            excluded=frozenset(context.excluded),
            workers=tuple(self._worker_load(worker, context) for worker in range(len(self._newest))),
            group_cpu=tuple(self._group.rates("cpu").tolist()),
            group_rows=tuple(self._group.rates("rows").tolist()),
            group_bytes=tuple(self._group_bytes.tolist()),
            group_state_rows=tuple(self._group_state_rows.tolist()),
            fixed_cpu_ns_per_s=self._cost.fixed_ns_per_s,
            slots=self._slots_now(),
            plans={worker: report.plan for worker, report in enumerate(self._newest) if report is not None},
            ordered={order.worker: order.plan for order in epoch.plans},
            plan_states={
                worker: dict(report.plan_states) for worker, report in enumerate(self._newest) if report is not None
            },
            batches=self._batches if epoch.owners == self._owners else 0,
            batch_ms=1000 * statistics.median(self._batch_s) if self._batch_s else 1000.0,
            window_s=context.window_s,
            lateness_s=context.lateness_s,
            event_time_rate=self._event_time.value(1.0),
            export_ns_per_byte=self._export.value(NS_PER_BYTE),
            import_ns_per_byte=self._import.value(NS_PER_BYTE),
            ns_per_work=self._cost.ns_per_work or NS_PER_WORK,
            measured=frozenset(names | ({"work"} if self._cost.ns_per_work else set())),
        )

    def _note(self, reports: Mapping[int, WorkerReport]) -> None:
        """Levels: what the newest report says is what is so."""
        self._heard_batches += 1
        self._batch = max(self._batch, *(report.batch for report in reports.values()))
        processes: dict[str, set[int]] = {}
        state_bytes, state_rows = np.zeros(self._partitions), np.zeros(self._partitions)
        for worker, report in sorted(reports.items()):
            self._note_packages(report)
            self._newest[worker] = report
            self._heard[worker] = self._heard_batches
            processes.setdefault(report.executor, set()).add(report.process)
            self._rebuilds[worker] = 0 if report.resident == "hit" else self._rebuilds[worker] + 1
            self._has_hit[worker] |= report.resident == "hit"
            _raise(state_bytes, report.groups, report.group_bytes)
            _raise(state_rows, report.groups, report.group_state_rows)
        known = np.isin(np.array(self._owners), list(reports)) | (state_rows > 0)
        self._group_bytes[known] = state_bytes[known]
        self._group_state_rows[known] = state_rows[known]
        for executor, seen in processes.items():
            self._slots.setdefault(executor, deque(maxlen=RECENT_BATCHES)).append(len(seen))

    def _slots_now(self) -> dict[str, int]:
        executors = {report.executor for report in self._newest if report is not None}
        return {executor: statistics.median_low(self._slots[executor]) for executor in sorted(executors)}

    def _note_packages(self, report: WorkerReport) -> None:
        """What packing and unpacking cost for a byte. A report says both of the batch that did it, and of no other."""
        packed = sum(move.packed_bytes for move in report.moves)
        taken = sum(move.taken_bytes for move in report.moves)
        for ratio, phase, size in ((self._export, EXPORT_PHASE, packed), (self._import, IMPORT_PHASE, taken)):
            spent_ns = report.phase_ns.get(phase, 0)
            if size > 0 and spent_ns > 0:
                ratio.add(spent_ns, size, 0.5)

    def _is_typical(self, report: WorkerReport) -> bool:
        repeated = self._rebuilds[report.worker] > REBUILDS_IGNORED
        return report.resident == "hit" or repeated or not self._has_hit[report.worker]

    def _add_workers(self, reports: Mapping[int, WorkerReport], span_s: float, decay: float) -> None:
        covered = np.zeros(len(self._newest), np.bool_)
        amounts = {name: np.zeros(len(self._newest)) for name in ("cpu", "rows", "results")}
        for worker, report in reports.items():
            covered[worker] = True
            amounts["cpu"][worker] = joining_ns(report)
            amounts["rows"][worker] = sum(report.rows.values())
            amounts["results"][worker] = report.results
        self._worker.add(amounts, covered, span_s, decay)

    def _add_groups(self, reports: Mapping[int, WorkerReport], epoch: Epoch, span_s: float, decay: float) -> None:
        cpu, rows = np.zeros(self._partitions), np.zeros(self._partitions)
        for report in reports.values():
            total = sum(report.group_cpu_ns)
            if total > 0:
                moves_along = max(0.0, joining_ns(report) - self._cost.fixed_ns)
                _raise(cpu, report.groups, [share * moves_along / total for share in report.group_cpu_ns])
            _raise(rows, report.groups, report.group_rows)
        # A group counts only if all who may have had its rows were heard: a report that is lost is not an idle worker.
        heard = list(reports)
        covered = np.isin(np.array(epoch.owners), heard)
        for move in epoch.moves:
            if move.receiver not in reports:
                covered[list(move.groups)] = False
        self._group.add({"cpu": cpu, "rows": rows}, covered, span_s, decay)

    def _add_watermark(self, reports: Mapping[int, WorkerReport], span_s: float, decay: float) -> None:
        newest = max(report.watermark_us for report in reports.values())
        # A watermark of zero is none yet, and the first one leaps from there.
        if self._watermark_us is not None and self._watermark_us > 0:
            self._event_time.add(max(0, newest - self._watermark_us) / 1e6, span_s, decay)
        self._watermark_us = newest

    def _worker_load(self, worker: int, context: Context) -> WorkerLoad:
        report = self._newest[worker]
        if context.alive is not None:
            alive = worker in context.alive
        else:
            alive = report is not None and self._heard_batches - self._heard[worker] < SILENT_BATCHES
        return WorkerLoad(
            worker=worker,
            executor="" if report is None else report.executor,
            alive=alive,
            cpu_ns_per_s=self._worker.rate("cpu", worker),
            rows_per_s=self._worker.rate("rows", worker),
            results_per_s=self._worker.rate("results", worker),
            state_bytes=0 if report is None else report.state_bytes,
            state_rows=0 if report is None else report.state_rows,
            combined_rows=0 if report is None else report.combined_rows,
            batch=-1 if report is None else report.batch,
        )


def joining_ns(report: WorkerReport) -> int:
    """CPU of a batch without the packing of groups on the move, which is the balancer's own doing."""
    packing = report.phase_ns.get(EXPORT_PHASE, 0) + report.phase_ns.get(IMPORT_PHASE, 0)
    return max(0, report.cpu_ns - packing)


def _raise(column: Floats, groups: list[int], values: Sequence[float]) -> None:
    """Of two workers that have a group (duplicated, or frozen until its import is committed) the fuller counts."""
    column[groups] = np.maximum(column[groups], values)
