"""Queries that are measured in rounds, in turn: each stops, the next one goes on from its own checkpoint.

The window is filled once for each query, so a round costs its batches and nothing else. Rounds of all queries are
interleaved: what the machine does beside them meets all of them. Batches after a start are not counted.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.engines import read
from benchmarks.workload import JoinWorkload

UNCOUNTED: Final = 2
"""Batches at the beginning of each round, when plans are made and states are read again."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")

Build = Callable[[SparkSession, dict[str, DataFrame], Path], DataFrame]


@dataclass(frozen=True)
class Batch:
    """One micro-batch, by Spark's own clock."""

    number: int
    ms: float
    parts_ms: dict[str, float]
    digest: tuple[int, ...]
    """Number of results, and sums over a hash of each: equal for equal multisets, in whatever order."""


@dataclass
class Measured:
    """The counted batches of one query, round by round."""

    rounds: list[list[Batch]] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    """CPU of the whole application for each batch, round by round."""

    @property
    def medians(self) -> list[float]:
        return [statistics.median(batch.ms for batch in one) for one in self.rounds]

    @property
    def ms(self) -> float:
        return statistics.median(self.medians)

    @property
    def spread(self) -> tuple[float, float]:
        """The fastest and the slowest round."""
        return min(self.medians), max(self.medians)

    @property
    def cpu(self) -> float:
        return statistics.median(self.cpu_ms)


class Entrant:
    """A query, its checkpoint, and the files that it has been given so far."""

    def __init__(self, name: str, build: Build, source: Path, workload: JoinWorkload, home: Path) -> None:
        if source == home / "in":
            raise ValueError(f"{name}: {source} is where its files are put one by one; write them elsewhere")
        self.name = name
        self.measured = Measured()
        self.digests: dict[int, tuple[int, ...]] = {}
        """Of every batch, counted or not."""
        self.progress: list[dict[str, Any]] = []
        """Spark's own words about the batches of the last round."""
        self._build = build
        self._source = source
        self._workload = workload
        self._home = home
        self._fed = 0

    @property
    def left(self) -> int:
        """How many batches there are files for."""
        return self._workload.batches - self._fed

    def advance(
        self, spark: SparkSession, batches: int, sink: Path | None = None, counted_from: int | None = None
    ) -> list[Batch]:
        """Run the next batches, one file of each stream in each, to no sink or into Parquet files."""
        if batches > self.left:
            raise ValueError(f"{self.name}: {batches} batches wanted, files for {self.left} left")
        self._feed(batches)
        session = spark.newSession()
        inputs = read(session, self._workload, self._home / "in")
        checkpoint = self._home / "checkpoint"
        writer = digested(self._build(session, inputs, checkpoint)).writeStream
        writer = writer.format("noop") if sink is None else writer.format("parquet").option("path", str(sink))
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        if counted_from is not None:
            self._clock_cpu(query, checkpoint / "commits" / str(counted_from - 1), self._fed - counted_from)
        query.awaitTermination()
        self.progress = [dict(each) for each in query.recentProgress]
        done = [_batch(each) for each in self.progress if int(each["numInputRows"]) > 1]
        self.digests.update({batch.number: batch.digest for batch in done})
        return done

    def measure(self, spark: SparkSession, batches: int, uncounted: int = UNCOUNTED) -> float:
        """A round. Returns its median."""
        done = self.advance(spark, uncounted + batches, counted_from=self._fed + uncounted)
        self.measured.rounds.append(done[uncounted:])
        return self.measured.medians[-1]

    def _clock_cpu(self, query: StreamingQuery, begun: Path, batches: int) -> None:
        """CPU from the commit of the last batch that is not counted to the end."""
        while query.isActive and not begun.exists():
            time.sleep(0.02)
        before = cpu_s()
        query.awaitTermination()
        self.measured.cpu_ms.append((cpu_s() - before) * 1000 / batches)

    def _feed(self, batches: int) -> None:
        for stream in self._workload.streams:
            (self._home / "in" / stream).mkdir(parents=True, exist_ok=True)
            for number in range(self._fed, self._fed + batches):
                name = f"{number:05d}.parquet"
                os.link(self._source / stream / name, self._home / "in" / stream / name)
        self._fed += batches


def digested(result: DataFrame) -> DataFrame:
    """The result, and a digest of it in Spark's progress: both engines' results are compared in every batch."""
    hashed = F.xxhash64(*(F.col(name) for name in sorted(result.columns)))
    low, high = hashed.bitwiseAND(F.lit(0xFFFFFFFF)), F.shiftrightunsigned(hashed, 32)
    counted = F.count(F.lit(1)).alias("results")
    return result.observe("digest", counted, F.sum(low).alias("low"), F.sum(high).alias("high"))


def _batch(progress: Any) -> Batch:
    took = {name: float(ms) for name, ms in progress["durationMs"].items()}
    row = progress["observedMetrics"]["digest"]
    # Sums of nothing are null.
    digest = (int(row["results"]), int(row["low"] or 0), int(row["high"] or 0))
    return Batch(int(progress["batchId"]), took["triggerExecution"], took, digest)


def warm_up(spark: SparkSession, entrant: Entrant, at_most: int, step: int = 10, flat: float = 0.1) -> list[float]:
    """Run until the medians of three successive steps differ by at most `flat`, or for so many batches.

    Returns the medians, so that the slope can be shown. The first batch fills the window.
    """
    medians: list[float] = []
    while (len(medians) + 1) * step <= at_most and entrant.left >= step:
        batches = entrant.advance(spark, step)
        medians.append(statistics.median(batch.ms for batch in batches[1:]))
        if is_flat(medians, flat):
            break
    return medians


def is_flat(medians: Sequence[float], within: float) -> bool:
    """Whether the last three are as good as the same. The first is never looked at: it has the beginning of all."""
    last = medians[1:][-3:]
    return len(last) == 3 and max(last) <= min(last) * (1 + within)


def differences(entrants: Sequence[Entrant]) -> list[str]:
    """Batches whose results are not the same for all."""
    found = []
    first, *others = entrants
    for other in others:
        for number in sorted(first.digests.keys() & other.digests.keys()):
            ours, theirs = first.digests[number], other.digests[number]
            if ours != theirs:
                found.append(f"batch {number}: {first.name} has {ours}, {other.name} has {theirs}")
    return found


def in_turn(count: int, entrants: Sequence[Entrant]) -> Iterator[tuple[int, Entrant]]:
    """Round by round, the order turned round each time."""
    for number in range(count):
        for entrant in entrants if number % 2 == 0 else reversed(entrants):
            yield number, entrant


def load_average() -> str:
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"


def cpu_s(root: int | None = None) -> float:
    """CPU of this process and everything under it: driver, executors, their Python processes."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = Path("/proc", entry, "stat").read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        children.setdefault(int(fields[1]), []).append(int(entry))
        # Its own, and that of children that it has waited for.
        used[int(entry)] = sum(int(each) for each in fields[11:15]) / _TICKS
    total, waiting = 0.0, [os.getpid() if root is None else root]
    while waiting:
        process = waiting.pop()
        total += used.get(process, 0.0)
        waiting += children.get(process, [])
    return total
