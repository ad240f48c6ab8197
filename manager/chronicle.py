"""Puts a query's history together, batch by batch, while this manager leads it: what to write, never when or how.

It goes to Redis with the leader's snapshot, about once a second, in the same script and under the same lease. Nothing
that is decided depends on it, and a leader that takes over goes on with new columns.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from balancing.committed import CommittedBatch
from balancing.load import Snapshot
from balancing.settings import Settings
from balancing.steering import Steering
from balancing.triggers import largest_ratio
from manager.history import COARSE_S, FINE_S, BatchRow, Column, load_codes, merged
from manager.outcomes import OutcomeNote, Outcomes
from manager.spans import BatchSpans
from manager.store import Heartbeat

_DRIVER_KEPT: Final = 64
"""Batches whose time by the driver is remembered: reports of one may come a little later."""
log = logging.getLogger("trimtab.manager")


@dataclass(frozen=True, kw_only=True)
class Entries:
    """What is to be written."""

    batches: tuple[BatchRow, ...] = ()
    fine: Column | None = None
    coarse: Column | None = None
    outcomes: tuple[OutcomeNote, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A batch by its reports."""

    at_ms: int
    batch: int
    rows: int
    results: int
    span_ms: float
    """Since the end of the batch before."""
    ratio: float

    def row(self, driver_ms: float | None) -> BatchRow:
        """`driver_ms`: how long it took by Spark's own word, where there is one."""
        return BatchRow(
            at_ms=self.at_ms,
            batch=self.batch,
            batch_ms=self.span_ms if driver_ms is None else driver_ms,
            rows_per_s=self.rows / self.span_ms * 1000,
            results_per_s=self.results / self.span_ms * 1000,
            ratio=self.ratio,
        )


@dataclass
class Chronicle:
    """One query's. `told` and `note` what happens, write `entries`, then say so with `written`."""

    _spans: BatchSpans = field(default_factory=BatchSpans)
    _waiting: list[_Seen] = field(default_factory=list)
    """At most the newest batch: the driver has not told of it yet."""
    _driver_ms: dict[int, int] = field(default_factory=dict)
    _driver_tells: bool = False
    _unwritten: list[BatchRow] = field(default_factory=list)
    _uncompared: list[BatchRow] = field(default_factory=list)
    _since_fine: list[BatchRow] = field(default_factory=list)
    _since_coarse: list[Column] = field(default_factory=list)
    _outcomes: Outcomes = field(default_factory=Outcomes)
    _ratio: float = 1.0

    def told(self, heartbeat: Heartbeat | None) -> None:
        """What the driver says about its newest batch, which may come before or after its reports."""
        if heartbeat is None or heartbeat.batch_ms is None:
            return
        if self._driver_ms.get(heartbeat.progress_batch) == heartbeat.batch_ms:
            return
        self._driver_tells = True
        self._driver_ms[heartbeat.progress_batch] = heartbeat.batch_ms
        for old in sorted(self._driver_ms)[:-_DRIVER_KEPT]:
            del self._driver_ms[old]
        self._tell_rows()

    def saw(self, steering: Steering) -> None:
        """What is under way when this manager begins to lead."""
        self._outcomes.saw(steering)

    def note(
        self, batches: Sequence[CommittedBatch], snapshot: Snapshot | None, settings: Settings, steering: Steering
    ) -> None:
        """After steering has been told of these batches. It never fails the turn: moves matter, pictures do not."""
        try:
            if snapshot is not None:
                self._ratio = largest_ratio(snapshot, settings)[1]
            self._waiting += self._seen(batches)
            self._tell_rows()
            if snapshot is not None:
                self._outcomes.note(steering, snapshot, settings, self._uncompared)
                self._uncompared = []
        except Exception:
            log.exception("a batch is missing in the history")

    def entries(self, snapshot: Snapshot, now_ms: int) -> Entries:
        """All that has not been written yet."""
        fine = coarse = None
        if self._since_fine and self._is_due(FINE_S, self._since_coarse[-1:], now_ms):
            fine = self._column(snapshot, now_ms)
            before = [*self._since_coarse, fine]
            if len(before) > COARSE_S // FINE_S or now_ms - before[0].at_ms >= COARSE_S * 1000:
                coarse = merged(before[1:])
        return Entries(batches=tuple(self._unwritten), fine=fine, coarse=coarse, outcomes=self._outcomes.unwritten())

    def written(self, entries: Entries) -> None:
        del self._unwritten[: len(entries.batches)]
        self._outcomes.written(entries.outcomes)
        if entries.fine is not None:
            self._since_fine = []
            # The last of a minute stays: the next minute begins after it.
            self._since_coarse = [entries.fine] if entries.coarse is not None else [*self._since_coarse, entries.fine]

    def _is_due(self, step_s: int, newest: Sequence[Column], now_ms: int) -> bool:
        return not newest or now_ms - newest[0].at_ms >= step_s * 1000

    def _column(self, snapshot: Snapshot, now_ms: int) -> Column:
        rows = self._since_fine
        spent_ms = sum(each.batch_ms for each in rows)
        return Column(
            at_ms=now_ms,
            epoch=snapshot.epoch,
            ratio=self._ratio,
            batch_ms=max(each.batch_ms for each in rows),
            rows_per_s=sum(each.rows_per_s * each.batch_ms for each in rows) / spent_ms if spent_ms else 0.0,
            loads=load_codes(snapshot.group_cpu).tobytes(),
            owners=snapshot.owners,
        )

    def _seen(self, batches: Iterable[CommittedBatch]) -> Iterable[_Seen]:
        for each in batches:
            span_ms = self._spans.span_ms(each) if each.reports else None
            if span_ms is None:
                continue
            yield _Seen(
                at_ms=max(report.at_ms for report in each.reports.values()),
                batch=each.batch,
                rows=sum(sum(report.rows.values()) for report in each.reports.values()),
                results=sum(report.results for report in each.reports.values()),
                span_ms=max(1.0, span_ms),
                ratio=self._ratio,
            )

    def _tell_rows(self) -> None:
        """Batches become rows when the driver has told of them, or of later ones, or where it tells nothing."""
        while self._waiting:
            first = self._waiting[0]
            if self._driver_tells and len(self._waiting) == 1 and first.batch not in self._driver_ms:
                return
            self._waiting.pop(0)
            row = first.row(self._driver_ms.get(first.batch))
            for rows in (self._unwritten, self._uncompared, self._since_fine):
                rows.append(row)
