"""Trimtab beside Spark's own stream-stream joins: `make bench`, or `python -m benchmarks.native_join --help`.

Both engines read the same files with the same trigger, write the same sink, run on the same executors with the same
memory, watermark and number of shuffle partitions, in turn, several rounds; batches count once the window is full.
Results are compared row for row. Compare ratios of medians of one run; absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks import engines, picture
from benchmarks.workload import JoinWorkload, write
from trimtab.embedded import ensure_java, set_pyspark_python, shared_redis
from trimtab.store import Store

SKEW = 0.6
TARGETS = {"3-way uniform 100k": 15.0, "3-way uniform 20k": 4.0, "2-way uniform 100k": 4.0, "2-way uniform 20k": 4.0}
"""Ratios, against Spark's join on the same state store, that a change must not fall below."""
WINDOW_FACTOR = 16
WINDOW_COST_MAX = 1.3
BYTES_PER_ROW_MAX = 80
GROWTH = (1, 2, 4)
WORKERS = 2
WARM = 3
"""Batches that are not counted: the first, which fills the window, and two more."""
WARM_UP_ROWS = 6_000_000
"""Rows of each stream, at most, for the warm-up."""
WARM_UP_SHARE = 1 / 6
"""The part of the first warm-up that each workload gets again."""


@dataclass
class JoinOutcome:
    """One workload, measured. Times are medians over rounds of medians over batches, in milliseconds."""

    name: str
    trimtab_ms: float
    native_ms: dict[str, float]
    """By state store: rocksdb, as Trimtab has it, and memory, Spark's default."""
    rows_per_second: float
    results: int
    missing: int
    extra: int
    bytes_per_row: float
    hit_share: float
    phases_ms: dict[str, float]
    rounds: list[dict[str, float]]

    def ratio(self, provider: str) -> float:
        return self.native_ms[provider] / self.trimtab_ms


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    ensure_java()
    set_pyspark_python()
    scratch = Path(tempfile.mkdtemp(prefix="trimtab-bench-"))
    spark = session(options.memory)
    outcomes: list[JoinOutcome] = []
    try:
        workloads = _workloads(options)
        # The shortest batches go through the most code in a given time.
        shortest = min(workloads, key=lambda each: (each.rows, -len(each.streams)))
        _warm_up(spark, shortest, _engines(options), options.warm_up, scratch / "warm", console)
        window = None if options.no_window else _window_cost(spark, options, scratch / "window", console)
        growth = None if options.no_growth else _growth(spark, scratch / "growth", console)
        for number, workload in enumerate(workloads):
            outcomes.append(_compare(spark, workload, options, scratch / str(number), console))
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    _show(outcomes, window, options.native.split(","), console)
    if growth is not None:
        _show_growth(growth, console)
    body = {"outcomes": [asdict(outcome) for outcome in outcomes], "window": window, "growth": growth}
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "native_join.json").write_text(json.dumps(body, indent=1))
    picture.draw(outcomes, options.output / "native_join.png")
    console.print(f"written to {options.output}/native_join.json and native_join.png")
    return 0 if all(outcome.missing == outcome.extra == 0 for outcome in outcomes) else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.native_join", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--ways", default="3,2", help="numbers of streams")
    parser.add_argument("--rows", default="100000,20000", help="rows per stream and batch")
    parser.add_argument("--keys", default="uniform,skewed", help="distributions of the keys")
    parser.add_argument("--rounds", type=int, default=3, help="times that each engine runs each workload")
    parser.add_argument("--batches", type=int, default=5, help="measured batches per round")
    parser.add_argument("--warm-up", type=float, default=120, help="seconds that each engine runs before it counts")
    parser.add_argument("--memory", default="6g", help="memory of each of the two executors")
    parser.add_argument("--native", default="rocksdb,memory", help="state stores for Spark's own join")
    parser.add_argument("--no-window", action="store_true", help="leave out the run with 16 times the window")
    parser.add_argument("--no-growth", action="store_true", help="leave out the runs with more rows and more results")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder for JSON and picture")
    return parser.parse_args(argv)


def _workloads(options: argparse.Namespace) -> list[JoinWorkload]:
    return [
        JoinWorkload("ABCDEFGH"[:ways], rows, WARM + options.batches, SKEW if keys == "skewed" else 0.0)
        for ways in map(int, options.ways.split(","))
        for keys in options.keys.split(",")
        for rows in map(int, options.rows.split(","))
    ]


def _engines(options: argparse.Namespace) -> list[str]:
    return ["trimtab", *options.native.split(",")]


