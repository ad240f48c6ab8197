"""`trimtab keys`: made next to Redis, by who may write there; the server only checks them."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

import redis

from api.keys import KeyRecord, KeyStore, new_key
from commands.remote.tables import table
from commands.runner.show import print_table
from manager.store import ManagerStore
from trimtab.defaults import DEFAULT_REDIS, REDIS_VARIABLE
from trimtab.errors import InvalidInput, RedisUnreachable
from trimtab.store import redacted

T = TypeVar("T")


def create(options: argparse.Namespace) -> int:
    text, record = new_key(options.name, options.scope, time.time_ns() // 1_000_000)
    _with_store(options, lambda store: store.add(record))
    # The key alone on stdout, so that `export TRIMTAB_KEY=$(trimtab keys create ...)` does what it looks like.
    print(text)
    print(f"key {record.id} ({record.name}, {record.scope}): shown this once, kept nowhere", file=sys.stderr)
    return 0


def list_keys(options: argparse.Namespace) -> int:
    found = _with_store(options, lambda store: store.all())
    if options.json:
        print(json.dumps([_shown(each) for each in found], indent=1))
        return 0
    made = table(["id", "name", "scope", "created"], ["id", "name", "scope"])
    for each in found:
        created = datetime.fromtimestamp(each.created_ms / 1000).strftime("%Y-%m-%d %H:%M")
        made.add_row(each.id, each.name, each.scope, created)
    print_table(made)
    return 0


def revoke(options: argparse.Namespace) -> int:
    gone = _with_store(options, lambda store: store.revoke(options.key))
    if not gone:
        raise InvalidInput("ID-OR-NAME", options.key[:24], "is no key", "See `trimtab keys list`.")
    for each in gone:
        print(f"revoked {each.id} ({each.name}, {each.scope}); servers forget it within two seconds")
    return 0


def redis_url(given: str | None) -> str:
    return given or os.environ.get(REDIS_VARIABLE) or DEFAULT_REDIS


def _with_store(options: argparse.Namespace, act: Callable[[KeyStore], Awaitable[T]]) -> T:
    url = redis_url(options.redis)

    async def run() -> T:
        store = ManagerStore(url, timeout_s=3.0)
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
            f"does not answer ({type(error).__name__})",
            f"Name the Redis that `trimtab serve` uses with --redis or {REDIS_VARIABLE}.",
        ) from None


def _shown(record: KeyRecord) -> dict[str, object]:
    return {"id": record.id, "name": record.name, "scope": record.scope, "created_ms": record.created_ms}
