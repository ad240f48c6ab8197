"""A consumer that takes every result once: it remembers ids, and drops what it has seen.

This one reads with Spark, as a table. One that runs for long does the same with the newest ids only: a repeat comes
from a batch that is run again (docs/kafka.md).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ID = "trimtab-id"


@dataclass(frozen=True)
class Consumed:
    values: list[dict[str, object]]
    """One for each id."""
    duplicates: int
    """Records that had an id which was there before."""


def consume(spark: SparkSession, servers: str, topic: str) -> Consumed:
    table = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("includeHeaders", True)
        .load()
    )
    first: dict[str, dict[str, object]] = {}
    records = table.select("value", "headers").collect()
    for value, headers in records:
        name = next(bytes(header.value).decode() for header in headers if header.key == ID)
        first.setdefault(name, json.loads(bytes(value)) if topic == "joined" else {})
    return Consumed(list(first.values()), len(records) - len(first))
