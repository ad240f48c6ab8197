"""The scripts of Trimtab, line by line in Python: what each does on a server in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from redis.exceptions import ResponseError

from manager.history import HISTORY_TTL_S
from manager.journal import PUBLISH_AS_LEADER, WRITE
from manager.lease import ACQUIRE, RELEASE, RENEW
from manager.requests import ENQUEUE
from tests.simulator.redis_server import Script, SimRedis
from trimtab.store import PUBLISH, REPORT, RESTORE

_FENCED: Final = "FENCED this manager does not lead (any more)"
_NO_EVENT: Final = "0-0"


def run_script(server: SimRedis, text: str, keys: Sequence[str], arguments: Sequence[object]) -> object:
    """What EVAL does with one of Trimtab's scripts; a script that has no twin here is a KeyError."""
    script = SCRIPTS[text]
    with server.writing():
        return script(server, keys, [str(argument) for argument in arguments])


# -- manager/lease.py


def _acquire(server: SimRedis, keys: Sequence[str], arguments: Sequence[str]) -> int:
    (lease, fence_key), (holder, ttl_ms, floor) = keys, arguments
    value = server.get(lease)
    if value is not None and not value.startswith(holder + " "):
        return 0
    fence = max(int(server.get(fence_key) or 0), int(floor)) + 1
    server.set(fence_key, str(fence))
    server.set(lease, f"{holder} {fence}", px=int(ttl_ms))
    return fence


def _renew(server: SimRedis, keys: Sequence[str], arguments: Sequence[str]) -> int:
    (lease,), (value, ttl_ms) = keys, arguments
    return server.pexpire(lease, int(ttl_ms)) if server.get(lease) == value else 0


def _release(server: SimRedis, keys: Sequence[str], arguments: Sequence[str]) -> int:
    (lease,), (value,) = keys, arguments
    return server.delete(lease) if server.get(lease) == value else 0


# -- manager/journal.py


def _write(server: SimRedis, keys: Sequence[str], arguments: Sequence[str]) -> str:
    lease, migrations, rebalances, closed, requests, events, alarms, snapshot, decision, *others = keys
    *history, outcomes, replans, planning = others
    lists = dict(zip(("batch", "fine", "coarse"), history, strict=True))
    value, _, closed_kept, alarms_kept, snapshot_s, now_ms, known, *operations = arguments
    if server.get(lease) != value:
        raise ResponseError(_FENCED)
    last = server.xrevrange(events, count=1)
    newest = last[0][0] if last else _NO_EVENT
    if known not in ("", newest):
        raise ResponseError(f"WENTBACK the newest event is {newest}")
    for what, name, text in zip(operations[::3], operations[1::3], operations[2::3], strict=True):
        if what == "migration":
            server.hset(migrations, name, text)
            if not json.loads(text).get("outcome"):
                server.zrem(closed, f"migration:{name}")
        elif what == "rebalance":
            server.hset(rebalances, name, text)
        elif what == "replan":
            server.hset(replans, name, text)
            if json.loads(text).get("closed_ms") is None:
                server.zrem(closed, f"replan:{name}")
        elif what == "closed":
            server.zadd(closed, {name: float(now_ms)}, nx=True)
        elif what == "request":
            server.lrem(requests, 1, text)
        elif what == "event":
            newest = server.xadd(events, text)
        elif what == "alarm":
            server.lpush(alarms, text)
            server.ltrim(alarms, 0, int(alarms_kept) - 1)
        elif what == "snapshot":
            server.set(snapshot, text, ex=int(snapshot_s))
        elif what == "planning":
            server.set(planning, text, ex=int(snapshot_s))
        elif what == "decision":
            server.set(decision, text)
        elif what in lists:
            server.rpush(lists[what], text)
            server.ltrim(lists[what], -int(name), -1)
            server.expire(lists[what], HISTORY_TTL_S)
        elif what == "forecast":
            server.hsetnx(outcomes, f"{name}:forecast", text)
        elif what == "measured":
            server.hset(outcomes, f"{name}:measured", text)
    for member in server.zrange(closed, 0, -1)[: max(0, server.zcard(closed) - int(closed_kept))]:
        kind, _, name = member.partition(":")
        server.zrem(closed, member)
        server.hdel({"migration": migrations, "replan": replans}.get(kind, rebalances), name)
        for about in ("forecast", "measured"):
            server.hdel(outcomes, f"{name}:{about}")
    return newest


def _publish_as_leader(server: SimRedis, keys: Sequence[str], arguments: Sequence[str]) -> int:
    *rest, value = arguments
    if server.get(keys[7]) != value:
        raise ResponseError(_FENCED)
    if int(rest[0]) > int(server.get(keys[0]) or 0):
        server.delete(keys[1])
    return _publish(server, keys[:7], rest)


# -- trimtab/store.py


def _publish(server: SimRedis, keys: Sequence[str], arguments: Sequence[str]) -> int:
    current_key, epoch, mapping, queries, _, digests, fence_key = keys
    number, text, query, digest, fence, *pairs = arguments
    if int(fence) < int(server.get(fence_key) or 0):
        raise ResponseError("FENCED another manager has taken over")
    if server.get(epoch) not in (None, text):
        raise ResponseError("EPOCHTAKEN another text is published")
    current = int(server.get(current_key) or 0)
    if int(number) > current + 1 and current > 0:
        raise ResponseError(f"EPOCHGAP current is {current}")
    server.set(epoch, text)
    server.hset(digests, number, digest)
    server.sadd(queries, query)
    if int(number) >= current:
        server.set(current_key, number)
        server.delete(mapping)
        server.hset(mapping, mapping=_pairs(pairs))
    return 1


def _restore(server: SimRedis, keys: Sequence[str], arguments: Sequence[str]) -> int:
    current_key, epoch, mapping, queries, following, digests, _ = keys
    number, text, query, digest, _, *pairs = arguments
    server.set(epoch, text)
    server.hset(digests, number, digest)
    server.sadd(queries, query)
    server.set(current_key, number)
    server.delete(mapping, following)
    server.hset(mapping, mapping=_pairs(pairs))
    return 1


def _pairs(pairs: Sequence[str]) -> dict[str, str]:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _report(server: SimRedis, keys: Sequence[str], arguments: Sequence[str]) -> int:
    (reports, latest), (name, text, seconds, worker, batch) = keys, arguments
    server.hset(reports, name, text)
    server.expire(reports, int(seconds))
    known = server.hget(latest, worker)
    if known is None or json.loads(known)["batch"] <= int(batch):
        server.hset(latest, worker, text)
        server.expire(latest, int(seconds))
    return 1


# -- manager/requests.py


def _enqueue(server: SimRedis, keys: Sequence[str], arguments: Sequence[str]) -> int:
    (requests, rebalances), (text, rebalance, record, most) = keys, arguments
    if server.llen(requests) >= int(most):
        raise ResponseError("FULL too many requests wait")
    if rebalance and not server.hsetnx(rebalances, rebalance, record):
        return 0
    server.rpush(requests, text)
    return 1


SCRIPTS: Final[Mapping[str, Script]] = {
    ACQUIRE: _acquire,
    RENEW: _renew,
    RELEASE: _release,
    WRITE: _write,
    PUBLISH_AS_LEADER: _publish_as_leader,
    PUBLISH: _publish,
    RESTORE: _restore,
    REPORT: _report,
    ENQUEUE: _enqueue,
}
