"""Trimtab beside Spark's own stream-stream joins, in all their forms: `make bench`.

All read the same files with the same trigger, on the same executors with the same memory, watermark and number of
shuffle partitions, into no sink. They are warm, they run in turn, and they must have the same results in every batch.
The ratio that counts is the one against the fastest form; absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks import engines, picture
from benchmarks.application import WORKERS, make_application
from benchmarks.rounds import Build, Entrant, differences, in_turn, load_average, warm_up
from benchmarks.workload import JoinWorkload, write
from trimtab.embedded import EmbeddedRedis
from trimtab.store import Store

SKEW: Final = 0.6
TARGETS: Final = {"3-way uniform 10k": 5.0, "3-way uniform 50k": 15.0, "3-way uniform 100k": 20.0}
"""Ratios against the best form that a change must not fall below."""
BYTES_PER_ROW_MAX: Final = 80
UNCOUNTED: Final = 1
"""Batches at the beginning of a round: the first reads the state again."""
WARM_UP_STEPS: Final = 10
"""At most so many for each engine; fewer once three in turn take as long as each other."""
WARM_UP_BATCHES: Final = {"trimtab": 10}
"""In a step. Of the others 4: their batches are longer, and compile as much."""


@dataclass(frozen=True)
class JoinOutcome:
    """One workload, measured. Times are medians over rounds of medians over batches, in milliseconds."""

    name: str
    rounds_ms: dict[str, list[float]]
    """Of each engine: `trimtab`, or a form of Spark's own join."""
    cpu_ms: dict[str, float]
    rows_per_second: float
    batches_compared: int
    different: list[str]
    inside: engines.Inside
    load: str

    @property
    def trimtab_ms(self) -> float:
        return statistics.median(self.rounds_ms["trimtab"])

    @property
    def native_ms(self) -> dict[str, float]:
        return {form: statistics.median(ms) for form, ms in self.rounds_ms.items() if form != "trimtab"}

    @property
    def best(self) -> str:
        """The form of Spark's own join that a user would pick."""
        return min(self.native_ms, key=self.native_ms.__getitem__)

    def ratio(self, form: str) -> float:
        return self.native_ms[form] / self.trimtab_ms

    def spread(self, form: str) -> tuple[float, float]:
        """Of the ratio, round by round."""
        pairs = zip(self.rounds_ms[form], self.rounds_ms["trimtab"], strict=True)
        ratios = [theirs / ours for theirs, ours in pairs]
        return min(ratios), max(ratios)


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    scratch = Path(tempfile.mkdtemp(prefix="trimtab-bench-"))
    forms = options.forms.split(",")
    outcomes: list[JoinOutcome] = []
    with EmbeddedRedis() as redis:
        spark = make_application(options.memory, scratch / "application")
        try:
            bench = Bench(spark, redis.url, forms, options, console)
            workloads = _workloads(options)
            warming = bench.warm_up(min(workloads, key=lambda each: (each.rows, len(each.streams))), scratch / "warm")
            for number, workload in enumerate(workloads):
                outcomes.append(bench.compare(workload, scratch / str(number)))
        finally:
            spark.stop()
            shutil.rmtree(scratch, ignore_errors=True)
    _show(outcomes, forms, console)
    options.output.mkdir(parents=True, exist_ok=True)
    body = {"outcomes": [asdict(outcome) for outcome in outcomes], "warm_up_ms": warming}
    (options.output / "native_join.json").write_text(json.dumps(body, indent=1))
    picture.draw(outcomes, options.output / "native_join.png")
    console.print(f"written to {options.output}/native_join.json and native_join.png")
    return 1 if any(outcome.different for outcome in outcomes) else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.native_join", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--ways", default="3", help="numbers of streams, such as 3,2")
    parser.add_argument("--rows", default="50000", help="rows per stream and batch, such as 10000,20000,100000")
    parser.add_argument("--keys", default="uniform", help="distributions of the keys: uniform,skewed")
    parser.add_argument("--forms", default=",".join(engines.FORMS), help="forms of Spark's own join")
    parser.add_argument("--rounds", type=int, default=3, help="times that each engine runs each workload")
    parser.add_argument("--batches", type=int, default=2, help="measured batches of Spark's own join in a round")
    parser.add_argument("--ours", type=int, default=10, help="measured batches of Trimtab in a round")
    parser.add_argument("--warm-up", type=int, default=WARM_UP_STEPS, help="steps of warming up, at most; 0 for none")
    parser.add_argument("--memory", default="4g", help="memory of each of the two executors")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder for JSON and picture")
    return parser.parse_args(argv)


def _workloads(options: argparse.Namespace) -> list[JoinWorkload]:
    batches = 2 + options.rounds * (UNCOUNTED + max(options.batches, options.ours))
    return [
        JoinWorkload("ABCDEFGH"[:ways], rows, batches, SKEW if keys == "skewed" else 0.0)
        for ways in map(int, options.ways.split(","))
        for keys in options.keys.split(",")
        for rows in map(int, options.rows.split(","))
    ]


