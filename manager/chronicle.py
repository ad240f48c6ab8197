"""Puts a query's history together, batch by batch, while this manager leads it: what to write, never when or how.

It goes to Redis with the leader's snapshot, about once a second, in the same script and under the same lease. Nothing
that is decided depends on it, and a leader that takes over goes on with new columns.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from balancing.committed import CommittedBatch
from balancing.load import Snapshot
from balancing.settings import Settings
from balancing.steering import Steering
from balancing.triggers import largest_ratio
from manager.history import COARSE_S, FINE_S, BatchRow, Column, load_codes, merged
from manager.outcomes import OutcomeNote, Outcomes
from manager.spans import BatchSpans

log = logging.getLogger("trimtab.manager")


@dataclass(frozen=True, kw_only=True)
class Entries:
    """What is to be written."""

    batches: tuple[BatchRow, ...] = ()
    fine: Column | None = None
    coarse: Column | None = None
    outcomes: tuple[OutcomeNote, ...] = ()


@dataclass
class Chronicle:
    """One query's. `note` what happens, write `entries`, then say so with `written`."""

    _spans: BatchSpans = field(default_factory=BatchSpans)
    _unwritten: list[BatchRow] = field(default_factory=list)
    _since_fine: list[BatchRow] = field(default_factory=list)
    _since_coarse: list[Column] = field(default_factory=list)
    _outcomes: Outcomes = field(default_factory=Outcomes)
    _ratio: float = 1.0

    def note(
        self, batches: Sequence[CommittedBatch], snapshot: Snapshot | None, settings: Settings, steering: Steering
    ) -> None:
        """After steering has been told of these batches. It never fails the turn: moves matter, pictures do not."""
        try:
            if snapshot is not None:
                self._ratio = largest_ratio(snapshot, settings)[1]
            rows = list(self._rows(batches))
            self._unwritten += rows
            self._since_fine += rows
            if snapshot is not None:
                self._outcomes.note(steering, snapshot, settings, rows)
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

    def _rows(self, batches: Iterable[CommittedBatch]) -> Iterable[BatchRow]:
        for each in batches:
            span_ms = self._spans.span_ms(each) if each.reports else None
            if span_ms is None:
                continue
            spent_ms = max(1.0, span_ms)
            yield BatchRow(
                at_ms=max(report.at_ms for report in each.reports.values()),
                batch=each.batch,
                batch_ms=spent_ms,
                rows_per_s=sum(sum(report.rows.values()) for report in each.reports.values()) / spent_ms * 1000,
                results_per_s=sum(report.results for report in each.reports.values()) / spent_ms * 1000,
                ratio=self._ratio,
            )
