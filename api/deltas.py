"""What has changed from one document to the next, so that a thousand clients get little.

A client that applies every delta to the first document has the newest one (`applied`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from manager.history import BATCHES_KEPT
from manager.store import Json

EVENTS_SHOWN: Final = 50
_BY_NUMBER: Final = ("owners", "loads")
_GROWING: Final = ("batches", "events")


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
    for name in _GROWING:
        fresh = _fresh(before[name], after[name])
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
    for name, kept in (("batches", BATCHES_KEPT), ("events", EVENTS_SHOWN)):
        if name in change:
            result[name] = [*result[name], *change[name]][-kept:]
    return result


def _pairs(before: Sequence[Any], after: Sequence[Any]) -> list[list[Any]] | None:
    """[number, value] where they differ; None where the whole list is shorter to tell."""
    if len(before) != len(after):
        return None
    pairs = [[number, value] for number, value in enumerate(after) if before[number] != value]
    return pairs if len(pairs) * 2 <= len(after) else None


def _fresh(before: Sequence[Any], after: Sequence[Any]) -> list[Any] | None:
    """What was added at the end; None where it is another list."""
    if not before:
        return list(after) or []
    if before[-1] not in after:
        return None
    end = after.index(before[-1]) + 1
    return list(after[end:]) if list(before[-end:]) == list(after[:end]) else None
