"""One line per micro-batch: batch, rows, results, rows/s, ms, watermark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from trimtab.driver_progress import UNNAMED, Sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

METRIC: Final = "trimtab"
"""Name of the observation that counts a batch's results, whatever the sink."""
HEADER: Final = f"{'batch':>7} {'rows':>10} {'results':>10} {'rows/s':>9} {'ms':>7}  watermark"


@dataclass(frozen=True)
class BatchProgress:
    """What Spark says about a finished batch."""

    batch: int
    rows: int
    results: int | None
    ms: int
    watermark: str

    @property
    def rows_per_s(self) -> float:
        return self.rows * 1000 / self.ms if self.ms else 0.0

    def line(self) -> str:
        results = "-" if self.results is None else f"{self.results:,}"
        counts = f"{self.batch:>7} {self.rows:>10,} {results:>10}"
        return f"{counts} {self.rows_per_s:>9,.0f} {self.ms:>7,}  {self.watermark}"


def observed(frame: DataFrame) -> DataFrame:
    """The same rows, counted: few sinks tell Spark how many rows they wrote."""
    from pyspark.sql.functions import count, lit

    return frame.observe(METRIC, count(lit(1)).alias("results"))


def parse_progress(progress: Any, sources: Sources = UNNAMED) -> BatchProgress | None:
    """A finished batch; None for the progress that Spark sends while a query is idle."""
    durations = progress["durationMs"]
    if "addBatch" not in durations:
        return None
    observed_metrics = progress["observedMetrics"] or {}
    counted = observed_metrics.get(METRIC)
    return BatchProgress(
        batch=int(progress["batchId"]),
        rows=sources.rows(progress),
        results=None if counted is None else int(counted["results"]),
        ms=int(durations.get("triggerExecution", 0)),
        watermark=_plain_time((progress["eventTime"] or {}).get("watermark")),
    )


class ProgressReader:
    """Returns each finished batch once, in order."""

    def __init__(self, query: StreamingQuery, sources: Sources = UNNAMED) -> None:
        self._query = query
        self._sources = sources
        self._last = -1

    @property
    def last_batch(self) -> int:
        return self._last

    def new(self) -> Iterator[BatchProgress]:
        for each in self._query.recentProgress:
            progress = parse_progress(each, self._sources)
            if progress is not None and progress.batch > self._last:
                self._last = progress.batch
                yield progress


def _plain_time(text: str | None) -> str:
    if not text or text.startswith("1970-01-01T00:00:00.000"):
        return "-"
    return text.replace("T", " ").removesuffix("Z")


def plain_watermark(watermark_us: int) -> str:
    """A watermark of a report, in the same format."""
    if watermark_us <= 0:
        return "-"
    return datetime.fromtimestamp(watermark_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
