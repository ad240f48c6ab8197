"""A query's events as Server-Sent Events, resumable by Last-Event-ID.

The stream's ids are Redis's own, so a client that comes back to another instance goes on where it was.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from typing import Final

import redis

from api.problems import Problem
from manager.store import ManagerStore, StreamEvent

POLL_MS: Final = 500
CHECK_S: Final = 10.0
"""How often a comment is sent and the key is checked again: more often than proxies close idle connections."""
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
    data = json.dumps(asdict(event), separators=(",", ":"))
    return f"id: {event.id}\nevent: {event.kind}\ndata: {data}\n\n".encode()


class EventStreams:
    """The open event streams. They end when the server stops: they would never end by themselves."""

    def __init__(self, store: ManagerStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    async def follow(self, query: str, after: str, allowed: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
        """Ends when the server stops, Redis does not answer (the client connects again), or the key is revoked."""
        try:
            checked_s = self._clock()
            yield b"retry: 2000\n\n"
            async for event in self._store.follow(query, after, POLL_MS):
                if self._stopping:
                    return
                if event is not None:
                    yield sse(event)
                if self._clock() - checked_s < CHECK_S:
                    continue
                checked_s = self._clock()
                if not await allowed():
                    return
                yield b": still here\n\n"
        except redis.RedisError:
            yield b": Redis does not answer; connect again with Last-Event-ID\n\n"
