"""Trimtab beside Spark's own stream-stream joins: `make bench`, or `python -m benchmarks.native_join --help`.

Both engines read the same files with the same trigger, write the same sink, run on the same executors with the same
memory, watermark and number of shuffle partitions, in turn, several rounds; batches count once the window is full.
Results are compared row for row. Ratios of medians in one run count; absolute times are this machine's, today.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks import engines, picture
from benchmarks.workload import Workload, write
from trimtab.embedded import ensure_java, set_pyspark_python, shared_redis
from trimtab.store import Store

SKEW = 0.6
TARGETS = {"3-way uniform 100k": 15.0, "3-way uniform 20k": 4.0, "2-way uniform 100k": 4.0, "2-way uniform 20k": 4.0}
"""Ratios that a change must not fall below."""
WINDOW_FACTOR = 16
WINDOW_COST_MAX = 1.3
BYTES_PER_ROW_MAX = 80


@dataclass
class Outcome:
    """One workload, measured."""

    name: str
    trimtab_ms: float
    native_ms: float
    ratio: float
    rows_per_second: float
    results: int
    missing: int
    extra: int
    bytes_per_row: float
    hit_share: float
    phases_ms: dict[str, float] = field(default_factory=dict)
    rounds: list[tuple[float, float]] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    console = Console()
    ensure_java()
    set_pyspark_python()
    scratch = Path(tempfile.mkdtemp(prefix="trimtab-bench-"))
    spark = _session(options.memory)
    try:
        outcomes = [
            _compare(spark, workload, options, scratch / str(number), console)
            for number, workload in enumerate(_workloads(options))
        ]
        window = None if options.no_window else _window_cost(spark, options, scratch / "window", console)
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    _show(outcomes, window, console)
    body = {"outcomes": [asdict(outcome) for outcome in outcomes], "window": window}
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "native_join.json").write_text(json.dumps(body, indent=1))
    picture.draw(outcomes, options.output / "native_join.png")
    console.print(f"written to {options.output}/native_join.json and native_join.png")
    return 0 if all(outcome.missing == outcome.extra == 0 for outcome in outcomes) else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.native_join", description=__doc__)
    parser.add_argument("--ways", default="3,2", help="numbers of streams, e.g. 2,3")
    parser.add_argument("--rows", default="100000,20000", help="rows per stream and batch")
    parser.add_argument("--keys", default="uniform,skewed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=8, help="measured batches per round, after the window is full")
    parser.add_argument("--warm", type=int, default=6, help="batches before the measured ones")
    parser.add_argument("--memory", default="4g", help="of each executor")
    parser.add_argument(
        "--native-provider", choices=["memory", "rocksdb"], default="memory", help="Spark's state store"
    )
    parser.add_argument("--no-window", action="store_true", help="leave out the run with 16 times the window")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args(argv)


def _workloads(options: argparse.Namespace) -> list[Workload]:
    return [
        Workload("ABCDEFGH"[:ways], rows, options.warm + options.batches, SKEW if keys == "skewed" else 0.0)
        for ways in map(int, options.ways.split(","))
        for keys in options.keys.split(",")
        for rows in map(int, options.rows.split(","))
    ]


def _session(memory: str) -> SparkSession:
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


def _compare(
    spark: SparkSession, workload: Workload, options: argparse.Namespace, directory: Path, console: Console
) -> Outcome:
    write(workload, directory / "in")
    rounds: list[tuple[engines.Measured, engines.Measured]] = []
    for number in range(options.rounds):
        order = ["trimtab", "native"] if number % 2 == 0 else ["native", "trimtab"]
        measured = {}
        for engine in order:
            console.print(f"{workload.name}: round {number + 1} of {options.rounds}, {engine} ...", end=" ")
            shutil.rmtree(directory / engine, ignore_errors=True)
            measured[engine] = _run(spark, engine, workload, options, directory)
            console.print(f"{statistics.median(measured[engine].batch_ms):.0f} ms a batch")
        rounds.append((measured["trimtab"], measured["native"]))
    missing, extra = _difference(directory / "trimtab" / "out", directory / "native" / "out")
    shutil.rmtree(directory)
    ours, theirs = rounds[-1][0], [statistics.median(native.batch_ms) for _, native in rounds]
    trimtab_ms = statistics.median(statistics.median(mine.batch_ms) for mine, _ in rounds)
    native_ms = statistics.median(theirs)
    return Outcome(
        name=workload.name,
        trimtab_ms=trimtab_ms,
        native_ms=native_ms,
        ratio=native_ms / trimtab_ms,
        rows_per_second=workload.input_rows_per_batch / trimtab_ms * 1000,
        results=ours.results,
        missing=missing,
        extra=extra,
        bytes_per_row=max(mine.bytes_per_row for mine, _ in rounds),
        hit_share=min(mine.hit_share for mine, _ in rounds),
        phases_ms=ours.phases_ms,
        rounds=[(statistics.median(a.batch_ms), statistics.median(b.batch_ms)) for a, b in rounds],
    )


def _run(
    spark: SparkSession, engine: str, workload: Workload, options: argparse.Namespace, directory: Path
) -> engines.Measured:
    """One engine over all files, in a session of its own: each needs settings of its own."""
    session = spark.newSession()
    inputs = engines.read(session, workload, directory / "in")
    checkpoint, output = directory / engine / "checkpoint", directory / engine / "out"
    name = f"bench-{directory.name}-{workload.rows}"
    if engine == "native":
        result = engines.native_result(session, workload, inputs, 2, options.native_provider)
        return engines.collect(engines.run(result, checkpoint, output), options.warm)
    redis = shared_redis().url
    store = Store(redis)
    store.client.flushall()
    result = engines.trimtab_result(session, workload, inputs, checkpoint, redis, 2, name)
    stages_before = engines.finished_stages(session)
    progress = engines.run(result, checkpoint, output)
    measured = engines.collect(progress, options.warm)
    engines.add_reports(measured, store, name, progress, options.warm)
    engines.add_stages(measured, session, stages_before, len(progress), options.warm)
    return measured


def _difference(left: Path, right: Path) -> tuple[int, int]:
    """Rows of the right that the left lacks, and the other way round, as multisets."""
    connection = duckdb.connect()
    counts = []
    for one, other in ((right, left), (left, right)):
        columns = [row[0] for row in connection.execute(f"DESCRIBE SELECT * FROM '{left}/*.parquet'").fetchall()]
        chosen = ", ".join(f'"{name}"' for name in columns)
        statement = f"SELECT count(*) FROM (SELECT {chosen} FROM '{one}/*.parquet' EXCEPT ALL SELECT {chosen} FROM '{other}/*.parquet')"
        counts.append(int(connection.execute(statement).fetchall()[0][0]))
    return counts[0], counts[1]


def _window_cost(spark: SparkSession, options: argparse.Namespace, directory: Path, console: Console) -> dict[str, Any]:
    """Batch time with 16 times the window and the same number of results, against the plain window, in turn."""
    rows = 20_000
    small = Workload("ABC", rows, 0, window_batches=3)
    large = Workload("ABC", rows, 0, window_batches=3 * WINDOW_FACTOR)
    times: dict[str, list[float]] = {"small": [], "large": []}
    state: dict[str, int] = {}
    full = large.window_batches + 3
    for number in range(options.rounds):
        for name, shape in (("small", small), ("large", large)):
            whole = Workload("ABC", rows, full + 12, window_batches=shape.window_batches)
            home = directory / f"{name}{number}"
            write(whole, home / "in")
            console.print(
                f"window of {shape.window_batches} batches: round {number + 1} of {options.rounds} ...", end=" "
            )
            measured = _run(spark, "trimtab", whole, argparse.Namespace(**{**vars(options), "warm": full}), home)
            times[name].append(statistics.median(measured.batch_ms))
            state[name] = measured.state_rows
            console.print(f"{times[name][-1]:.0f} ms a batch, {measured.state_rows:,} rows of state")
            shutil.rmtree(home)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"ms": medians, "cost": medians["large"] / medians["small"], "state_rows": state, "rounds": times}


def _show(outcomes: list[Outcome], window: dict[str, Any] | None, console: Console) -> None:
    table = Table(title="Trimtab beside Spark's own join (medians; ratios in this run)")
    for heading in (
        "workload",
        "Spark ms",
        "Trimtab ms",
        "ratio",
        "wanted",
        "rows/s",
        "missing",
        "extra",
        "B/row",
        "hits",
    ):
        table.add_column(heading, justify="left" if heading == "workload" else "right")
    for each in outcomes:
        wanted = TARGETS.get(each.name)
        table.add_row(
            each.name,
            f"{each.native_ms:.0f}",
            f"{each.trimtab_ms:.0f}",
            f"{each.ratio:.1f}x",
            f">= {wanted:.0f}x" if wanted else "",
            f"{each.rows_per_second:,.0f}",
            str(each.missing),
            str(each.extra),
            f"{each.bytes_per_row:.0f}",
            f"{each.hit_share:.1%}",
        )
    console.print(table)
    phases = Table(title="Where a Trimtab batch's time goes (ms; slowest worker, mean over batches)")
    phases.add_column("workload")
    for phase in engines.PHASES:
        phases.add_column(phase, justify="right")
    for each in outcomes:
        phases.add_row(each.name, *(f"{each.phases_ms.get(phase, 0):.0f}" for phase in engines.PHASES))
    console.print(phases)
    if window is not None:
        console.print(
            f"{WINDOW_FACTOR}x the window, same results: {window['cost']:.2f}x the batch time "
            f"(wanted <= {WINDOW_COST_MAX}); state rows {window['state_rows']['small']:,} and {window['state_rows']['large']:,}"
        )
    largest = max((each.bytes_per_row for each in outcomes), default=0)
    console.print(
        f"resident bytes per state row beside the payload: at most {largest:.0f} (wanted <= {BYTES_PER_ROW_MAX})"
    )


if __name__ == "__main__":
    sys.exit(main())
