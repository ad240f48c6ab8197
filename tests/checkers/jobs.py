"""A small query.yaml with its input, for tests that run it as a user does."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.checkers.cases import START_US

JOB = """
spark:
  master: local[2]
  config:
    spark.sql.session.timeZone: UTC
    spark.driver.extraJavaOptions: "-XX:TieredStopAtLevel=1"   # over before the second compiler would pay
checkpoint: {base}/checkpoint
query:
  name: tiny
  window: 2 seconds
  lateness: 1 second
  partitions: 4
  workers: 2
  where: A.price < B.price
  streams:
    A: {{key: user, time: at, source: {{format: parquet, path: "{base}/in", schema: "{schema}"}}}}
    B: {{key: user, time: at, source: {{format: parquet, path: "{base}/in", schema: "{schema}"}}}}
sink:
  format: {sink}
  path: {base}/out
  trigger: {trigger}
"""
SCHEMA = "user long, price double, at timestamp"


def write_input(base: Path) -> None:
    """Rows that have one result: A's price 1 with B's price 2."""
    (base / "in").mkdir()
    table = pa.table(
        {
            "user": pa.array([1, 1, 2, None], pa.int64()),
            "price": [1.0, 2.0, 1.0, 1.0],
            "at": pa.array([START_US, START_US + 1_000_000, START_US, START_US], pa.timestamp("us", tz="UTC")),
        }
    )
    pq.write_table(table, base / "in" / "0.parquet")


def write_job(base: Path, trigger: str = "available now", schema: str = SCHEMA, sink: str = "parquet") -> Path:
    path = base / "query.yaml"
    path.write_text(JOB.format(base=base, trigger=trigger, schema=schema, sink=sink))
    return path
