"""How long batches take, by the times of their reports: nobody tells a manager when a batch begins."""

from __future__ import annotations

from balancing.committed import CommittedBatch


class BatchSpans:
    """Batches of one query as they come, each with reports."""

    def __init__(self) -> None:
        self._newest: tuple[int, int] | None = None
        """The newest batch, and when its last report was written."""

    def span_ms(self, batch: CommittedBatch) -> float | None:
        """From the end of the batch before; None where that is not known, or for a batch that was there already."""
        before = self._newest
        if before is not None and before[0] == batch.batch:
            return None
        ended_ms = max(report.at_ms for report in batch.reports.values())
        self._newest = (batch.batch, ended_ms)
        if before is None or batch.batch < before[0]:
            return None
        # Batches whose reports are lost took their share of the time.
        return (ended_ms - before[1]) / (batch.batch - before[0])
