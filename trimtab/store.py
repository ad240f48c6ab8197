"""Redis, as far as the data plane uses it: mapping tables, reports, alarms.

Redis drives the split but is never the only truth: everything that a result depends on is in
Spark's offset log by the time it matters. So readers here may answer "nothing new", and writers of reports may fail.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final

import redis

from trimtab import redis_keys
from trimtab.driver_progress import DriverProgress
from trimtab.epochs import Epoch, breaks_between, check_epoch, parse_epoch
from trimtab.errors import CorruptState, InvalidInput, RedisUnreachable
from trimtab.redis_access import connection_options, redacted
from trimtab.reports import REPORT_TTL_S, WorkerReport, likely, parse_report

TIMEOUT_S: Final = 0.5
ALARMS_KEPT: Final = 100

# KEYS: current, epoch text, mapping, queries, following epoch, digests, fence
# ARGV: number, text, query, digest, fence, then partition, owner, ...
# Publishing again what is there already is fine; another text under the same number, a gap, or a fencing token that is
# not the newest, is refused.
PUBLISH: Final = """
if tonumber(ARGV[5]) < tonumber(redis.call('GET', KEYS[7]) or '0') then
  return redis.error_reply('FENCED another manager has taken over')
end
local known = redis.call('GET', KEYS[2])
if known and known ~= ARGV[2] then return redis.error_reply('EPOCHTAKEN another text is published') end
local current = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) > current + 1 and current > 0 then return redis.error_reply('EPOCHGAP current is ' .. current) end
redis.call('SET', KEYS[2], ARGV[2])
redis.call('HSET', KEYS[6], ARGV[1], ARGV[4])
redis.call('SADD', KEYS[4], ARGV[3])
if tonumber(ARGV[1]) >= current then
  redis.call('SET', KEYS[1], ARGV[1])
  redis.call('DEL', KEYS[3])
  for i = 6, #ARGV, 2 do redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1]) end
end
return 1
"""

# The same keys and arguments. What Redis has forgotten or mixed up is put right.
RESTORE: Final = """
redis.call('SET', KEYS[2], ARGV[2])
redis.call('HSET', KEYS[6], ARGV[1], ARGV[4])
redis.call('SADD', KEYS[4], ARGV[3])
redis.call('SET', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[3], KEYS[5])
for i = 6, #ARGV, 2 do redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1]) end
return 1
"""


# KEYS: reports of the batch, newest reports; ARGV: worker and stamp, text, seconds to live, worker, batch
# Every attempt has a field of its own: none overwrites another's report, and readers tell which one was committed
# (trimtab.reports.winners). Among the newest, an attempt of an older batch that still runs changes nothing.
REPORT: Final = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
local known = redis.call('HGET', KEYS[2], ARGV[4])
if not known or cjson.decode(known).batch <= tonumber(ARGV[5]) then
  redis.call('HSET', KEYS[2], ARGV[4], ARGV[2])
  redis.call('EXPIRE', KEYS[2], ARGV[3])
end
return 1
"""


def silence_max_ms(least_ms: int, gap_ms: int) -> int:
    """How long a driver may be silent before its query counts as stopped: it speaks between batches only."""
    return max(least_ms, 3 * gap_ms)


