"""What a leader alone writes: records of migrations and rebalances, events, epochs.

Every write is one script that first checks that the lease is this leader's: all of it happens, or nothing and the
leader stands down (`Fenced`). A step is journaled here before it is enacted, so that the next manager finds it.

Nobody else writes events, so the newest one tells whether Redis still has what was written: where it is another one
than this leader's last, Redis went back (a failover to a replica that lagged), and nothing is written on top
(`WentBack`).
"""

from __future__ import annotations

import json
from typing import Any, Final

import redis.asyncio
from redis.exceptions import ResponseError

from balancing.instructions import Write
from manager.chronicle import Entries
from manager.history import BATCHES_KEPT, COARSE_KEPT, COARSE_S, FINE_KEPT, FINE_S, HISTORY_TTL_S
from manager.lease import Fenced, Lease
from manager.settings import CLOSED_KEPT, EVENTS_KEPT
from manager.snapshots import SNAPSHOT_TTL_S
from trimtab import redis_keys
from trimtab.epochs import Epoch
from trimtab.errors import TrimtabError
from trimtab.store import ALARMS_KEPT, PUBLISH, publish_arguments

Json = dict[str, Any]

_NO_EVENT: Final = "0-0"
_FENCED: Final = "return redis.error_reply('FENCED this manager does not lead (any more)')"

# KEYS: lease, migrations, rebalances, closed, requests, events, alarms, snapshot, decision, batches, history in fine
# and in coarse steps, outcomes, replans, planning
# ARGV: lease value, events kept, closed kept, alarms kept, snapshot's seconds, now ms, id of the newest event as far as
# it is known, then operation, name, text ...
#   migration, rebalance, replan: write the record; closed: the record named "migration:ID", "rebalance:ID" or
#   "replan:ID" is final;
#   request: take this text off the list of requests; event, alarm: append it; snapshot, planning, decision: replace it;
#   batch, fine, coarse: append it to a list that keeps as many as the name says; forecast, measured: of a rebalance, of
#   which the first forecast stays
# Returns the id of the newest event.
WRITE: Final = f"""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then {_FENCED} end
local last = redis.call('XREVRANGE', KEYS[6], '+', '-', 'COUNT', 1)
local newest = last[1] and last[1][1] or '{_NO_EVENT}'
if ARGV[7] ~= '' and ARGV[7] ~= newest then return redis.error_reply('WENTBACK the newest event is ' .. newest) end
for i = 8, #ARGV, 3 do
  local what, name, text = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if what == 'migration' then
    redis.call('HSET', KEYS[2], name, text)
    if cjson.decode(text).outcome == '' then
      redis.call('ZREM', KEYS[4], 'migration:' .. name)
    end
  elseif what == 'rebalance' then redis.call('HSET', KEYS[3], name, text)
  elseif what == 'replan' then
    redis.call('HSET', KEYS[14], name, text)
    if type(cjson.decode(text).closed_ms) ~= 'number' then
      redis.call('ZREM', KEYS[4], 'replan:' .. name)
    end
  elseif what == 'closed' then redis.call('ZADD', KEYS[4], 'NX', ARGV[6], name)
  elseif what == 'request' then redis.call('LREM', KEYS[5], 1, text)
  elseif what == 'event' then newest = redis.call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[2], '*', 'event', text)
  elseif what == 'alarm' then
    redis.call('LPUSH', KEYS[7], text)
    redis.call('LTRIM', KEYS[7], 0, tonumber(ARGV[4]) - 1)
  elseif what == 'snapshot' then redis.call('SET', KEYS[8], text, 'EX', ARGV[5])
  elseif what == 'planning' then redis.call('SET', KEYS[15], text, 'EX', ARGV[5])
  elseif what == 'decision' then redis.call('SET', KEYS[9], text)
  elseif what == 'batch' or what == 'fine' or what == 'coarse' then
    local list = what == 'batch' and KEYS[10] or what == 'fine' and KEYS[11] or KEYS[12]
    redis.call('RPUSH', list, text)
    redis.call('LTRIM', list, -tonumber(name), -1)
    redis.call('EXPIRE', list, {HISTORY_TTL_S})
  elseif what == 'forecast' then redis.call('HSETNX', KEYS[13], name .. ':forecast', text)
  elseif what == 'measured' then redis.call('HSET', KEYS[13], name .. ':measured', text)
  end
end
local spare = redis.call('ZCARD', KEYS[4]) - tonumber(ARGV[3])
if spare > 0 then
  local gone = redis.call('ZPOPMIN', KEYS[4], spare)
  for i = 1, #gone, 2 do
    local kind, name = string.match(gone[i], '^(%a+):(.*)$')
    redis.call('HDEL', kind == 'migration' and KEYS[2] or kind == 'replan' and KEYS[14] or KEYS[3], name)
    redis.call('HDEL', KEYS[13], name .. ':forecast', name .. ':measured')
  end
end
return newest
"""

# As PUBLISH in trimtab/store.py, with KEYS[8] = lease and, last in ARGV, its value.
# A text beyond the newest epoch is a stray: of a life of the query before this one, or from before Redis went back.
PUBLISH_AS_LEADER: Final = f"""
if redis.call('GET', KEYS[8]) ~= table.remove(ARGV) then {_FENCED} end
if tonumber(ARGV[1]) > tonumber(redis.call('GET', KEYS[1]) or '0') then redis.call('DEL', KEYS[2]) end
{PUBLISH}"""


