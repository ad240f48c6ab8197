"""Random joins on real executors equal the oracle as multisets.

`TRIMTAB_SEED=7 TRIMTAB_CASES=50 pytest tests/spark/test_random_queries.py` runs all themes from another seed and 50
more cases in which everything is left to chance; `-k 12` runs the one of seed 12. `make test-more` does so.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.checkers.cases import AFTER_UNION, ALONE, IN_JOIN, IN_JOIN_3, Case, Theme, make_case
from tests.checkers.harness import Run
from trimtab.embedded import EmbeddedRedis
from trimtab.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# Between them: every kind of key, 2 to 5 streams, every kind of plan, conditions in all three places, one key for all
# rows, more partitions than keys, other time zones, restarts, and rebuilds in every batch.
THEMES: dict[str, Theme] = {
    "bigint": Theme(
        key="bigint", streams=3, plan="left-deep", conditions=(IN_JOIN[0], IN_JOIN_3[1], ALONE[0]), restart=True
    ),
    "int": Theme(key="int", streams=5, plan="((A B) ((C D) E))", rows=80, partitions=64, restart=True),
    "string": Theme(key="string", streams=4, plan="mjoin", conditions=(IN_JOIN_3[0],), rows=80),
    "collated": Theme(key="collated", streams=2, conditions=(ALONE[1],)),
    "double": Theme(key="double", streams=3, plan="((B C) A)", keys=9, window="200 milliseconds", rows=60),
    "wide-decimal": Theme(
        key="decimal(30,3)", streams=3, plan="((A C) B)", conditions=(AFTER_UNION[1], ALONE[2]), rebuild=True
    ),
    "date": Theme(
        key="date", streams=2, conditions=(IN_JOIN[5],), time_zone="America/New_York", ordered=True, restart=True
    ),
    "composite": Theme(key="int,string", streams=3, plan="left-deep", conditions=(IN_JOIN_3[2],), workers=3),
    "struct": Theme(key="struct", streams=3, keys=60, rebuild=True),
    "one-key": Theme(key="string", streams=3, keys=1, window="200 milliseconds", rows=16, partitions=32),
}
# Key types that are known by the same code as one above, on real executors too (tests/unit/test_keys.py has them all).
MORE: dict[str, Theme] = {
    "decimal": Theme(key="decimal(10,2)", streams=2, conditions=(IN_JOIN[4], AFTER_UNION[0]), grid_us=100_000),
    "timestamp": Theme(key="timestamp", streams=3, plan="mjoin", time_zone="Asia/Kolkata"),
    "boolean": Theme(key="boolean", streams=2, keys=2, window="200 milliseconds", rows=60, partitions=64),
    "narrow-composite": Theme(key="short,float,byte", streams=2),
    "binary": Theme(key="binary", streams=2),
    "two-ints": Theme(key="int,int", streams=4, plan="((A B) (C D))", rows=80, rebuild=True, restart=True),
    "array": Theme(key="array<int>", streams=2, keys=40, grid_us=100_000),
}
EXTRA = int(os.environ.get("TRIMTAB_CASES", "0"))
if EXTRA:
    THEMES |= MORE
SEED = int(os.environ.get("TRIMTAB_SEED", "1"))


def written(case: Case, base: Path) -> Run:
    return Run(base, case.query, case.schemas, spark_types=case.spark_types)


def run_case(case: Case, base: Path, spark: SparkSession, redis: str) -> Run:
    spark.conf.set("spark.sql.session.timeZone", case.theme.time_zone)
    run = written(case, base)
    for phase in case.phases:
        for stream, files in phase.items():
            for rows in files:
                run.write(stream, rows)
        run.run(spark, redis, rebuild=case.theme.rebuild)
    return run


@pytest.mark.parametrize("what", [*THEMES, *range(SEED, SEED + EXTRA)])
def test_random_query(what: str | int, spark: SparkSession, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    if isinstance(what, str):
        case = make_case(SEED, THEMES[what], f"random-{what}")
    else:
        case = make_case(what, Theme(restart=what % 2 == 0, rebuild=what % 3 == 0), f"random-{what}")
    check(case, spark, redis_server.url, tmp_path)


def check(case: Case, spark: SparkSession, redis: str, base: Path) -> None:
    __tracebackhide__ = True
    try:
        run = run_case(case, base, spark, redis)
        oracle = run.oracle(case.conditions)
        expected = run.check(spark, oracle, at_least=5)
    except Exception as error:
        raise AssertionError(f"{error}\n{case}") from error
    reported = reports(case, run, redis)
    late = sum(sum(report.late_rows.values()) for report in reported)
    bad = sum(sum(report.bad_rows.values()) for report in reported)
    results = sum(report.results for report in reported)
    print(f"{case}\n{expected.total()} results, {late} late, {bad} bad, {len(reported)} reports")
    assert late == oracle.late.total(), case
    assert bad == oracle.bad.total(), case
    assert results >= expected.total(), case
    if case.theme.rebuild:
        assert {report.resident for report in reported if report.batch > 0} == {"rebuild"}, case
    elif not case.theme.restart:
        assert {report.resident for report in reported} == {"hit"}, case


def reports(case: Case, run: Run, redis: str) -> list[Any]:
    store = Store(redis)
    return [r for batch in range(run.last_bound() + 1) for r in store.reports(case.query.name, batch).values()]
