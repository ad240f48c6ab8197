"""What a leader has seen of its query since it began to lead, for whoever watches it (manager.collecting).

Nothing is decided from what is kept here, and nothing here touches Redis: the runner tells it, in passing, what it has
seen and done. Counts of rows, CPU and bytes are those of reports that the following batch has confirmed
(`CommittedBatch.previous`), so that an attempt that lost never counts. A new leader begins at zero.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np

from balancing.audit import MigrationAudit
from balancing.committed import CommittedBatch
from balancing.instructions import Instruction, Write
from balancing.load import Snapshot
from balancing.protocols.migration import Migration, StoryLine
from balancing.replans.replan import Replan
from balancing.requests import Rebalance
from balancing.settings import Settings
from balancing.steering import Steering
from balancing.triggers import Decision, largest_ratio
from manager import metrics
from manager.metrics import OTHER, Family
from manager.outcomes import Outcome, OutcomeNote
from manager.pauses import Pauses
from manager.store import Heartbeat
from manager.tally import Distribution, StepTimes, Tally
from trimtab.moves import Kind, Side
from trimtab.reports import WorkerReport

log = logging.getLogger("trimtab.manager")

ENDED_KEPT: Final = 4_096
"""Of migrations and rebalances that were counted: a record that is written again does not count again."""

Told = ParamSpec("Told")
Kept = TypeVar("Kept")


def harmless(method: Callable[Told, None]) -> Callable[Told, None]:
    """It never fails the turn: moves matter, figures do not. Its first error is logged."""
    failed = False

    @wraps(method)
    def guarded(*args: Told.args, **kwargs: Told.kwargs) -> None:
        nonlocal failed
        try:
            method(*args, **kwargs)
        except Exception:
            if not failed:
                log.exception("metrics are incomplete")
            failed = True

    return guarded


@dataclass(frozen=True, kw_only=True)
class LoadPicture:
    """The load as the triggers see it, after one batch."""

    ratio: float
    settings: Settings
    worker_ratios: tuple[float, ...]
    """Each worker's load over the mean."""
    group_counts: tuple[int, ...]
    """Groups with at most so much load, by `metrics.GROUP_LOAD_BUCKETS`; last, all of them."""
    group_sum: float


