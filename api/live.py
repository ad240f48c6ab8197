"""Many clients, one reader: the events of a query and its front page, as they change.

Each query that somebody follows has one tail of Redis on this instance. It begins with the first client, ends after the
last, and tells all of them the same bytes. So a thousand clients cost Redis as much as one, and no client holds a
connection to it. A client's queue is bounded: one that does not read in time is told so and dropped; it connects again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import redis

from api.deltas import EVENTS_SHOWN, delta
from api.events import event_order, sse
from api.keys import KeyStore
from api.problems import unavailable
from balancing.requests import Refused
from manager.store import Json, ManagerStore, StreamEvent

QUEUE_MAX: Final = 128
"""Messages that may wait for one client. They are shared between clients, so a queue costs pointers."""
TAILS_MAX: Final = 32
"""Queries that one instance follows at once: each takes one connection to Redis."""
READS_AT_ONCE: Final = 8
"""Clients that catch up at the same time."""
LOOK_S: Final = 0.5
"""Between two looks at a query for its front page."""
LOOK_LEAST_S: Final = 0.1
"""The same, while events come."""
CHECK_S: Final = 10.0
"""How often a comment is sent and the keys are checked again: more often than proxies close idle connections."""
_WAIT_MS: Final = 250
_CATCH_UP: Final = 500
_AGAIN: Final = b"retry: 2000\n\n"
_HERE: Final = b": still here\n\n"
_AWAY: Final = b": Redis does not answer; connect again\n\n"
_DROPPED: Final = b'event: dropped\ndata: {"text":"You read too slowly. Connect again."}\n\n'
_LOG = logging.getLogger("trimtab.api")

ReadFront = Callable[[Sequence[StreamEvent]], Awaitable[Json]]
"""The front page of a query, with these events as its newest ones."""


@dataclass(eq=False)
class Client:
    """One client of a tail, and what waits for it."""

    key: str
    """Id of its API key."""
    live: bool
    """It follows the front page, not the events."""
    _waiting: deque[tuple[tuple[int, int], bytes]] = field(default_factory=deque)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: bool = False

    def put(self, order: tuple[int, int], data: bytes) -> bool:
        """False where its queue is full: it has been told, and is to be forgotten."""
        if self._ended:
            return True
        fits = len(self._waiting) < QUEUE_MAX
        if not fits:
            self._waiting.clear()
            self._waiting.append(((0, 0), _DROPPED))
            self._ended = True
        else:
            self._waiting.append((order, data))
        self._wake.set()
        return fits

    def end(self, data: bytes = b"") -> None:
        """It gets what waits, and nothing more."""
        if data and not self._ended:
            self._waiting.append(((0, 0), data))
        self._ended = True
        self._wake.set()

    def forget_until(self, order: tuple[int, int]) -> None:
        """Events up to this one have reached it another way."""
        kept = [each for each in self._waiting if not (0, 0) < each[0] <= order]
        self._waiting.clear()
        self._waiting.extend(kept)

    def forget_all(self) -> None:
        """It gets something newer instead of what waits."""
        if not self._ended:
            self._waiting.clear()

    async def messages(self) -> AsyncIterator[bytes]:
        """All that waits, at once, until it ends."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            data = b"".join(each for _, each in self._waiting)
            self._waiting.clear()
            if data:
                yield data
            if self._ended and not self._waiting:
                return


