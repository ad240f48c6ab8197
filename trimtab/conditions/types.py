"""Spark SQL types as their simpleString, and Spark's rules for the common type of two operands.

Types stay plain strings because they come from, and go back into, JSON and schema texts; only the types
listed here are ever compiled, everything else is left to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

VOID = "void"
BOOLEAN = "boolean"
STRING = "string"
FLOAT = "float"
DOUBLE = "double"
BIGINT = "bigint"
DATE = "date"

# In Spark's order of numeric precedence: the wider of two is the later one.
NUMERIC_ORDER = ("tinyint", "smallint", "int", "bigint", "float", "double")
INTEGRAL = frozenset(NUMERIC_ORDER[:4])
FRACTIONAL = frozenset(NUMERIC_ORDER[4:])
NUMERIC = INTEGRAL | FRACTIONAL
INTEGRAL_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
# Digits Spark reserves when an integral meets a decimal (DecimalType.forType).
INTEGRAL_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
MAX_DECIMAL_PRECISION = 38

_SPELLINGS = {
    "byte": "tinyint", "tinyint": "tinyint", "short": "smallint", "smallint": "smallint",
    "int": "int", "integer": "int", "long": "bigint", "bigint": "bigint",
    "float": "float", "real": "float", "double": "double", "boolean": "boolean",
    "string": "string", "binary": "binary", "date": "date",
    "timestamp": "timestamp", "timestamp_ltz": "timestamp", "timestamp_ntz": "timestamp_ntz",
}  # fmt: skip
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?", re.IGNORECASE)

_ARROW: dict[str, pa.DataType] = {
    "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "boolean": pa.bool_(), "string": pa.string(),
    "binary": pa.binary(), "date": pa.date32(), VOID: pa.null(),
    # Instants are compared as microseconds: their zone is only a matter of display.
    "timestamp": pa.int64(), "timestamp_ntz": pa.int64(),
}  # fmt: skip


def normalise(spelling: str) -> str | None:
    """The canonical name of a type that can be compiled, or None (collated strings, arrays, structs, ...)."""
    text = spelling.strip().lower()
    if text in _SPELLINGS:
        return _SPELLINGS[text]
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    precision, scale = int(match[1] or 10), int(match[2] or 0)
    return decimal(precision, scale) if scale <= precision <= MAX_DECIMAL_PRECISION else None


def decimal(precision: int, scale: int) -> str:
    """The name of a decimal type."""
    return f"decimal({precision},{scale})"


def is_decimal(type_: str) -> bool:
    """Whether a canonical type name is a decimal."""
    return type_.startswith("decimal(")


def decimal_parts(type_: str) -> tuple[int, int]:
    """Precision and scale of a decimal, or of the decimal that holds an integral type."""
    if type_ in INTEGRAL_DIGITS:
        return INTEGRAL_DIGITS[type_], 0
    precision, scale = type_[len("decimal(") : -1].split(",")
    return int(precision), int(scale)


def arrow_type(type_: str) -> pa.DataType:
    """The Arrow type in which values of this Spark type are computed."""
    if is_decimal(type_):
        return pa.decimal128(*decimal_parts(type_))
    return _ARROW[type_]


def common_type(left: str, right: str, *, ansi: bool) -> str | None:
    """The type to which Spark brings both operands of a comparison, or None where we are not certain.

    ANSI differs in one point: an integral and a float meet in double, not in float.
    """
    if left == right:
        return left
    if left == VOID:
        return right
    if right == VOID:
        return left
    if left in NUMERIC and right in NUMERIC:
        wider = max(left, right, key=NUMERIC_ORDER.index)
        return DOUBLE if ansi and wider == FLOAT else wider
    if (is_decimal(left) and right in FRACTIONAL) or (is_decimal(right) and left in FRACTIONAL):
        return DOUBLE
    exact = INTEGRAL | {t for t in (left, right) if is_decimal(t)}
    if left in exact and right in exact:
        (p1, s1), (p2, s2) = decimal_parts(left), decimal_parts(right)
        scale = max(s1, s2)
        precision = max(p1 - s1, p2 - s2) + scale
        # Beyond 38 digits Spark drops some, and a comparison is no longer exact.
        return decimal(precision, scale) if precision <= MAX_DECIMAL_PRECISION else None
    return None


def common_type_of(types: Iterable[str], *, ansi: bool) -> str | None:
    """The common type of a whole IN list, folded from left to right as Spark folds it."""
    result: str | None = VOID
    for type_ in types:
        if result is None:
            return None
        result = common_type(result, type_, ansi=ansi)
    return result
