"""What has changed from one document to the next, so that a thousand clients get little.

A client that applies every delta to the first document has the newest one (`applied`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from manager.history import BATCHES_KEPT
from manager.store import Json

EVENTS_SHOWN: Final = 50
MARKS_SHOWN: Final = 200
"""Moves that have ended and are marked on charts."""
_BY_NUMBER: Final = ("owners", "loads")
_GROWING: Final = {"batches": BATCHES_KEPT, "events": EVENTS_SHOWN, "marks": MARKS_SHOWN}
"""Lists that grow at their end, and how many of each a client keeps: nothing else is cut off at the beginning."""


def delta(before: Json, after: Json) -> Json | None:
    """What has changed, or nothing. Lists by group become pairs where few of them changed, else they are set."""
    changed: Json = {}
    whole: Json = {
        name: value
        for name, value in after.items()
        if name not in ("at_ms", *_BY_NUMBER, *_GROWING) and before[name] != value
    }
    for name in _BY_NUMBER:
        pairs = _pairs(before[name], after[name])
        if pairs is None:
            whole[name] = after[name]
        elif pairs:
            changed[name] = pairs
    for name, kept in _GROWING.items():
        fresh = _fresh(before[name], after[name], kept)
        if fresh is None:
            whole[name] = after[name]
        elif fresh:
            changed[name] = fresh
    if whole:
        changed["set"] = whole
    return {"at_ms": after["at_ms"], **changed} if changed else None


def applied(document: Json, change: Json) -> Json:
    """The document after a delta: what every client does."""
    result = {**document, **change.get("set", {}), "at_ms": change["at_ms"]}
    if "seq" in change:
        result["seq"] = change["seq"]
    for name in _BY_NUMBER:
        if name in change:
            result[name] = list(result[name])
            for number, value in change[name]:
                result[name][number] = value
    for name, kept in _GROWING.items():
        if name in change:
            result[name] = [*result[name], *change[name]][-kept:]
    return result


def _pairs(before: Sequence[Any], after: Sequence[Any]) -> list[list[Any]] | None:
    """[number, value] where they differ; None where the whole list is shorter to tell."""
    if len(before) != len(after):
        return None
    pairs = [[number, value] for number, value in enumerate(after) if before[number] != value]
    return pairs if len(pairs) * 2 <= len(after) else None


def _fresh(before: Sequence[Any], after: Sequence[Any], kept: int) -> list[Any] | None:
    """What was added at the end; None where adding that would not make the same list."""
    if before and before[-1] not in after:
        return None
    # From the end: a value may be there twice.
    end = len(after) - list(reversed(after)).index(before[-1]) if before else 0
    fresh = list(after[end:])
    return fresh if [*before, *fresh][-kept:] == list(after) else None
