"""Spark's scalar operations on Arrow values, where Arrow's own kernels differ from Spark.

A value is an array or, for a literal, a scalar; Arrow's kernels broadcast the latter.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from trimtab.conditions import types as t
from trimtab.conditions.errors import EvaluationError

Value: TypeAlias = Any  # pa.Array | pa.Scalar; pyarrow has no usable static types


def compare(op: str, left: Value, right: Value, type_: str) -> Value:
    """A comparison of two values of one type."""
    match op:
        case "<=>":
            equal = pc.fill_null(_equal(left, right, type_), False)
            return pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
        case "=":
            return _equal(left, right, type_)
        case "<>":
            return pc.invert(_equal(left, right, type_))
        case "<":
            return _less(left, right, type_)
        case ">":
            return _less(right, left, type_)
        case "<=":
            return _less_equal(left, right, type_)
        case ">=":
            return _less_equal(right, left, type_)
    raise ValueError(f"unknown comparison {op!r}")


def _equal(left: Value, right: Value, type_: str) -> Value:
    equal = pc.equal(left, right)
    if type_ not in t.FRACTIONAL:
        return equal
    return pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _less(left: Value, right: Value, type_: str) -> Value:
    """To Spark NaN is the greatest value; to Arrow, as to IEEE 754, it is not comparable."""
    less = pc.less(left, right)
    if type_ not in t.FRACTIONAL:
        return less
    return pc.or_(less, pc.and_not(pc.is_nan(right), pc.is_nan(left)))


def _less_equal(left: Value, right: Value, type_: str) -> Value:
    less_equal = pc.less_equal(left, right)
    if type_ not in t.FRACTIONAL:
        return less_equal
    # With a null on the left, is_nan(right) alone would be an answer; or_ keeps it null.
    return pc.or_(less_equal, pc.is_nan(right))


def arithmetic(op: str, left: Value, right: Value, type_: str, *, ansi: bool) -> Value:
    """`+ - * / %` of two values of `type_`."""
    if op in "/%":
        right = _divisor(op, left, right, ansi=ansi)
        return pc.divide(left, right) if op == "/" else _remainder(left, right, type_)
    name = {"+": "add", "-": "subtract", "*": "multiply"}[op]
    if not ansi or type_ not in t.INTEGRAL:
        return pc.call_function(name, [left, right])
    try:
        return pc.call_function(f"{name}_checked", [left, right])
    except pa.ArrowInvalid as error:
        raise _overflow(type_) from error


def _divisor(op: str, left: Value, right: Value, *, ansi: bool) -> Value:
    """The divisor with zeros made null; under ANSI a zero is an error wherever the dividend is not null."""
    zero = pc.equal(right, pa.scalar(0, right.type))
    if ansi and pc.any(_as_array(pc.and_not(zero, pc.is_null(left)))).as_py():
        if op == "/":
            raise EvaluationError("DIVIDE_BY_ZERO", "Division by zero.")
        raise EvaluationError("REMAINDER_BY_ZERO", "Remainder by zero.")
    return pc.if_else(zero, pa.scalar(None, right.type), right)


def _remainder(left: Value, right: Value, type_: str) -> Value:
    """The remainder with the sign of the dividend, for which Arrow has no kernel."""
    if type_ in t.INTEGRAL:
        # Anything modulo -1 is 0 as modulo 1, without the overflow of minimum / -1.
        minus_one = pc.equal(right, pa.scalar(-1, right.type))
        right = pc.if_else(minus_one, pa.scalar(1, right.type), right)
        return pc.subtract(left, pc.multiply(pc.divide(left, right), right))
    if isinstance(left, pa.Scalar) and isinstance(right, pa.Scalar):
        return pa.scalar(_fmod(left.as_py(), right.as_py()), left.type)
    length = len(right) if isinstance(left, pa.Scalar) else len(left)
    pairs = zip(as_array(left, length).to_pylist(), as_array(right, length).to_pylist(), strict=True)
    # fmod is exact, so that computing a float's remainder in double loses nothing.
    return pa.array([_fmod(dividend, divisor) for dividend, divisor in pairs], left.type)


def _fmod(dividend: float | None, divisor: float | None) -> float | None:
    if dividend is None or divisor is None:
        return None
    if math.isinf(dividend) or math.isnan(dividend) or math.isnan(divisor):
        return math.nan
    return math.fmod(dividend, divisor)


def negate(value: Value, type_: str, *, ansi: bool) -> Value:
    """Unary minus; the smallest integral has no opposite."""
    if not ansi or type_ not in t.INTEGRAL:
        return pc.negate(value)
    try:
        return pc.negate_checked(value)
    except pa.ArrowInvalid as error:
        raise _overflow(type_) from error


def _overflow(type_: str) -> EvaluationError:
    name = "BINARY_ARITHMETIC_OVERFLOW" if t.INTEGRAL_BITS[type_] < 32 else "ARITHMETIC_OVERFLOW"
    return EvaluationError(name, f"{type_} overflow.")


def cast(value: Value, source: str, target: str, *, ansi: bool) -> Value:
    """A conversion between numbers and booleans, or into a wider decimal."""
    arrow = t.arrow_type(target)
    if target == t.BOOLEAN:
        return pc.not_equal(value, pa.scalar(0, value.type))
    if source in t.FRACTIONAL and target in t.INTEGRAL:
        return _fraction_to_integral(pc.cast(value, pa.float64()), source, target, ansi=ansi)
    if source in t.INTEGRAL and target in t.INTEGRAL and ansi:
        bits = t.INTEGRAL_BITS[target]
        if t.INTEGRAL_BITS[source] > bits:
            low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
            above = pc.greater_equal(value, pa.scalar(low, value.type))
            _require(pc.and_(above, pc.less_equal(value, pa.scalar(high, value.type))), source, target)
    return pc.cast(value, arrow, safe=t.is_decimal(target))


def _fraction_to_integral(value: Value, source: str, target: str, *, ansi: bool) -> Value:
    """Java's conversion: towards zero, NaN to 0, beyond the range to its end.

    The smaller types go through int and then wrap, again as in Java. Under ANSI what does not fit is an
    error, measured after rounding towards the range, as Spark measures it.
    """
    if ansi:
        bits = t.INTEGRAL_BITS[target]
        # As a double the greatest bigint is 2**63 itself, and Spark compares doubles.
        low, high = float(-(1 << (bits - 1))), float((1 << (bits - 1)) - 1)
        fits = pc.and_(pc.less_equal(pc.floor(value), high), pc.greater_equal(pc.ceil(value), low))
        _require(fits, source, target)
    wide = "bigint" if target == "bigint" else "int"
    arrow = t.arrow_type(wide)
    bits = t.INTEGRAL_BITS[wide]
    limit = float(1 << (bits - 1))
    above, below = pc.greater_equal(value, limit), pc.less(value, -limit)
    inside = pc.if_else(pc.or_(pc.or_(above, below), pc.is_nan(value)), pa.scalar(0.0), value)
    whole = pc.cast(inside, arrow, safe=False)
    whole = pc.if_else(above, pa.scalar((1 << (bits - 1)) - 1, arrow), whole)
    whole = pc.if_else(below, pa.scalar(-(1 << (bits - 1)), arrow), whole)
    return pc.cast(whole, t.arrow_type(target), safe=False)


def _require(fits: Value, source: str, target: str) -> None:
    # Without a minimum count of 0, all() of nothing but nulls would be null.
    if not pc.all(_as_array(fits), min_count=0).as_py():
        raise EvaluationError("CAST_OVERFLOW", f"A value of type {source} does not fit into {target}.")


def _as_array(value: Value) -> Value:
    return as_array(value, 1)


def as_array(value: Value, length: int) -> Value:
    """A scalar repeated; an array as it is."""
    return pa.repeat(value, length) if isinstance(value, pa.Scalar) else value
