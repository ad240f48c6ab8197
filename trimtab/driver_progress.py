"""What Spark's progress says about a finished batch, as far as it concerns the query as a whole."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.offset_mark import find_mark

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class DriverProgress:
    """One finished batch, as the driver saw it."""

    batch: int
    batch_ms: int
    rows_per_s: float
    """Read from the sources; the control source does not count."""
    backlog: int | None
    """Rows that are in the sources and not read yet. None where no source tells: only some know."""


def is_control(source: Json) -> bool:
    """Recognized by its offset: Spark describes all Python sources in the same way."""
    return find_mark(str(source["endOffset"])) is not None


def bound_entry(progress: Json) -> dict[str, Any] | None:
    """The control source's own end offset: the epoch that the batch was bound to. None in any other query."""
    entries = (find_mark(str(source["endOffset"])) for source in progress["sources"])
    return next((entry for entry in entries if entry is not None), None)


def parse_driver_progress(progress: Json) -> DriverProgress | None:
    """None for the progress that Spark sends while a query is idle."""
    durations = progress["durationMs"]
    if "addBatch" not in durations:
        return None
    sources = [source for source in progress["sources"] if not is_control(source)]
    rates = [float(source["inputRowsPerSecond"] or 0.0) for source in sources]
    lags = [lag for source in sources if (lag := backlog_of(source)) is not None]
    return DriverProgress(
        batch=int(progress["batchId"]),
        batch_ms=int(durations.get("triggerExecution", 0)),
        rows_per_s=sum(rate for rate in rates if math.isfinite(rate)),
        backlog=sum(lags) if lags else None,
    )


def backlog_of(source: Json) -> int | None:
    """Rows between what the batch read and the newest: where offsets are {topic: {partition: number}}, as Kafka's."""
    try:
        end, latest = (json.loads(str(source[name])) for name in ("endOffset", "latestOffset"))
        return sum(
            max(0, int(newest) - int(end[topic][partition]))
            for topic, partitions in latest.items()
            for partition, newest in partitions.items()
            if partition in end[topic]
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
