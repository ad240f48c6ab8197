"""Looks at the inputs' schemas: columns, key types, event times. Everything here happens before a query starts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from split_union.query import JoinQuery, Stream
from split_union.transport import is_plain_text, travelling_type
from trimtab.errors import InvalidInput
from trimtab.keys import INTERNAL, PROBLEM, KeySpec, exact_bits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WATERMARK_METADATA = "spark.watermarkDelayMs"


@dataclass(frozen=True)
class Input:
    """One stream with its DataFrame, its columns resolved."""

    stream: Stream
    frame: DataFrame
    key: KeySpec
    time: str
    has_watermark: bool

    @property
    def fields(self) -> list[T.StructField]:
        """The stream's columns: all that the DataFrame has but for the reason why a row is bad."""
        return [field for field in self.frame.schema.fields if field.name != PROBLEM]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


def check_inputs(query: JoinQuery, frames: Mapping[str, DataFrame], *, case_sensitive: bool) -> list[Input]:
    """The inputs in the order of the query's streams, or an error that names what is wrong."""
    _check_names(query, frames)
    for name in query.stream_names:
        _check_frame(name, frames[name])
    keys = {s.name: [_field(s, frames[s.name], c, "key", case_sensitive) for c in s.key_columns] for s in query.streams}
    _check_key_types(keys)
    inputs = []
    for stream in query.streams:
        frame = frames[stream.name]
        fields = keys[stream.name]
        time = _field(stream, frame, stream.time, "time", case_sensitive)
        has_watermark = _check_time(query, stream, frame, time)
        columns = tuple(field.name for field in fields)
        inputs.append(Input(stream, frame, KeySpec(columns, _key_kind(fields)), time.name, has_watermark))
    _check_result_names(inputs, case_sensitive=case_sensitive)
    return inputs


def result_type(inputs: Sequence[Input]) -> T.StructType:
    """The result's columns: STREAM_COLUMN with the input's type, nullability and comment."""
    fields = []
    for given in inputs:
        for field in given.fields:
            # An event time keeps its type but not its watermark: the result has none until the user defines one.
            metadata = {key: value for key, value in (field.metadata or {}).items() if key != WATERMARK_METADATA}
            fields.append(T.StructField(f"{given.stream.name}_{field.name}", field.dataType, field.nullable, metadata))
    return T.StructType(fields)


def arrow_type(data_type: T.DataType, timezone: str, large: bool) -> pa.DataType:
    return to_arrow_type(data_type, timezone=timezone, prefers_large_types=large)


def replace_type(field: T.StructField, data_type: T.DataType) -> T.StructField:
    return T.StructField(field.name, data_type, field.nullable, field.metadata)


def _check_names(query: JoinQuery, frames: Mapping[str, DataFrame]) -> None:
    missing = [name for name in query.stream_names if name not in frames]
    unknown = [name for name in frames if name not in query.stream_names]
    if missing or unknown:
        raise InvalidInput(
            "inputs",
            sorted(frames),
            f"missing {missing}, unknown {unknown}",
            f"Give one DataFrame for each stream: {', '.join(query.stream_names)}.",
        )


def _check_frame(name: str, frame: DataFrame) -> None:
    field = f"inputs[{name!r}]"
    if not frame.isStreaming:
        raise InvalidInput(field, frame.columns, "is not a streaming DataFrame", "Read it with spark.readStream.")
    for column in frame.columns:
        if frame.columns.count(column) > 1:
            raise InvalidInput(field, column, "is the name of two columns", "Rename one of them.")
        if column.lower().startswith(INTERNAL) and column != PROBLEM:
            raise InvalidInput(
                field, column, f"begins with {INTERNAL}, as Trimtab's own columns do", "Rename the column."
            )
    for spark_field in frame.schema.fields:
        try:
            arrow_type(travelling_type(spark_field.dataType), "UTC", False)
        except (PySparkException, TypeError) as error:
            raise InvalidInput(
                f"{field}.{spark_field.name}",
                spark_field.dataType.simpleString(),
                f"is a type that Spark cannot hand to Python ({str(error)[:120]})",
                "Cast the column before the join, or drop it.",
            ) from None


