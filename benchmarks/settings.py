"""What each setting that lowers a batch's fixed cost brings: `python -m benchmarks.settings --help`.

Queries that differ in one setting run in turn, round by round, in the same application; settings of an application are
compared between two applications that run in turn. All are warm. A setting that does not pay in one run is not made.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks import engines
from benchmarks.application import WORKERS, make_application
from benchmarks.rounds import Entrant, Measured, load_average, warm_up
from benchmarks.workload import JoinWorkload, write
from split_union import session as session_settings
from trimtab.embedded import EmbeddedRedis

TOTAL: Final = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"
EXPLAIN: Final = "spark.sql.ui.explainMode"
APPLICATIONS: Final[dict[str, dict[str, str]]] = {
    "tcp": {session_settings.UNIX_SOCKETS[0]: "false"},
    "unix": {session_settings.UNIX_SOCKETS[0]: "true"},
}


@dataclass(frozen=True)
class Variant:
    """Spark's own defaults, but for what is named."""

    base: str
    """What it is compared with."""
    application: str = "unix"
    total: str = "true"
    explain: str = "formatted"


VARIANTS: Final = {
    "as Spark is": Variant("as Spark is", "tcp"),
    "Unix sockets": Variant("as Spark is"),
    "and no total of rows": Variant("Unix sockets", total="false"),
    "and simple explain": Variant("Unix sockets", explain="simple"),
    "all": Variant("as Spark is", total="false", explain="simple"),
}


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    console = Console() if sys.stdout.isatty() else Console(width=140)
    scratch = Path(tempfile.mkdtemp(prefix="trimtab-settings-"))
    chosen = {name: VARIANTS[name] for name in options.variants.split(",")}
    batches = options.warm_up + 20 + options.rounds * (options.batches + 2)
    workload = JoinWorkload("ABCDEFGH"[: options.ways], options.rows, batches)
    write(workload, scratch / "in")
    measured: dict[str, Measured] = {}
    try:
        with ExitStack() as stack:
            redis = stack.enter_context(EmbeddedRedis())
            applications: dict[str, Connection] = {}
            for name in dict.fromkeys(variant.application for variant in chosen.values()):
                mine = {key: each for key, each in chosen.items() if each.application == name}
                connection = stack.enter_context(_application(name, mine, workload, scratch, redis.url, options))
                console.print(f"{name}: warm; medians of ten batches: {_numbers(connection.recv())} ms")
                applications[name] = connection
            for number in range(options.rounds):
                order = list(chosen.items())
                for name, variant in order if number % 2 == 0 else reversed(order):
                    applications[variant.application].send(name)
                    measured[name] = applications[variant.application].recv()
                told = ", ".join(f"{name} {each.medians[-1]:.0f}" for name, each in measured.items())
                console.print(f"round {number + 1}: {told} ms ({load_average()})")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _show(workload, measured, console)
    options.output.mkdir(parents=True, exist_ok=True)
    body = {name: {"ms": each.medians, "cpu_ms": each.cpu_ms} for name, each in measured.items()}
    (options.output / "settings.json").write_text(json.dumps(body, indent=1))
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.settings", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000, help="rows per stream and batch")
    parser.add_argument("--ways", type=int, default=3, help="number of streams")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=12, help="counted batches in each round")
    parser.add_argument("--warm-up", type=int, default=100, help="batches, at most, before anything counts")
    parser.add_argument("--memory", default="2g", help="memory of each executor")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="which of them")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder for the figures")
    return parser.parse_args(argv)


@contextmanager
def _application(
    name: str,
    variants: Mapping[str, Variant],
    workload: JoinWorkload,
    scratch: Path,
    redis: str,
    options: argparse.Namespace,
) -> Iterator[Connection]:
    """Spark in a process of its own. It warms up, says how, and then runs a round of each variant that it is told."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(theirs, name, dict(variants), workload, scratch, redis, options), daemon=False
    )
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join()


def _serve(
    told: Connection,
    application: str,
    variants: dict[str, Variant],
    workload: JoinWorkload,
    scratch: Path,
    redis: str,
    options: argparse.Namespace,
) -> None:
    spark = make_application(options.memory, scratch / application, APPLICATIONS[application])
    try:
        entrants = {
            name: Entrant(
                name,
                _builder(variant, workload, redis, f"{application}-{number}"),
                scratch / "in",
                workload,
                scratch / f"{application}{number}",
            )
            for number, (name, variant) in enumerate(variants.items())
        }
        last = list(entrants.values())[-1]
        told.send(warm_up(spark, last, options.warm_up))
        for entrant in entrants.values():
            if entrant is not last:
                entrant.advance(spark, 3)
        while True:
            name = told.recv()
            entrants[name].measure(spark, options.batches)
            told.send(entrants[name].measured)
    except EOFError:
        pass
    finally:
        spark.stop()


def _builder(variant: Variant, workload: JoinWorkload, redis: str, name: str) -> Any:
    def build(spark: SparkSession, inputs: dict[str, DataFrame], checkpoint: Path) -> DataFrame:
        spark.conf.set(TOTAL, variant.total)
        spark.conf.set(EXPLAIN, variant.explain)
        return engines.trimtab_result(spark, workload, inputs, checkpoint, redis, WORKERS, name)

    return build


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)


def _ratios(mine: Sequence[float], others: Sequence[float]) -> str:
    ratios = [one / other for one, other in zip(mine, others, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


def _show(workload: JoinWorkload, measured: Mapping[str, Measured], console: Console) -> None:
    table = Table(title=f"{workload.name}: ms a batch, medians of {len(next(iter(measured.values())).rounds)} rounds")
    for heading in (
        "variant",
        "ms",
        "fastest..slowest round",
        "CPU ms",
        "base",
        "time, of the base's",
        "CPU, of the base's",
    ):
        table.add_column(heading, justify="left" if heading in ("variant", "base") else "right")
    for name, each in measured.items():
        base = measured.get(VARIANTS[name].base)
        table.add_row(
            name,
            f"{each.ms:.0f}",
            "{:.0f}..{:.0f}".format(*each.spread),
            f"{each.cpu:.0f}",
            "" if base is None else VARIANTS[name].base,
            # Round by round: what the machine did meanwhile is in both.
            "" if base is None else _ratios(each.medians, base.medians),
            "" if base is None else _ratios(each.cpu_ms, base.cpu_ms),
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
