"""Runs a join on files, and puts faults where they hurt.

Each stream is a directory of Parquet files, one file for each batch (`maxFilesPerTrigger=1`, growing mtimes: equal ones
make Spark's file source reorder). Results go to Spark's Parquet sink, whose own log makes it exactly-once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tests.checkers.multiset import Multiset, difference, multiset
from tests.checkers.oracle import Oracle, Row, recorded
from trimtab import JoinQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")
FIRST_MTIME = 1_600_000_000
DEADLINE_S = 120.0


def poll(look: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """The first true answer; a test waits for a condition, never for a time."""
    end = time.monotonic() + deadline_s
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s:g} s in vain for: {what}")
        time.sleep(0.01)
    return found


@dataclass
class Run:
    """One query's directory: inputs, checkpoint, results; and the rows written so far."""

    base: Path
    query: JoinQuery
    schemas: Mapping[str, pa.Schema]
    files: dict[str, dict[str, list[Row]]] = field(default_factory=dict)
    spark_types: Mapping[str, str] = field(default_factory=dict)
    """Column -> SQL expression that makes it from the file's column, where the file cannot hold the type."""

    def __post_init__(self) -> None:
        for stream in self.query.stream_names:
            self.files.setdefault(stream, {})
            (self.base / stream).mkdir(parents=True, exist_ok=True)

    @property
    def checkpoint(self) -> Path:
        return self.base / "checkpoint"

    @property
    def output(self) -> Path:
        return self.base / "output"

    def write(self, stream: str, rows: Sequence[Row]) -> None:
        """The stream's next file; it appears whole."""
        number = len(self.files[stream])
        name = f"{stream}/{number:04d}.parquet"
        hidden = self.base / stream / f"_{number:04d}"
        pq.write_table(pa.Table.from_pylist(list(rows), schema=self.schemas[stream]), hidden)
        os.utime(hidden, (FIRST_MTIME + number, FIRST_MTIME + number))
        hidden.rename(self.base / name)
        self.files[stream][name] = list(rows)

    def write_nothing(self, stream: str) -> None:
        """A file of zero bytes: a batch reads it and yet has no task to do so."""
        number = len(self.files[stream])
        name = f"{stream}/{number:04d}.parquet"
        (self.base / name).touch()
        os.utime(self.base / name, (FIRST_MTIME + number, FIRST_MTIME + number))
        self.files[stream][name] = []

    def inputs(self, spark: SparkSession) -> dict[str, DataFrame]:
        frames = {}
        for stream in self.query.stream_names:
            path = self.base / stream
            schema = spark.read.parquet(str(path / "0000.parquet")).schema
            frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(path))
            for column, expression in self.spark_types.items():
                frame = frame.selectExpr(
                    *(f"{expression} AS {name}" if name == column else name for name in frame.columns)
                )
            frames[stream] = frame
        return frames

    def start(self, result: DataFrame, *, available_now: bool = False) -> StreamingQuery:
        writer = result.writeStream.format("parquet").option("path", str(self.output))
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def run(
        self, spark: SparkSession, redis: str, *, rebuild: bool = False, inputs: Mapping[str, DataFrame] | None = None
    ) -> None:
        """Read all files that are there, then stop."""
        frames = inputs or self.inputs(spark)
        result = self.query.join(spark, frames, checkpoint=str(self.checkpoint), redis=redis, rebuild=rebuild)
        running = self.start(result, available_now=True)
        try:
            assert running.awaitTermination(int(DEADLINE_S)), "the query did not end"
        finally:
            running.stop()

    def oracle(self, conditions: Sequence[Any] = ()) -> Oracle:
        return Oracle(
            window_us=self.query.window_us,
            keys={s.name: s.key_columns for s in self.query.streams},
            times={s.name: s.time for s in self.query.streams},
            columns={name: self.schemas[name].names for name in self.query.stream_names},
            conditions=conditions,
        )

    def results(self, spark: SparkSession) -> list[Row]:
        found: list[Row] = spark.read.parquet(str(self.output)).toArrow().to_pylist()
        return found

    def check(self, spark: SparkSession, oracle: Oracle | None = None, at_least: int = 1) -> Multiset:
        """Assert that the results are the oracle's; returns them."""
        oracle = oracle or self.oracle()
        expected = oracle.expected(self.files, recorded(self.checkpoint))
        unread = {n for f in self.files.values() for n in f} - recorded(self.checkpoint).batch_of.keys()
        assert not unread, f"never read: {sorted(unread)}"
        assert expected.total() >= at_least, f"a test that proves little: {expected.total()} results"
        columns = oracle.result_columns
        problem = difference(expected, multiset(self.results(spark), columns), columns)
        assert problem is None, problem
        return expected

    def committed(self, batch: int) -> bool:
        return (self.checkpoint / "commits" / str(batch)).exists()

    def last_bound(self) -> int:
        """The newest batch in the offset log, -1 if there is none."""
        log = self.checkpoint / "offsets"
        names = [path.name for path in log.iterdir()] if log.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)


