"""A stream with a backlog: a Python source whose offsets are {topic: {partition: number}}, as Kafka's are.

Row number n is always the same row, so a batch that is replayed reads the same again. Rows come at a steady rate by the
clock, a batch reads a part of those that wait, and the rest is the backlog, which the source tells Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

NAME: Final = "trimtab_test_topic"
SCHEMA: Final = "id long, k long, at timestamp, n int"
START_US: Final = 1_767_225_600_000_000
KEYS: Final = 96
SKEW: Final = 6.0
"""Small keys are so much more frequent: key = KEYS * u ** SKEW."""
_ARROW: Final = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int32())])

Offset = dict[str, dict[str, int]]


class TopicSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str | StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = self.options
        return TopicReader(
            options["topic"],
            rows_per_s=float(options["rowspersecond"]),
            rows_max=int(options["rowsperbatch"]),
            begun_s=float(options["begun"]),
            seed=int(options["seed"]),
        )


class TopicReader(DataSourceStreamReader):
    def __init__(self, topic: str, *, rows_per_s: float, rows_max: int, begun_s: float, seed: int) -> None:
        self._topic = topic
        self._rows_per_s = rows_per_s
        self._rows_max = rows_max
        self._begun_s = begun_s
        self._seed = seed

    def _offset(self, number: int) -> Offset:
        return {self._topic: {"0": number}}

    def _written(self) -> int:
        return max(0, int((time.time() - self._begun_s) * self._rows_per_s))

    def initialOffset(self) -> Offset:  # noqa: N802
        return self._offset(0)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        first = start[self._topic]["0"]
        return self._offset(max(first, min(self._written(), first + self._rows_max)))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._offset(self._written())

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        first, last = start[self._topic]["0"], end[self._topic]["0"]
        return [InputPartition((first, last))] if last > first else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        first, last = partition.value
        numbers = np.arange(first, last, dtype=np.int64)
        # A row depends on its number alone.
        shares = np.modf(np.sin((numbers + self._seed * 7_919) * 12.9898) * 43_758.5453)[0] % 1.0
        late_us = np.where(numbers % 97 == 0, 60_000_000, 0)
        at_us = START_US + (numbers / self._rows_per_s * 1e6).astype(np.int64) - late_us
        keys = (KEYS * shares**SKEW).astype(np.int64)
        columns = [
            pa.array(numbers),
            pa.array(keys, pa.int64(), mask=numbers % 211 == 0),
            pa.array(at_us, pa.timestamp("us", "UTC")),
            pa.array((numbers % 10).astype(np.int32)),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)
