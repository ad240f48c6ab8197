"""Results as Kafka's records, and bad records as dead letters beside them.

Both go through one sink in one query (ADR 0011): a batch's results and its dead letters are written together, and
written again together if the batch is run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from split_union.kafka.decoding import check_fits, encoded
from split_union.kafka.formats import RecordFormat
from split_union.kafka.identity import ID, Identity, with_ids
from split_union.kafka.source import ROW_ID
from trimtab.conditions.placement import quote
from trimtab.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ID_HEADER: Final = "trimtab-id"
REASON_HEADER: Final = "trimtab-reason"
RECORD_HEADER: Final = "trimtab-record"
STREAM_HEADER: Final = "trimtab-stream"
QUERY_HEADER: Final = "trimtab-query"


@dataclass(frozen=True, kw_only=True)
class KafkaSink:
    """Where results go, and how they are written."""

    topic: str
    key_columns: Sequence[str]
    key: RecordFormat
    value: RecordFormat
    select: Sequence[str] = ()
    id_field: str | None = None


def records(joined: DataFrame, sink: KafkaSink, query: str, streams: Sequence[Identity]) -> DataFrame:
    """topic, key, value and headers of each result."""
    hidden = {f"{each.stream}_{ROW_ID}" for each in streams} - {name for each in streams for name in _named(each)}
    frame = with_ids(joined, query, streams)
    shown = [name for name in joined.columns if name not in hidden]
    fields: dict[str, Column] = {name: F.col(quote(name)) for name in shown}
    if sink.select:
        selected = joined.select(*map(quote, shown)).selectExpr(*sink.select)
        if duplicate := next((name for name in selected.columns if selected.columns.count(name) > 1), None):
            raise InvalidInput("select", duplicate, "is a field twice", "Give one of them another name (AS).")
        if len(selected.columns) != len(sink.select):
            raise InvalidInput(
                "select", list(sink.select), "makes several fields in one line", "Write a line for each."
            )
        fields = {name: F.expr(text) for name, text in zip(selected.columns, sink.select, strict=True)}
    if sink.id_field is not None:
        if sink.id_field in fields:
            raise InvalidInput("id_field", sink.id_field, "is a field of the value already", "Give it another name.")
        fields[sink.id_field] = F.col(ID)
    key: dict[str, Column] = {name: F.col(quote(name)) for name in sink.key_columns}
    check_fits("key", frame, key, sink.key)
    check_fits("value", frame, fields, sink.value)
    return frame.select(
        F.lit(sink.topic).alias("topic"),
        encoded(key, sink.key).alias("key"),
        encoded(fields, sink.value).alias("value"),
        _headers({ID_HEADER: F.col(ID)}),
    )


def dead_letters(bad: DataFrame, topic: str, query: str, stream: str) -> DataFrame:
    """Bad records as they came, with headers that say why and whence."""
    id_text = F.concat(F.lit(f"{query}/{stream}/"), F.col("record"))
    headers: Mapping[str, Column] = {
        ID_HEADER: id_text,
        REASON_HEADER: F.col("reason"),
        RECORD_HEADER: F.col("record"),
        STREAM_HEADER: F.lit(stream),
        QUERY_HEADER: F.lit(query),
    }
    return bad.select(F.lit(topic).alias("topic"), "key", "value", _headers(headers))


def _named(identity: Identity) -> tuple[str, ...]:
    """Columns that the author chose to identify rows stay in the value."""
    return () if identity.columns == (f"{identity.stream}_{ROW_ID}",) else identity.columns


def _headers(values: Mapping[str, Column]) -> Column:
    pairs = [F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in values.items()]
    return F.array(*pairs).alias("headers")
