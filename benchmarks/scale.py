"""What a batch costs, and what that depends on: `python -m benchmarks.scale --help`.

Batch time and CPU along one axis at a time, the others held at a base. All points of an axis run in turn, round by
round, in one warm application. Fixed cost and cost per row are fitted to the axis of rows; the floor, a batch of
Spark's with a Python split and a stateful Python operator that do nothing, is measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks import engines, picture
from benchmarks.application import WORKERS, make_application
from benchmarks.floor import floor_result
from benchmarks.rounds import Build, Entrant, Measured, in_turn, load_average, warm_up
from benchmarks.workload import KEY_KINDS, JoinWorkload, write
from trimtab.embedded import EmbeddedRedis

FLOOR_TARGET: Final = 1.6
"""Times the floor that a batch of 10,000 or 50,000 rows per stream may take."""
WORKERS_TARGET: Final = 1.5
"""Times the batch of 2 workers that one of 16 may take, on the same cores."""
UNCOUNTED: Final = 2
FLOOR: Final = "floor"


@dataclass(frozen=True)
class Point:
    """One query on an axis."""

    axis: str
    label: str
    workload: JoinWorkload
    workers: int = WORKERS
    partitions: int = 64
    floor: bool = False


@dataclass
class PointOutcome:
    axis: str
    label: str
    rows: int
    """Input rows of a batch, of all streams."""
    ms: list[float]
    cpu_ms: list[float]

    @property
    def middle_ms(self) -> float:
        return statistics.median(self.ms)

    @property
    def middle_cpu_ms(self) -> float:
        return statistics.median(self.cpu_ms)


@dataclass(frozen=True)
class Fit:
    """cost = fixed + per_row * rows."""

    fixed_ms: float
    us_per_row: float


def points_of(axes: Iterable[str], base: JoinWorkload) -> list[Point]:
    """Every point, axis by axis. The base is a point of each, so that ratios are of one round."""
    chosen = list(axes)
    found = []
    for axis in chosen:
        match axis:
            case "rows":
                for rows in (2_000, 10_000, 20_000, 50_000, 100_000):
                    found.append(Point(axis, f"{rows // 1000}k", replace(base, rows=rows)))
            case "floor":
                for rows in (2_000, 10_000, 50_000):
                    found.append(Point(axis, f"{rows // 1000}k", replace(base, rows=rows), floor=True))
            case "window":
                for batches in (3, 10, 40, 160):
                    found.append(Point(axis, f"{batches}", replace(base, window_batches=batches)))
            case "results":
                for results in (0.25, 1.0, 4.0):
                    found.append(Point(axis, f"{results:g}", replace(base, results_per_row=results)))
            case "workers":
                for workers in (2, 4, 8, 16, 32):
                    found.append(Point(axis, f"{workers}", base, workers=workers))
            case "partitions":
                for partitions in (64, 256, 1024, 4096):
                    found.append(Point(axis, f"{partitions}", base, partitions=partitions))
            case "streams":
                for ways in (2, 3, 4, 6, 8):
                    found.append(Point(axis, f"{ways}", replace(base, streams="ABCDEFGH"[:ways])))
            case "key":
                for kind in KEY_KINDS:
                    found.append(Point(axis, kind, replace(base, key=kind)))
            case "payload":
                for width in (0, 16, 128, 1024):
                    found.append(Point(axis, f"{width} B", replace(base, payload_bytes=width)))
            case _:
                raise ValueError(f"there is no axis {axis!r}: take some of {', '.join(AXES)}")
    return found


AXES: Final = ("rows", "floor", "window", "results", "workers", "partitions", "streams", "key", "payload")


def fit(rows: Sequence[int], cost_ms: Sequence[float]) -> Fit:
    """By least squares of relative errors: the shortest batches say most about the fixed cost."""
    weights = 1 / np.asarray(cost_ms, np.float64)
    slope, fixed = np.polyfit(np.asarray(rows, np.float64), np.asarray(cost_ms, np.float64), 1, w=weights)
    return Fit(float(fixed), float(slope) * 1000)


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    console = Console() if sys.stdout.isatty() else Console(width=140)
    batches = 2 + options.rounds * (UNCOUNTED + options.batches)
    base = JoinWorkload("ABC", options.rows, batches)
    axes = options.axes.split(",")
    # What is compared with each other runs in turn: the floor and the rows above it.
    groups = [
        [axis for axis in axes if axis in ("rows", FLOOR)],
        *([axis] for axis in axes if axis not in ("rows", FLOOR)),
    ]
    outcomes: list[PointOutcome] = []
    scratch = Path(tempfile.mkdtemp(prefix="trimtab-scale-"))
    with EmbeddedRedis() as redis:
        spark = make_application(options.memory, scratch / "application")
        try:
            bench = Bench(spark, redis.url, options, scratch, console)
            bench.warm_up(replace(base, rows=min(base.rows, 5_000), batches=max(options.warm_up, 10), seed=8))
            for group in filter(None, groups):
                outcomes += bench.measure(points_of(group, base))
        finally:
            spark.stop()
            shutil.rmtree(scratch, ignore_errors=True)
    _show(outcomes, base, console)
    options.output.mkdir(parents=True, exist_ok=True)
    body = [
        {"axis": each.axis, "label": each.label, "rows": each.rows, "ms": each.ms, "cpu_ms": each.cpu_ms}
        for each in outcomes
    ]
    (options.output / "scale.json").write_text(json.dumps(body, indent=1))
    drawn: dict[str, list[tuple[str, float, float]]] = {}
    for each in outcomes:
        drawn.setdefault(each.axis, []).append((each.label, each.middle_ms, each.middle_cpu_ms))
    picture.draw_axes(drawn, options.output / "scale.png")
    console.print(f"written to {options.output}/scale.json and scale.png")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.scale", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--axes", default=",".join(AXES), help="which of them")
    parser.add_argument(
        "--rows", type=int, default=20_000, help="rows per stream and batch, where they are not the axis"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=8, help="counted batches in a round")
    parser.add_argument("--warm-up", type=int, default=100, help="batches, at most, before anything counts")
    parser.add_argument("--memory", default="4g", help="memory of each of the two executors")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder for JSON and picture")
    return parser.parse_args(argv)


class Bench:
    def __init__(
        self, spark: SparkSession, redis: str, options: argparse.Namespace, scratch: Path, console: Console
    ) -> None:
        self._spark = spark
        self._redis = redis
        self._options = options
        self._scratch = scratch
        self._console = console

    def warm_up(self, workload: JoinWorkload) -> None:
        home = self._scratch / "warm"
        write(workload, home / "files")
        entrant = Entrant("warm", self._builder(Point("warm", "warm", workload)), home / "files", workload, home)
        medians = warm_up(self._spark, entrant, self._options.warm_up)
        told = ", ".join(f"{ms:.0f}" for ms in medians)
        self._console.print(f"warm; medians of ten batches: {told} ms; {load_average()}")
        shutil.rmtree(home)

    def measure(self, points: Sequence[Point]) -> list[PointOutcome]:
        written: dict[JoinWorkload, Path] = {}
        entrants: dict[str, tuple[Point, Entrant]] = {}
        for point in points:
            home = self._scratch / f"{point.axis}-{point.label.replace(' ', '')}"
            if point.workload not in written:
                written[point.workload] = self._scratch / f"files{len(written)}"
                write(point.workload, written[point.workload])
            name = f"{point.axis} {point.label}"
            entrant = Entrant(name, self._builder(point), written[point.workload], point.workload, home)
            entrant.advance(self._spark, 2)
            entrants[name] = point, entrant
        for number, entrant in in_turn(self._options.rounds, [each for _, each in entrants.values()]):
            ms = entrant.measure(self._spark, self._options.batches, UNCOUNTED)
            cpu = entrant.measured.cpu_ms[-1]
            self._console.print(f"round {number + 1}, {entrant.name}: {ms:.0f} ms a batch, {cpu:.0f} ms of CPU")
        self._console.print(load_average())
        for directory in [*written.values(), *(self._scratch.glob("*-*"))]:
            shutil.rmtree(directory, ignore_errors=True)
        return [_outcome(point, entrant.measured) for point, entrant in entrants.values()]

    def _builder(self, point: Point) -> Build:
        def build(spark: SparkSession, inputs: dict[str, DataFrame], checkpoint: Path) -> DataFrame:
            if point.floor:
                return floor_result(spark, inputs, checkpoint, point.workers)
            name = f"{point.axis}-{point.label.replace(' ', '')}"
            return engines.trimtab_result(
                spark, point.workload, inputs, checkpoint, self._redis, point.workers, name, point.partitions
            )

        return build


def _outcome(point: Point, measured: Measured) -> PointOutcome:
    rows = point.workload.input_rows_per_batch
    return PointOutcome(point.axis, point.label, rows, measured.medians, list(measured.cpu_ms))


def _show(outcomes: Sequence[PointOutcome], base: JoinWorkload, console: Console) -> None:
    table = Table(
        title=f"A batch of {len(base.streams)} x {base.rows:,} rows, {WORKERS} workers, 64 groups, and around it"
    )
    for heading in ("axis", "point", "ms a batch", "fastest..slowest round", "CPU ms", "input rows"):
        table.add_column(heading, justify="left" if heading in ("axis", "point") else "right")
    last = ""
    for each in outcomes:
        spread = f"{min(each.ms):.0f}..{max(each.ms):.0f}"
        axis = "" if each.axis == last else each.axis
        table.add_row(axis, each.label, f"{each.middle_ms:.0f}", spread, f"{each.middle_cpu_ms:.0f}", f"{each.rows:,}")
        last = each.axis
    console.print(table)
    for line in findings(outcomes):
        console.print(line)


def findings(outcomes: Sequence[PointOutcome]) -> list[str]:
    """What the figures say: fitted costs, and ratios that we hold ourselves to."""
    by_axis: dict[str, list[PointOutcome]] = {}
    for each in outcomes:
        by_axis.setdefault(each.axis, []).append(each)
    lines = []
    for axis in ("rows", FLOOR):
        points = by_axis.get(axis, [])
        if len(points) >= 2:
            rows = [each.rows for each in points]
            time, cpu = (
                fit(rows, [each.middle_ms for each in points]),
                fit(rows, [each.middle_cpu_ms for each in points]),
            )
            name = "Trimtab" if axis == "rows" else FLOOR
            lines.append(f"{name}: {time.fixed_ms:.0f} ms and {time.us_per_row:.2f} us per input row of time")
            lines.append(f"{name}: {cpu.fixed_ms:.0f} ms and {cpu.us_per_row:.2f} us per input row of CPU")
    floors = {each.label: each for each in by_axis.get(FLOOR, [])}
    for each in by_axis.get("rows", []):
        if each.label in floors:
            ratios = [ours / theirs for ours, theirs in zip(each.ms, floors[each.label].ms, strict=True)]
            wanted = f" (wanted: at most {FLOOR_TARGET})" if each.label in ("10k", "50k") else ""
            lines.append(
                f"{each.label} rows per stream: {statistics.median(ratios):.2f} times the floor, "
                f"{min(ratios):.2f}..{max(ratios):.2f}{wanted}"
            )
    workers = {each.label: each for each in by_axis.get("workers", [])}
    if {"2", "16"} <= workers.keys():
        ratios = [many / few for many, few in zip(workers["16"].ms, workers["2"].ms, strict=True)]
        added = (workers["16"].middle_ms - workers["2"].middle_ms) / 14
        lines.append(
            f"16 workers: {statistics.median(ratios):.2f} times the time of 2 (wanted: at most {WORKERS_TARGET}), "
            f"{added:.0f} ms for each further worker"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
