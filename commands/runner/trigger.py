"""When a sink's batches begin."""

from __future__ import annotations

import re
from typing import Any

from trimtab.durations import parse_us
from trimtab.errors import InvalidInput

_PROCESSING = re.compile(r"processing\s+(.+)")


def trigger_arguments(text: str | None) -> dict[str, Any]:
    """The keyword arguments of DataStreamWriter.trigger; none if batches follow each other at once."""
    if text is None:
        return {}
    words = " ".join(text.lower().split())
    if words == "available now":
        return {"availableNow": True}
    if words == "once":
        return {"once": True}
    interval = _PROCESSING.fullmatch(words)
    if interval is None:
        raise InvalidInput(
            "trigger",
            text,
            "is not a trigger",
            'Use "processing 1 second" (or another interval), "available now" or "once".',
        )
    interval_us = parse_us(interval.group(1), "trigger")
    if interval_us < 0:
        raise InvalidInput("trigger", text, "is negative", 'Use "processing 0 seconds" for batches without a pause.')
    return {"processingTime": f"{interval_us // 1000} milliseconds"}
