"""Trimtab beside Apache Flink: `python -m benchmarks.flink_join --help`.

Both join the same files, in turn, into a sink that keeps nothing, with two tasks at once. What is compared is input
rows per second once the window is full, and CPU for each million of rows. Trimtab runs as it always does: batches, each
of them durable before the next one begins. Flink runs without checkpoints, its state on the heap: as fast as it can.
Results of both are compared row for row, once. Where there is no JDK or no way to Flink's jars, this says so and ends
with 0, or with 2 if `--required`.
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
from typing import Final

import duckdb
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks import engines
from benchmarks.application import WORKERS, make_application
from benchmarks.flink.process import Flink, FlinkFailed, FlinkMissing
from benchmarks.rounds import Entrant, cpu_s, load_average, warm_up
from benchmarks.workload import JoinWorkload, write
from trimtab.embedded import EmbeddedRedis

FORMS: Final = ("interval", "multi")
TARGET: Final = 8.0
"""Times Flink's input rows per second, in its best form."""
COMPARED_ROWS: Final = 1000
COMPARED_BATCHES: Final = 8


@dataclass
class Outcome:
    """Rounds of one workload. Rates are input rows per second; CPU is seconds for a million of them."""

    name: str
    rates: dict[str, list[float]] = field(default_factory=dict)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)
    load: str = ""

    def add(self, engine: str, rate: float, cpu: float) -> None:
        self.rates.setdefault(engine, []).append(rate)
        self.cpu_s.setdefault(engine, []).append(cpu)

    @property
    def best(self) -> str:
        """Flink's fastest form."""
        return max(self.rates.keys() - {"trimtab"}, key=lambda each: statistics.median(self.rates[each]))

    @property
    def ratios(self) -> list[float]:
        """Against the best form, round by round."""
        return [ours / theirs for ours, theirs in zip(self.rates["trimtab"], self.rates[self.best], strict=True)]


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    console = Console() if sys.stdout.isatty() else Console(width=140)
    scratch = Path(tempfile.mkdtemp(prefix="trimtab-flink-"))
    try:
        with Flink(options.memory, scratch / "flink.log") as flink, EmbeddedRedis() as redis:
            spark = make_application(options.spark_memory, scratch / "application")
            try:
                bench = Bench(spark, redis.url, flink, options, console)
                different = bench.compare_results(scratch / "compared")
                outcomes = [
                    bench.run(int(ways), int(rows), scratch / f"{ways}-{rows}")
                    for ways in options.ways.split(",")
                    for rows in options.rows.split(",")
                ]
            finally:
                spark.stop()
    except FlinkMissing as error:
        console.print(f"No comparison with Flink: {error}")
        return 2 if options.required else 0
    except FlinkFailed as error:
        console.print(str(error), style="red")
        return 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _show(outcomes, console)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "flink_join.json").write_text(json.dumps([asdict(each) for each in outcomes], indent=1))
    return 1 if different else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.flink_join", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--ways", default="3", help="numbers of streams, such as 2,3")
    parser.add_argument("--rows", default="50000", help="rows per stream and second of event time")
    parser.add_argument("--forms", default=",".join(FORMS), help="of Flink's join: interval joins, multi-way operator")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=15, help="counted batches in a round; Flink: as many seconds")
    parser.add_argument("--warm-up", type=int, default=60, help="batches of Trimtab, at most, before anything counts")
    parser.add_argument("--memory", default="4g", help="heap of Flink")
    parser.add_argument("--spark-memory", default="2g", help="memory of each of Spark's two executors")
    parser.add_argument("--required", action="store_true", help="end with 2 where Flink cannot be had")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder for the figures")
    return parser.parse_args(argv)


