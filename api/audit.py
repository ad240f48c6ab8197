"""Who asked what, why, and how it ended: a stream in Redis that outlives journals and servers."""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Final

import redis
from redis.asyncio import Redis

from api.access import Caller
from api.keys import without_keys
from trimtab import redis_keys

KEPT: Final = 100_000
LENGTH_MAX: Final = 2_000
"""Of each field: what is kept for long is not as long as its sender likes."""
_LOG = logging.getLogger("trimtab.audit")


class Audit:
    def __init__(self, client: Redis) -> None:
        self._client = client

    async def add(self, caller: Caller, method: str, path: str, body: bytes, status: int, outcome: str) -> None:
        """Note a mutation, done or refused. Failing to note it does not undo it, so that is only logged."""
        fields = {
            "at_ms": str(time.time_ns() // 1_000_000),
            "key": caller.id,
            "name": caller.name,
            "method": method,
            "path": without_keys(path),
            "reason": without_keys(_reason(body)),
            "body": without_keys(body.decode(errors="replace")),
            "status": str(status),
            "outcome": outcome,
        }
        entry: dict[Any, Any] = {name: text[:LENGTH_MAX] for name, text in fields.items()}
        _LOG.info("%s %s %r by %s: %s", status, method, entry["path"], caller, outcome)
        try:
            await self._client.xadd(redis_keys.AUDIT, entry, maxlen=KEPT, approximate=True)
        except redis.RedisError as error:
            _LOG.error("not written to the audit stream: %s", type(error).__name__)

    async def newest(self, count: int) -> list[dict[str, Any]]:
        found: Any = await self._client.xrevrange(redis_keys.AUDIT, count=count)
        return [
            {"id": name, **fields, "at_ms": int(fields["at_ms"]), "status": int(fields["status"])}
            for name, fields in found
        ]


def _reason(body: bytes) -> str:
    try:
        # JSON can spell half of a surrogate pair, which no other text can hold.
        return str(json.loads(body).get("reason") or "").encode(errors="replace").decode()
    except (ValueError, AttributeError, RecursionError):
        return ""
