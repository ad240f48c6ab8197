"""Who leads a query: a lease in Redis with a fencing token.

The lease keeps two managers from working against each other; the token keeps them from doing harm where the lease
fails (a manager that slept through its end). Each new leader gets a larger token; every write of a leader is made by a
script that checks the lease's value, and every epoch carries the token, so workers see it too (see
docs/architecture.md, "two managers at once").
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import redis.asyncio

from trimtab import redis_keys
from trimtab.errors import TrimtabError

# KEYS: lease, fence. ARGV: holder, ttl ms, floor.
# A holder that asks again (its answer was lost, or it restarted under its name) gets a new token.
ACQUIRE: Final = """
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, #ARGV[1] + 1) ~= ARGV[1] .. ' ' then return 0 end
local fence = math.max(tonumber(redis.call('GET', KEYS[2]) or '0'), tonumber(ARGV[3])) + 1
local text = string.format('%.0f', fence)
redis.call('SET', KEYS[2], text)
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. text, 'PX', ARGV[2])
return fence
"""

# KEYS: lease. ARGV: value, ttl ms.
RENEW: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""

# KEYS: lease. ARGV: value.
RELEASE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""


class Fenced(TrimtabError):
    """Another manager leads, or the lease has ended: whoever gets this stands down."""


class Lease:
    """One manager's claim to lead one query."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        query: str,
        holder: str,
        *,
        ttl_s: float,
        renew_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._query = query
        self._holder = holder
        self._ttl_s = ttl_s
        self._renew_s = renew_s
        self._clock = clock
        self._acquire = client.register_script(ACQUIRE)
        self._renew = client.register_script(RENEW)
        self._release = client.register_script(RELEASE)
        self._ends_at = 0.0
        self.fence = 0
        """The newest token that this manager had: the next one is larger even if Redis has forgotten it."""

    @property
    def value(self) -> str:
        """What the key holds while this manager leads; checked by every script that writes."""
        return f"{self._holder} {self.fence}"

    @property
    def held(self) -> bool:
        """By our own clock, reckoned from before the request was sent: never longer than Redis thinks."""
        return self._clock() < self._ends_at

    async def acquire(self, floor: int = 0) -> bool:
        """Lead, if nobody else does. `floor`: the token of the newest epoch, which ours must exceed."""
        asked_at = self._clock()
        fence = await self._acquire(
            keys=[redis_keys.lease(self._query), redis_keys.fence(self._query)],
            args=[self._holder, int(self._ttl_s * 1000), max(floor, self.fence)],
        )
        if not int(fence):
            return False
        self.fence = int(fence)
        self._ends_at = asked_at + self._ttl_s
        return True

    async def keep(self) -> None:
        """Renew when it is time to; raises Fenced where the lease is no longer ours."""
        if not self.held:
            raise Fenced(f"the lease of {self._query} has ended")
        asked_at = self._clock()
        if self._ends_at - asked_at > self._ttl_s - self._renew_s:
            return
        renewed = await self._renew(keys=[redis_keys.lease(self._query)], args=[self.value, int(self._ttl_s * 1000)])
        if not int(renewed):
            self._ends_at = 0.0
            raise Fenced(f"the lease of {self._query} was taken by another manager, or lost by Redis")
        self._ends_at = asked_at + self._ttl_s

    async def release(self) -> None:
        """Let a standby take over at once."""
        if self.held:
            self._ends_at = 0.0
            await self._release(keys=[redis_keys.lease(self._query)], args=[self.value])

    def forget(self) -> None:
        """Stand down without telling Redis."""
        self._ends_at = 0.0
