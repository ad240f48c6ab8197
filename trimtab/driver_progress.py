"""What Spark's progress says about a finished batch, as far as it concerns the query as a whole."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.offset_mark import find_mark

Json = Mapping[str, Any]
LAGS_MAX: Final = 8
"""Sources that are told of by name: a join has at most so many streams."""


@dataclass(frozen=True, kw_only=True)
class DriverProgress:
    """One finished batch, as the driver saw it."""

    batch: int
    batch_ms: int
    rows_per_s: float
    """Read from the sources; the control source does not count."""
    backlog: int | None
    """Rows that are in the sources and not read yet. None where no source tells: only some know."""
    lags: Mapping[str, int] = field(default_factory=dict)
    """The same by source, of those that tell: the stream's name, or Spark's description where streams share sources."""


def is_control(source: Json) -> bool:
    """Recognized by its offset: Spark describes all Python sources in the same way."""
    return find_mark(str(source["endOffset"])) is not None


def bound_entry(progress: Json) -> dict[str, Any] | None:
    """The control source's own end offset: the epoch that the batch was bound to. None in any other query."""
    entries = (find_mark(str(source["endOffset"])) for source in progress["sources"])
    return next((entry for entry in entries if entry is not None), None)


@dataclass(frozen=True)
class Sources:
    """What a query's sources are to it: Spark lists them in the order of the streams, and knows no names."""

    streams: Sequence[str] = ()
    reads: Mapping[str, int] = field(default_factory=dict)
    """Stream -> how many branches of the plan read its source, where more than one do. Spark counts rows in each."""

    def named(self, progress: Json) -> list[tuple[str, Json]]:
        """Each source but the control source, with its name."""
        sources = [source for source in progress["sources"] if not is_control(source)]
        if len(sources) == len(self.streams):
            return list(zip(self.streams, sources, strict=True))
        return [(str(source.get("description", number)), source) for number, source in enumerate(sources)]

    def rows(self, progress: Json) -> int:
        """Rows that a batch read, each once."""
        return sum(int(source["numInputRows"]) // self.reads.get(name, 1) for name, source in self.named(progress))


UNNAMED: Final = Sources()


def parse_driver_progress(progress: Json, sources: Sources = UNNAMED) -> DriverProgress | None:
    """None for the progress that Spark sends while a query is idle."""
    durations = progress["durationMs"]
    if "addBatch" not in durations:
        return None
    named = sources.named(progress)
    rates = [float(source["inputRowsPerSecond"] or 0.0) / sources.reads.get(name, 1) for name, source in named]
    lags: dict[str, int] = {}
    for name, source in named:
        if (lag := backlog_of(source)) is not None:
            lags[name] = lags.get(name, 0) + lag
    return DriverProgress(
        batch=int(progress["batchId"]),
        batch_ms=int(durations.get("triggerExecution", 0)),
        rows_per_s=sum(rate for rate in rates if math.isfinite(rate)),
        backlog=sum(lags.values()) if lags else None,
        lags=dict(list(lags.items())[:LAGS_MAX]),
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
