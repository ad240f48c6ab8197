"""The leader's load snapshot in Redis, so that any instance can show loads, propose and explain.

The leader reads the reports of every batch and smooths them. It writes a snapshot about once a second (manager.journal)
while the driver gives signs of life. A snapshot may be outdated: a proposal that is made from it is checked against the
newest epoch before it is carried out.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any, Final

import redis.asyncio

from balancing.load import Snapshot, WorkerLoad
from trimtab import redis_keys

SNAPSHOT_TTL_S: Final = 900
"""As long as reports are kept. The load of a stopped query is forgotten."""
_BY_NUMBER: Final = ("moving", "plans", "ordered", "plan_states")
_SETS: Final = ("pinned", "excluded", "measured")
_LISTS: Final = ("owners", "group_cpu", "group_rows", "group_bytes", "group_state_rows")


def snapshot_text(snapshot: Snapshot) -> str:
    body = asdict(snapshot)
    for name in _SETS:
        body[name] = sorted(body[name])
    return json.dumps(body, separators=(",", ":"))


def parse_snapshot(text: str | bytes) -> Snapshot:
    body: dict[str, Any] = json.loads(text)
    for name in _BY_NUMBER:
        body[name] = {int(number): value for number, value in body.get(name, {}).items()}
    for name in _SETS:
        body[name] = frozenset(body[name])
    for name in _LISTS:
        body[name] = tuple(body[name])
    body["workers"] = tuple(WorkerLoad(**each) for each in body["workers"])
    return Snapshot(**body)


async def snapshot_age_ms(client: redis.asyncio.Redis, query: str) -> float:
    """By the clock of Redis alone; infinite where there is no snapshot."""
    left_ms = int(await client.pttl(redis_keys.snapshot(query)))
    return SNAPSHOT_TTL_S * 1000 - left_ms if left_ms >= 0 else math.inf


async def load_snapshot(client: redis.asyncio.Redis, query: str) -> Snapshot | None:
    """None where no leader has measured anything recently, or where another version has written it."""
    text = await client.get(redis_keys.snapshot(query))
    if text is None:
        return None
    try:
        return parse_snapshot(text)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
