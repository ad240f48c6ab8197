"""Who asks, and may they: default deny.

Every path but health needs a key, whether or not there is a route behind it. What a request needs is told by its
method and path alone, in one table, so a route that is added later is closed until somebody opens it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from api.keys import KeyRecord, KeyStore, Scope, parse_key
from api.limits import Buckets, in_turn, too_many
from api.problems import Problem

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
REMEMBERED_S: Final = 2.0
"""A key is looked up again after this time: so long a revoked one may still be let in."""
REMEMBERED_MAX: Final = 4096
_NOBODY = KeyRecord(id="", name="", scope="read", salt="", hash="", created_ms=0)


def needed_scope(method: str, path: str) -> Scope:
    """The table. Reading asks for read, changing for operate, keys and the audit for admin."""
    if path.startswith(("/v1/keys", "/v1/audit")):
        return "admin"
    return "read" if method in ("GET", "HEAD") else "operate"


@dataclass(frozen=True)
class Caller:
    """Who was let in."""

    id: str
    name: str
    scope: Scope

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"


class Gatekeeper:
    """Checks keys; remembers for a moment those that were right.

    A key that was never right pays from its address's budget before Redis is asked, and gets it back if it is right:
    guessing costs Redis nothing, and those who guess lock nobody out whose key this instance knows.
    """

    def __init__(self, keys: KeyStore, failures: Buckets, room: asyncio.Semaphore, clock: Callable[[], float]) -> None:
        self._keys = keys
        self._failures = failures
        self._room = room
        self._clock = clock
        self._right: OrderedDict[bytes, tuple[float, KeyRecord]] = OrderedDict()

    async def caller(self, authorization: str | None, address: str) -> KeyRecord:
        """The record of the key in this header, or 401; 429 for an address that has sent too many wrong ones."""
        # A digest, so that no key lies about in this process's memory for longer than its request.
        digest = hashlib.sha256((authorization or "").encode()).digest()
        now_s = self._clock()
        known = self._right.get(digest)
        if known is not None and now_s - known[0] < REMEMBERED_S:
            return known[1]
        if known is None and (wait_s := self._failures.wait_s(address, now_s)):
            raise too_many(wait_s, "requests without a valid key")
        wrong = False
        try:
            record = await self._look_up(authorization)
        except Problem:
            wrong = True
            self._right.pop(digest, None)
            raise
        finally:
            if known is None and not wrong:  # right, or Redis did not say
                self._failures.give_back(address)
        self._right[digest] = (now_s, record)
        self._right.move_to_end(digest)
        if len(self._right) > REMEMBERED_MAX:
            self._right.popitem(last=False)
        return record

    async def _look_up(self, authorization: str | None) -> KeyRecord:
        if authorization is None:
            raise _unauthorized("No key was given.")
        kind, _, text = authorization.partition(" ")
        if kind.lower() != "bearer":
            raise _unauthorized("The Authorization header is not of the form `Bearer KEY`.")
        presented = parse_key(text.strip())
        if presented is None:
            raise _unauthorized("This is not a key of Trimtab's.")
        async with in_turn(self._room):
            record = await self._keys.find(presented.id)
        # Compared in any case: the time taken does not tell whether the id exists.
        fits = (record or _NOBODY).fits(presented.secret)
        if record is None or not fits:
            raise _unauthorized("This key is unknown or revoked.")
        return record


def check_scope(record: KeyRecord, needed: Scope) -> Caller:
    if not record.allows(needed):
        raise Problem(
            403,
            "insufficient-scope",
            f"This needs the scope {needed}; the key {record.name!r} has {record.scope}.",
            field="scope",
            value=record.scope,
            remedy=f"Make a key that may: trimtab keys create --scope {needed} --name NAME",
        )
    return Caller(record.id, record.name, record.scope)


def _unauthorized(detail: str) -> Problem:
    return Problem(
        401,
        "unauthorized",
        detail,
        field="Authorization",
        value="(not repeated)",
        remedy="Make a key with `trimtab keys create --scope read --name NAME` and send it as "
        "`Authorization: Bearer KEY` (the CLI: --key or TRIMTAB_KEY).",
        headers={"WWW-Authenticate": 'Bearer realm="trimtab"'},
    )
