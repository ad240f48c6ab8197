"""Where the query's conditions are evaluated: on a stream before the split, inside the join, or on the result.

`trimtab.conditions` reads and places them. What it cannot read but Spark can is evaluated by Spark on the result, where
each stream is a structure again, so that the author's text holds as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from split_union import session
from split_union.schema import Input, result_type
from split_union.transport import column
from trimtab import conditions
from trimtab.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Placed:
    """The conditions, each with its conjuncts by place; `unread` are those that only Spark can read."""

    read: tuple[conditions.PlacedConditions, ...]
    unread: tuple[str, ...]

    def before_split(self, stream: str) -> Iterator[str]:
        for each in self.read:
            yield from each.before_split.get(stream, ())

    def in_join(self) -> Iterator[conditions.InJoin]:
        for each in self.read:
            yield from each.in_join

    def after_union(self) -> Iterator[str]:
        for each in self.read:
            yield from each.after_union


def place_conditions(where: Sequence[str], spark: SparkSession, given: Sequence[Input]) -> Placed:
    """Refuses what neither Trimtab nor Spark can read or resolve, on empty tables: before anything starts."""
    schemas = {each.stream.name: {field.name: field.dataType.simpleString() for field in each.fields} for each in given}
    ansi, case_sensitive = (session.flag(spark, f"spark.sql.{name}") for name in ("ansi.enabled", "caseSensitive"))
    read, unread = [], []
    for index, text in enumerate(where):
        field = f"where[{index}]"
        try:
            placed = conditions.place([text], schemas, ansi=ansi, case_sensitive=case_sensitive)
        except conditions.Unreadable as error:
            if _problem(_by_stream(_empty_result(spark, given), given), text) is not None:
                raise error.at(field) from None
            unread.append(text)
        except InvalidInput as error:
            raise error.at(field) from None
        else:
            _check_with_spark(spark, given, field, text, placed)
            read.append(placed)
    return Placed(tuple(read), tuple(unread))


def filtered(joined: DataFrame, given: Sequence[Input], placed: Placed) -> DataFrame:
    """The result without what the conditions that are left to Spark drop."""
    for condition in placed.after_union():
        joined = joined.filter(F.expr(condition))
    if not placed.unread:
        return joined
    whole = _by_stream(joined, given)
    for condition in placed.unread:
        whole = whole.filter(F.expr(condition))
    parts = [(each.stream.name, name) for each in given for name in each.columns]
    return whole.select(*(column(stream).getField(name).alias(f"{stream}_{name}") for stream, name in parts))


def _by_stream(joined: DataFrame, given: Sequence[Input]) -> DataFrame:
    """A result whose columns are the streams, each a structure of its own columns."""
    return joined.select(
        *(
            F.struct(*(column(f"{each.stream.name}_{name}").alias(name) for name in each.columns)).alias(
                each.stream.name
            )
            for each in given
        )
    )


def _empty_result(spark: SparkSession, given: Sequence[Input]) -> DataFrame:
    return spark.createDataFrame([], result_type(given))


def _problem(table: DataFrame, text: str) -> str | None:
    """What Spark has against a condition on a table; None if nothing."""
    try:
        table.filter(F.expr(text))
    except PySparkException as error:
        return str(error).partition("SQLSTATE")[0].strip().rstrip(".;")
    return None


def _check_with_spark(
    spark: SparkSession, given: Sequence[Input], field: str, condition: str, placed: conditions.PlacedConditions
) -> None:
    """Have Spark resolve what it will evaluate itself."""
    tables = [
        (spark.createDataFrame([], each.frame.schema), texts)
        for each in given
        if (texts := placed.before_split.get(each.stream.name))
    ]
    if placed.after_union:
        tables.append((_empty_result(spark, given), placed.after_union))
    for table, texts in tables:
        for text in texts:
            if (problem := _problem(table, text)) is not None:
                raise InvalidInput(
                    field,
                    condition,
                    f"is not a condition that Spark accepts: {problem}",
                    "Correct it, or leave it out.",
                )