class Observed:
    """Sums and levels of one query under one leader."""

    def __init__(self) -> None:
        self.led = 0
        """How often this instance began to lead."""
        self._begin(-1)

    def _begin(self, committed: int) -> None:
        self.tally = Tally()
        self.steps = StepTimes()
        self.batches = Distribution(metrics.BATCH_BUCKETS)
        self.compared_newest: tuple[Outcome, Outcome] | None = None
        """Forecast and outcome of the rebalance that was measured last."""
        self._forecasts: dict[str, Outcome] = {}
        self.load: LoadPicture | None = None
        self.decision: Decision | None = None
        self._pauses = Pauses()
        self._counted = committed - 1
        """The newest batch whose reports are counted, or were by an earlier leader."""
        self._incarnation = ""
        self._measured_batch = -1
        self._plans: dict[int, str] = {}
        self._stories: dict[str, tuple[StoryLine | None, bool]] = {}
        """Migration -> the newest line of its story that is counted, and whether its end is."""
        self._audits: dict[str, MigrationAudit] = {}
        self._closed: dict[str, None] = {}
        """Rebalances and changes of plans whose end is counted."""
        self._alarms: tuple[tuple[int, str], ...] = ()
        """When, and of which kind."""

    # -- what the runner tells

    def leads(self, committed: int) -> None:
        """The lease is ours. `committed`: the newest batch, -1 for none."""
        self.led += 1
        self._begin(committed)

    @harmless
    def saw(self, batches: Iterable[CommittedBatch]) -> None:
        """Batches that were committed; what the one before each of them did is certain now."""
        for batch in batches:
            if batch.bound.incarnation != self._incarnation:
                if self._incarnation:
                    self._counted = -1
                self._incarnation = batch.bound.incarnation
            confirmed = batch.previous
            if confirmed is not None and confirmed.batch > self._counted:
                self._counted = confirmed.batch
                for report in confirmed.reports.values():
                    self._count_report(confirmed, report)

    @harmless
    def told(self, heartbeat: Heartbeat | None, *, moving: bool) -> None:
        """What the driver says about its newest batch."""
        if heartbeat is None or heartbeat.batch_ms is None or heartbeat.progress_batch == self._measured_batch:
            return
        self._measured_batch = heartbeat.progress_batch
        seconds = heartbeat.batch_ms / 1000
        self.batches.add(seconds)
        self.tally.add(metrics.PAUSE, self._pauses.add(seconds, moving=moving))

    @harmless
    def weighed(self, snapshot: Snapshot | None, settings: Settings) -> None:
        """The load was measured anew."""
        if snapshot is not None:
            self.load = picture_of(snapshot, settings)

    @harmless
    def compared(self, notes: Sequence[OutcomeNote]) -> None:
        """Forecasts of rebalances, and what was measured of them."""
        for note in notes:
            if note.kind == "forecast":
                _keep(self._forecasts, note.rebalance, note.outcome)
            elif (forecast := self._forecasts.pop(note.rebalance, None)) is not None:
                self.compared_newest = (forecast, note.outcome)

    @harmless
    def knows(self, steering: Steering) -> None:
        """The journal was read: what an earlier leader wrote is not counted here."""
        for migration in (*steering.ended, *steering.migrations):
            if migration.id in self._stories:
                # Ours, and the answer to the write was lost.
                self._count_migration(migration)
            else:
                self._note(migration)
        for replan in steering.ended_replans:
            _keep(self._closed, replan.id, None)

    @harmless
    def did(self, instruction: Instruction) -> None:
        """An instruction of steering was executed: it is durable now."""
        if not isinstance(instruction, Write):
            return
        for notice in instruction.events:
            self._add(metrics.EVENTS, notice.kind, metrics.EVENT_KINDS)
        if instruction.decision is not None:
            self.decision = instruction.decision
            self.tally.add(metrics.DECISIONS, 1, instruction.decision.code)
        for migration in instruction.migrations:
            self._count_migration(migration)
        for rebalance in instruction.rebalances:
            self._count_rebalance(rebalance)
        for replan in instruction.replans:
            self._count_replan(replan)

    @harmless
    def alarmed(self, alarms: Sequence[Mapping[str, Any]]) -> None:
        """All alarms that Redis keeps, whoever raised them."""
        known = metrics.ALARM_KINDS
        self._alarms = tuple(
            (int(each["at_ms"]), kind if (kind := str(each["kind"])) in known else OTHER) for each in alarms
        )

    def alarms_recent(self, now_ms: int) -> Counter[str]:
        """How many were raised lately, by kind."""
        return Counter(kind for at_ms, kind in self._alarms if at_ms > now_ms - metrics.ALARMS_RECENT_MS)

    # -- counting

    def _add(self, family: Family, label: str, known: tuple[str, ...]) -> None:
        self.tally.add(family, 1, label if label in known else OTHER)

    def _count_report(self, batch: CommittedBatch, report: WorkerReport) -> None:
        worker, add = str(report.worker), self.tally.add
        add(metrics.WORKER_ROWS, sum(report.rows.values()), worker)
        add(metrics.WORKER_RESULTS, report.results, worker)
        add(metrics.WORKER_LATE, sum(report.late_rows.values()), worker)
        add(metrics.WORKER_BAD, sum(report.bad_rows.values()), worker)
        add(metrics.WORKER_CPU, report.cpu_ns / 1e9, worker)
        add(metrics.WORKER_BATCHES, 1, worker, report.resident)
        if self._plans.get(report.worker, report.plan) != report.plan:
            add(metrics.WORKER_PLAN_CHANGES, 1, worker)
        self._plans[report.worker] = report.plan
        for move in report.moves:
            add(metrics.PACKAGE_BYTES, move.packed_bytes, "packed")
            add(metrics.PACKAGE_BYTES, move.taken_bytes, "taken-in")
            declared = batch.open_moves.get(move.move)
            if declared is not None and declared.kind == Kind.DUPLICATE and move.side == Side.RECEIVER:
                add(metrics.DUPLICATED, sum(move.arrived.values()))

    def _note(self, migration: Migration) -> None:
        line = migration.story[-1] if migration.story else None
        _keep(self._stories, migration.id, (line, migration.done))
        _keep(self._audits, migration.id, migration.audit)

    def _count_migration(self, migration: Migration) -> None:
        before, was_done = self._stories.get(migration.id, (None, False))
        self._count_audit(self._audits.get(migration.id, MigrationAudit()), migration.audit)
        line = migration.story[-1] if migration.story else None
        if line is not None and line != before:
            self._count_step(migration, line)
            if line.message in metrics.STORE_FAILURES:
                self.tally.add(metrics.STORE_FAILED, 1, metrics.STORE_FAILURES[line.message])
        if migration.done and not was_done:
            self.tally.add(metrics.MIGRATIONS, 1, migration.strategy, migration.outcome)
        self._note(migration)

    def _count_step(self, migration: Migration, line: StoryLine) -> None:
        """The time since the line before it in the same wave; a first wave goes on from what was before all waves."""
        waves = (line.wave, 0) if line.wave == 1 else (line.wave,)
        before = next((each for each in reversed(migration.story[:-1]) if each.wave in waves), None)
        step = None if before is None else metrics.STEPS[migration.strategy].get(before.state)
        if before is not None and step is not None:
            seconds = max(0.0, (line.at_ms - before.at_ms) / 1000)
            self.steps.add((migration.strategy, step), seconds, left=line.state != before.state)

    def _count_audit(self, before: MigrationAudit, after: MigrationAudit) -> None:
        for family, name in (
            (metrics.AUDIT_LOST, "lost"),
            (metrics.AUDIT_DOUBLED, "doubled"),
            (metrics.AUDIT_CHECKED, "checked_rows"),
            (metrics.AUDIT_UNCHECKED, "unchecked_batches"),
        ):
            self.tally.add(family, max(0, getattr(after, name) - getattr(before, name)))
        self.tally.add(metrics.AUDIT_PROBLEMS, max(0, len(after.problems) - len(before.problems)))

    def _count_rebalance(self, rebalance: Rebalance) -> None:
        if rebalance.open or rebalance.id in self._closed:
            return
        _keep(self._closed, rebalance.id, None)
        self.tally.add(metrics.REBALANCES, 1, "balancer" if rebalance.automatic else "operator", rebalance.state)
        if rebalance.refusal is not None:
            # "moves[0].sender" is about the sender, whichever move it is of.
            field = str(rebalance.refusal.get("field", "")).rpartition(".")[2].partition("[")[0]
            self._add(metrics.REFUSALS, field, metrics.REFUSED_FIELDS)

    def _count_replan(self, replan: Replan) -> None:
        if not replan.done or replan.id in self._closed:
            return
        _keep(self._closed, replan.id, None)
        labels = (str(replan.strategy), str(replan.state))
        self.tally.add(metrics.REPLANS, 1, *labels)
        seconds = max(0.0, ((replan.closed_ms or replan.created_ms) - replan.created_ms) / 1000)
        self.tally.add(metrics.REPLAN_SECONDS, seconds, *labels)


def _keep(known: dict[str, Kept], name: str, value: Kept) -> None:
    """The newest ones."""
    known.pop(name, None)
    known[name] = value
    if len(known) > ENDED_KEPT:
        del known[next(iter(known))]


def picture_of(snapshot: Snapshot, settings: Settings) -> LoadPicture:
    workers = snapshot.worker_loads(settings.measure)
    groups = snapshot.group_load(settings.measure)
    mean_worker = float(workers.mean()) if workers.size else 0.0
    mean_group = float(groups.mean()) if groups.size else 0.0
    ratios = np.sort(groups / mean_group) if mean_group > 0 else np.zeros_like(groups)
    counts = np.searchsorted(ratios, np.array(metrics.GROUP_LOAD_BUCKETS), side="right")
    return LoadPicture(
        ratio=largest_ratio(snapshot, settings)[1],
        settings=settings,
        worker_ratios=tuple((workers / mean_worker).tolist()) if mean_worker > 0 else (),
        group_counts=(*counts.tolist(), int(groups.size)),
        group_sum=float(ratios.sum()),
    )