@dataclass(frozen=True)
class Gate:
    """Holds the tasks of a running batch until the test lets them go, so that a fault hits in mid-batch for sure.

    At the input the batch has not been joined yet; at the output it has: the workers have published their resident
    state and changed the durable one, and nothing of it is committed.
    """

    directory: Path

    def at(self, place: str, frame: DataFrame) -> DataFrame:
        directory, deadline = str(self.directory), DEADLINE_S

        # A closure, so that Spark ships it by value: executors cannot import the tests.
        def hold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import os
            import time

            for batch in batches:
                end = time.monotonic() + deadline
                while os.path.exists(f"{directory}/hold-{place}"):
                    with open(f"{directory}/.{os.getpid()}", "w") as marker:
                        marker.write(str(os.getpid()))
                    os.rename(marker.name, f"{directory}/reached-{place}")
                    if time.monotonic() > end:
                        raise TimeoutError(f"the gate {place} stayed shut")
                    time.sleep(0.01)
                yield batch

        return frame.mapInArrow(hold, frame.schema)

    def shut(self, place: str) -> None:
        self.directory.mkdir(exist_ok=True)
        (self.directory / f"reached-{place}").unlink(missing_ok=True)
        (self.directory / f"hold-{place}").touch()

    def reached(self, place: str) -> bool:
        return (self.directory / f"reached-{place}").exists()

    def holder(self, place: str) -> psutil.Process:
        """A Python worker that waits at the gate."""
        return psutil.Process(int((self.directory / f"reached-{place}").read_text()))

    def open(self, place: str) -> None:
        (self.directory / f"hold-{place}").unlink(missing_ok=True)

    @contextmanager
    def holding(self, place: str, run: Run, running: StreamingQuery | None = None) -> Iterator[int]:
        """Inside, a batch is running and none of its tasks gets past the gate. Yields the batch."""
        try:
            yield self.held(place, run, running)
        finally:
            self.open(place)

    def held(self, place: str, run: Run, running: StreamingQuery | None = None) -> int:
        def look() -> bool:
            if running is not None and not running.isActive:
                raise AssertionError(f"the query ended: {running.exception()}")
            return self.reached(place)

        poll(look, f"a batch at the gate {place}")
        batch = run.last_bound()
        assert not run.committed(batch)
        return batch


def executors(root: psutil.Process) -> list[psutil.Process]:
    """Executor JVMs below a driver (local-cluster starts them as its children)."""
    return [p for p in root.children(recursive=True) if "CoarseGrainedExecutorBackend" in " ".join(_cmdline(p))]


def python_workers(executor: psutil.Process) -> list[psutil.Process]:
    """What the executor's PySpark daemon has forked."""
    daemons = [p for p in executor.children() if "spark_daemon" in " ".join(_cmdline(p))]
    return [fork for daemon in daemons for fork in daemon.children()]


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill_tree(root: psutil.Process) -> None:
    """SIGKILL a process and all below it, as a machine that loses power would."""
    # From the top, so that nobody is left to start another; and those below are listed while the root lives.
    tree = [root, *root.children(recursive=True)]
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(tree, timeout=30)
