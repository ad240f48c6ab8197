"""A stream from Kafka: its rows, and the records that cannot be used.

Both come from one DataFrame of records, so that in a query that has both Spark reads the same offsets for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql import types as T

from split_union.kafka.decoding import decoded, schema_of
from split_union.kafka.formats import TEXT, RecordFormat
from split_union.kafka.options import SERVERS
from trimtab.conditions.placement import quote
from trimtab.errors import InvalidInput
from trimtab.keys import PROBLEM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORD_COLUMNS: Final = {"_topic": "topic", "_partition": "partition", "_offset": "offset", "_timestamp": "timestamp"}
"""What a stream may use beside key and value: its name here, and in Spark."""
ROW_ID: Final = "trimtab_id"
"""A stream's column that tells its rows apart: topic/partition/offset."""
_RAW_KEY: Final = "__trimtab_raw_key"
_RAW_VALUE: Final = "__trimtab_raw_value"
_RECORD: Final = "__trimtab_record"
_HIDDEN: Final = (PROBLEM, _RAW_KEY, _RAW_VALUE, _RECORD)


@dataclass(frozen=True, kw_only=True)
class KafkaSource:
    """What to read, and how."""

    servers: str
    topics: Sequence[str] = ()
    pattern: str | None = None
    value: RecordFormat
    key: RecordFormat | None = None
    select: Sequence[str] = ()
    options: Mapping[str, str]

    @property
    def reader_options(self) -> dict[str, str]:
        where = {"subscribePattern": self.pattern} if self.pattern is not None else {"subscribe": ",".join(self.topics)}
        return {**self.options, SERVERS: self.servers, **where}


@dataclass(frozen=True)
class KafkaStream:
    """A stream's rows. Those of bad records have nulls and a reason in `PROBLEM`, so that the split counts them."""

    rows: DataFrame
    bad: DataFrame
    """raw key, raw value, `record` (topic/partition/offset), `reason`."""


def stream_of(
    spark: SparkSession, source: KafkaSource, records: DataFrame, *, key: Sequence[str], time: str, with_id: bool
) -> KafkaStream:
    """`records`: as Spark's Kafka source gives them, of a stream or of a table. `key` and `time` are the join's."""
    wide = _wide(spark, source, records, needed={*key, time})
    chosen = wide
    if source.select:
        chosen = wide.selectExpr(*source.select)
        # The author may have written an asterisk.
        chosen = wide.selectExpr(*source.select, *(name for name in _HIDDEN if name not in chosen.columns))
    columns = [name for name in chosen.columns if name not in _HIDDEN]
    if with_id and ROW_ID in columns:
        raise InvalidInput("value.schema", ROW_ID, "is a column that Trimtab adds", "Rename it in `select`.")
    folded = {name.lower(): name for name in columns}
    needed = [folded[name.lower()] for name in (*key, time) if name.lower() in folded]
    reasons = [F.when(F.col(quote(name)).isNull(), F.lit(f"{name} is null")) for name in needed]
    chosen = chosen.withColumn(PROBLEM, F.coalesce(F.col(PROBLEM), *reasons))
    good = F.col(PROBLEM).isNull()
    rows = [F.when(good, F.col(quote(name))).alias(name) for name in columns]
    if with_id:
        rows.append(F.when(good, F.col(_RECORD)).alias(ROW_ID))
    return KafkaStream(
        rows=chosen.select(*rows, PROBLEM),
        bad=chosen.filter(~good).select(
            F.col(_RAW_KEY).alias("key"),
            F.col(_RAW_VALUE).alias("value"),
            F.col(_RECORD).alias("record"),
            F.col(PROBLEM).alias("reason"),
        ),
    )


def _wide(spark: SparkSession, source: KafkaSource, records: DataFrame, needed: set[str]) -> DataFrame:
    """Decoded columns, the record's own where something may use them, and what a dead letter needs."""
    frame = records.select(
        F.col("key").alias(_RAW_KEY),
        F.col("value").alias(_RAW_VALUE),
        F.concat_ws("/", "topic", F.col("partition").cast("string"), F.col("offset").cast("string")).alias(_RECORD),
        *(F.col(spark_name).alias(name) for name, spark_name in RECORD_COLUMNS.items()),
    )
    parts = [("value", _RAW_VALUE, source.value)]
    if source.key is not None:
        parts.append(("key", _RAW_KEY, source.key))
    columns: dict[str, str] = {}
    for part, raw, form in parts:
        schema = _schema(spark, part, form)
        frame = decoded(frame, raw, form, schema, f"__trimtab_{part}")
        for name in schema.names:
            # The key is often repeated in the value.
            column = f"key_{name}" if part == "key" and _taken(name, columns) else name
            if _taken(column, columns) or _taken(column, RECORD_COLUMNS):
                remedy = "Give the field another name, or leave it out of the schema."
                raise InvalidInput(f"{part}.schema", name, "would be a second column of that name", remedy)
            columns[column] = f"__trimtab_{part}.{quote(name)}"
    problem = F.coalesce(*(F.col(f"__trimtab_{part}_problem") for part, _, _ in parts))
    record = RECORD_COLUMNS if source.select else [name for name in RECORD_COLUMNS if name in needed]
    return frame.select(
        *(F.col(path).alias(name) for name, path in columns.items()),
        *record,
        problem.alias(PROBLEM),
        _RAW_KEY,
        _RAW_VALUE,
        _RECORD,
    )


def _taken(name: str, columns: Iterable[str]) -> bool:
    return name.lower() in (column.lower() for column in columns)


def _schema(spark: SparkSession, part: str, form: RecordFormat) -> T.StructType:
    schema = schema_of(spark, form)
    if form.kind == TEXT and len(schema.fields) != 1:
        raise InvalidInput(f"{part}.schema", form.schema, "has several columns, and a text is one", "Use format: json.")
    for name in schema.names:
        if name.startswith("__trimtab_"):
            raise InvalidInput(f"{part}.schema", name, "begins as Trimtab's own columns do", "Rename it.")
    return schema
