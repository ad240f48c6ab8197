"""API keys: made by the CLI, shown once, stored as salted hashes.

A key has the form `trimtab_ID_SECRET`. ID is public: it finds the record, and logs and the audit log contain it. SECRET
is 256 random bits, so a plain SHA-256 over salt and secret is as good as a slow password hash, and a thousand
checks a second cost nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass
from typing import Final, Literal, Protocol, get_args

from redis.asyncio import Redis

from trimtab import redis_keys
from trimtab.errors import InvalidInput
from trimtab.records import known_fields

Scope = Literal["read", "operate", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
"""Each includes those before it."""
NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"
_KEY = re.compile(r"trimtab_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_KEY_BYTES = re.compile(_KEY.pattern.encode())


@dataclass(frozen=True, kw_only=True)
class KeyRecord:
    id: str
    name: str
    scope: Scope
    salt: str
    hash: str
    created_ms: int

    def allows(self, needed: Scope) -> bool:
        return SCOPES.index(self.scope) >= SCOPES.index(needed)

    def matches(self, secret: str) -> bool:
        return hmac.compare_digest(self.hash, hashed(self.salt, secret))


@dataclass(frozen=True)
class PresentedKey:
    id: str
    secret: str

    def __repr__(self) -> str:
        return f"PresentedKey({self.id})"


def parse_key(text: str) -> PresentedKey | None:
    """None where the text does not have the form of a key."""
    match = _KEY.fullmatch(text)
    return None if match is None else PresentedKey(match[1], match[2])


def holds_key(text: bytes) -> bool:
    """Whether the text contains a key, where it would be stored or logged."""
    return _KEY_BYTES.search(text) is not None


def without_keys(text: str) -> str:
    """The text with every key reduced to its id, to be stored or logged."""
    return _KEY.sub(r"trimtab_\1_(hidden)", text)


def new_key(name: str, scope: str, now_ms: int) -> tuple[str, KeyRecord]:
    """The key, which is shown once, and the record that is stored."""
    if not re.fullmatch(NAME, name):
        raise InvalidInput(
            "--name",
            name,
            "is not a name for a key",
            "Use up to 64 letters, digits and . _ @ -, such as ops or ci@build.",
        )
    checked = checked_scope("--scope", scope)
    identity, salt, secret = secrets.token_hex(6), secrets.token_hex(16), secrets.token_urlsafe(32)
    record = KeyRecord(id=identity, name=name, scope=checked, salt=salt, hash=hashed(salt, secret), created_ms=now_ms)
    return f"trimtab_{identity}_{secret}", record


def checked_scope(field: str, text: str) -> Scope:
    scope = next((each for each in SCOPES if each == text), None)
    if scope is None:
        raise InvalidInput(field, text, "is not a scope", f"Use one of {', '.join(SCOPES)}.")
    return scope


class OtherKeys(Protocol):
    """Keys that are not in Redis (api.key_files)."""

    async def records(self) -> Mapping[str, KeyRecord]: ...


class KeyInFile(InvalidInput):
    """A key that can only be revoked where its file comes from."""


class KeyStore:
    """The records: those in Redis and, where a directory is given, those in its files, which come first."""

    def __init__(self, client: Redis, files: OtherKeys | None = None) -> None:
        self._client = client
        self._files = files

    async def add(self, record: KeyRecord) -> None:
        await self._client.hset(redis_keys.API_KEYS, record.id, json.dumps(asdict(record)))

    async def in_files(self) -> Mapping[str, KeyRecord]:
        return {} if self._files is None else await self._files.records()

    async def find(self, identity: str) -> KeyRecord | None:
        record = (await self.in_files()).get(identity)
        if record is not None:  # without asking Redis: these keys work while it is away
            return record
        text = await self._client.hget(redis_keys.API_KEYS, identity)
        return None if text is None else _parsed(text)

    async def known(self, identities: Set[str]) -> set[str]:
        """Those of these ids that have a key."""
        in_files = identities & (await self.in_files()).keys()
        names = sorted(identities - in_files)
        texts = await self._client.hmget(redis_keys.API_KEYS, names) if names else []
        return in_files | {name for name, text in zip(names, texts, strict=True) if text is not None}

    async def all(self) -> list[KeyRecord]:
        texts = (await self._client.hgetall(redis_keys.API_KEYS)).values()
        stored = {record.id: record for record in map(_parsed, texts)}
        return sorted({**stored, **await self.in_files()}.values(), key=lambda each: each.created_ms)

    async def revoke(self, name_or_id: str) -> list[KeyRecord]:
        """Remove the key with this id, or all keys with this name. Returns the removed ones."""
        revoked = [each for each in await self.all() if name_or_id in (each.id, each.name)]
        files = await self.in_files()
        for each in revoked:
            if each.id in files:
                raise KeyInFile(
                    "key",
                    name_or_id,
                    f"comes from the file {each.name} of the server's --keys directory",
                    "Remove that file, or its entry in the Secret: servers refuse the key within seconds.",
                )
        if revoked:
            await self._client.hdel(redis_keys.API_KEYS, *(each.id for each in revoked))
        return revoked


def _parsed(text: str | bytes) -> KeyRecord:
    return KeyRecord(**known_fields(KeyRecord, json.loads(text)))


def hashed(salt: str, secret: str) -> str:
    return hashlib.sha256(f"{salt}:{secret}".encode()).hexdigest()