class Bench:
    def __init__(
        self, spark: SparkSession, redis: str, flink: Flink, options: argparse.Namespace, console: Console
    ) -> None:
        self._spark = spark
        self._redis = redis
        self._flink = flink
        self._options = options
        self._console = console
        self._forms: list[str] = options.forms.split(",")

    def run(self, ways: int, rows: int, directory: Path) -> Outcome:
        options = self._options
        batches = options.warm_up + 10 + options.rounds * (options.batches + 2)
        ours = JoinWorkload("ABCDEFGH"[:ways], rows, batches)
        theirs = JoinWorkload(ours.streams, rows, 2 + options.batches)
        write(ours, directory / "in")
        # The same files: as many of them as one of Flink's jobs reads.
        for stream in ours.streams:
            (directory / "few" / stream).mkdir(parents=True)
            for number in range(theirs.batches):
                name = f"{number:05d}.parquet"
                (directory / "few" / stream / name).hardlink_to(directory / "in" / stream / name)
        entrant = self._entrant(ours, directory, "trimtab")
        medians = warm_up(self._spark, entrant, options.warm_up)
        self._console.print(f"{ours.name}: warm; medians of ten batches: {', '.join(f'{ms:.0f}' for ms in medians)} ms")
        for form in self._forms:
            rate = self._flink_round(form, theirs, directory / "few")[0]
            self._console.print(f"{ours.name}: {form} warms up: {rate:,.0f} rows/s")
        outcome = Outcome(ours.name)
        for number in range(options.rounds):
            order = ["trimtab", *self._forms]
            for engine in order if number % 2 == 0 else reversed(order):
                if engine == "trimtab":
                    ms = entrant.measure(self._spark, options.batches)
                    rate = ours.input_rows_per_batch / ms * 1000
                    cpu = entrant.measured.cpu_ms[-1] / ours.input_rows_per_batch * 1000
                else:
                    rate, cpu = self._flink_round(engine, theirs, directory / "few")
                outcome.add(engine, rate, cpu)
                self._console.print(f"{ours.name}: round {number + 1}, {engine}: {rate:,.0f} rows/s")
        outcome.load = load_average()
        shutil.rmtree(directory)
        return outcome

    def _flink_round(self, form: str, workload: JoinWorkload, files: Path) -> tuple[float, float]:
        each = workload.rows * len(workload.streams)
        # The first file is as long as the window, and one more goes by before anything counts.
        uncounted = each * (workload.window_batches + 1)
        before = cpu_s(self._flink.pid)
        rows = each * (workload.window_batches + workload.batches - 1)
        done = self._flink.run(form, files, workload.streams, workload.window_us, WORKERS, uncounted, rows)
        return done.rows_per_second, (cpu_s(self._flink.pid) - before) / rows * 1e6

    def compare_results(self, directory: Path) -> bool:
        """Whether results differ, of a smaller input: row for row, as multisets."""
        workload = JoinWorkload("ABC", COMPARED_ROWS, COMPARED_BATCHES)
        write(workload, directory / "in")
        entrant = self._entrant(workload, directory, "compared")
        entrant.advance(self._spark, workload.batches, directory / "out")
        rows = workload.input_rows_per_batch * (workload.window_batches + workload.batches - 1)
        columns = [f'"{stream}_{name}"' for stream in workload.streams for name in ("user", "price", "at")]
        chosen = [f"epoch_us({name})" if name.endswith('_at"') else name for name in columns]
        ours = f"SELECT {', '.join(chosen)} FROM '{directory}/out/*.parquet'"
        wrong = False
        for form in self._forms:
            file = directory / f"{form}.csv"
            self._flink.run(form, directory / "in", workload.streams, workload.window_us, WORKERS, 0, rows, file)
            types = ", ".join(f"'c{n}': '{'DOUBLE' if n % 3 == 1 else 'BIGINT'}'" for n in range(len(columns)))
            theirs = f"SELECT * FROM read_csv('{file}', header = false, columns = {{{types}}})"
            lacking, extra = (_count(f"{a} EXCEPT ALL {b}") for a, b in ((theirs, ours), (ours, theirs)))
            self._console.print(f"results of {form}: {_count(theirs):,}; missing here {lacking}, extra {extra}")
            wrong |= bool(lacking or extra)
        shutil.rmtree(directory)
        return wrong

    def _entrant(self, workload: JoinWorkload, directory: Path, name: str) -> Entrant:
        def build(spark: SparkSession, inputs: dict[str, DataFrame], checkpoint: Path) -> DataFrame:
            query = f"{name}-{workload.name.replace(' ', '-')}"
            return engines.trimtab_result(spark, workload, inputs, checkpoint, self._redis, WORKERS, query)

        return Entrant(name, build, directory / "in", workload, directory / name)


def _count(query: str) -> int:
    found = duckdb.connect().execute(f"SELECT count(*) FROM ({query})").fetchall()
    return int(found[0][0])


def _show(outcomes: Sequence[Outcome], console: Console) -> None:
    table = Table(title="Input rows per second, the window full (medians; slowest..fastest round)")
    for heading in ("workload", "engine", "rows/s", "spread", "CPU s for a million rows", "Trimtab is"):
        table.add_column(heading, justify="left" if heading in ("workload", "engine") else "right")
    for outcome in outcomes:
        ours = statistics.median(outcome.rates["trimtab"])
        for engine, rates in outcome.rates.items():
            middle = statistics.median(rates)
            spread = f"{min(rates):,.0f}..{max(rates):,.0f}"
            cpu = f"{statistics.median(outcome.cpu_s[engine]):.1f}"
            name = engine if engine == "trimtab" else f"Flink, {engine}"
            table.add_row(
                outcome.name,
                name,
                f"{middle:,.0f}",
                spread,
                cpu,
                "" if engine == "trimtab" else f"{ours / middle:.1f}x",
            )
    console.print(table)
    for outcome in outcomes:
        low, high = min(outcome.ratios), max(outcome.ratios)
        console.print(
            f"{outcome.name}: {statistics.median(outcome.ratios):.1f}x ({low:.1f}..{high:.1f}) Flink's best form, "
            f"{outcome.best} (wanted: {TARGET:.0f}x); {outcome.load}"
        )


if __name__ == "__main__":
    sys.exit(main())
