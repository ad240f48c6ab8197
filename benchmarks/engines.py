"""The two ways to run a workload: Trimtab, and Spark's own stream-stream joins in the best form that Spark accepts."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.workload import JoinWorkload
from split_union.session import LOCAL_FILES
from trimtab import JoinQuery, Stream
from trimtab.store import Store

LATENESS = "1 second"
PHASES_INSIDE = ("decode", "join", "encode", "state calls", "state commit")
PHASES = ("driver", "split", "shuffle", *PHASES_INSIDE, "transport, union, sink")
_PHASE_OF = {"attach": "decode", "publish": "state calls", "state": "state calls"}


@dataclass
class Inside:
    """What workers and stages say about one round of Trimtab."""

    phases_ms: dict[str, float] = field(default_factory=dict)
    bytes_per_row: float = 0.0
    hit_share: float = 0.0
    results: int = 0
    state_rows: int = 0


def read(spark: SparkSession, workload: JoinWorkload, directory: Path) -> dict[str, DataFrame]:
    reader = spark.readStream.schema(workload.schema).option("maxFilesPerTrigger", 1)
    return {stream: reader.parquet(str(directory / stream)) for stream in workload.streams}


def trimtab_result(
    spark: SparkSession,
    workload: JoinWorkload,
    inputs: dict[str, DataFrame],
    checkpoint: Path,
    redis: str,
    workers: int,
    name: str,
    partitions: int | None = None,
) -> DataFrame:
    query = JoinQuery(
        name=name,
        window=f"{workload.window_us} microseconds",
        lateness=LATENESS,
        partitions=partitions or max(64, workers),
        workers=workers,
        streams=[Stream(stream, key=workload.key_columns, time="at") for stream in workload.streams],
    )
    return query.join(spark, inputs, redis=redis, checkpoint=str(checkpoint))


FORMS: Final = ("memory", "rocksdb", "rocksdb-v4")
"""Of Spark's own join: its default store on the heap; RocksDB; RocksDB and the newest format of the join's state."""


def native_settings(form: str) -> dict[str, str]:
    """What a user would set who wants this form to be fast."""
    store = "spark.sql.streaming.stateStore"
    settings = {"spark.sql.streaming.noDataMicroBatches.enabled": "false", LOCAL_FILES[0]: LOCAL_FILES[1]}
    if form != "memory":
        provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        settings[f"{store}.providerClass"] = provider
        settings[f"{store}.rocksdb.changelogCheckpointing.enabled"] = "true"
    if form == "rocksdb-v4":
        settings["spark.sql.streaming.join.stateFormatVersion"] = "4"
    return settings


def native_result(
    spark: SparkSession, workload: JoinWorkload, inputs: dict[str, DataFrame], workers: int, form: str
) -> DataFrame:
    """Spark's joins, chained. A symmetric three-way join is refused (MULTIPLE_EVENT_TIME_COLUMNS), so each join hands
    on one event time; the others become plain timestamps, compared by plain conditions."""
    spark.conf.set("spark.sql.shuffle.partitions", str(workers))
    for name, value in native_settings(form).items():
        spark.conf.set(name, value)
    window = f"interval {workload.window_us} microseconds"
    renamed = {
        stream: frame.withWatermark("at", LATENESS).select(*(F.col(c).alias(f"{stream}_{c}") for c in frame.columns))
        for stream, frame in inputs.items()
    }
    first, *others = list(workload.streams)

    def joined(left: DataFrame, stream: str) -> DataFrame:
        earlier = workload.streams[: workload.streams.index(stream)]
        near = [f"{stream}_at >= {s}_at - {window} and {stream}_at <= {s}_at + {window}" for s in earlier]
        condition = " and ".join([f"{first}_user = {stream}_user", *near])
        out = left.join(renamed[stream], F.expr(condition))
        plain = F.timestamp_micros(F.unix_micros(F.col(f"{stream}_at"))).alias(f"{stream}_at")
        return out.select(*(plain if c == f"{stream}_at" else F.col(c) for c in out.columns))

    return reduce(joined, others, renamed[first])


def look_inside(
    spark: SparkSession, store: Store, name: str, progress: list[dict[str, Any]], uncounted: int, stages_before: int
) -> Inside:
    """Of the round that has just ended."""
    measured = Inside()
    _add_reports(measured, store, name, progress[uncounted:])
    _add_stages(measured, spark, stages_before, len(progress), uncounted)
    return measured


def _add_reports(measured: Inside, store: Store, name: str, progress: list[dict[str, Any]]) -> None:
    """Where a batch's time goes, from the workers' reports and Spark's progress: means over the measured batches."""
    sums: dict[str, float] = {}
    batches = hits = report_count = 0
    for entry in progress:
        reports = store.reports(name, entry["batchId"])
        if not reports:
            continue
        batches += 1
        took = entry["durationMs"]
        slowest = max(reports.values(), key=lambda report: sum(report.phase_ns.values()))
        parts: dict[str, float] = {}
        for phase, ns in slowest.phase_ns.items():
            shown = _PHASE_OF.get(phase, phase)
            parts[shown] = parts.get(shown, 0) + ns / 1e6
        parts["driver"] = took["triggerExecution"] - took.get("addBatch", 0)
        # Spark adds the commits of all tasks up; they run side by side.
        parts["state commit"] = sum(op.get("commitTimeMs", 0) for op in entry["stateOperators"]) / len(reports)
        for phase, ms in parts.items():
            sums[phase] = sums.get(phase, 0) + ms
        for report in reports.values():
            report_count += 1
            hits += report.resident == "hit"
            tuples = report.state_rows + report.combined_rows
            measured.bytes_per_row = max(measured.bytes_per_row, report.index_bytes / max(tuples, 1))
        measured.results += sum(report.results for report in reports.values())
        measured.state_rows = sum(report.state_rows for report in reports.values())
    measured.phases_ms = {phase: ms / max(batches, 1) for phase, ms in sums.items()}
    measured.hit_share = hits / max(report_count, 1)