def session(memory: str) -> SparkSession:
    spark = (
        SparkSession.builder.master(f"local-cluster[2,1,{_megabytes(memory)}]")
        .appName("trimtab benchmark")
        .config("spark.executor.memory", memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.ui.retainedStages", "100000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _megabytes(memory: str) -> int:
    return int(memory[:-1]) * {"g": 1024, "m": 1}[memory[-1].lower()]


def _warm_up(
    spark: SparkSession, workload: JoinWorkload, chosen: list[str], seconds: float, directory: Path, console: Console
) -> None:
    """Let each engine run the same workload for the same time: the JVMs compile for hundreds of short batches."""
    if seconds <= 0:
        return
    write(replace(workload, batches=max(WARM_UP_ROWS // workload.rows, 1), seed=workload.seed + 1), directory / "in")
    for engine in chosen:
        console.print(f"{workload.name}: warming up for {seconds:.0f} s, {engine} ...")
        _run(spark, engine, workload, directory, WARM, seconds)
        # The query was stopped; its last tasks may still be cleaning up.
        shutil.rmtree(directory / engine, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


def _compare(
    spark: SparkSession, workload: JoinWorkload, options: argparse.Namespace, directory: Path, console: Console
) -> JoinOutcome:
    write(workload, directory / "in")
    chosen = _engines(options)
    _warm_up(spark, workload, chosen, options.warm_up * WARM_UP_SHARE, directory / "warm", console)
    rounds: list[dict[str, engines.EngineRun]] = []
    for number in range(options.rounds):
        measured = {}
        for engine in chosen if number % 2 == 0 else reversed(chosen):
            console.print(f"{workload.name}: round {number + 1} of {options.rounds}, {engine} ...", end=" ")
            shutil.rmtree(directory / engine, ignore_errors=True)
            measured[engine] = _run(spark, engine, workload, directory, WARM)
            console.print(f"{statistics.median(measured[engine].batch_ms):.0f} ms a batch")
        rounds.append(measured)
    different = [_difference(directory / "trimtab" / "out", directory / engine / "out") for engine in chosen[1:]]
    shutil.rmtree(directory)
    medians = [{engine: statistics.median(each.batch_ms) for engine, each in one.items()} for one in rounds]
    overall = {engine: statistics.median(one[engine] for one in medians) for engine in chosen}
    ours = [one["trimtab"] for one in rounds]
    return JoinOutcome(
        name=workload.name,
        trimtab_ms=overall["trimtab"],
        native_ms={engine: overall[engine] for engine in chosen[1:]},
        rows_per_second=workload.input_rows_per_batch / overall["trimtab"] * 1000,
        results=ours[-1].results,
        missing=sum(missing for missing, _ in different),
        extra=sum(extra for _, extra in different),
        bytes_per_row=max(each.bytes_per_row for each in ours),
        hit_share=min(each.hit_share for each in ours),
        phases_ms=ours[-1].phases_ms,
        rounds=medians,
    )


def _run(
    spark: SparkSession, engine: str, workload: JoinWorkload, directory: Path, warm: int, seconds: float | None = None
) -> engines.EngineRun:
    """Run one engine over all files, or for some time, in a new session: engines need different settings."""
    session = spark.newSession()
    inputs = engines.read(session, workload, directory / "in")
    checkpoint, output = directory / engine / "checkpoint", directory / engine / "out"
    if engine != "trimtab":
        result = engines.native_result(session, workload, inputs, WORKERS, engine)
        return engines.collect(engines.run(result, checkpoint, output, seconds), warm)
    redis = shared_redis().url
    store = Store(redis)
    store.client.flushall()
    name = f"bench-{directory.name}"
    result = engines.trimtab_result(session, workload, inputs, checkpoint, redis, WORKERS, name)
    stages_before = engines.finished_stages(session)
    progress = engines.run(result, checkpoint, output, seconds)
    measured = engines.collect(progress, warm)
    engines.add_reports(measured, store, name, progress, warm)
    engines.add_stages(measured, session, stages_before, len(progress), warm)
    return measured


def _difference(left: Path, right: Path) -> tuple[int, int]:
    """How many rows of the right the left lacks, and the reverse, as multisets."""
    connection = duckdb.connect()
    counts = []
    for one, other in ((right, left), (left, right)):
        columns = [row[0] for row in connection.execute(f"DESCRIBE SELECT * FROM '{left}/*.parquet'").fetchall()]
        chosen = ", ".join(f'"{name}"' for name in columns)
        rows = [f"SELECT {chosen} FROM '{side}/*.parquet'" for side in (one, other)]
        counted = connection.execute(f"SELECT count(*) FROM ({' EXCEPT ALL '.join(rows)})").fetchall()
        counts.append(int(counted[0][0]))
    return counts[0], counts[1]


def _window_cost(spark: SparkSession, options: argparse.Namespace, directory: Path, console: Console) -> dict[str, Any]:
    """Batch time with 16 times the window and the same number of results, against the plain window, in turn."""
    times: dict[str, list[float]] = {"small": [], "large": []}
    state_rows: dict[str, int] = {}
    for number in range(options.rounds):
        for name, batches in (("small", 3), ("large", 3 * WINDOW_FACTOR)):
            workload = JoinWorkload("ABC", 20_000, WARM + 15, window_batches=batches)
            home = directory / f"{name}{number}"
            write(workload, home / "in")
            console.print(f"window of {batches} batches: round {number + 1} of {options.rounds} ...", end=" ")
            measured = _run(spark, "trimtab", workload, home, WARM)
            times[name].append(statistics.median(measured.batch_ms))
            state_rows[name] = measured.state_rows
            console.print(f"{times[name][-1]:.0f} ms a batch, {measured.state_rows:,} rows of state")
            shutil.rmtree(home)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"ms": medians, "cost": medians["large"] / medians["small"], "state_rows": state_rows, "rounds": times}


def _growth(spark: SparkSession, directory: Path, console: Console) -> dict[str, list[dict[str, float]]]:
    """Trimtab's batch time with more rows and as many results per row, and with as many rows and more results."""
    base = JoinWorkload("ABC", 50_000, WARM + 6)
    grown = {
        "rows": [replace(base, rows=base.rows * factor) for factor in GROWTH],
        "results": [replace(base, results_per_row=float(factor)) for factor in GROWTH],
    }
    entries: dict[str, list[dict[str, float]]] = {}
    for what, workloads in grown.items():
        for number, workload in enumerate(workloads):
            home = directory / f"{what}{number}"
            write(workload, home / "in")
            measured = _run(spark, "trimtab", workload, home, WARM)
            shutil.rmtree(home)
            entry = {
                "factor": GROWTH[number],
                "ms": statistics.median(measured.batch_ms),
                "results": measured.results / len(measured.batch_ms),
            }
            entries.setdefault(what, []).append(entry)
            console.print(f"{what} x{entry['factor']}: {entry['ms']:.0f} ms, {entry['results']:,.0f} results a batch")
    return entries


def _show_growth(growth: dict[str, list[dict[str, float]]], console: Console) -> None:
    for what, entries in growth.items():
        text = ", ".join(
            f"{entry['factor']}x the {what}: {entry['ms'] / entries[0]['ms']:.2f}x the time" for entry in entries[1:]
        )
        console.print(f"{text} (at most as much is linear)")


def _show(outcomes: list[JoinOutcome], window: dict[str, Any] | None, native: list[str], console: Console) -> None:
    table = Table(title="Trimtab beside Spark's own join (ms a batch, medians; the ratios count)")
    headings = ["workload", "Trimtab", *(f"Spark {provider}" for provider in native)]
    headings += [*(f"ratio {provider}" for provider in native), "target", "rows/s", "missing", "extra", "B/row", "hits"]
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "workload" else "right")
    for each in outcomes:
        target = TARGETS.get(each.name)
        table.add_row(
            each.name,
            f"{each.trimtab_ms:.0f}",
            *(f"{each.native_ms[provider]:.0f}" for provider in native),
            *(f"{each.ratio(provider):.1f}x" for provider in native),
            f">= {target:.0f}x" if target else "",
            f"{each.rows_per_second:,.0f}",
            str(each.missing),
            str(each.extra),
            f"{each.bytes_per_row:.0f}",
            f"{each.hit_share:.1%}",
        )
    console.print(table)
    phases = Table(title="Where a Trimtab batch's time goes (ms; slowest worker, means over batches)")
    phases.add_column("workload")
    for phase in engines.PHASES:
        phases.add_column(phase, justify="right")
    for each in outcomes:
        phases.add_row(each.name, *(f"{each.phases_ms.get(phase, 0):.0f}" for phase in engines.PHASES))
    console.print(phases)
    if window is not None:
        small, large = window["state_rows"]["small"], window["state_rows"]["large"]
        console.print(
            f"{WINDOW_FACTOR}x the window, same results: {window['cost']:.2f}x the batch time "
            f"(target <= {WINDOW_COST_MAX}); state rows {small:,} and {large:,}"
        )
    largest = max((each.bytes_per_row for each in outcomes), default=0)
    console.print(f"resident bytes per state row beside the payload: {largest:.0f} (target <= {BYTES_PER_ROW_MAX})")


if __name__ == "__main__":
    sys.exit(main())
