"""Durations as Spark writes them: "10 seconds", "1 minute 30 seconds", "interval 5 minutes"."""

from __future__ import annotations

import math
import re
from typing import Final

from trimtab.errors import InvalidInput

_UNIT_US: Final[dict[str, int]] = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_SHORT: Final[dict[str, str]] = {"us": "microsecond", "ms": "millisecond", "s": "second"}
_PART = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([a-z]+)")


def parse_us(text: str, field: str) -> int:
    """Microseconds in `text`; months and years are refused because their length varies."""
    rest = text.strip().lower().removeprefix("interval").strip()
    parts = _PART.findall(rest)
    if not parts or _PART.sub("", rest).strip(" ,"):
        raise InvalidInput(
            field,
            text,
            "is not a duration",
            'Write it as Spark does, for example "10 seconds" or "1 minute 30 seconds".',
        )
    total = 0.0
    for number, unit in parts:
        name = _SHORT.get(unit, unit.removesuffix("s"))
        if name not in _UNIT_US:
            raise InvalidInput(
                field,
                text,
                f"has the unit {unit!r}, which has no fixed length or is unknown",
                f"Use one of {', '.join(unit + 's' for unit in _UNIT_US)}.",
            )
        total += float(number) * _UNIT_US[name]
    if not math.isfinite(total):
        raise InvalidInput(field, text, "is longer than any time", 'Write a duration such as "10 seconds".')
    return round(total)


def spark_interval(duration_us: int) -> str:
    """The same duration in words that Spark's withWatermark takes, without loss."""
    return f"{duration_us} microseconds"