class Store:
    """A thin client. Construction connects to nothing."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url
        try:
            self.client: redis.Redis = redis.Redis.from_url(
                url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                decode_responses=True,
                **connection_options(url),
            )
        except InvalidInput:
            raise
        except ValueError as error:
            raise InvalidInput(
                "redis", redacted(url), str(error), "Write it as redis://HOST:PORT/DB or rediss:// for TLS."
            ) from None

    def check(self) -> None:
        """Refuse with a clear message if nobody answers."""
        try:
            self.client.ping()
        except redis.RedisError as error:
            raise RedisUnreachable(
                "redis",
                redacted(self.url),
                f"does not answer ({error})",
                "Start a Redis server there, or leave `redis` out to have one started for you.",
            ) from None

    def publish(self, epoch: Epoch) -> None:
        """Add the epoch that follows the newest one. Refused by the server where it does not."""
        self._write(PUBLISH, epoch)

    def restore(self, epoch: Epoch) -> None:
        """Make `epoch` the newest one, whatever Redis thinks: it is bound, so it is the truth."""
        self._write(RESTORE, epoch)

    def _write(self, script: str, epoch: Epoch) -> None:
        keys, arguments = publish_arguments(epoch)
        self.client.eval(script, len(keys), *keys, *arguments)

    def current_number(self, query: str) -> int | None:
        number = self.client.get(redis_keys.current(query))
        return None if number is None else int(str(number))

    def beat(
        self, query: str, committed: int, epoch: int, digest: str, gap_ms: int = 0
    ) -> tuple[int | None, str | None]:
        """The driver's sign of life: what is committed, and how long it was silent before (it speaks between batches
        only). Returns the newest epoch's number, and the digest that Redis has for the given epoch: another one than
        ours means that Redis went back and was written to since."""
        fields: dict[Any, Any] = {
            "committed": committed,
            "epoch": epoch,
            "digest": digest,
            "at_ms": int(time.time() * 1000),
            "gap_ms": gap_ms,
            "ended": "",
        }
        with self.client.pipeline(transaction=False) as pipe:
            pipe.get(redis_keys.current(query))
            pipe.hget(redis_keys.digests(query), str(epoch))
            if committed >= 0:
                pipe.hset(redis_keys.driver(query), mapping=fields)
            current, known = pipe.execute()[:2]
        return None if current is None else int(current), known

    def last_seen(self, query: str) -> tuple[int, int]:
        """When driver or workers of a query last spoke (ms since 1970, 0: never), and the driver's longest silence."""
        spoken = [report.at_ms for report in self.reports(query).values()]
        beat = self.client.hgetall(redis_keys.driver(query))
        return max([*spoken, int(beat.get("at_ms", 0))]), int(beat.get("gap_ms", 0))

    def driver_beat(self, query: str) -> tuple[int, int]:
        """When the query's driver last spoke (ms since 1970, 0: never), and its longest recent silence."""
        beat = self.client.hgetall(redis_keys.driver(query))
        return int(beat.get("at_ms", 0)), int(beat.get("gap_ms", 0))

    def progress(self, query: str, progress: DriverProgress) -> None:
        """What the driver says about its newest batch, beside its signs of life."""
        fields: dict[Any, Any] = {
            "progress_batch": progress.batch,
            "batch_ms": progress.batch_ms,
            "rows_per_s": round(progress.rows_per_s, 1),
            "backlog": "" if progress.backlog is None else progress.backlog,
            "lags": json.dumps(progress.lags),
        }
        self.client.hset(redis_keys.driver(query), mapping=fields)

    def pulse(self, query: str) -> None:
        """The driver's process runs the query: said while a batch runs, too, when `beat` is silent."""
        self.client.hset(redis_keys.driver(query), "pulse_ms", str(int(time.time() * 1000)))

    def ended(self, query: str) -> None:
        """Spark has ended the query: nobody needs to wait for its silence. The next `beat` takes it back."""
        self.client.hset(redis_keys.driver(query), "ended", "1")

    def epoch(self, query: str, number: int) -> Epoch | None:
        text = self.client.get(redis_keys.epoch(query, number))
        return None if text is None else parse_epoch(str(text))

    def definition(self, query: str) -> dict[str, Any] | None:
        text = self.client.get(redis_keys.definition(query))
        return None if text is None else json.loads(str(text))

    def define(self, query: str, definition: dict[str, Any]) -> None:
        self.client.set(redis_keys.definition(query), json.dumps(definition, sort_keys=True))

    def report(self, report: WorkerReport) -> None:
        keys = (redis_keys.report(report.query, report.batch), redis_keys.latest_reports(report.query))
        field = f"{report.worker}:{report.stamp}"
        arguments = (field, report.to_text(), str(REPORT_TTL_S), str(report.worker), str(report.batch))
        self.client.eval(REPORT, 2, *keys, *arguments)

    def reports(self, query: str, batch: int | None = None) -> dict[int, WorkerReport]:
        """Reports of one batch (of several attempts the likely one), or the newest of each worker."""
        key = redis_keys.latest_reports(query) if batch is None else redis_keys.report(query, batch)
        return likely(parse_report(text) for text in self.client.hgetall(key).values())

    def alarm(self, query: str, kind: str, text: str) -> None:
        entry = json.dumps({"at_ms": int(time.time() * 1000), "kind": kind, "text": text})
        with self.client.pipeline(transaction=False) as pipe:
            pipe.lpush(redis_keys.alarms(query), entry)
            pipe.ltrim(redis_keys.alarms(query), 0, ALARMS_KEPT - 1)
            pipe.execute()

    def alarms(self, query: str) -> list[dict[str, Any]]:
        return [json.loads(entry) for entry in self.client.lrange(redis_keys.alarms(query), 0, -1)]


def publish_arguments(epoch: Epoch) -> tuple[list[str], list[str]]:
    """Keys and arguments of both scripts."""
    query = epoch.query
    keys = [
        redis_keys.current(query),
        redis_keys.epoch(query, epoch.number),
        redis_keys.mapping(query),
        redis_keys.QUERIES,
        redis_keys.epoch(query, epoch.number + 1),
        redis_keys.digests(query),
        redis_keys.fence(query),
    ]
    pairs = [str(value) for pair in enumerate(epoch.owners) for value in pair]
    return keys, [str(epoch.number), epoch.to_text(), query, epoch.digest, str(epoch.fence), *pairs]


def successor(store: Store, query: str, bound: Epoch, workers: int) -> Epoch | None:
    """The epoch after `bound`, if one is published; CorruptState for one that cannot be run after it, saying why."""
    following = store.epoch(query, bound.number + 1)
    if following is None:
        return None
    for problem in breaks_between(bound, following):
        raise CorruptState(problem)
    try:
        check_epoch(following, len(bound.owners), workers)
    except InvalidInput as error:
        raise CorruptState(str(error)) from None
    return following
