"""What a result means: late rows as in Spark's own join, watermarks of the user's, order inside a worker's output."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.checkers.cases import IN_JOIN, SECOND, START_US, Case, Theme, make_case
from tests.checkers.harness import DEADLINE_S, Run
from tests.checkers.multiset import difference, frozen, multiset
from tests.checkers.oracle import recorded
from trimtab.embedded import EmbeddedRedis
from trimtab.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def written(case: Case, base: Path) -> Run:
    """All files of a case, made even: one of each stream for every batch."""
    run = Run(base, case.query, case.schemas, spark_types=case.spark_types)
    streams = {name: [rows for phase in case.phases for rows in phase[name]] for name in case.query.stream_names}
    for number in range(max(map(len, streams.values()))):
        for name, files in streams.items():
            run.write(name, files[number] if number < len(files) else [])
    return run


def sparks_own_join(run: Run, frames: dict[str, DataFrame]) -> DataFrame:
    """The same two-way join in Spark's words."""
    from pyspark.sql import functions as F

    sides = {}
    for name, frame in frames.items():
        renamed = frame.withWatermark("at", f"{run.query.lateness}")
        sides[name] = renamed.select(*(F.col(column).alias(f"{name}_{column}") for column in frame.columns))
    window = F.expr(f"INTERVAL {run.query.window_us} MICROSECONDS")
    a, b = sides["A"], sides["B"]
    near = (F.col("B_at") >= F.col("A_at") - window) & (F.col("B_at") <= F.col("A_at") + window)
    return a.join(b, (F.col("A_k") == F.col("B_k")) & near)


@pytest.mark.parametrize(
    ("key", "start_us"), [("double", 2 * SECOND), ("string", START_US)], ids=["around-1970", "today"]
)
def test_two_way_join_equals_sparks_own(
    key: str, start_us: int, spark_cluster: SparkSession, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    theme = Theme(
        key=key,
        streams=2,
        keys=12,
        window="500 milliseconds",
        conditions=(),
        start_us=start_us,
        rows=80,
        grid_us=100_000,
    )
    case = make_case(11, theme, f"own-{key}")
    run = written(case, tmp_path)
    spark = spark_cluster.newSession()
    run.run(spark, redis_server.url)
    oracle = run.oracle()
    ours = run.check(spark, oracle, at_least=100)
    assert oracle.late.total() >= 10, "a test that proves little about late rows"
    if start_us < START_US:
        assert any(frozen(row["at"])[2] < 0 for files in run.files["A"].values() for row in files if row["at"])

    own = Run(tmp_path / "own", case.query, case.schemas)
    own_session = spark_cluster.newSession()
    own_session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    own_session.conf.set("spark.sql.shuffle.partitions", "2")
    running = own.start(sparks_own_join(run, run.inputs(own_session)), available_now=True)
    assert running.awaitTermination(int(DEADLINE_S))
    assert recorded(own.checkpoint) == recorded(run.checkpoint)
    columns = oracle.result_columns
    problem = difference(multiset(own.results(spark), columns), ours, columns)
    assert problem is None, f"expected is Spark's: {problem}\n{case}"


def test_watermarks_of_the_inputs_are_kept(spark: SparkSession, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """Each input with a delay of its own, `lateness` left out."""
    case = make_case(12, Theme(key="int", streams=3, lateness=None, window="1 second"), "own-watermarks")
    assert case.query.lateness is None
    run = written(case, tmp_path)
    delays = {"A": "2 seconds", "B": "100 milliseconds", "C": "1 second"}
    frames = {name: frame.withWatermark("at", delays[name]) for name, frame in run.inputs(spark).items()}
    run.run(spark, redis_server.url, inputs=frames)
    oracle = run.oracle(case.conditions)
    run.check(spark, oracle, at_least=20)
    assert oracle.late.total() > 0


def test_watermark_on_the_result(spark: SparkSession, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """It holds the query's watermark back, as any further watermark does, and the result stays exact."""
    case = make_case(15, Theme(key="int", streams=2, window="1 second", conditions=()), "watermark-on-result")
    run = written(case, tmp_path)
    result = case.query.join(spark, run.inputs(spark), checkpoint=str(run.checkpoint), redis=redis_server.url)
    running = run.start(result.withWatermark("A_at", "2 seconds"), available_now=True)
    assert running.awaitTermination(int(DEADLINE_S))
    oracle = run.oracle()
    run.check(spark, oracle, at_least=50)
    watermarks = recorded(run.checkpoint).watermarks_us
    assert watermarks[max(watermarks)] > 0


def test_state_on_the_result_is_refused_before_start(
    spark: SparkSession, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    case = make_case(15, Theme(key="int", streams=2, window="1 second", conditions=()), "state-on-result")
    run = written(case, tmp_path)
    result = case.query.join(spark, run.inputs(spark), checkpoint=str(run.checkpoint), redis=redis_server.url)
    marked = result.withWatermark("A_at", "1 second")
    for further in (
        marked.groupBy(F.window("A_at", "1 second")).count(),
        marked.dropDuplicatesWithinWatermark(["A_id"]),
    ):
        with pytest.raises(AnalysisException, match=r"(?i)state"):
            run.start(further)
    assert run.last_bound() == -1


def test_ordered_output(spark: SparkSession, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """The sink writes one file for each worker and batch, so its rows are in the order of the worker's output."""
    theme = Theme(key="int", streams=3, ordered=True, conditions=(IN_JOIN[0],), window="1 second")
    case = make_case(13, theme, "ordered")
    run = written(case, tmp_path)
    run.run(spark, redis_server.url)
    run.check(spark, run.oracle(case.conditions), at_least=50)
    longest = 0
    for path in run.output.glob("*.parquet"):
        rows = pq.read_table(path).to_pylist()
        times = [max(row["A_at"], row["B_at"], row["C_at"]) for row in rows]
        assert times == sorted(times), path
        longest = max(longest, len(times))
    assert longest > 10


def test_a_batch_without_a_single_task_changes_nothing(
    spark: SparkSession, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    """Files of zero bytes make a batch that has no task at all: no worker sees its watermark, and yet it counts.

    The batch after it judges late rows by the watermark of the empty one (Spark's rule), not of the last that ran.
    """
    case = make_case(14, Theme(key="int", streams=2, conditions=(), window="1 second", nulls=False), "no-task")
    query = case.query.model_copy(update={"lateness": "1 second"})
    run = Run(tmp_path, query, case.schemas)
    templates = {name: case.phases[0][name][0] for name in query.stream_names}
    for seconds in ([10], [30], None, [20, 20.5, 30.5], [28, 29.5, 40]):
        for name, rows in templates.items():
            if seconds is None:
                run.write_nothing(name)
                continue
            at = [datetime.datetime.fromtimestamp(START_US // SECOND + second, datetime.UTC) for second in seconds]
            run.write(name, [{**rows[n], "k": n % 2, "at": at[n % len(at)]} for n in range(12)])
    run.run(spark, redis_server.url)
    store = Store(redis_server.url)
    assert [bool(store.reports("no-task", batch)) for batch in range(5)] == [True, True, False, True, True]
    oracle = run.oracle()
    run.check(spark, oracle, at_least=20)
    assert oracle.late["A"] == 8 + 4
