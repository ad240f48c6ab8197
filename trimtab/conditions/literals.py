"""Literals of Spark SQL, read from the author's own characters.

sqlglot's reading is not used: it decodes escapes and number suffixes by its own rules. Whatever is not plain
here is None, and the condition then goes to Spark.
"""

from __future__ import annotations

import datetime
import re
from decimal import Decimal

from trimtab.conditions import types as t
from trimtab.conditions.tree import Literal

_NUMBER = re.compile(r"(\d+)(\.\d*)?([eE][+-]?\d+)?(Y|S|L|F|D|BD)?", re.IGNORECASE)
_SUFFIX_TYPES = {"y": "tinyint", "s": "smallint", "l": "bigint"}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
# Spark keeps the backslash before the wildcards of LIKE.
_ESCAPES = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "t": "\t", "r": "\r", "%": "\\%", "_": "\\_"}
_LONG_MAX = 2**63 - 1


def number(raw: str, *, negative: bool) -> Literal | None:
    """A number; the sign belongs to it, for -2147483648 is an int while 2147483648 is not."""
    match = _NUMBER.fullmatch(raw)
    if match is None:
        return None
    whole, fraction, exponent, suffix = match[1], match[2], match[3], (match[4] or "").lower()
    plain = ("-" if negative else "") + whole + (fraction or "") + (exponent or "")
    if suffix == "f":
        return None
    if suffix == "d" or (not suffix and exponent):
        value = float(plain)
        return Literal(repr(value), t.DOUBLE) if abs(value) != float("inf") else None
    if exponent:
        return None
    if fraction is not None or suffix == "bd":
        return decimal_literal(Decimal(plain))
    return _integer(int(plain), suffix)


def _integer(value: int, suffix: str) -> Literal | None:
    if suffix:
        candidates: tuple[str, ...] = (_SUFFIX_TYPES[suffix],)
    else:
        candidates = ("int", "bigint")
    for type_ in candidates:
        bound = 1 << (t.INTEGRAL_BITS[type_] - 1)
        if -bound <= value < bound:
            return Literal(value, type_)
    return None if suffix else decimal_literal(Decimal(value))


def decimal_literal(value: Decimal) -> Literal | None:
    """A decimal with the precision Spark gives it: at least as many digits as its scale."""
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    precision = max(len(digits), scale)
    if scale < 0 or precision > t.MAX_DECIMAL_PRECISION:
        return None
    return Literal(format(value, "f"), t.decimal(precision, scale))


def fits_bigint(value: str) -> bool:
    """Whether a decimal text lies within bigint.

    Beyond it Spark answers a comparison with an integral without looking at the row, null or not.
    """
    return abs(Decimal(value)) <= _LONG_MAX


def string(raw: str) -> str | None:
    """The value of a quoted string with the common escapes, or of a raw string; None if in doubt."""
    if raw[:1] in "rR" and raw[1:2] in ("'", '"') and raw[1:2] == raw[-1:] and len(raw) > 2:
        body = raw[2:-1]
        return None if raw[1] in body else body
    if len(raw) < 2 or raw[0] not in "'\"" or raw[-1] != raw[0]:
        return None
    pieces: list[str] = []
    characters = iter(raw[1:-1])
    for character in characters:
        if character == raw[0]:
            return None
        if character == "\\":
            escaped = _ESCAPES.get(next(characters, ""))
            if escaped is None:
                return None
            character = escaped
        pieces.append(character)
    return "".join(pieces)


def date(text: str) -> Literal | None:
    """A DATE literal in the one format that leaves no doubt."""
    if _DATE.fullmatch(text) is None:
        return None
    try:
        return Literal(datetime.date.fromisoformat(text).isoformat(), t.DATE)
    except ValueError:
        return None
