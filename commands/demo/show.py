"""Runs the demo: produces rows, joins them, balances, shows the progress, and lets DuckDB check the result."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import redis
from rich.console import Console
from rich.live import Live

from api.embedded import EmbeddedServer
from commands.demo import workload as work
from commands.demo.board import Board
from commands.demo.holding import WanderingSkew
from commands.demo.oracle import JoinVerdict, committed_files, verdict
from commands.remote.client import Client
from commands.runner.failures import root_cause
from commands.runner.progress import ProgressReader
from commands.runner.run import QueryFailed
from commands.runner.spark_session import make_session, stop_session
from commands.runner.stopping import StopRequest, stop_query
from commands.tables import print_table
from split_union.query import JoinQuery, Stream
from trimtab import redis_keys
from trimtab.durations import spark_interval
from trimtab.embedded import EmbeddedRedis
from trimtab.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME: Final = "demo"
POLL_S: Final = 0.25
PLAIN_EVERY_S: Final = 5.0
BACKLOG_BATCHES: Final = 2
"""How many batches of rows may wait to be read: enough that the query never waits for rows."""
SKEWED_BATCHES: Final = work.LATENESS_US // (work.SLICES_PER_BATCH * work.SLICE_US) + 6
"""By then the state is full and the skew is visible for some batches: now the balancer may act."""
BALANCER: Final = {"enabled": True, "cool_down_s": 5.0, "min_batches": 3}
"""Quicker than the defaults, since the demo is short."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    duration_s: float
    rows_per_s: int
    workers: int
    executors: int
    seed: int
    balance: bool
    directory: Path
    hold: bool = False
    """Go on until a signal comes."""


@dataclass(frozen=True)
class DemoOutcome:
    summary: dict[str, Any]
    verdict: JoinVerdict | None
    """None: interrupted before all input was joined."""

    def as_json(self) -> dict[str, Any]:
        return {"summary": self.summary, "verdict": None if self.verdict is None else asdict(self.verdict)}


def run_demo(options: DemoOptions, stop: StopRequest) -> DemoOutcome:
    console = Console()
    master = f"local-cluster[{options.executors},1,1024]"
    console.print(f"Starting Redis and Spark ({master}) with {options.workers} workers ...", highlight=False)
    board = Board()
    with EmbeddedRedis() as server, EmbeddedServer(server.url) as api:
        key = api.key("operate", "demo")
        console.print(f"Manager and REST API at {api.url}, for this run with the key\n  {key}", highlight=False)
        console.print(
            f"The page (good once, for ten minutes):\n  {api.url}/#ticket={api.ticket('operate', 'demo-page')}",
            highlight=False,
            soft_wrap=True,
        )
        spark = _spark(options, master)
        try:
            with stop.installed():
                load = _workload(spark, options)
                manager = Client(api.url, key) if options.balance else None
                streamed_s, finished = _stream(spark, options, load, board, server.url, manager, console, stop)
        finally:
            stop_session(spark)
    summary = board.summary(streamed_s)
    _print_summary(console, summary)
    if options.hold:
        return DemoOutcome(summary, None)
    if not finished:
        console.print("Interrupted before all input was joined, so there is no verdict.")
        return DemoOutcome(summary, None)
    console.print("DuckDB joins the same input files ...")
    inputs = {stream: sorted((load.directory / stream).glob("*.parquet")) for stream in work.STREAMS}
    judged = verdict(
        inputs,
        committed_files(options.directory / "output"),
        window_us=work.WINDOW_US,
        late_before_us=load.late_before_us,
    )
    console.print(str(judged), style="bold green" if judged.good else "bold red", highlight=False)
    return DemoOutcome(summary, judged)


