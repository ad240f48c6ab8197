"""`trimtab keys`: written directly to Redis, or to a file for `serve --keys`; the server only checks keys."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

import redis

from api.key_files import write_key_file
from api.keys import KeyRecord, KeyStore, new_key
from commands.remote.commands import redis_url
from commands.remote.tables import table
from commands.tables import print_table, say
from manager.store import ManagerStore
from trimtab.defaults import REDIS_VARIABLE
from trimtab.errors import InvalidInput, RedisUnreachable
from trimtab.redis_access import reason, redacted

T = TypeVar("T")


def create(options: argparse.Namespace) -> int:
    text, record = new_key(options.name, options.scope, time.time_ns() // 1_000_000)
    if options.into is not None:
        path = write_key_file(options.into, record)
        print(f"{path} has the hash of this key, for `trimtab serve --keys {options.into}`.", file=sys.stderr)
    else:
        _with_store(options, lambda store: store.add(record))
    if options.json:
        print(json.dumps({"key": text, **_shown(record)}, indent=1))
        return 0
    # Only the key goes to stdout, so that `export TRIMTAB_KEY=$(trimtab keys create ...)` works.
    print(text)
    print(
        f"key {record.id} ({record.name}, {record.scope}). This key is shown only once. Store it now.", file=sys.stderr
    )
    return 0


def list_keys(options: argparse.Namespace) -> int:
    records = _with_store(options, lambda store: store.all())
    if options.json:
        print(json.dumps([_shown(each) for each in records], indent=1))
        return 0
    listing = table(["id", "name", "scope", "created"], ["id", "name", "scope"])
    for each in records:
        created = datetime.fromtimestamp(each.created_ms / 1000).strftime("%Y-%m-%d %H:%M")
        listing.add_row(each.id, each.name, each.scope, created)
    print_table(listing)
    return 0


def revoke(options: argparse.Namespace) -> int:
    revoked = _with_store(options, lambda store: store.revoke(options.key))
    if not revoked:
        raise InvalidInput("ID-OR-NAME", options.key[:24], "is not a key", "See `trimtab keys list`.")
    if options.json:
        print(json.dumps([_shown(each) for each in revoked], indent=1))
        return 0
    for each in revoked:
        say(f"revoked {each.id} ({each.name}, {each.scope}); servers refuse it after two seconds at most")
    return 0


def _with_store(options: argparse.Namespace, act: Callable[[KeyStore], Awaitable[T]]) -> T:
    url = redis_url(options.redis)

    async def run() -> T:
        store = ManagerStore(url, timeout_s=3.0, api=True)
        try:
            return await act(KeyStore(store.client))
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except (redis.RedisError, OSError) as error:
        raise RedisUnreachable(
            "--redis",
            redacted(url),
            f"does not answer ({reason(error)})",
            f"Name the Redis that `trimtab serve` uses with --redis or {REDIS_VARIABLE}.",
        ) from None


def _shown(record: KeyRecord) -> dict[str, object]:
    return {"id": record.id, "name": record.name, "scope": record.scope, "created_ms": record.created_ms}
