"""Columns that need another form on the way through Python, and keys that need one to be compared.

- A year-month interval has no form in PySpark's Arrow: it travels as its number of months.
- Text with a collation is equal where its collation keys are, which are binary. Spark computes them for its own joins
  but has no SQL function for it, and its hashes do not know collations: so both are taken of that key, not of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark import SparkContext
from pyspark.sql import functions as F
from pyspark.sql import types as T

from trimtab.conditions.placement import quote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STAND_IN: Final = "__trimtab_part"
_PLAIN: Final = (
    T.BooleanType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.StringType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)


def column(name: str) -> Column:
    return F.col(quote(name))


def travelling_type(data_type: T.DataType) -> T.DataType:
    return T.IntegerType() if isinstance(data_type, T.YearMonthIntervalType) else data_type


def travelling(field: T.StructField) -> Column:
    """A column in the form in which it goes to the workers."""
    own = column(field.name)
    if not isinstance(field.dataType, T.YearMonthIntervalType):
        return own
    # As months first: an interval of years alone would become its number of years.
    return own.cast("interval month").cast("int").alias(field.name)


def arrived(frame: DataFrame, wanted: T.StructType) -> DataFrame:
    """The result with every column in its own type again."""
    if all(travelling_type(field.dataType) == field.dataType for field in wanted.fields):
        return frame
    return frame.select(*(_restored(field) for field in wanted.fields))


def _restored(field: T.StructField) -> Column:
    own = column(field.name)
    if not isinstance(field.dataType, T.YearMonthIntervalType):
        return own
    return F.make_ym_interval(F.lit(0), own).cast(field.dataType).alias(field.name)


def leaves_as_rows(result: T.StructType) -> bool:
    """Whether workers may hand their results to PySpark as columns, which saves a Python process and two copies.

    PySpark converts nested values one by one there; results with any such column travel in frames to the union.
    """
    return all(isinstance(field.dataType, _PLAIN) for field in result.fields)


def is_plain_text(data_type: T.DataType) -> bool:
    """Text compared byte by byte, as opposed to a collation."""
    return isinstance(data_type, T.StringType) and data_type.isUTF8BinaryCollation()


def key_parts(fields: Sequence[T.StructField]) -> list[tuple[str, Column]]:
    """Name and value of what is hashed and compared for each key column; new names are columns to add."""
    parts = []
    for number, field in enumerate(fields):
        if isinstance(field.dataType, T.StringType) and not is_plain_text(field.dataType):
            parts.append((f"{STAND_IN}{number}", _collation_key(column(field.name))))
        else:
            parts.append((field.name, column(field.name)))
    return parts


def _collation_key(text: Column) -> Column:
    from pyspark.sql.classic.column import Column as ClassicColumn

    context = SparkContext._active_spark_context
    assert context is not None
    jvm: Any = context._jvm
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    expression = jvm.org.apache.spark.sql.catalyst.expressions.CollationKey(utils.expression(text._jc))
    return ClassicColumn(utils.column(expression))
