"""Parallel tracks that cannot end because event time stands still.

PTLB waits for old rows to expire (PTLB/MSLB section 3.2, step 4), and an idle stream holds the watermark back. Nothing
is wrong with query or manager, so nobody else will say it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from balancing.committed import CommittedBatch
from balancing.protocols.migration import Migration
from balancing.protocols.table import State


@dataclass(frozen=True)
class Notice:
    kind: str
    migration: str
    text: str


class Stalls:
    """Looks at every committed batch; says once that a track has stalled, and once that it goes on."""

    def __init__(self, patience_s: float, clock: Callable[[], float]) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._watermark_us: int | None = None
        self._since = 0.0
        self._told: set[str] = set()

    def look(self, batch: CommittedBatch, migrations: Iterable[Migration]) -> list[Notice]:
        watermark_us = max((report.watermark_us for report in batch.reports.values()), default=self._watermark_us)
        if watermark_us is None:
            return []
        advanced = watermark_us != self._watermark_us
        if advanced:
            self._watermark_us, self._since = watermark_us, self._clock()
        waiting = {each.id for each in migrations if any(wave.state == State.DUPLICATING for wave in each.waves)}
        self._told &= waiting
        stood_s = self._clock() - self._since
        if advanced:
            on = [Notice("goes-on", name, f"{name}: event time advances again") for name in sorted(self._told)]
            self._told.clear()
            return on
        if stood_s < self._patience_s:
            return []
        new = sorted(waiting - self._told)
        self._told |= waiting
        return [
            Notice(
                "stalled",
                name,
                f"{name}: event time has stood still for {stood_s:.0f} s, so its old rows do not expire. "
                f"Is a stream idle? Let it go on, or take the move back: trimtab cancel {name}",
            )
            for name in new
        ]
