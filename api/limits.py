"""What one client may ask of the server: how often, how much, how deeply nested."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from starlette.types import Message, Receive

from api.problems import Problem

BODY_BYTES_MAX: Final = 64 * 1024
DEPTH_MAX: Final = 16
STREAMS_MAX: Final = 1_500
"""Event streams at once on one instance."""
STREAMS_OF_KEY_MAX: Final = 200
ANSWER_S: Final = 5.0
"""How long a request may take with Redis, the wait for its turn included. A slower Redis counts as unreachable."""
QUESTIONS_SHARE: Final = 0.25
"""Of the time of one core, at most, is spent on proposals for those who only ask."""
SPARING_WAIT_MAX: Final = 4
"""Questions that may wait for their turn: each keeps a place among the requests that use Redis."""
SPARING_WAIT_S: Final = 2.0
"""How long each may wait, once for those before it and once for the rest after them."""
BUCKETS_MAX: Final = 10_000
"""Clients that are remembered; the one that was silent for longest is forgotten first."""


@dataclass(frozen=True, kw_only=True)
class RequestRates:
    """Requests per second, for each key, that one instance answers; twice as many may come at once, if nothing else is
    said."""

    reads_per_s: float = 2_000.0
    mutations_per_s: float = 20.0
    questions_per_s: float = 0.5
    """Proposals. Each may take a second of CPU time and is kept for an hour."""
    questions_at_once: float = 10.0
    failures_per_s: float = 5.0
    """For each address: requests without a valid key."""


class Buckets:
    """A token bucket for each name. Time is given by the caller."""

    def __init__(self, per_s: float, at_once: float | None = None) -> None:
        self._per_s = per_s
        self._size = max(1.0, 2 * per_s) if at_once is None else at_once
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, name: str, now_s: float) -> float:
        """0.0 and one token taken, or how long to wait for the next one."""
        level, since = self._levels.get(name, (self._size, now_s))
        level = min(self._size, level + (now_s - since) * self._per_s)
        allowed = level >= 1.0
        self._levels[name] = (level - 1.0 if allowed else level, now_s)
        self._levels.move_to_end(name)
        if len(self._levels) > BUCKETS_MAX:
            self._levels.popitem(last=False)
        return 0.0 if allowed else (1.0 - level) / self._per_s

    def give_back(self, name: str) -> None:
        """Return the token that was taken last."""
        if name in self._levels:
            level, since = self._levels[name]
            self._levels[name] = (level + 1.0, since)


class Places:
    """Open event streams: each holds a socket and some memory, so their number is limited."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, key: str) -> Iterator[None]:
        """Take one place until the stream has ended; 429 or 503 where there is none."""
        if self._taken[key] >= STREAMS_OF_KEY_MAX:
            raise _no_place(429, f"{STREAMS_OF_KEY_MAX} event streams of this key are open.", "Close one first.")
        if self._taken.total() >= STREAMS_MAX:
            raise _no_place(503, f"{STREAMS_MAX} event streams are open on this instance.", "Ask another instance.")
        self._taken[key] += 1
        try:
            yield
        finally:
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]


class Sparing:
    """One at a time, and afterwards a rest that is longer than what was done: heavy work for those who only ask must
    leave the processor to the manager."""

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`share`: of the time."""
        self._rest = 1 / share - 1
        self._clock = clock
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._free_s = clock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """429 where too many wait, or it takes too long."""
        if self._waiting >= SPARING_WAIT_MAX:
            raise too_many(1.0, "proposals at once on this instance")
        self._waiting += 1
        try:
            async with asyncio.timeout(SPARING_WAIT_S):
                await self._lock.acquire()
        except TimeoutError:
            raise too_many(1.0, "proposals at once on this instance") from None
        finally:
            self._waiting -= 1
        try:
            rest_s = max(0.0, self._free_s - self._clock())
            if rest_s > SPARING_WAIT_S:
                raise too_many(rest_s, "proposals at once on this instance")
            await asyncio.sleep(rest_s)
            begun_s = self._clock()
            try:
                yield
            finally:
                self._free_s = self._clock() + (self._clock() - begun_s) * self._rest
        finally:
            self._lock.release()


@asynccontextmanager
async def in_turn(room: asyncio.Semaphore) -> AsyncIterator[None]:
    """Wait for a turn to use Redis. TimeoutError where waiting and using take too long together."""
    async with asyncio.timeout(ANSWER_S), room:
        yield


def too_many(wait_s: float, what: str) -> Problem:
    seconds = max(1, math.ceil(wait_s))
    return Problem(
        429,
        "too-many-requests",
        f"Too many {what}.",
        remedy=f"Wait {seconds} s; ask less often, or follow the event stream instead of polling.",
        headers={"Retry-After": str(seconds)},
    )


async def read_body(receive: Receive, declared: str | None) -> bytes:
    """The whole body, refused before it is too large to keep, whatever its length was declared to be."""
    if declared is not None and (not declared.isdigit() or int(declared) > BODY_BYTES_MAX):
        raise _too_large(declared)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionAbortedError
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise _too_large(f"more than {BODY_BYTES_MAX}")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body that was read already, then the client's further messages."""
    done = False

    async def again() -> Message:
        nonlocal done
        if done:
            return await receive()
        done = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def check_depth(body: bytes) -> None:
    """Refuse deep nesting before a parser recurses into it. Brackets inside strings do not count."""
    depth = 0
    in_string = escaped = False
    for byte in body:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            if depth > DEPTH_MAX:
                raise Problem(
                    422,
                    "too-deep",
                    f"The body is nested more than {DEPTH_MAX} levels deep.",
                    field="body",
                    value=f"depth {depth}",
                    remedy="No request needs more than three levels; see docs/rest.md.",
                )
        elif byte in b"]}":
            depth -= 1


def _no_place(status: int, detail: str, remedy: str) -> Problem:
    return Problem(status, "too-many-streams", detail, remedy=remedy, headers={"Retry-After": "10"})


def _too_large(length: str) -> Problem:
    return Problem(
        413,
        "too-large",
        f"The body has more than {BODY_BYTES_MAX} bytes.",
        field="Content-Length",
        value=length[:20],
        remedy="Send less: 10,000 group numbers fit. For more groups, give an amount instead.",
        headers={"Connection": "close"},
    )