def _spark(options: DemoOptions, master: str) -> SparkSession:
    # A demo is over before the second compiler's work would pay.
    quick = "-XX:TieredStopAtLevel=1"
    config = {
        "spark.driver.extraJavaOptions": quick,
        "spark.executor.extraJavaOptions": quick,
        "spark.local.dir": str(options.directory / "spark"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.streaming.numRecentProgressUpdates": "20",
    }
    return make_session(master=master, app_name="trimtab demo", config=config, scratch=options.directory)


def _workload(spark: SparkSession, options: DemoOptions) -> work.DemoWorkload:
    """Spark itself says which key falls into which group: that is how the skew can be aimed at one worker."""
    rows = spark.range(0, work.KEYS, 1, 1).selectExpr(f"pmod(xxhash64(id), {work.PARTITIONS}) AS g").collect()
    return work.DemoWorkload(
        options.directory / "input",
        seed=options.seed,
        rows_per_s=options.rows_per_s,
        groups=np.array([row[0] for row in rows], np.int64),
        workers=options.workers,
        start_us=int(time.time()) * 1_000_000,
    )


def _joined(spark: SparkSession, options: DemoOptions, load: work.DemoWorkload, url: str) -> DataFrame:
    join = JoinQuery(
        name=NAME,
        window=spark_interval(work.WINDOW_US),
        lateness=spark_interval(work.LATENESS_US),
        partitions=work.PARTITIONS,
        workers=options.workers,
        where=("A.price < B.price",),
        streams=tuple(Stream(name, key="user", time="at") for name in work.STREAMS),
    )
    reader = spark.readStream.schema(work.SCHEMA).option("maxFilesPerTrigger", work.SLICES_PER_BATCH)
    if options.hold:
        reader = reader.option("cleanSource", "delete")  # it may run for days
    inputs = {name: reader.parquet(str(load.directory / name)) for name in work.STREAMS}
    return join.join(spark, inputs, redis=url, checkpoint=str(options.directory / "checkpoint"))


def _stream(
    spark: SparkSession,
    options: DemoOptions,
    load: work.DemoWorkload,
    board: Board,
    url: str,
    manager: Client | None,
    console: Console,
    stop: StopRequest,
) -> tuple[float, bool]:
    """Seconds of streaming, and whether all input was joined."""
    load.write_slice(late=False)
    query = (
        _joined(spark, options, load, url)
        .writeStream.format("noop" if options.hold else "parquet")
        .queryName(NAME)
        .option("path", str(options.directory / "output"))
        .option("checkpointLocation", str(options.directory / "checkpoint"))
        .start()
    )
    store = Store(url)
    watch = _Watch(query, board, store, stop)
    skew = WanderingSkew(load, store, NAME, options.workers, work.HOT_WORKER % options.workers)
    producer = work.Producer(
        load,
        backlog=lambda: load.rows_written - board.input_rows,
        backlog_max=BACKLOG_BATCHES * work.SLICES_PER_BATCH * options.rows_per_s,
        pace_s=work.SLICE_US / 1e6 if options.hold else 0.0,
    )
    begun = time.monotonic()
    try:
        with _screen(console, board) as screen:
            watch.until(lambda: board.batch >= 0, lambda: screen("first batch: executors start"))
            begun = time.monotonic()
            end = begun + (math.inf if options.hold else options.duration_s)
            if not stop:
                producer.start()
            while not stop and time.monotonic() < end:
                # From the third batch on there is a watermark that a row may be late for.
                producer.late_allowed = board.batch >= 2
                if manager is not None and board.batch >= SKEWED_BATCHES:
                    manager.put(f"/v1/queries/{NAME}/auto", BALANCER)
                    manager = None
                left = max(0.0, end - time.monotonic())
                watch.once()
                if options.hold:
                    skew.look(time.monotonic())
                screen("Ctrl-C ends it" if options.hold else f"{left:3.0f} s left")
                stop.wait(POLL_S)
            if producer.is_alive():
                producer.stop()
            watch.until(lambda: board.input_rows >= load.rows_written, lambda: screen("draining"))
            streamed_s = time.monotonic() - begun
            if not stop:
                query.processAllAvailable()
                watch.once()
            finished = not stop
            stop_query(query, watch.once)
            screen("done" if finished or options.hold else "interrupted", last=True)
    finally:
        with contextlib.suppress(Exception):
            if producer.is_alive():
                producer.stop()
        with contextlib.suppress(Exception):
            query.stop()
    return streamed_s, finished


class _Watch:
    """Follows the query: adds every finished batch to the board, and raises an error if the query fails."""

    def __init__(self, query: StreamingQuery, board: Board, store: Store, stop: StopRequest) -> None:
        self._query = query
        self._reader = ProgressReader(query)
        self._board = board
        self._store = store
        self._stop = stop

    def once(self) -> int:
        for progress in self._reader.new():
            try:
                reports = self._store.reports(NAME, progress.batch)
            except redis.RedisError:
                reports = {}
            self._board.add(progress, reports, time.monotonic())
        self._board.news = self._news() or self._board.news
        if not self._query.isActive:
            error = self._query.exception()
            if error is not None:
                raise QueryFailed(f"the demo's query failed: {root_cause(error)}")
        return self._reader.last_batch

    def _news(self) -> str:
        """The text of the manager's newest event."""
        try:
            entries: Any = self._store.client.xrevrange(redis_keys.events(NAME), count=20)
        except redis.RedisError:
            return ""
        events = (json.loads(entry["event"]) for _, entry in entries)
        return next((event["text"] for event in events if event["kind"] in ("step", "rebalance", "alarm")), "")

    def until(self, done: Any, show: Any) -> None:
        while not done() and not self._stop:
            self.once()
            show()
            self._stop.wait(POLL_S)


@contextlib.contextmanager
def _screen(console: Console, board: Board) -> Iterator[Any]:
    """In a terminal a table that is updated in place; elsewhere a line every few seconds."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:

            def update(phase: str, last: bool = False) -> None:
                live.update(board.table(phase), refresh=True)

            yield update
        return
    printed_at = 0.0

    def tell(phase: str, last: bool = False) -> None:
        nonlocal printed_at
        if last or time.monotonic() - printed_at >= PLAIN_EVERY_S:
            printed_at = time.monotonic()
            print(board.plain(phase), flush=True)
            if last:
                print_table(board.table(phase))

    yield tell


def _print_summary(console: Console, summary: dict[str, Any]) -> None:
    console.print(
        f"{summary['rows']:,} rows ({summary['rows_per_s']:,.0f}/s), {summary['results']:,} results, "
        f"{summary['batches']} batches, median {summary['median_batch_ms']:,} ms, "
        f"resident hit rate {summary['resident_hit_rate']:.1%}",
        highlight=False,
        soft_wrap=True,
    )
    if summary["rows_per_s_after"]:
        console.print(
            f"Before the manager moved groups: {summary['rows_per_s_before']:,} rows/s; at the end: "
            f"{summary['rows_per_s_after']:,} ({summary['gain']:.2f}x); {summary['groups_moved']} groups moved",
            highlight=False,
            soft_wrap=True,
        )