class Bench:
    """Engines in one application, which measure one workload after another."""

    def __init__(
        self, spark: SparkSession, redis: str, forms: Sequence[str], options: argparse.Namespace, console: Console
    ) -> None:
        self._spark = spark
        self._redis = redis
        self._engines = ["trimtab", *forms]
        self._options = options
        self._console = console

    def warm_up(self, workload: JoinWorkload, directory: Path) -> dict[str, list[float]]:
        """Let each engine run the shortest batches until its slope is flat: they go through the most code in a time."""
        if not self._options.warm_up:
            return {}
        steps = {engine: WARM_UP_BATCHES.get(engine, 4) for engine in self._engines}
        longest = max(steps.values()) * self._options.warm_up
        shape = JoinWorkload(workload.streams, workload.rows, longest, seed=workload.seed + 1)
        write(shape, directory / "in")
        medians: dict[str, list[float]] = {}
        for engine, entrant in self._entrants(shape, directory).items():
            step = steps[engine]
            medians[engine] = warm_up(self._spark, entrant, step * self._options.warm_up, step)
            told = ", ".join(f"{ms:.0f}" for ms in medians[engine])
            self._console.print(f"{engine}: warm; {shape.name}, medians of {step} batches each: {told} ms")
        shutil.rmtree(directory)
        return medians

    def compare(self, workload: JoinWorkload, directory: Path) -> JoinOutcome:
        write(workload, directory / "in")
        entrants = self._entrants(workload, directory)
        for engine, entrant in entrants.items():
            self._console.print(f"{workload.name}: {engine} fills its window ...")
            entrant.advance(self._spark, 2)
        store = Store(self._redis)
        inside = engines.Inside()
        for number, entrant in in_turn(self._options.rounds, list(entrants.values())):
            ours = entrant.name == "trimtab"
            before = engines.finished_stages(self._spark) if ours else 0
            batches = self._options.ours if ours else self._options.batches
            ms = entrant.measure(self._spark, batches, UNCOUNTED)
            self._console.print(f"{workload.name}: round {number + 1}, {entrant.name}: {ms:.0f} ms a batch")
            if ours:
                name = _query_name(workload)
                inside = engines.look_inside(self._spark, store, name, entrant.progress, UNCOUNTED, before)
        shutil.rmtree(directory)
        trimtab = entrants["trimtab"]
        return JoinOutcome(
            name=workload.name,
            rounds_ms={engine: entrant.measured.medians for engine, entrant in entrants.items()},
            cpu_ms={engine: entrant.measured.cpu for engine, entrant in entrants.items()},
            rows_per_second=workload.input_rows_per_batch / trimtab.measured.ms * 1000,
            batches_compared=min(len(entrant.digests) for entrant in entrants.values()),
            different=differences(list(entrants.values())),
            inside=inside,
            load=load_average(),
        )

    def _entrants(self, workload: JoinWorkload, directory: Path) -> dict[str, Entrant]:
        return {
            engine: Entrant(engine, self._builder(engine, workload), directory / "in", workload, directory / engine)
            for engine in self._engines
        }

    def _builder(self, engine: str, workload: JoinWorkload) -> Build:
        def build(spark: SparkSession, inputs: dict[str, DataFrame], checkpoint: Path) -> DataFrame:
            if engine != "trimtab":
                return engines.native_result(spark, workload, inputs, WORKERS, engine)
            name = _query_name(workload)
            return engines.trimtab_result(spark, workload, inputs, checkpoint, self._redis, WORKERS, name)

        return build


def _query_name(workload: JoinWorkload) -> str:
    return f"{workload.name.replace(' ', '-')}-{workload.seed}"


def _show(outcomes: Sequence[JoinOutcome], forms: Sequence[str], console: Console) -> None:
    table = Table(
        title="Trimtab beside Spark's own join (ms a batch, medians; what counts is the ratio to the best form)"
    )
    headings = [
        "workload",
        "Trimtab",
        *forms,
        *(f"to {form}" for form in forms),
        "to the best",
        "wanted",
        "same results",
    ]
    for heading in [*headings, "rows/s"]:
        table.add_column(heading, justify="left" if heading == "workload" else "right")
    for each in outcomes:
        target = TARGETS.get(each.name)
        low, high = each.spread(each.best)
        table.add_row(
            each.name,
            f"{each.trimtab_ms:.0f}",
            *(f"{each.native_ms[form]:.0f}" for form in forms),
            *(f"{each.ratio(form):.1f}x" for form in forms),
            f"{each.ratio(each.best):.1f}x ({low:.1f}..{high:.1f})",
            f"{target:.0f}x" if target else "",
            f"no: {each.different[0]}" if each.different else f"yes, {each.batches_compared} batches",
            f"{each.rows_per_second:,.0f}",
        )
    console.print(table)
    for each in outcomes:
        cpu = ", ".join(f"{engine} {ms:.0f}" for engine, ms in each.cpu_ms.items())
        console.print(f"{each.name}: CPU a batch, whole application: {cpu} ms; {each.load}")
    phases = Table(title="Where a Trimtab batch's time goes (ms; slowest worker, means over the last round's batches)")
    phases.add_column("workload")
    for phase in engines.PHASES:
        phases.add_column(phase, justify="right")
    phases.add_column("B/row", justify="right")
    phases.add_column("hits", justify="right")
    for each in outcomes:
        inside = each.inside
        cells = [f"{inside.phases_ms.get(phase, 0):.0f}" for phase in engines.PHASES]
        phases.add_row(each.name, *cells, f"{inside.bytes_per_row:.0f}", f"{inside.hit_share:.0%}")
    console.print(phases)
    largest = max((each.inside.bytes_per_row for each in outcomes), default=0)
    console.print(f"resident bytes per state row beside the payload: {largest:.0f} (at most {BYTES_PER_ROW_MAX})")


if __name__ == "__main__":
    sys.exit(main())