class Tail:
    """The one reader of a query."""

    def __init__(self, store: ManagerStore, keys: KeyStore, query: str, clock: Callable[[], float]) -> None:
        self.query = query
        self.clients: set[Client] = set()
        self.front: Json | None = None
        """The newest document, with its `seq`, while somebody follows it."""
        self.after = "0-0"
        """The newest event that was read."""
        self._store, self._clock = store, clock
        self._keys = keys
        self.events: deque[StreamEvent] = deque(maxlen=EVENTS_SHOWN)
        self._read_front: ReadFront | None = None
        self._first_front = asyncio.Lock()
        self._front_bytes = (0, b"")
        self._looked_s = self._checked_s = clock()

    async def begin(self) -> None:
        self.events.extend(await self._store.newest_events(self.query, EVENTS_SHOWN))
        if self.events:
            self.after = self.events[-1].id

    async def first_front(self, read: ReadFront) -> Json:
        """The document to begin with; the reader keeps it up to date from now on."""
        async with self._first_front:
            if self.front is None:
                self.front = {"seq": 1, **await read(tuple(self.events))}
                self._front_bytes = (0, b"")
                self._read_front, self._looked_s = read, self._clock()
            return self.front

    def front_bytes(self) -> bytes:
        """The first message of a client: encoded once for all that begin at the same time."""
        if self.front is None:
            return b""
        seq = int(self.front["seq"])
        if self._front_bytes[0] != seq:
            self._front_bytes = (seq, named_event("front", self.front))
        return self._front_bytes[1]

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """Until nobody follows, or the server stops. Where Redis does not answer, clients are to connect again."""
        try:
            while goes_on():
                events = await self._store.events(self.query, self.after, block_ms=_WAIT_MS)
                for event in events:
                    self.after = event.id
                    self.events.append(event)
                    self._tell(event_order(event.id), sse(event), live=False)
                await self._look(soon=bool(events))
                await self._check()
        except (redis.RedisError, OSError, TimeoutError, Refused):
            # Refused: Redis has lost the query, and its driver will bring it back.
            self._end(_AWAY)
        except Exception:
            _LOG.exception("%s: following it failed", self.query)
            self._end(_AWAY)
        finally:
            self._end()

    async def _look(self, *, soon: bool) -> None:
        """At the front page, if anybody follows it and it is time."""
        if not any(client.live for client in self.clients):
            self.front = self._read_front = None
            return
        spent_s = self._clock() - self._looked_s
        if self.front is None or self._read_front is None or spent_s < (LOOK_LEAST_S if soon else LOOK_S):
            return
        before, after = self.front, await self._read_front(tuple(self.events))
        self._looked_s = self._clock()
        change = delta({name: value for name, value in before.items() if name != "seq"}, after)
        if change is None:
            return
        seq = int(before["seq"]) + 1
        self.front = {"seq": seq, **after}
        self._tell((0, 0), named_event("delta", {"seq": seq, **change}), live=True)

    async def _check(self) -> None:
        """Every ten seconds: a sign of life, and an end to clients whose key was revoked."""
        if self._clock() - self._checked_s < CHECK_S:
            return
        self._checked_s = self._clock()
        known = await self._keys.known({client.key for client in self.clients})
        for client in tuple(self.clients):
            if client.key not in known:
                client.end()
                self.clients.discard(client)
            elif not client.put((0, 0), _HERE):
                self.clients.discard(client)

    def _tell(self, order: tuple[int, int], data: bytes, *, live: bool) -> None:
        for client in tuple(self.clients):
            if client.live is live and not client.put(order, data):
                self.clients.discard(client)

    def _end(self, data: bytes = b"") -> None:
        for client in tuple(self.clients):
            client.end(data)
        self.clients.clear()


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

    async def follow_events(self, query: str, key: str, after: str | None) -> AsyncIterator[bytes]:
        """From the event after this one on, or from the next one on."""
        tail, client = await self._join(query, key, live=False)
        return self._events(tail, client, after)

    async def follow_front(self, query: str, key: str, read: ReadFront) -> AsyncIterator[bytes]:
        """The whole document, then what changes."""
        tail, client = await self._join(query, key, live=True)
        try:
            async with self._reading:
                await tail.first_front(read)
        except BaseException:
            self._leave(tail, client)
            raise
        return self._front(tail, client)

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

    def _leave(self, tail: Tail, client: Client) -> None:
        client.end()
        tail.clients.discard(client)

    async def _events(self, tail: Tail, client: Client, after: str | None) -> AsyncIterator[bytes]:
        try:
            yield _AGAIN
            if after is not None:
                async for data, newest in self._past(tail.query, after):
                    yield data
                    client.forget_until(event_order(newest))
            async for data in client.messages():
                yield data
        except redis.RedisError:
            yield _AWAY
        finally:
            self._leave(tail, client)

    async def _past(self, query: str, after: str) -> AsyncIterator[tuple[bytes, str]]:
        """Events that happened before the client came, and the id of the last."""
        while True:
            async with self._reading:
                events = await self._store.events(query, after, _CATCH_UP)
            if not events:
                return
            after = events[-1].id
            yield b"".join(map(sse, events)), after

    async def _front(self, tail: Tail, client: Client) -> AsyncIterator[bytes]:
        try:
            yield _AGAIN
            # Nothing is awaited between these two: no delta is missed, and none comes twice.
            client.forget_all()
            data = tail.front_bytes()
            if data:
                yield data
            async for data in client.messages():
                yield data
        finally:
            self._leave(tail, client)


def named_event(name: str, body: Json) -> bytes:
    data = json.dumps(body, separators=(",", ":"))
    return f"event: {name}\ndata: {data}\n\n".encode()
