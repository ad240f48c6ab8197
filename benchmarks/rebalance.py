"""What balancing gains and what a move costs: `python -m benchmarks.rebalance --help`.

1. Gain. A join-bound workload on two executors of one core, three ways: its load spread evenly from the start, three
   quarters of it on one executor without balancing, and the same with automatic balancing.
2. A paced move (MSLB) of two million state rows from one worker to the other: how much longer do batches take, and for
   how many of them does a row wait for its group's state?
3. A parallel track (PTLB): when does it end, in event time, and does a row wait?

Compare ratios of one run; absolute times depend on the machine. The results of the three ways of part 1 are compared.
The exit code is 1 if a figure misses its target.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from balancing.requests import MoveRequest, Rebalance, RebalanceRequest
from benchmarks.application import make_application
from commands.runner.progress import ProgressReader
from manager.embedded import EmbeddedManager
from manager.store import now_ms
from trimtab import JoinQuery, Stream
from trimtab.embedded import EmbeddedRedis
from trimtab.moves import Side
from trimtab.offset_log import Checkpoint
from trimtab.reports import WorkerReport
from trimtab.store import Store

PARTITIONS: Final = 64
STREAMS: Final = "ABC"
KEYS_MAX: Final = 2_000_000
SCHEMA: Final = "user long, price double, at timestamp"
BATCH_US: Final = 1_000_000
START_US: Final = 1_700_000_000_000_000
SHARE: Final = 0.75
"""The part of the load that one executor has at first."""
ROW_SHARE: Final = math.sqrt(SHARE) / (math.sqrt(SHARE) + math.sqrt(1 - SHARE))
"""The part of the rows that causes this load: a row is compared with the others of its key, so load is quadratic."""

_WAYS: Final = (
    ("warm-up", True, False),
    ("even", True, False),
    ("unbalanced", False, False),
    ("balanced", False, True),
)
"""Name, whether heavy keys are spread over both workers from the start, whether the manager balances."""

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Figure:
    """One line of the outcome."""

    what: str
    value: float
    target: float
    unit: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.at_least else self.value <= self.target

    def row(self) -> tuple[str, str, str, str]:
        sign = ">=" if self.at_least else "<="
        value, target = (f"{number:.2f}".rstrip("0").rstrip(".") + self.unit for number in (self.value, self.target))
        return self.what, value, f"{sign} {target}", "yes" if self.met else "NO"


@dataclass(frozen=True)
class InputShape:
    """`rows` per stream and batch over `keys` keys. Batch 0 covers `first` batches of event time, the others one."""

    rows: int
    keys: int
    window_us: int
    lateness_us: int
    batches: int
    first: int = 1
    heavy: float = 0.5
    """The part of the rows that belongs to half of the keys."""
    spread: bool = True
    """Whether the heavy keys belong to both workers equally, or all to worker 0."""


class Bench:
    def __init__(self, spark: SparkSession, scratch: Path, redis: str, console: Console) -> None:
        self.spark, self.scratch, self.redis, self.console = spark, scratch, redis, console
        self.store = Store(redis)
        hashes = spark.range(0, KEYS_MAX, 1, 1).selectExpr(f"pmod(xxhash64(id), {PARTITIONS}) AS g").toArrow()
        self.groups: Longs = hashes.column("g").to_numpy()

    def write(self, name: str, shape: InputShape) -> Path:
        """The input files of one trial. Worker 0 of two begins with the even groups."""
        directory = self.scratch / name / "in"
        rng = np.random.default_rng(11)
        half = shape.keys // 2
        heavy = np.flatnonzero(self.groups % 2 == 0)[:half]
        light = np.flatnonzero(self.groups % 2 == 1)[:half]
        if shape.spread:
            heavy, light = (np.concatenate([heavy[part::2], light[part::2]]) for part in range(2))
        for stream in STREAMS:
            (directory / stream).mkdir(parents=True)
            first = START_US
            for batch in range(shape.batches):
                length = shape.first if batch == 0 else 1
                rows, last = shape.rows * length, first + BATCH_US * length
                is_heavy = rng.random(rows) < shape.heavy
                users = np.where(is_heavy, rng.choice(heavy, rows), rng.choice(light, rows))
                times = np.sort(rng.integers(first, last, rows))
                columns = {"user": users, "price": rng.random(rows), "at": pa.array(times, pa.timestamp("us", "UTC"))}
                path = directory / stream / f"{batch:05d}.parquet"
                pq.write_table(pa.table(columns), path)
                os.utime(path, (1_600_000_000 + batch, 1_600_000_000 + batch))
                first = last
        return directory

    def start(self, name: str, shape: InputShape, directory: Path) -> BenchmarkQuery:
        spark = self.spark.newSession()
        query = JoinQuery(
            name=name,
            window=f"{shape.window_us} microseconds",
            lateness=f"{shape.lateness_us} microseconds",
            partitions=PARTITIONS,
            workers=2,
            streams=[Stream(stream, key="user", time="at") for stream in STREAMS],
        )
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        inputs = {stream: reader.parquet(str(directory / stream)) for stream in STREAMS}
        checkpoint = self.scratch / name / "checkpoint"
        result = query.join(spark, inputs, redis=self.redis, checkpoint=str(checkpoint))
        output = self.scratch / name / "out"
        running = (
            result.writeStream.format("parquet")
            .option("path", str(output))
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        return BenchmarkQuery(self, name, shape, running, checkpoint, output)


class BenchmarkQuery:
    """One running query."""

    def __init__(self, bench: Bench, name: str, shape: InputShape, query: Any, checkpoint: Path, output: Path) -> None:
        self.bench, self.name, self.shape, self.query = bench, name, shape, query
        self.checkpoint, self.output = checkpoint, output
        self.reader = ProgressReader(query)
        self.batch_ms: dict[int, float] = {}

    def look(self) -> int:
        """Batches that have finished so far, -1 for none. Only those with rows of every stream count."""
        for progress in self.reader.new():
            if progress.rows >= self.shape.rows * len(STREAMS):
                self.batch_ms[progress.batch] = float(progress.ms)
        if not self.query.isActive and self.query.exception() is not None:
            raise RuntimeError(f"{self.name}: {self.query.exception()}")
        return max(self.batch_ms, default=-1)

    def until(self, done: Any, deadline_s: float = 1200.0) -> None:
        end = time.monotonic() + deadline_s
        while not done():
            if time.monotonic() > end:
                raise RuntimeError(f"{self.name}: not done after {deadline_s:g} s")
            time.sleep(0.05)
            self.look()

    def finish(self) -> None:
        self.until(lambda: len(self.batch_ms) >= self.shape.batches)
        self.query.stop()

    def loads(self) -> list[float]:
        """CPU seconds of the join in the newest batch, by worker."""
        return [
            report.phase_ns.get("join", 0) / 1e9 for _, report in sorted(self.bench.store.reports(self.name).items())
        ]

    def waited(self, first: int, last: int) -> int:
        """For how many of these batches a row waited."""
        store = self.bench.store
        return batches_waited({batch: store.reports(self.name, batch).values() for batch in range(first, last + 1)})

    def evidence_share(self, first: int, last: int) -> float:
        """Of the time of these batches, what collecting evidence for the audit took: a batch waits for its slowest
        worker, so the largest part counts."""
        spent_ms = sum(
            max(
                (report.phase_ns.get("evidence", 0) for report in self.bench.store.reports(self.name, batch).values()),
                default=0,
            )
            / 1e6
            for batch in range(first, last + 1)
        )
        whole_ms = sum(ms for batch, ms in self.batch_ms.items() if first <= batch <= last)
        return spent_ms / whole_ms if whole_ms else 0.0

    def results(self) -> int:
        return int(self.bench.spark.read.parquet(str(self.output)).count())


def batches_waited(reports: Mapping[int, Collection[WorkerReport]]) -> int:
    """The longest run of batches that began while rows of one move were waiting for their state: a row that arrives in
    one batch and is joined in the next has waited for one. A batch without reports counts as waiting if the batches
    around it do."""
    longest = 0
    waiting: dict[str, int] = {}
    for _, of_batch in sorted(reports.items()):
        moves = [move for report in of_batch for move in report.moves if move.side == Side.RECEIVER]
        if moves:
            holding = {move.move for move in moves if move.held_rows}
            waiting = {move: since for move, since in waiting.items() if move in holding}
            waiting |= {move: 0 for move in holding if move not in waiting}
        elif of_batch:
            waiting = {}
        waiting = {move: since + 1 for move, since in waiting.items()}
        longest = max([longest, *waiting.values()])
    return longest


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    console = Console() if sys.stdout.isatty() else Console(width=150)
    scratch = Path(tempfile.mkdtemp(prefix="trimtab-rebalance-"))
    measured: dict[str, Any] = {}
    spark = make_application(options.memory, scratch / "application")
    try:
        with EmbeddedRedis() as server:
            bench = Bench(spark, scratch, server.url, console)
            for part in options.parts.split(","):
                measured[part] = {"gain": gain, "mslb": paced_move, "ptlb": parallel_track}[part](bench, options)
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    figures = figures_of(measured)
    _show(figures, console)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "rebalance.json").write_text(json.dumps(measured, indent=1))
    console.print(f"written to {options.output}/rebalance.json")
    return 0 if all(figure.met for figure in figures) else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.rebalance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default="gain,mslb,ptlb", help="which parts to run (gain,mslb,ptlb)")
    parser.add_argument("--rows", type=int, default=15_000, help="gain: rows per stream and batch (15000)")
    parser.add_argument("--fill", type=int, default=10, help="gain: batches of event time that the state covers (10)")
    parser.add_argument("--measured", type=int, default=8, help="gain: batches measured (8)")
    parser.add_argument("--state", type=int, default=2_000_000, help="mslb: state rows that move (2000000)")
    parser.add_argument("--memory", default="4g", help="memory of each of the two executors (4g)")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder for the JSON")
    return parser.parse_args(argv)


def gain(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Even, unbalanced, balanced: the median time of the last batches of each."""
    settle = 12
    """Batches, after the state is full, in which the manager may measure, decide and move."""
    ms: dict[str, float] = {}
    results: dict[str, int] = {}
    loads: dict[str, list[float]] = {}
    history: dict[str, list[float]] = {}
    for name, spread, auto in _WAYS:
        short = name == "warm-up"
        shape = InputShape(
            rows=options.rows // 4 if short else options.rows,
            keys=PARTITIONS,
            window_us=2_000,
            lateness_us=options.fill * BATCH_US,
            batches=16 if short else options.fill + settle + options.measured,
            heavy=ROW_SHARE,
            spread=spread,
        )
        directory = bench.write(name, shape)
        bench.console.print(f"gain, {name}: {shape.batches} batches ...")
        trial = bench.start(name, shape, directory)
        if auto:
            _finish_balanced(trial)
        else:
            trial.finish()
        if not short:
            times = [trial.batch_ms[batch] for batch in sorted(trial.batch_ms)]
            ms[name] = statistics.median(times[-options.measured :])
            history[name] = times
            results[name] = trial.results()
            loads[name] = trial.loads()
            seconds = [round(each, 2) for each in loads[name]]
            bench.console.print(f"  {ms[name]:.0f} ms a batch; join seconds by worker {seconds}")
        shutil.rmtree(bench.scratch / name, ignore_errors=True)
    rows = options.rows * len(STREAMS)
    return {
        "batch_ms": ms,
        "rows_per_s": {name: rows * 1000 / each for name, each in ms.items()},
        "of even": ms["even"] / ms["balanced"],
        "of unbalanced": ms["unbalanced"] / ms["balanced"],
        "ideal": SHARE / 0.5,
        "join_s": loads,
        "results": results,
        "exact": results["unbalanced"] == results["balanced"],
        "history_ms": history,
    }


