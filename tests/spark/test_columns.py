"""Columns of every type that Spark can hand to Python, under names of every kind, come through a join unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.checkers.cases import START_US
from tests.checkers.harness import DEADLINE_S
from trimtab import JoinQuery, Stream
from trimtab.embedded import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = {
    "the key": "id",
    "event.time": "at",
    "months": "make_ym_interval(cast(id AS int), 3)",
    "years": "cast(make_ym_interval(cast(id AS int), 0) AS interval year)",
    "span": "make_dt_interval(cast(id AS int), 1, 2, 3.5)",
    "back`tick": "map('k', id, 'none', null)",
    "inner": "named_struct('x', id, 'y', array(id, null), 'z', named_struct('deep', date'9999-12-31'))",
    "day": "date_add(date'-0044-03-15', cast(id AS int))",
    "local": "timestamp_ntz'2026-11-17 12:00:00' + make_dt_interval(cast(id AS int))",
    "any": "parse_json('{\"a\": [1, \"' || id || '\"]}')",
    "wide": "cast(id AS decimal(38, 10)) / 3",
    "bytes": "cast(cast(id AS string) AS binary)",
    "text": "('é ' || id) collate UNICODE_CI",
    "nothing": "cast(null AS double)",
    "Ünïcode": "float(id) / 7",
}
ROWS = 5


def test_every_type_under_every_name(spark: SparkSession, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    at = pa.array([START_US + i for i in range(ROWS)], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"id": list(range(ROWS)), "at": at}), tmp_path / "in" / "0.parquet")
    made = [f"{expression} AS `{name.replace('`', '``')}`" for name, expression in COLUMNS.items()]
    given = spark.readStream.schema("id long, at timestamp").parquet(str(tmp_path / "in")).selectExpr(*made)
    query = JoinQuery(
        name="columns",
        window="0.5 milliseconds",
        lateness="1 second",
        partitions=4,
        workers=2,
        streams=[Stream(name, key="the key", time="event.time") for name in ("A", "B")],
        # The second one is known to Spark's parser alone.
        where=["A.`event.time` = B.`event.time`", "A.`the key` >>> 0 < B.`the key` + 1 AND B.day !> date'9999-01-01'"],
    )
    result = query.join(spark, {"A": given, "B": given}, redis=redis_server.url, checkpoint=str(tmp_path / "ckpt"))
    assert [field.dataType for field in result.schema.fields] == [f.dataType for f in given.schema.fields] * 2
    # Spark's sinks in files do not take every type; all of them can be cast to text.
    texts = [f"cast(`{name.replace('`', '``')}` AS string) AS c{i}" for i, name in enumerate(result.columns)]
    sink = result.selectExpr(*texts).writeStream.format("parquet").option("path", str(tmp_path / "out"))
    running = sink.option("checkpointLocation", str(tmp_path / "ckpt")).trigger(availableNow=True).start()
    assert running.awaitTermination(int(DEADLINE_S))
    found = sorted(tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect())
    rows = spark.read.parquet(str(tmp_path / "in")).selectExpr(*made)
    plain = [f"cast(`{name.replace('`', '``')}` AS string)" for name in COLUMNS]
    expected = sorted(tuple(row) * 2 for row in rows.selectExpr(*plain).collect())
    assert len(found) == ROWS
    assert found == expected
