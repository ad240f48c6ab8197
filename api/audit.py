"""The audit log: who requested what, why, and how it ended. A stream in Redis that outlives journals and servers."""

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
"""Of each field: the client does not decide how much is stored for long."""
_LOG = logging.getLogger("trimtab.audit")


class AuditLog:
    """Every mutation by a known caller."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def add(self, caller: Caller, method: str, path: str, body: bytes, status: int, outcome: str) -> None:
        """Add a mutation, done or refused. If that fails it is only logged: the mutation cannot be undone."""
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
            _LOG.error("not written to the audit log: %s", type(error).__name__)

    async def newest(self, count: int) -> list[dict[str, Any]]:
        entries: Any = await self._client.xrevrange(redis_keys.AUDIT, count=count)
        return [
            {"id": name, **fields, "at_ms": int(fields["at_ms"]), "status": int(fields["status"])}
            for name, fields in entries
        ]


def _reason(body: bytes) -> str:
    try:
        # JSON can contain half of a surrogate pair, which cannot be encoded.
        return str(json.loads(body).get("reason") or "").encode(errors="replace").decode()
    except (ValueError, AttributeError, RecursionError):
        return ""