def finished_stages(spark: SparkSession) -> int:
    return len(_stages(spark))


def _add_stages(measured: Inside, spark: SparkSession, before: int, batches: int, warm: int) -> None:
    """Wall time of the split stage, and of the worker stage outside the worker: transport, union and sink."""
    stages = _stages(spark)[before:]
    split, join = stages[0::2][warm:], stages[1::2][warm:]
    if len(stages) != 2 * batches or not split:
        return
    inside = sum(measured.phases_ms.get(phase, 0) for phase in PHASES_INSIDE)
    written, fetched = (statistics.fmean(stage.shuffle_ms for stage in side) for side in (split, join))
    measured.phases_ms["split"] = statistics.fmean(stage.wall_ms for stage in split) - written
    measured.phases_ms["shuffle"] = written + fetched
    outside = statistics.fmean(stage.wall_ms for stage in join) - fetched - inside
    measured.phases_ms["transport, union, sink"] = max(outside, 0)


@dataclass(frozen=True)
class _Stage:
    wall_ms: float
    shuffle_ms: float
    """Writing, and waiting to read, per task."""


def _stages(spark: SparkSession) -> list[_Stage]:
    """All finished stages, oldest first."""
    context: Any = spark.sparkContext
    doubles = context._gateway.new_array(context._jvm.double, 0)
    listing = context._jsc.sc().statusStore().stageList(None, False, False, doubles, None)
    stages = [listing.apply(i) for i in range(listing.size())]
    done = [stage for stage in stages if stage.completionTime().isDefined()]
    done.sort(key=lambda stage: stage.stageId())
    return [
        _Stage(
            wall_ms=float(s.completionTime().get().getTime() - s.submissionTime().get().getTime()),
            shuffle_ms=(s.shuffleWriteTime() / 1e6 + s.shuffleFetchWaitTime()) / max(s.numTasks(), 1),
        )
        for s in done
    ]
