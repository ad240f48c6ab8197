"""One-time tickets: an address that is printed in a terminal opens the page without anybody typing a key.

A ticket is worth one new key, once, within ten minutes. Redis has the ticket's digest with the scope and the name that
the key will have. The key itself is made when the ticket is handed in, so it is nowhere before, and a ticket that was
seen too late is worth nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from api.keys import KeyRecord, KeyStore, Scope, new_key
from trimtab import redis_keys

TICKET_S: Final = 600
FORM: Final = r"[A-Za-z0-9_-]{43}"


@dataclass(frozen=True)
class NewKey:
    text: str
    """Shown once."""
    record: KeyRecord


class Tickets:
    def __init__(self, client: Redis) -> None:
        # Its types ignore decode_responses: here it returns str.
        self._client: Any = client
        self._keys = KeyStore(client)

    async def issue(self, scope: Scope, name: str, now_ms: int) -> str:
        new_key(name, scope, now_ms)  # refuses a name that no key may have, before anybody holds the ticket
        ticket = secrets.token_urlsafe(32)
        worth = json.dumps({"scope": scope, "name": name})
        await self._client.set(redis_keys.ticket(_digest(ticket)), worth, ex=TICKET_S)
        return ticket

    async def redeem(self, ticket: str, now_ms: int) -> NewKey | None:
        """The key, for the first who asks; None for anybody else."""
        if not re.fullmatch(FORM, ticket):
            return None
        text = await self._client.getdel(redis_keys.ticket(_digest(ticket)))
        if text is None:
            return None
        worth = json.loads(text)
        key, record = new_key(worth["name"], worth["scope"], now_ms)
        await self._keys.add(record)
        return NewKey(key, record)


def _digest(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()