def _finish_balanced(trial: BenchmarkQuery) -> None:
    """With automatic balancing. By MSLB, because a parallel track lasts for window and lateness, which is longer than
    this trial."""
    with EmbeddedManager(trial.bench.redis) as manager:
        trial.until(lambda: trial.look() >= 0)
        manager.set_auto(trial.name, auto=True, cool_down_s=5.0, strategy="mslb")
        trial.finish()
        outcomes = sorted(record.outcome for record in manager.migrations(trial.name).values())
        trial.bench.console.print(f"  {len(outcomes)} migrations: {outcomes}")


def paced_move(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Let two workers swap half of their state while the query runs, and look at every batch from the first wave to the
    last. A swap, so that the load stays level: what a batch takes longer is due to the move alone."""
    window = 20
    rows = 2 * options.state // (window * len(STREAMS))
    shape = InputShape(
        rows=rows,
        # As many keys as give a row about one result.
        keys=min(window * rows, KEYS_MAX * 9 // 10),
        window_us=window * BATCH_US,
        lateness_us=BATCH_US,
        batches=90,
        first=window,
    )
    name = "paced"
    directory = bench.write(name, shape)
    bench.console.print(f"mslb: {options.state:,} state rows ...")
    trial = bench.start(name, shape, directory)
    with EmbeddedManager(bench.redis) as manager:
        trial.until(lambda: len(trial.batch_ms) >= 16)
        before = [ms for batch, ms in sorted(trial.batch_ms.items()) if batch >= 6]
        begun = max(trial.batch_ms)
        request = RebalanceRequest(
            id="paced-1",
            query=name,
            moves=(
                MoveRequest(sender=0, receiver=1, share=0.5, measure="bytes"),
                MoveRequest(sender=1, receiver=0, share=0.5, measure="bytes"),
            ),
            strategy="mslb",
            at_ms=now_ms(),
        )
        manager.rebalance(request)
        trial.until(lambda: _ended(manager, request) is not None)
        ended = trial.look()
        outcome = _ended(manager, request)
        assert outcome is not None
        migrations = list(manager.migrations(name).values())
    trial.query.stop()
    waves = [wave for migration in migrations for wave in migration.waves]
    state = sum(wave.rows for wave in waves)
    during = {batch: ms for batch, ms in trial.batch_ms.items() if begun < batch <= ended}
    median = statistics.median(before)
    bench.console.print(f"  {outcome.state} in {len(during)} batches and {len(waves)} waves, {state:,} rows")
    waited = trial.waited(begun + 1, ended)
    evidence = trial.evidence_share(begun + 1, ended)
    shutil.rmtree(bench.scratch / name, ignore_errors=True)
    return {
        "state_rows": state,
        "waves": len(waves),
        "batches": len(during),
        "median_ms": median,
        "longest_ms": max(during.values()),
        "longest batch": max(during.values()) / median,
        "batches_waited": waited,
        "evidence": evidence,
        "outcome": outcome.state,
        "audits": [migration.audit.to_json() for migration in migrations],
        "history_ms": [ms for _, ms in sorted(trial.batch_ms.items())],
        "exact": outcome.state == "committed",
    }


def parallel_track(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """A parallel track of a few groups: from the newest old timestamp to the batch in which all old rows expired."""
    shape = InputShape(rows=10_000, keys=50_000, window_us=5 * BATCH_US, lateness_us=2 * BATCH_US, batches=60, first=5)
    name = "track"
    directory = bench.write(name, shape)
    bench.console.print("ptlb ...")
    trial = bench.start(name, shape, directory)
    with EmbeddedManager(bench.redis) as manager:
        trial.until(lambda: len(trial.batch_ms) >= 8)
        groups = tuple(range(0, 16, 2))
        moves = (MoveRequest(sender=0, receiver=1, groups=groups),)
        request = RebalanceRequest(id="track-1", query=name, moves=moves, strategy="ptlb", at_ms=now_ms())
        manager.rebalance(request)
        begun = max(trial.batch_ms)
        newest_old: list[int] = []

        def done() -> bool:
            for report in bench.store.reports(name).values():
                newest_old.extend(m.newest_old_us for m in report.moves if m.newest_old_us is not None)
            return _ended(manager, request) is not None

        trial.until(done)
        ended = trial.look()
        outcome = _ended(manager, request)
        (migration,) = manager.migrations(name).values()
    trial.query.stop()
    assert outcome is not None
    checkpoint = Checkpoint(str(trial.checkpoint))
    # The newest event time that the last batch had read; the watermark of a batch comes from the batch before.
    reached = checkpoint.watermark_us(ended) + shape.lateness_us
    took = (reached - max(newest_old)) / BATCH_US
    # The watermark comes one batch late, the sender's word one batch after that (it reports what is committed), and the
    # epoch that closes the move takes two.
    allowed = (shape.window_us + shape.lateness_us) / BATCH_US + 4
    waited = trial.waited(begun + 1, ended)
    evidence = trial.evidence_share(begun + 1, ended)
    shutil.rmtree(bench.scratch / name, ignore_errors=True)
    return {
        "batches_of_event_time": took,
        "allowed": allowed,
        "batches_waited": waited,
        "evidence": evidence,
        "outcome": outcome.state,
        "audit": migration.audit.to_json(),
        "exact": outcome.state == "committed",
    }


def _ended(manager: EmbeddedManager, request: RebalanceRequest) -> Rebalance | None:
    """The rebalance, once it has ended."""
    outcome = manager.outcome(request.query, request.id)
    return None if outcome is None or outcome.open else outcome


def figures_of(measured: dict[str, Any]) -> list[Figure]:
    """The measured values with their targets."""
    figures = []
    if part := measured.get("gain"):
        text = "rows/s, balanced by the manager / "
        figures += [
            Figure(text + "even from the start", part["of even"], 0.95, "x", at_least=True),
            Figure(text + "not balanced", part["of unbalanced"], 1.3, "x", at_least=True),
        ]
    if part := measured.get("mslb"):
        text = f"longest batch / median, {part['state_rows']:,} rows in {part['waves']} waves"
        figures += [
            Figure(text, part["longest batch"], 1.5, "x"),
            Figure("moving state: batches that a row of a moved group waits", part["batches_waited"], 1),
            Figure("moving state: evidence for the audit, of the time", 100 * part["evidence"], 2, " %"),
        ]
    if part := measured.get("ptlb"):
        text = "parallel track: batches of event time after the largest old timestamp"
        figures += [
            Figure(text, part["batches_of_event_time"], part["allowed"]),
            Figure("parallel track: batches that a row waits", part["batches_waited"], 0),
            Figure("parallel track: evidence for the audit, of the time", 100 * part["evidence"], 2, " %"),
        ]
    wrong = [name for name, part in measured.items() if not part["exact"]]
    return [*figures, Figure("parts that moved nothing, or whose results differ", len(wrong), 0)]


def _show(figures: Sequence[Figure], console: Console) -> None:
    table = Table("what", title="Rebalancing (ratios of one run)")
    for column in ("measured", "target", "met"):
        table.add_column(column, justify="right")
    for figure in figures:
        table.add_row(*figure.row())
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
