"""What any instance shows of a query: its leader writes the load snapshot and the history, about once a second.

After each sign of life of the driver, whose age tells others that the query runs (manager.requests). Nothing is
decided from what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from balancing.committed import CommittedBatch
from balancing.load import Snapshot
from balancing.settings import Settings
from balancing.steering import Steering
from manager.chronicle import Chronicle
from manager.observing import Observed
from manager.pen import Pen
from manager.snapshots import snapshot_text
from manager.store import Heartbeat, now_ms


class Showing:
    def __init__(self, pen: Pen, observed: Observed, every_s: float, clock: Callable[[], float]) -> None:
        self._pen, self._observed = pen, observed
        self._every_s, self._clock = every_s, clock
        self._chronicle = Chronicle()
        self._saved_at = -float("inf")
        self._saved_after: Heartbeat | None = None

    def forget(self) -> None:
        """Another manager leads: it writes the history from now on."""
        self._chronicle = Chronicle()

    def told(self, heartbeat: Heartbeat | None) -> None:
        """What the driver says about its newest batch."""
        self._chronicle.told(heartbeat)

    def loaded(self, steering: Steering) -> None:
        self._chronicle.saw(steering)

    def weighed(
        self, batches: Sequence[CommittedBatch], snapshot: Snapshot | None, settings: Settings, steering: Steering
    ) -> None:
        self._chronicle.note(batches, snapshot, settings, steering)

    def is_due(self, heard: Heartbeat | None) -> bool:
        return heard != self._saved_after and self._clock() - self._saved_at >= self._every_s

    async def save(self, snapshot: Snapshot, heard: Heartbeat | None, planning: str | None = None) -> None:
        """`planning`: what the optimiser says, where that is new."""
        history = self._chronicle.entries(snapshot, now_ms())
        await self._pen.write_snapshot(snapshot_text(snapshot), history, planning)
        self._chronicle.written(history)
        self._observed.compared(history.outcomes)
        self._saved_at, self._saved_after = self._clock(), heard
