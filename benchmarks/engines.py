"""The two ways to run a workload: Trimtab, and Spark's own stream-stream joins in the best form that Spark accepts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.workload import SCHEMA, Workload
from trimtab import JoinQuery, Stream
from trimtab.store import Store

LATENESS = "1 second"


@dataclass
class Measured:
    """One run of one engine: per-batch times after the window had filled."""

    batch_ms: list[float] = field(default_factory=list)
    phases_ms: dict[str, float] = field(default_factory=dict)
    bytes_per_row: float = 0.0
    hit_share: float = 0.0
    results: int = 0


def read(spark: SparkSession, workload: Workload, directory: Path) -> dict[str, DataFrame]:
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return {stream: reader.parquet(str(directory / stream)) for stream in workload.streams}


def trimtab_result(
    spark: SparkSession, workload: Workload, inputs: dict[str, DataFrame], checkpoint: Path, redis: str, workers: int, name: str
) -> DataFrame:
    query = JoinQuery(
        name=name,
        window=f"{workload.window_us} microseconds",
        lateness=LATENESS,
        partitions=max(64, workers),
        workers=workers,
        streams=[Stream(stream, key="user", time="at") for stream in workload.streams],
    )
    return query.join(spark, inputs, redis=redis, checkpoint=str(checkpoint))


def native_result(spark: SparkSession, workload: Workload, inputs: dict[str, DataFrame], workers: int, provider: str) -> DataFrame:
    """Spark's joins, chained. A symmetric three-way join is refused (MULTIPLE_EVENT_TIME_COLUMNS), so each join hands on
    one event time; the others become plain timestamps, compared by plain conditions."""
    spark.conf.set("spark.sql.shuffle.partitions", str(workers))
    if provider == "rocksdb":
        spark.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    window = f"interval {workload.window_us} microseconds"
    renamed = {
        stream: frame.withWatermark("at", LATENESS).select(*(F.col(c).alias(f"{stream}_{c}") for c in frame.columns))
        for stream, frame in inputs.items()
    }
    first, *others = workload.streams

    def joined(left: DataFrame, stream: str) -> DataFrame:
        earlier = [s for s in workload.streams[: workload.streams.index(stream)]]
        near = [f"{stream}_at >= {s}_at - {window} and {stream}_at <= {s}_at + {window}" for s in earlier]
        condition = " and ".join([f"{first}_user = {stream}_user", *near])
        out = left.join(renamed[stream], F.expr(condition))
        plain = F.timestamp_micros(F.unix_micros(F.col(f"{stream}_at"))).alias(f"{stream}_at")
        return out.select(*(plain if c == f"{stream}_at" else F.col(c) for c in out.columns))

    return reduce(joined, others, renamed[first])


def run(result: DataFrame, checkpoint: Path, output: Path) -> list[dict[str, Any]]:
    """Run over all files to the end; returns Spark's own account of each batch."""
    query = (
        result.writeStream.format("parquet")
        .option("path", str(output))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [_as_dict(progress) for progress in query.recentProgress]


def _as_dict(progress: Any) -> dict[str, Any]:
    return progress if isinstance(progress, dict) else dict(progress)


def collect(progress: list[dict[str, Any]], warm: int) -> Measured:
    measured = Measured()
    late = [entry for entry in progress if entry["batchId"] >= warm and entry["numInputRows"] > 1]
    measured.batch_ms = [float(entry["durationMs"]["triggerExecution"]) for entry in late]
    return measured


def add_reports(measured: Measured, store: Store, name: str, progress: list[dict[str, Any]], warm: int) -> None:
    """Where a batch's time goes, from the workers' reports and from Spark's progress (mean over the measured batches)."""
    totals: dict[str, float] = {}
    count = hits = reports_seen = 0
    for entry in progress:
        batch = entry["batchId"]
        reports = store.reports(name, batch)
        if batch < warm or not reports:
            continue
        count += 1
        took = entry["durationMs"]
        driver = took["triggerExecution"] - took.get("addBatch", 0)
        slowest = max(reports.values(), key=lambda report: sum(report.phase_ns.values()))
        parts = {phase: ns / 1e6 for phase, ns in slowest.phase_ns.items()}
        parts["driver"] = driver
        parts["state commit"] = max((op.get("commitTimeMs", 0) for op in entry["stateOperators"]), default=0) / len(reports)
        parts["batch"] = took["triggerExecution"]
        for phase, ms in parts.items():
            totals[phase] = totals.get(phase, 0) + ms
        for report in reports.values():
            reports_seen += 1
            hits += report.resident == "hit"
            measured.bytes_per_row = max(measured.bytes_per_row, report.index_bytes / max(report.state_rows, 1))
        measured.results += sum(report.results for report in reports.values())
    measured.phases_ms = {phase: ms / max(count, 1) for phase, ms in totals.items()}
    measured.hit_share = hits / max(reports_seen, 1)