def _field(stream: Stream, frame: DataFrame, column: str, role: str, case_sensitive: bool) -> T.StructField:
    def folded(text: str) -> str:
        return text if case_sensitive else text.lower()

    for field in frame.schema.fields:
        if folded(field.name) == folded(column):
            return field
    there = [name for name in frame.columns if name != PROBLEM]
    near = difflib.get_close_matches(column, there, 1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise InvalidInput(
        f"streams[{stream.name!r}].{role}",
        column,
        "is not a column of the input",
        f"{hint}It has: {', '.join(there)}.",
    )


def _check_key_types(keys: Mapping[str, Sequence[T.StructField]]) -> None:
    for fields in zip(*keys.values(), strict=True):
        types = {name: field.dataType.simpleString() for name, field in zip(keys, fields, strict=True)}
        if len({_comparable(field.dataType) for field in fields}) > 1:
            raise InvalidInput("streams.key", types, "have different types", "Cast them to one type before the join.")
        problem = _not_comparable(fields[0].dataType)
        if problem:
            raise InvalidInput("streams.key", types, problem, "Use a column of another type as the key.")


def _comparable(data_type: T.DataType) -> str:
    """The type without what equality does not depend on: names and nullability inside nested types."""
    if isinstance(data_type, T.StructType):
        return f"struct<{','.join(_comparable(field.dataType) for field in data_type.fields)}>"
    if isinstance(data_type, T.ArrayType):
        return f"array<{_comparable(data_type.elementType)}>"
    return data_type.simpleString()


def _not_comparable(data_type: T.DataType, *, nested: bool = False) -> str | None:
    if isinstance(data_type, T.StructType):
        if len(set(data_type.names)) < len(data_type.names):
            return f"has two fields of one name ({data_type.simpleString()})"
        found = (_not_comparable(field.dataType, nested=True) for field in data_type.fields)
        return next((problem for problem in found if problem), None)
    if isinstance(data_type, T.ArrayType):
        return _not_comparable(data_type.elementType, nested=True)
    if isinstance(data_type, T.MapType | T.VariantType | T.NullType | T.CalendarIntervalType | T.UserDefinedType):
        return f"cannot be compared for equality ({data_type.simpleString()})"
    if nested and isinstance(data_type, T.StringType) and not is_plain_text(data_type):
        return f"has a collation inside a nested type ({data_type.simpleString()})"
    return None


def _key_kind(fields: Sequence[T.StructField]) -> Any:
    bits = [exact_bits(arrow_type(travelling_type(field.dataType), "UTC", False)) for field in fields]
    if all(bit is not None for bit in bits) and sum(bit or 0 for bit in bits) <= 64:
        return "exact"
    only = fields[0].dataType
    if len(fields) == 1 and (is_plain_text(only) or isinstance(only, T.BinaryType)):
        return "column"
    return "bytes"


def _check_time(query: JoinQuery, stream: Stream, frame: DataFrame, time: T.StructField) -> bool:
    """Whether the input has a watermark of its own on the time column."""
    field = f"streams[{stream.name!r}].time"
    if not isinstance(time.dataType, T.TimestampType):
        raise InvalidInput(
            field,
            f"{time.name} {time.dataType.simpleString()}",
            "is not a timestamp (with time zone)",
            "Cast it to timestamp.",
        )
    marked = [f.name for f in frame.schema.fields if WATERMARK_METADATA in (f.metadata or {})]
    if marked and marked != [time.name]:
        raise InvalidInput(
            field,
            time.name,
            f"but the input has its watermark on {marked}",
            "Use that column, or define the watermark on this one.",
        )
    if marked and query.lateness is not None:
        raise InvalidInput(
            "lateness", query.lateness, f"but stream {stream.name} has a watermark already", "Leave `lateness` out."
        )
    if not marked and query.lateness is None:
        raise InvalidInput(
            "lateness",
            None,
            f"is missing: stream {stream.name} has no watermark",
            'Give lateness="5 seconds", or call withWatermark on the input.',
        )
    return bool(marked)


def _check_result_names(inputs: Sequence[Input], *, case_sensitive: bool) -> None:
    seen: dict[str, str] = {}
    for given in inputs:
        for column in given.columns:
            name = f"{given.stream.name}_{column}"
            folded = name if case_sensitive else name.lower()
            if folded in seen:
                raise InvalidInput(
                    f"streams[{given.stream.name!r}]",
                    column,
                    f"would give the result a second column {name} beside that of {seen[folded]}",
                    "Rename the stream or the column.",
                )
            seen[folded] = given.stream.name
