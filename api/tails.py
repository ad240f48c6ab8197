"""One reader of a query and the clients that it tells: the same bytes to all, straight into their connections."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import redis

from api.deltas import EVENTS_SHOWN, delta
from api.events import event_order, sse
from api.keys import KeyStore
from api.streaming import WAITING_BYTES_MAX, Piece, Wire
from balancing.requests import Refused
from manager.store import Json, ManagerStore, StreamEvent

LOOK_S: Final = 0.5
"""Between two looks at a query for its front page."""
LOOK_LEAST_S: Final = 0.1
"""The same, while events come."""
CHECK_S: Final = 10.0
"""How often a comment is sent and the keys are checked again: more often than proxies close idle connections."""
AWAY: Final = Piece(b": Redis does not answer; connect again\n\n")
_WAIT_MS: Final = 250
_HERE: Final = Piece(b": still here\n\n")
_DROPPED: Final = Piece(b'event: dropped\ndata: {"text":"You read too slowly. Connect again."}\n\n')
_LOG = logging.getLogger("trimtab.api")

ReadFront = Callable[[Sequence[StreamEvent]], Awaitable[Json]]
"""The front page of a query, with these events as its newest ones."""


@dataclass(eq=False)
class Client:
    """One client of a tail."""

    key: str
    """Id of its API key."""
    live: bool
    """It follows the front page, not the events."""
    told: tuple[int, int] = (0, 0)
    """The newest event that has reached it another way."""
    last: Piece | None = None
    """What it is told at the end."""
    ended: bool = False
    _wire: Wire | None = None

    def connect(self, wire: Wire) -> None:
        self._wire = wire
        if self.ended:
            self._say_last(wire)

    def put(self, piece: Piece) -> bool:
        """False where it does not read: it has been told, and is to be forgotten."""
        if self.ended or self._wire is None:
            return True
        if self._wire.waiting() > WAITING_BYTES_MAX:
            self.end(_DROPPED)
            return False
        self._wire.write(piece)
        return True

    def end(self, last: Piece | None = None) -> None:
        if self.ended:
            return
        self.ended, self.last = True, last
        if self._wire is not None:
            self._say_last(self._wire)

    def _say_last(self, wire: Wire) -> None:
        if self.last is not None:
            wire.write(self.last)
        wire.end()


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
        self._front_piece: tuple[int, Piece] | None = None
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
                self._front_piece = None
                self._read_front, self._looked_s = read, self._clock()
            return self.front

    def front_piece(self) -> Piece | None:
        """The first message of a client: encoded once for all that begin at the same time."""
        if self.front is None:
            return None
        seq = int(self.front["seq"])
        if self._front_piece is None or self._front_piece[0] != seq:
            self._front_piece = (seq, Piece(named_event("front", self.front)))
        return self._front_piece[1]

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """Until nobody follows, or the server stops. Where Redis does not answer, clients are to connect again."""
        try:
            while goes_on():
                events = await self._store.events(self.query, self.after, block_ms=_WAIT_MS)
                if events:
                    self.after = events[-1].id
                    self.events.extend(events)
                    self._tell_events(events)
                await self._look(soon=bool(events))
                await self._check()
        except (redis.RedisError, OSError, TimeoutError, Refused):
            # Refused: Redis has lost the query, and its driver will bring it back.
            self._end(AWAY)
        except Exception:
            _LOG.exception("%s: following it failed", self.query)
            self._end(AWAY)
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
        piece = Piece(named_event("delta", {"seq": seq, **change}))
        for client in tuple(self.clients):
            if client.live:
                self._put(client, piece)

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
            else:
                self._put(client, _HERE)

    def _tell_events(self, events: Sequence[StreamEvent]) -> None:
        """All of them in one message."""
        first, piece = event_order(events[0].id), Piece(b"".join(map(sse, events)))
        for client in tuple(self.clients):
            if client.live:
                continue
            if client.told < first:
                self._put(client, piece)
            else:
                rest = [event for event in events if event_order(event.id) > client.told]
                if rest:
                    self._put(client, Piece(b"".join(map(sse, rest))))

    def leave(self, client: Client) -> None:
        client.end()
        self.clients.discard(client)

    def _put(self, client: Client, piece: Piece) -> None:
        if not client.put(piece):
            self.clients.discard(client)

    def _end(self, last: Piece | None = None) -> None:
        for client in tuple(self.clients):
            client.end(last)
        self.clients.clear()


def named_event(name: str, body: Json) -> bytes:
    data = json.dumps(body, separators=(",", ":"))
    return f"event: {name}\ndata: {data}\n\n".encode()
