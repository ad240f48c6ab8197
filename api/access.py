"""Who is asking, and is it allowed: default deny.

Every path but health needs a key, whether or not there is a route behind it. Which scope a request needs follows from
its method and path alone, in one table, so a route that is added later is closed until somebody opens it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from api.keys import KeyRecord, KeyStore, Scope, parse_key
from api.limits import Buckets, in_turn, too_many
from api.problems import Problem

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
SESSION_PATH: Final = "/v1/session"
"""POST hands in a one-time ticket: who has no key yet may do that."""
REMEMBERED_S: Final = 2.0
"""A key is looked up again after this time; until then a revoked key may still be accepted."""
REMEMBERED_MAX: Final = 4096
_NOBODY = KeyRecord(id="", name="", scope="read", salt="", hash="", created_ms=0)


_QUESTION: Final = re.compile(r"/v1/queries/[^/]+/(proposals|plans/what-if)")


def is_question(method: str, path: str) -> bool:
    """What would be moved, if: it takes a POST to say what is asked, but it changes nothing."""
    return method == "POST" and _QUESTION.fullmatch(path) is not None


def needed_scope(method: str, path: str) -> Scope:
    """The table: read for reading and asking, operate for changes, admin for keys and the audit log."""
    if path.startswith(("/v1/keys", "/v1/audit")):
        return "admin"
    return "read" if method in ("GET", "HEAD") or is_question(method, path) else "operate"


@dataclass(frozen=True)
class Caller:
    """The owner of a valid key."""

    id: str
    name: str
    scope: Scope

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"


class Gatekeeper:
    """Checks keys, and remembers the valid ones for a moment.

    A key that this instance does not know costs its address one token before Redis is asked; the token is given back if
    the key is valid. So guessing costs Redis nothing, and it never locks out a client whose key is known here.
    """

    def __init__(self, keys: KeyStore, failures: Buckets, room: asyncio.Semaphore, clock: Callable[[], float]) -> None:
        self._keys = keys
        self._failures = failures
        self._room = room
        self._clock = clock
        self._valid: OrderedDict[bytes, tuple[float, KeyRecord]] = OrderedDict()
        self._pending: dict[bytes, asyncio.Future[KeyRecord]] = {}

    async def caller(self, authorization: str | None, address: str) -> KeyRecord:
        """The record of the key in this header, or 401; 429 for an address that has sent too many invalid ones."""
        # A digest, so that no key stays in memory for longer than its request.
        digest = hashlib.sha256((authorization or "").encode()).digest()
        now_s = self._clock()
        remembered = self._valid.get(digest)
        if remembered is not None and now_s - remembered[0] < REMEMBERED_S:
            return remembered[1]
        pending = self._pending.get(digest)
        if pending is not None:
            # The same key, asked about just now: a page opens several connections at once.
            return await asyncio.shield(pending)
        if remembered is None and (wait_s := self._failures.wait_s(address, now_s)):
            raise too_many(wait_s, "requests without a valid key")
        task = self._pending[digest] = asyncio.ensure_future(
            self._checked(authorization, digest, address, known=remembered is not None)
        )
        task.add_done_callback(lambda done: self._answered(digest, done))
        return await asyncio.shield(task)

    def _answered(self, digest: bytes, done: asyncio.Future[KeyRecord]) -> None:
        del self._pending[digest]
        if not done.cancelled():
            done.exception()  # whoever asked has left: nobody else will look at it

    async def _checked(self, authorization: str | None, digest: bytes, address: str, *, known: bool) -> KeyRecord:
        now_s = self._clock()
        invalid = False
        try:
            record = await self._look_up(authorization)
        except Problem:
            invalid = True
            self._valid.pop(digest, None)
            raise
        finally:
            if not known and not invalid:  # valid, or Redis did not answer
                self._failures.give_back(address)
        self._valid[digest] = (now_s, record)
        self._valid.move_to_end(digest)
        if len(self._valid) > REMEMBERED_MAX:
            self._valid.popitem(last=False)
        return record

    def stranger(self, address: str) -> None:
        """Somebody without a key asks for one: 429 where too many did so in vain. `welcome` gives the token back."""
        if wait_s := self._failures.wait_s(address, self._clock()):
            raise too_many(wait_s, "requests without a valid key")

    def welcome(self, address: str) -> None:
        self._failures.give_back(address)

    async def _look_up(self, authorization: str | None) -> KeyRecord:
        if authorization is None:
            raise _unauthorized("The request has no key.")
        kind, _, text = authorization.partition(" ")
        if kind.lower() != "bearer":
            raise _unauthorized("The Authorization header is not of the form `Bearer KEY`.")
        presented = parse_key(text.strip())
        if presented is None:
            raise _unauthorized("This is not a Trimtab key.")
        async with in_turn(self._room):
            record = await self._keys.find(presented.id)
        # Always compared, so that the time this takes does not show whether the id exists.
        matches = (record or _NOBODY).matches(presented.secret)
        if record is None or not matches:
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
            remedy=f"Make a key with that scope: trimtab keys create --scope {needed} --name NAME",
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
        "`Authorization: Bearer KEY` (the CLI: TRIMTAB_KEY or --key-file).",
        headers={"WWW-Authenticate": 'Bearer realm="trimtab"'},
    )