class WentBack(TrimtabError):
    """Redis has lost what this leader wrote: it is to be written again before anything else is."""


class Overtaken(TrimtabError):
    """Redis holds another epoch under the number that was to be published: look again before going on."""


def operations_of(write: Write, now_ms: int) -> list[str]:
    """What the script is to do: operation, name, text, and so on."""
    operations: list[str] = []

    def add(operation: str, name: str, body: Json) -> None:
        operations.extend((operation, name, json.dumps(body, separators=(",", ":"))))

    for migration in write.migrations:
        add("migration", migration.id, migration.to_json())
    for rebalance in write.rebalances:
        add("rebalance", rebalance.id, rebalance.to_json())
    for replan in write.replans:
        add("replan", replan.id, replan.to_json())
    closed = [f"migration:{each.id}" for each in write.migrations if each.done]
    closed += [f"rebalance:{each.id}" for each in write.rebalances if not each.open]
    closed += [f"replan:{each.id}" for each in write.replans if each.done]
    for name in closed:
        operations += ["closed", name, ""]
    if write.request is not None:
        operations += ["request", "", write.request]
    for notice in write.events:
        add("event", "", {"at_ms": now_ms, "kind": notice.kind, "text": notice.text, "data": notice.data})
    for notice in write.alarms:
        add("alarm", "", {"at_ms": now_ms, "kind": notice.kind, "text": notice.text})
    if write.decision is not None:
        add("decision", "", {**write.decision.to_json(), "at_ms": now_ms})
    return operations


def history_operations(entries: Entries) -> list[str]:
    """What the script is to add to the history."""
    operations: list[str] = []
    for row in entries.batches[-BATCHES_KEPT:]:
        operations += ["batch", str(BATCHES_KEPT), row.to_text()]
    for name, kept, column in (("fine", FINE_KEPT, entries.fine), ("coarse", COARSE_KEPT, entries.coarse)):
        if column is not None:
            operations += [name, str(kept), column.to_text()]
    for note in entries.outcomes:
        operations += [note.kind, note.rebalance, json.dumps(note.outcome.to_json(), separators=(",", ":"))]
    return operations


class LeaderJournal:
    """The leader's pen for one query."""

    def __init__(self, client: redis.asyncio.Redis, query: str, lease: Lease) -> None:
        self._client = client
        self._query = query
        self._lease = lease
        self._write = client.register_script(WRITE)
        self._publish = client.register_script(PUBLISH_AS_LEADER)
        self._keys = [
            redis_keys.lease(query),
            redis_keys.migrations(query),
            redis_keys.rebalances(query),
            redis_keys.closed(query),
            redis_keys.requests(query),
            redis_keys.events(query),
            redis_keys.alarms(query),
            redis_keys.snapshot(query),
            redis_keys.decision(query),
            redis_keys.batches(query),
            redis_keys.history(query, FINE_S),
            redis_keys.history(query, COARSE_S),
            redis_keys.outcomes(query),
            redis_keys.replans(query),
            redis_keys.planning(query),
        ]
        self._newest = ""
        """Id of the newest event, as of the last write; nothing where that is not known."""

    def forget(self) -> None:
        """Another may have written since."""
        self._newest = ""

    async def begin(self) -> None:
        """What Redis has now is what counts."""
        self._newest = await self._newest_event()

    async def went_back(self) -> bool:
        return self._newest not in ("", await self._newest_event())

    async def _newest_event(self) -> str:
        found: Any = await self._client.xrevrange(redis_keys.events(self._query), count=1)
        return str(found[0][0]) if found else _NO_EVENT

    async def write(self, write: Write, now_ms: int) -> None:
        await self._operate(operations_of(write, now_ms), now_ms)

    async def write_snapshot(self, text: str, history: Entries, planning: str | None, now_ms: int) -> None:
        plans = [] if planning is None else ["planning", "", planning]
        await self._operate(["snapshot", "", text, *plans, *history_operations(history)], now_ms)

    async def _operate(self, operations: list[str], now_ms: int) -> None:
        if not operations:
            return
        kept = [str(EVENTS_KEPT), str(CLOSED_KEPT), str(ALARMS_KEPT), str(SNAPSHOT_TTL_S)]
        arguments = [self._lease.value, *kept, str(now_ms), self._newest, *operations]
        self._newest = await self._run(self._write, self._keys, arguments)

    async def publish(self, epoch: Epoch) -> None:
        """Add the epoch that follows the newest one; the same again is fine, any other raises Overtaken."""
        keys, arguments = publish_arguments(epoch)
        await self._run(self._publish, [*keys, redis_keys.lease(self._query)], [*arguments, self._lease.value])

    async def _run(self, script: Any, keys: list[str], arguments: list[str]) -> str:
        if not self._lease.held:
            # Cut off for long: a standby may lead by now, and our write may be on its way for longer than we think.
            raise Fenced(f"the lease of {self._query} has ended")
        try:
            return str(await script(keys=keys, args=arguments))
        except ResponseError as error:
            if str(error).startswith("FENCED"):
                self._lease.forget()
                raise Fenced(str(error)) from None
            if str(error).startswith("WENTBACK"):
                raise WentBack(str(error)) from None
            if str(error).startswith(("EPOCHTAKEN", "EPOCHGAP")):
                raise Overtaken(str(error)) from None
            raise
