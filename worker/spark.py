"""Spark adapter of the worker: a stateful processor whose every group is one worker.

Thin on purpose: it turns PySpark's handles into `DurableState`, runs the batch, and reports.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import redis
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import (
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from trimtab import frames, offset_log
from trimtab.errors import CorruptState
from trimtab.reports import WorkerReport
from trimtab.spark_task import batch_identity, check_version
from trimtab.store import Store
from worker.batch import BatchInput, BatchOutcome, run_batch
from worker.durable import Record, parse_record
from worker.payload import DurableKey
from worker.resident import Residence, local_directory
from worker.spec import JoinSpec

log = logging.getLogger("trimtab.worker")

INPUT = StructType(
    [
        StructField("worker_key", LongType(), False),
        StructField("stream", IntegerType(), False),
        StructField("bad_rows", LongType(), False),
        StructField("frame", BinaryType(), True),
    ]
)
"""What the split sends: a frame, or a tick (frame is null). `stream` is an index into the query's streams."""
FRAMES_OUTPUT = StructType([StructField("frame", BinaryType(), False)])

# Nullable throughout: Spark demands it of state in Avro.
_RECORD = StructType([StructField("text", StringType())])
_ROWS_KEY = StructType([StructField("batch", LongType()), StructField("number", IntegerType())])
_ROWS_VALUE = StructType([StructField("stream", StringType()), StructField("frame", BinaryType())])


@dataclass(frozen=True)
class WorkerTask:
    """All that a worker's task is shipped with."""

    query: str
    spec: JoinSpec
    plan: str
    checkpoint: str
    redis_url: str | None
    worker_keys: tuple[int, ...]
    """worker_keys[i] is the grouping key that Spark hashes to shuffle partition i: worker i."""
    result_schema: bytes
    version: str
    frames_out: bool
    """Results leave in frames, for the union to unpack, or as rows, where all their types allow it."""
    rebuild: bool = False


class JoinWorker(StatefulProcessor):
    """Holds the partition groups of a worker; one call per micro-batch."""

    def __init__(self, task: WorkerTask) -> None:
        self.task = task

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._durable = _SparkState(
            handle.getValueState("record", _RECORD), handle.getMapState("rows", _ROWS_KEY, _ROWS_VALUE)
        )

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        cpu_start = time.process_time_ns()
        task = self.task
        check_version(task.version)
        context = TaskContext.get()
        assert context is not None
        worker = task.worker_keys.index(int(key[0]))
        batch, query_id = batch_identity(context)
        epoch = offset_log.bound_epoch(task.checkpoint, query_id, batch)
        bad_rows: dict[str, int] = {}
        given = BatchInput(
            batch=batch,
            epoch=epoch.number,
            watermark_us=timerValues.getCurrentWatermarkInMs() * 1000,
            watermark_before_us=lambda: offset_log.Checkpoint(task.checkpoint).watermark_us(batch - 1),
            frames=self._frames(rows, bad_rows),
            plan=task.plan,
            rebuild=task.rebuild,
        )
        schema = pa.ipc.read_schema(pa.py_buffer(task.result_schema))
        outcome = run_batch(task.spec, given, self._durable, Residence(local_directory(), query_id, worker), schema)
        for piece in outcome.pieces:
            yield self._output(piece)
        cpu_ns = time.process_time_ns() - cpu_start
        self._report(context, worker, given, outcome, bad_rows, cpu_ns)

    def close(self) -> None:
        pass

    def _output(self, piece: pa.RecordBatch) -> pd.DataFrame:
        if self.task.frames_out:
            return pd.DataFrame({"frame": [frames.encode(piece).to_pybytes()]})
        # Columns that stay in Arrow: pandas only carries them to PySpark, which takes them as they are.
        return piece.to_pandas(types_mapper=pd.ArrowDtype)

    def _frames(self, rows: Iterator[pd.DataFrame], bad_rows: dict[str, int]) -> Iterator[tuple[str, bytes]]:
        names = self.task.spec.names
        for table in rows:
            for stream, bad, frame in zip(table["stream"], table["bad_rows"], table["frame"], strict=True):
                if bad:
                    bad_rows[names[stream]] = bad_rows.get(names[stream], 0) + int(bad)
                if frame is not None:
                    yield names[stream], frame

    def _report(
        self,
        context: TaskContext,
        worker: int,
        given: BatchInput,
        outcome: BatchOutcome,
        bad_rows: dict[str, int],
        cpu_ns: int,
    ) -> None:
        """Tell Redis, if it is there. A report that cannot be sent is lost; the batch is not."""
        if self.task.redis_url is None:
            return
        assert outcome.load is not None and outcome.group_state_rows is not None
        load = outcome.load
        share = load.rows + load.probes + load.results
        total_bytes = outcome.index_bytes + outcome.payload_bytes
        report = WorkerReport(
            query=self.task.query,
            batch=given.batch,
            epoch=given.epoch,
            worker=worker,
            attempt=context.taskAttemptId(),
            executor=os.environ.get("SPARK_EXECUTOR_ID") or _executor_name(),
            process=os.getpid(),
            at_ms=int(time.time() * 1000),
            rows=outcome.rows,
            late_rows=outcome.late,
            bad_rows=bad_rows,
            results=outcome.results,
            state_rows=outcome.state_rows,
            combined_rows=outcome.combined_rows,
            state_bytes=total_bytes,
            index_bytes=outcome.index_bytes,
            watermark_us=given.watermark_us,
            cpu_ns=cpu_ns,
            resident="hit" if outcome.hit else "rebuild",
            phase_ns=outcome.phase_ns,
            group_rows=load.rows.tolist(),
            group_probes=load.probes.tolist(),
            group_results=load.results.tolist(),
            group_state_rows=outcome.group_state_rows.tolist(),
            group_bytes=_apportioned(total_bytes, outcome.group_state_rows),
            group_cpu_ns=_apportioned(cpu_ns, share),
        )
        reporter(self.task.redis_url).send(report)


