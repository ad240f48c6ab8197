"""A query's events as Server-Sent Events, resumable by Last-Event-ID (api/live.py sends them).

The stream's ids are Redis's own, so a client that comes back to another instance goes on where it was.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict

from api.problems import Problem
from manager.store import StreamEvent

_KIND = re.compile(r"[A-Za-z0-9_-]{1,40}")
_ID = re.compile(r"\d{1,20}-\d{1,20}")


def check_event_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise Problem(
            422,
            "event-id",
            "This is not the id of an event.",
            field="Last-Event-ID",
            value=text,
            remedy="Send the `id` of the last event that you received, or leave the header out.",
        )
    return text


def only_json(accept: str | None) -> bool:
    """Whether a client wants the newest events once, instead of a stream."""
    return (accept or "").partition(";")[0].strip() == "application/json"


def sse(event: StreamEvent) -> bytes:
    """A kind that is no word stays in the data alone: a line end in it would begin another field."""
    data = json.dumps(asdict(event), separators=(",", ":"))
    kind = event.kind if _KIND.fullmatch(event.kind) else "other"
    return f"id: {event.id}\nevent: {kind}\ndata: {data}\n\n".encode()


def event_order(name: str) -> tuple[int, int]:
    """By which ids of events follow each other."""
    at_ms, _, number = name.partition("-")
    return int(at_ms), int(number)
