"""Rows that a source could not make sense of: dropped, counted, and not hidden by a condition on their stream."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.checkers.harness import Run
from tests.checkers.oracle import Condition
from tests.checkers.steered import SCHEMA, START
from trimtab import JoinQuery, Stream
from trimtab.embedded import EmbeddedRedis
from trimtab.keys import PROBLEM
from trimtab.store import Store

pytestmark = [pytest.mark.spark, pytest.mark.redis]


def test_bad_rows_are_counted_whatever_conditions_say(
    spark: SparkSession, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    query = JoinQuery(
        name="bad-rows",
        streams=[Stream(name, key="k", time="at") for name in "AB"],
        window="1 second",
        lateness="1 second",
        partitions=4,
        workers=2,
        where=["A.n > 0"],
    )
    run = Run(tmp_path, query, dict.fromkeys("AB", pa.schema(SCHEMA)))
    for stream in "AB":
        run.write(stream, [{"id": n, "k": n % 3, "at": START, "n": n % 2} for n in range(12)])
    inputs = run.inputs(spark)
    bad = F.col("id") % 4 == 1
    columns = [F.when(~bad, F.col(name)).alias(name) for name in SCHEMA.names]
    inputs["A"] = inputs["A"].select(*columns, F.when(bad, "does not fit").alias(PROBLEM))
    run.run(spark, redis_server.url, inputs=inputs)
    (name,) = run.files["A"]
    run.files["A"][name] = [row for row in run.files["A"][name] if row["id"] % 4 != 1]
    run.check(spark, run.oracle([Condition("", ("A",), lambda row: row["A"]["n"] > 0)]), at_least=5)
    reports = Store(redis_server.url).reports(query.name, 0)
    assert sum(report.bad_rows.get("A", 0) for report in reports.values()) == 3
