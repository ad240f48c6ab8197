"""Rows as multisets: a row that is there twice must show, so nothing here is ever made distinct."""

from __future__ import annotations

import datetime
import decimal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Frozen = tuple[Any, ...]
Multiset = Counter[Frozen]

_EPOCH = datetime.datetime(1970, 1, 1)


def frozen(value: Any) -> Any:
    """A hashable twin of a column's value. Two values have equal twins only if no bit of them that matters differs."""
    if isinstance(value, float):
        return ("float", repr(value))  # NaN equals itself here, and -0.0 is not 0.0: payload is carried unchanged
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, Mapping):
        return ("struct", tuple((name, frozen(field)) for name, field in value.items()))
    if isinstance(value, list | tuple):
        return ("list", tuple(frozen(item) for item in value))
    if isinstance(value, datetime.datetime):
        naive = value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo else value
        return ("time", value.tzinfo is not None, (naive - _EPOCH) // datetime.timedelta(microseconds=1))
    if isinstance(value, decimal.Decimal):
        return ("decimal", value.as_integer_ratio())  # exact, whatever scale it is written with
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    return value


def multiset(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> Multiset:
    return Counter(tuple(frozen(row[column]) for column in columns) for row in rows)


def difference(expected: Multiset, got: Multiset, columns: Sequence[str], examples: int = 3) -> str | None:
    """What is missing and what is extra, with examples; None if nothing is."""
    missing, extra = expected - got, got - expected
    if not missing and not extra:
        return None
    lines = [f"expected {expected.total()} rows, got {got.total()}: missing {missing.total()}, extra {extra.total()}"]
    for word, rows in (("missing", missing), ("extra", extra)):
        for row, count in list(rows.items())[:examples]:
            lines.append(f"  {word} {count}x {dict(zip(columns, row, strict=True))}")
    return "\n".join(lines)