class _SparkState:
    """`DurableState` on PySpark's state handles."""

    def __init__(self, record: ValueState, rows: MapState) -> None:
        self._record = record
        self._rows = rows

    def record(self) -> Record | None:
        value = self._record.get()
        return None if value is None else parse_record(value[0])

    def put_record(self, record: Record) -> None:
        self._record.update((record.to_text(),))

    def put_rows(self, key: DurableKey, stream: str, frame: bytes) -> None:
        self._rows.updateValue(key, (stream, frame))

    def remove_rows(self, key: DurableKey) -> None:
        self._rows.removeKey(key)

    def rows(self) -> Iterator[tuple[DurableKey, str, bytes]]:
        # Keys first, then each value by itself: the pair iterator sends all values in one message, however large.
        for batch, number in sorted((int(key[0]), int(key[1])) for key in self._rows.keys()):  # noqa: SIM118
            value = self._rows.getValue((batch, number))
            if value is None:
                raise CorruptState(f"the state store lists rows {batch}/{number} but has none")
            yield (batch, number), value[0], bytes(value[1])


class Reporter:
    """Sends reports, and stays quiet for a while after Redis did not answer, so that a batch waits at most once."""

    QUIET_S = 5.0

    def __init__(self, url: str) -> None:
        self._store = Store(url)
        self._quiet_until = 0.0

    def send(self, report: WorkerReport) -> None:
        if time.monotonic() < self._quiet_until:
            return
        try:
            self._store.report(report)
        except redis.RedisError as error:
            self._quiet_until = time.monotonic() + self.QUIET_S
            log.warning("report of worker %d, batch %d not sent: %s", report.worker, report.batch, error)


_reporters: dict[str, Reporter] = {}


def reporter(url: str) -> Reporter:
    """One connection for each process and server."""
    if url not in _reporters:
        _reporters[url] = Reporter(url)
    return _reporters[url]


def _apportioned(total: int, weights: np.ndarray[Any, Any]) -> list[int]:
    whole = int(weights.sum())
    return [0] * weights.size if whole == 0 else [int(w) * total // whole for w in weights.tolist()]


def _executor_name() -> str:
    return f"{os.uname().nodename}:{os.getppid()}"
