"""How a request reaches the leader, and the picture of a query that requests are checked against."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, cast

import redis.asyncio

from balancing.replans.requests import CancelReplan, ReplanRequest, asked_for
from balancing.replans.table import State
from balancing.requests import RebalanceRequest, Refused, Request, requested
from balancing.situation import Situation, count_workers, followers, plans_of, stream_names, workers_up
from manager.settings import REQUESTS_MAX
from manager.snapshots import snapshot_age_ms
from manager.store import Heartbeat, ManagerStore, now_ms
from trimtab import redis_keys
from trimtab.epochs import Epoch
from trimtab.errors import TrimtabError
from trimtab.reports import WorkerReport

# KEYS: requests, rebalances (or replans). ARGV: request text, id of the record ("": none), it, most requests.
# The record and the request appear together, so that the record can be read at once; the same id again adds nothing.
ENQUEUE: Final = """
if redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[4]) then return redis.error_reply('FULL too many requests wait') end
if ARGV[2] ~= '' and redis.call('HSETNX', KEYS[2], ARGV[2], ARGV[3]) == 0 then return 0 end
redis.call('RPUSH', KEYS[1], ARGV[1])
return 1
"""


class QueueFull(TrimtabError):
    """Too many requests wait: there is no leader, or it is slow."""


async def enqueue(client: redis.asyncio.Redis, request: Request | ReplanRequest | CancelReplan) -> bool:
    """Hand a checked request to the leader. False: a request with this id is known already."""
    text = json.dumps(request.to_json(), separators=(",", ":"))
    record, records = "", redis_keys.rebalances(request.query)
    if isinstance(request, ReplanRequest):
        record = json.dumps(asked_for(request).to_json(), separators=(",", ":"))
        records = redis_keys.replans(request.query)
    if isinstance(request, RebalanceRequest):
        record = json.dumps(requested(request).to_json(), separators=(",", ":"))
    try:
        added = await client.eval(
            ENQUEUE,
            2,
            redis_keys.requests(request.query),
            records,
            text,
            request.id if record else "",
            record,
            str(REQUESTS_MAX),
        )
    except redis.ResponseError as error:
        if str(error).startswith("FULL"):
            raise QueueFull("too many requests wait for the manager") from None
        raise
    return bool(cast(int, added))


async def newest_epoch(store: ManagerStore, query: str) -> Epoch:
    """The newest epoch that is published; Refused (404) where there is no such query."""
    epoch = await store.current_epoch(query)
    if epoch is None:
        names = await store.queries()
        remedy = f"There are: {', '.join(names)}." if names else "No query has been started on this Redis yet."
        raise Refused("query", query, "is not known", remedy, 404)
    return epoch


async def situation(
    store: ManagerStore, query: str, heartbeat_max_ms: int, reports: Mapping[int, WorkerReport] | None = None
) -> Situation:
    """The query as Redis has it; Refused (404) where there is none. `reports`: where they are read already."""
    epoch = await newest_epoch(store, query)
    heartbeat = await store.heartbeat(query)
    reports = await store.reports(query) if reports is None else reports
    migrations = await store.open_migrations(query)
    definition = await store.definition(query)
    replans = await store.replans(query)
    return Situation(
        query=query,
        workers=count_workers(definition, epoch, reports),
        epoch=epoch,
        migrations=tuple(migrations.values()),
        replans=tuple(each for each in replans.values() if not each.done and each.state != State.REQUESTED),
        streams=stream_names(definition),
        plans=plans_of(epoch, reports),
        follow=followers(reports),
        up=workers_up(reports, None if heartbeat is None else heartbeat.committed),
        stopped=await _is_silent(store, query, heartbeat, heartbeat_max_ms),
        rules=await store.rules(query),
    )


async def _is_silent(store: ManagerStore, query: str, heartbeat: Heartbeat | None, least_ms: int) -> bool:
    if heartbeat is None or heartbeat.ended:
        return True
    if heartbeat.was_heard(now_ms(), least_ms):
        return False
    # The driver's clock may be wrong. The leader judges by its own clock, and writes snapshots while the driver lives.
    if await store.leader(query) is None:
        return True
    return await snapshot_age_ms(store.client, query) > heartbeat.silence_max_ms(least_ms)
