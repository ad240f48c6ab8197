"""Ids of results: the same for the same result, however often Spark writes it, so that a consumer can drop repeats.

Spark's Kafka sink writes at least once: a batch that was written and not committed is written again. The id of a result
is a digest of the query's name and of what identifies the rows it is made of:

    the source is Kafka              topic, partition and offset
    the source names columns (`id`)  those columns: rows that have them in common count as one
    any other source                 all columns, and see below

Where every stream has one of the first two, the id depends on nothing else: not on the batch, not on the worker, not on
the checkpoint. Two equal rows of any other source cannot be told apart by anything that lasts; their results are equal,
too. Equal results are then numbered: by the batch that makes them, by the worker, and one by one within these. A batch
that is run again has the same rows, the same epoch and so the same workers: it gives the same numbers to equal results,
and which of them gets which number does not matter. The limit: such an id holds for one checkpoint. A query that begins
with a new one over the same input gives other ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F

from split_union.kafka.decoding import as_json
from trimtab.conditions.placement import quote
from trimtab.spark_task import batch_identity

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ID: Final = "__trimtab_id"
DIGITS: Final = 32
"""Of SHA-256 in hexadecimal: 128 bits."""


@dataclass(frozen=True)
class Identity:
    """What identifies the rows of one stream."""

    stream: str
    columns: tuple[str, ...]
    """Of the result: with the stream's name before each."""
    exact: bool
    """Whether no two rows share it."""


def id_column(query: str, streams: Sequence[Identity]) -> Column:
    """A digest of the query's name and of each stream's identifying columns."""
    parts = {
        each.stream: F.struct(*(F.col(quote(name)).alias(f"c{n}") for n, name in enumerate(each.columns)))
        for each in streams
    }
    return F.substring(F.sha2(as_json({"query": F.lit(query), **parts}), 256), 1, DIGITS)


def with_ids(frame: DataFrame, query: str, streams: Sequence[Identity]) -> DataFrame:
    """Adds the column `ID`."""
    frame = frame.withColumn(ID, id_column(query, streams))
    return frame if all(each.exact for each in streams) else frame.mapInArrow(numbered, frame.schema)


def numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: equal results get ids of their own. Results that are equal in one batch and worker are in one task."""
    context = TaskContext.get()
    assert context is not None
    batch, _ = batch_identity(context)
    numbers = Numbers(batch, context.partitionId())
    for each in batches:
        place = each.schema.get_field_index(ID)
        ids = pa.array(numbers.of(each.column(place).to_pylist()), each.schema.field(place).type)
        yield each.set_column(place, each.schema.field(place), ids)


class Numbers:
    """Counts equal ids within one batch of one worker."""

    def __init__(self, batch: int, worker: int) -> None:
        self._place = f"{batch}.{worker}"
        self._seen: Counter[str] = Counter()

    def of(self, ids: Iterable[str]) -> list[str]:
        given = []
        for each in ids:
            given.append(f"{each}.{self._place}.{self._seen[each]}")
            self._seen[each] += 1
        return given
