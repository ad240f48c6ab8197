"""Spark adapter of the worker: a stateful processor whose every group is one worker.

Thin on purpose: it turns PySpark's handles into `DurableState`, runs the batch, and reports.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import redis
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor import (
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from trimtab import frames, offset_log
from trimtab.errors import CorruptState
from trimtab.reports import WorkerReport
from trimtab.spark_task import batch_identity, check_version, settle
from trimtab.store import Store
from worker import background, witness
from worker.arriving import SCHEMA, SplitCounts, read_rows
from worker.batch import BatchInput, run_batch
from worker.durable import Record, parse_record
from worker.payload import DurableKey
from worker.reporting import Attempt, worker_report
from worker.resident import Residence, local_directory
from worker.spec import JoinSpec
from worker.transfers import TransferStore, insists

log = logging.getLogger("trimtab.worker")

INPUT: Final = from_arrow_schema(SCHEMA)
"""What the split sends, as Spark's type."""
FRAMES_OUTPUT = StructType([StructField("frame", BinaryType(), False)])

# Nullable throughout: Spark demands it of state in Avro.
_ROWS_KEY = StructType([StructField("batch", LongType()), StructField("number", IntegerType())])
_ROWS_VALUE = StructType([StructField("stream", StringType()), StructField("frame", BinaryType())])
_RECORD_KEY: Final = (-1, 0)
"""Among the rows, where no batch has its own."""


@dataclass(frozen=True)
class WorkerTask:
    """All that a worker's task is shipped with."""

    query: str
    spec: JoinSpec
    plans: tuple[str, ...]
    """What each worker starts with."""
    checkpoint: str
    redis_url: str | None
    worker_keys: tuple[int, ...]
    """worker_keys[i] is the grouping key that Spark hashes to shuffle partition i: worker i."""
    transfer_key: bytes
    """Signs packages on their way from worker to worker."""
    result_schema: bytes
    version: str
    frames_out: bool
    """Results leave in frames, for the union to unpack, or as rows, where all their types allow it."""
    attempts: int
    """How often Spark tries a task before it gives the query up."""
    rebuild: bool = False


class JoinWorker(StatefulProcessor):
    """Holds the partition groups of a worker; one call per micro-batch."""

    def __init__(self, task: WorkerTask) -> None:
        self.task = task
        self._emitted = 0

    def init(self, handle: StatefulProcessorHandle) -> None:
        # One state for rows and record: every state variable costs each task some 10 ms before it begins.
        self._durable = _SparkState(handle.getMapState("rows", _ROWS_KEY, _ROWS_VALUE))

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
        bound = offset_log.binding(task.checkpoint, query_id, batch)
        counts = SplitCounts()
        given = BatchInput(
            batch=batch,
            worker=worker,
            epoch=bound.epoch,
            epoch_before=offset_log.epoch_before(task.checkpoint, query_id, batch, bound.epoch),
            watermark_us=bound.watermark_us,
            watermark_before_us=lambda: offset_log.binding(task.checkpoint, query_id, batch - 1).watermark_us,
            frames=read_rows(rows, task.spec.names, counts),
            plan=task.plans[worker],
            rebuild=task.rebuild,
        )
        schema = pa.ipc.read_schema(pa.py_buffer(task.result_schema))
        residence = Residence(local_directory(), query_id, worker)
        transfers = TransferStore(
            task.checkpoint, task.transfer_key, insists=insists(context.attemptNumber(), task.attempts)
        )
        outcome = run_batch(task.spec, given, self._durable, residence, transfers, schema)
        yield from self._hand_over(outcome.pieces)
        cpu_ns = time.process_time_ns() - cpu_start
        if task.redis_url is not None:
            # Redis is told, if it is there. A report that cannot be sent is lost; the batch is not.
            attempt = self._attempt(context, cpu_ns)
            reporter(task.redis_url).send(worker_report(attempt, given, outcome, counts, self._emitted))
        witness.prepare()
        background.prepare()
        settle()

    def close(self) -> None:
        pass

    def _hand_over(self, pieces: Iterable[pa.RecordBatch]) -> Iterator[pd.DataFrame]:
        """Results as Spark takes them. Rows are counted in what leaves here, not in what was to leave."""
        self._emitted = 0
        for piece in pieces:
            output = self._output(piece)
            if self.task.frames_out:
                self._emitted += sum(frames.decode(frame).num_rows for frame in output["frame"])
            else:
                self._emitted += len(output)
            yield output

    def _output(self, piece: pa.RecordBatch) -> pd.DataFrame:
        if self.task.frames_out:
            return pd.DataFrame({"frame": [frames.encode(piece).to_pybytes()]})
        # Columns that stay in Arrow: pandas only carries them to PySpark, which takes them as they are.
        return piece.to_pandas(types_mapper=pd.ArrowDtype)

    def _attempt(self, context: TaskContext, cpu_ns: int) -> Attempt:
        return Attempt(
            query=self.task.query,
            attempt=context.taskAttemptId(),
            executor=os.environ.get("SPARK_EXECUTOR_ID") or _executor_name(),
            process=os.getpid(),
            run=context.getLocalProperty("spark.jobGroup.id") or "",
            at_ms=int(time.time() * 1000),
            cpu_ns=cpu_ns,
        )


class _SparkState:
    """`DurableState` on PySpark's state handles."""

    def __init__(self, rows: MapState) -> None:
        self._rows = rows

    def record(self) -> Record | None:
        value = self._rows.getValue(_RECORD_KEY)
        return None if value is None else parse_record(bytes(value[1]).decode())

    def put_record(self, record: Record) -> None:
        self._rows.updateValue(_RECORD_KEY, ("", record.to_text().encode()))

    def put_rows(self, key: DurableKey, stream: str, frame: bytes) -> None:
        self._rows.updateValue(key, (stream, frame))

    def remove_rows(self, key: DurableKey) -> None:
        self._rows.removeKey(key)

    def get_rows(self, key: DurableKey) -> tuple[str, bytes]:
        value = self._rows.getValue(key)
        if value is None:
            raise CorruptState(f"the state store lists rows {key[0]}/{key[1]} but has none")
        return value[0], bytes(value[1])

    def has_rows(self, key: DurableKey) -> bool:
        return bool(self._rows.containsKey(key))

    def rows(self) -> Iterator[tuple[DurableKey, str, bytes]]:
        # Keys first, then each value by itself: the pair iterator sends all values in one message, however large.
        # Even the keys are for a rebuild only: Spark reads all values to list them.
        keys = {(int(key[0]), int(key[1])) for key in self._rows.keys()}  # noqa: SIM118
        for key in sorted(keys - {_RECORD_KEY}):
            yield key, *self.get_rows(key)


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


def _executor_name() -> str:
    return f"{os.uname().nodename}:{os.getppid()}"
