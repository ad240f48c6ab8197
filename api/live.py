"""Many clients, one reader: the events of a query and its front page, as they change.

Each query that somebody follows has one tail of Redis on this instance (api/tails.py). It begins with the first client,
ends after the last, and tells all of them the same bytes. So a thousand clients cost Redis as much as one, and none of
them holds a connection to it. What waits for a client is bounded by bytes: one that does not read in time is told so
and dropped; it connects again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import redis

from api.events import event_order, sse
from api.keys import KeyStore
from api.problems import unavailable
from api.streaming import Stream, Wire
from api.tails import AWAY, Client, ReadFront, Tail
from manager.store import Json, ManagerStore, StreamEvent

TAILS_MAX: Final = 32
"""Queries that one instance follows at once: each takes one connection to Redis."""
READS_AT_ONCE: Final = 8
"""Clients that catch up at the same time."""
_CATCH_UP: Final = 100
"""Past events that are read at a time."""
_AGAIN: Final = b"retry: 2000\n\n"


class FrontStream(Stream):
    """The whole document, then what changes."""

    def __init__(self, tail: Tail, client: Client) -> None:
        self._tail, self._client = tail, client

    async def past(self) -> AsyncIterator[bytes]:
        yield _AGAIN

    def connect(self, wire: Wire) -> None:
        # Nothing is awaited between these two: no delta is missed, and none comes twice.
        document = self._tail.front_piece()
        if document is not None and not self._client.ended:
            wire.write(document)
        self._client.connect(wire)

    def leave(self) -> None:
        self._tail.leave(self._client)


class EventStream(Stream):
    """From the event after this one on, or from the next one on."""

    def __init__(self, streams: LiveStreams, tail: Tail, client: Client, after: str | None) -> None:
        self._streams, self._tail, self._client, self._after = streams, tail, client, after

    async def past(self) -> AsyncIterator[bytes]:
        """Until it knows what the reader knows: from there on they go together."""
        yield _AGAIN
        after = self._after
        while after is not None and not self._client.ended and event_order(after) < event_order(self._tail.after):
            newest = self._tail.after
            try:
                events = await self._streams.past_events(self._tail.query, after)
            except redis.RedisError:
                self._client.end(AWAY)
                return
            for event in events:
                yield sse(event)
                after = event.id
                self._client.told = event_order(after)
            if not events and newest == self._tail.after:
                return  # Redis has them no more

    def connect(self, wire: Wire) -> None:
        self._client.connect(wire)

    def leave(self) -> None:
        self._tail.leave(self._client)


class LiveStreams:
    """All tails of this instance. They end when the server stops: they would never end by themselves."""

    def __init__(
        self, store: ManagerStore, clock: Callable[[], float] = time.monotonic, keys: KeyStore | None = None
    ) -> None:
        self._store, self._clock = store, clock
        self._keys = keys or KeyStore(store.client)
        self._tails: dict[str, Tail] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin = asyncio.Lock()
        self._reading = asyncio.Semaphore(READS_AT_ONCE)
        self._stopping = False

    def stop(self) -> None:
        """May be called from any thread."""
        self._stopping = True

    def front(self, query: str) -> Json | None:
        """The document that clients of this instance have; None where nobody follows the query here."""
        tail = self._tails.get(query)
        return None if tail is None else tail.front

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """A turn to use Redis on behalf of a client that connects: a thousand may do so at once."""
        async with self._reading:
            yield

    async def follow_events(self, query: str, key: str, after: str | None) -> EventStream:
        tail, client = await self._join(query, key, live=False)
        return EventStream(self, tail, client, after)

    async def follow_front(self, query: str, key: str, read: ReadFront) -> FrontStream:
        tail, client = await self._join(query, key, live=True)
        try:
            async with self._reading:
                await tail.first_front(read)
        except BaseException:
            tail.leave(client)
            raise
        return FrontStream(tail, client)

    async def past_events(self, query: str, after: str) -> list[StreamEvent]:
        async with self._reading:
            return await self._store.events(query, after, _CATCH_UP)

    async def _join(self, query: str, key: str, *, live: bool) -> tuple[Tail, Client]:
        async with self._begin:
            tail = self._tails.get(query)
            if tail is None:
                if self._stopping:
                    raise unavailable("The server stops")
                if len(self._tails) >= TAILS_MAX:
                    raise unavailable(f"{TAILS_MAX} other queries are followed on this instance")
                tail = Tail(self._store, self._keys, query, self._clock)
                await tail.begin()
                self._tails[query] = tail
                task = asyncio.create_task(self._run(tail), name=f"trimtab-tail-{query}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            client = Client(key=key, live=live)
            tail.clients.add(client)
            return tail, client

    async def _run(self, tail: Tail) -> None:
        def goes_on() -> bool:
            if not tail.clients and self._tails.get(tail.query) is tail:
                del self._tails[tail.query]
            return bool(tail.clients) and not self._stopping

        try:
            await tail.run(goes_on)
        finally:
            if self._tails.get(tail.query) is tail:
                del self._tails[tail.query]
