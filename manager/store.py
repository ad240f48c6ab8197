"""Redis as manager and API read it, and the few writes that need no leader.

Everything is per query and may be read by any instance, leader or not. What a leader alone may write goes through
`manager.journal`, whose scripts check its lease. Errors of the connection come out as `redis.RedisError`: callers pause
(runner) or answer 503 (API).
"""

from __future__ import annotations

import contextlib
import json
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from balancing.proposal import Proposal, parse_proposal
from balancing.protocols.migration import Migration, parse_migration
from balancing.replans.replan import Replan, parse_replan
from balancing.requests import Rebalance, parse_rebalance
from balancing.rules import Rules, parse_rules
from balancing.settings import Settings, parse_settings
from balancing.triggers import TriggerState, parse_trigger_state
from manager.history import BatchRow, Column, parse_batch_row, parse_column
from manager.settings import PROPOSAL_TTL_S
from trimtab import redis_keys
from trimtab.driver_progress import LAGS_MAX
from trimtab.epochs import Epoch, parse_epoch
from trimtab.errors import CorruptState, InvalidInput
from trimtab.redis_access import connection_options, redacted
from trimtab.reports import WorkerReport, likely, parse_report
from trimtab.store import ALARMS_KEPT, silence_max_ms

Json = dict[str, Any]
Record = TypeVar("Record")
Number = TypeVar("Number", int, float)
Missing = TypeVar("Missing")
Entry = TypeVar("Entry")

TIMEOUT_S: Final = 1.0
CONNECTIONS_MAX: Final = 64
MOMENT_MAX_MS: Final = 253_402_214_400_000
"""The last day of the year 9999: clocks of terminals and browsers end there."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The driver's last sign of life: batch `committed` is committed, and was bound to this epoch."""

    committed: int
    epoch: int
    digest: str
    at_ms: int
    gap_ms: int = 0
    """The longest silence between its last signs of life: it writes one between batches only."""
    pulse_ms: int = 0
    """When its process last said that it runs the query, which it does while a batch runs, too; 0: never."""
    ended: bool = False
    """Spark has ended the query."""
    progress_batch: int = -1
    """The newest batch that Spark has reported on, to which the following belong; -1: none."""
    batch_ms: int | None = None
    """How long it took."""
    rows_per_s: float | None = None
    """What it read from the sources."""
    backlog: int | None = None
    """Rows in the sources that it left (Kafka: lag); None where no source tells."""
    lags: Mapping[str, int] = field(default_factory=dict)
    """The same by stream, of those whose source tells."""

    def silence_max_ms(self, least_ms: int) -> int:
        """How long it may be silent before the query counts as stopped."""
        pulses = self.pulse_ms > self.at_ms - least_ms
        return least_ms if pulses else silence_max_ms(least_ms, self.gap_ms)

    def was_heard(self, now_ms: int, least_ms: int) -> bool:
        """Whether it was not silent for too long, by the driver's clock."""
        return abs(now_ms - max(self.at_ms, self.pulse_ms)) <= self.silence_max_ms(least_ms)


class EventTime(NamedTuple):
    """How far back a query looks in event time."""

    window_us: int
    lateness_us: int

    @property
    def track_s(self) -> float:
        """How long old rows stay."""
        return (self.window_us + self.lateness_us) / 1e6


def event_time(definition: Json | None) -> EventTime:
    """Zero for what a definition does not say, or where there is none."""
    known = definition or {}
    return EventTime(known.get("window") or 0, known.get("lateness") or 0)


@dataclass(frozen=True, kw_only=True)
class StreamEvent:
    """One entry of a query's event stream."""

    id: str
    """Of the stream; what a client sends back as Last-Event-ID."""
    at_ms: int
    kind: str
    text: str
    data: Json = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Leader:
    holder: str
    fence: int


class UnreadableRecord(NamedTuple):
    """A record that another version of Trimtab wrote, or that was damaged."""

    kind: str
    """"migration", "rebalance" or "replan"."""
    name: str
    problem: str


@dataclass(frozen=True, kw_only=True)
class Records:
    """The journal's records of a query, all read at the same moment."""

    migrations: Mapping[str, Migration]
    rebalances: Mapping[str, Rebalance]
    replans: Mapping[str, Replan]
    unreadable: tuple[UnreadableRecord, ...] = ()
    """Records that have not ended and that nobody will look after: a reason for an alarm."""


def connect(url: str, timeout_s: float = TIMEOUT_S, *, api: bool = False) -> redis.asyncio.Redis:
    """A client that never retries by itself: the caller knows better whether to ask again."""
    try:
        return redis.asyncio.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            decode_responses=True,
            encoding_errors="replace",  # one entry of somebody else's must not keep all others from being read
            retry=Retry(NoBackoff(), 0),
            max_connections=CONNECTIONS_MAX,
            **connection_options(url, api=api),
        )
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(
            "redis", redacted(url), str(error), "Write it as redis://HOST:PORT/DB or rediss:// for TLS."
        ) from None


class ManagerStore:
    """Reads, and the writes that need no lease. Construction connects to nothing."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S, *, api: bool = False) -> None:
        """`api`: connect as the API's user, where it has one of its own."""
        self.url = url
        self.client = connect(url, timeout_s, api=api)
        # Its types ignore decode_responses: here it returns str.
        self._redis: Any = self.client

    async def close(self) -> None:
        await self._redis.aclose()

    async def ping(self) -> None:
        await self._redis.ping()

    # Queries and epochs, as the data plane wrote them

    async def queries(self) -> list[str]:
        return sorted(await self._redis.smembers(redis_keys.QUERIES))

    async def definition(self, query: str) -> Json | None:
        text = await self._redis.get(redis_keys.definition(query))
        return None if text is None else _definition(text)

    async def define_again(self, query: str, definition: Json) -> None:
        """Put back a definition that Redis has lost; one that is there stays."""
        await self._redis.set(redis_keys.definition(query), json.dumps(definition, sort_keys=True), nx=True)

    async def current_epoch(self, query: str) -> Epoch | None:
        """The newest epoch that is published: bound already, or about to be."""
        number = _number(await self._redis.get(redis_keys.current(query)), int, None)
        return None if number is None else await self.epoch(query, number)

    async def epoch(self, query: str, number: int) -> Epoch | None:
        text = await self._redis.get(redis_keys.epoch(query, number))
        return None if text is None else _epoch(text)

    async def heartbeat(self, query: str) -> Heartbeat | None:
        fields = await self._redis.hgetall(redis_keys.driver(query))
        try:
            return Heartbeat(
                committed=int(fields["committed"]),
                epoch=int(fields["epoch"]),
                digest=fields["digest"],
                at_ms=int(fields["at_ms"]),
                gap_ms=int(fields.get("gap_ms", 0)),
                pulse_ms=_number(fields.get("pulse_ms"), int, 0),
                ended=bool(fields.get("ended")),
                progress_batch=_number(fields.get("progress_batch"), int, -1),
                batch_ms=_number(fields.get("batch_ms"), int, None),
                rows_per_s=_number(fields.get("rows_per_s"), float, None),
                backlog=_number(fields.get("backlog"), int, None),
                lags=_lags(fields.get("lags")),
            )
        except (KeyError, ValueError):
            return None

    async def attempts(self, query: str, batch: int) -> list[WorkerReport]:
        """The reports of all attempts at one batch, those that were never committed included."""
        return _reports(await self._redis.hgetall(redis_keys.report(query, batch)))

    async def reports(self, query: str, batch: int | None = None) -> dict[int, WorkerReport]:
        """By worker, the reports of one batch (of several attempts the likely one), or the newest of each worker."""
        if batch is not None:
            return likely(await self.attempts(query, batch))
        return likely(_reports(await self._redis.hgetall(redis_keys.latest_reports(query))))

    async def alarms(self, query: str) -> list[Json]:
        """Newest first; those that somebody else wrote are passed over."""
        return _listed(await self._redis.lrange(redis_keys.alarms(query), 0, -1), _alarm)

    async def alarm(self, query: str, kind: str, text: str) -> None:
        entry = json.dumps({"at_ms": now_ms(), "kind": kind, "text": text})
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.lpush(redis_keys.alarms(query), entry)
            pipe.ltrim(redis_keys.alarms(query), 0, ALARMS_KEPT - 1)
            await pipe.execute()

    # The journal, as the leader wrote it

    async def leader(self, query: str) -> Leader | None:
        holder, _, text = str(await self._redis.get(redis_keys.lease(query)) or "").rpartition(" ")
        fence = _number(text, int, None)
        return None if fence is None else Leader(holder=holder, fence=fence)

    async def records(self, query: str) -> Records:
        """All that are kept, open and closed, at one moment: what a leader begins with."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hgetall(redis_keys.migrations(query))
            pipe.hgetall(redis_keys.rebalances(query))
            pipe.hgetall(redis_keys.replans(query))
            pipe.zrange(redis_keys.closed(query), 0, -1)
            migration_texts, rebalance_texts, replan_texts, closed = await pipe.execute()
        migrations, bad_migrations = _parsed(migration_texts, parse_migration)
        rebalances, bad_rebalances = _parsed(rebalance_texts, parse_rebalance)
        replans, bad_replans = _parsed(replan_texts, parse_replan)
        unreadable = [UnreadableRecord("migration", name, problem) for name, problem in bad_migrations.items()]
        unreadable += [UnreadableRecord("rebalance", name, problem) for name, problem in bad_rebalances.items()]
        unreadable += [UnreadableRecord("replan", name, problem) for name, problem in bad_replans.items()]
        ended = set(closed)
        return Records(
            migrations=migrations,
            rebalances=rebalances,
            replans=replans,
            unreadable=tuple(each for each in unreadable if f"{each.kind}:{each.name}" not in ended),
        )

    async def migrations(self, query: str) -> dict[str, Migration]:
        """All that are kept and can be read, open and closed, by id."""
        return _readable(await self._redis.hgetall(redis_keys.migrations(query)), parse_migration)

    async def open_migrations(self, query: str) -> dict[str, Migration]:
        """Those that have not ended: the others, up to a thousand records with their stories, stay where they are."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hkeys(redis_keys.migrations(query))
            pipe.zrange(redis_keys.closed(query), 0, -1)
            names, closed = await pipe.execute()
        ended = set(closed)
        return await self.migrations_named(query, [name for name in names if f"migration:{name}" not in ended])

    async def migrations_named(self, query: str, names: Sequence[str]) -> dict[str, Migration]:
        """Of these, those that are kept and can be read."""
        if not names:
            return {}
        texts = await self._redis.hmget(redis_keys.migrations(query), list(names))
        present = {name: text for name, text in zip(names, texts, strict=True) if text is not None}
        return _readable(present, parse_migration)

    async def migration(self, query: str, migration: str) -> Migration | None:
        return (await self.migrations_named(query, [migration])).get(migration)

    async def rebalances(self, query: str) -> dict[str, Rebalance]:
        """All that are kept and can be read, open and closed, by id."""
        return _readable(await self._redis.hgetall(redis_keys.rebalances(query)), parse_rebalance)

    async def rebalance(self, query: str, rebalance: str) -> Rebalance | None:
        text = await self._redis.hget(redis_keys.rebalances(query), rebalance)
        return None if text is None else _readable({rebalance: text}, parse_rebalance).get(rebalance)

    async def replans(self, query: str) -> dict[str, Replan]:
        """All that are kept and can be read, open and closed, by id."""
        return _readable(await self._redis.hgetall(redis_keys.replans(query)), parse_replan)

    async def replan(self, query: str, replan: str) -> Replan | None:
        text = await self._redis.hget(redis_keys.replans(query), replan)
        return None if text is None else _readable({replan: text}, parse_replan).get(replan)

    async def history(self, query: str, count: int = 100) -> list[tuple[str, int]]:
        """("migration:ID", "rebalance:ID" or "replan:ID", when it ended in ms), newest first."""
        members = await self._redis.zrevrange(redis_keys.closed(query), 0, count - 1, withscores=True)
        return [(member, int(score)) for member, score in members]

    async def batches(self, query: str) -> list[BatchRow]:
        """The newest batches, oldest first."""
        return _listed(await self._redis.lrange(redis_keys.batches(query), 0, -1), parse_batch_row)

    async def column_texts(self, query: str, step_s: int) -> list[str]:
        """The query every so many seconds, oldest first, to be read with `readable_columns`: it takes some time."""
        texts: list[str] = await self._redis.lrange(redis_keys.history(query, step_s), 0, -1)
        return texts

    async def outcomes(self, query: str, rebalances: Sequence[str]) -> dict[str, Json]:
        """Of these rebalances: `forecast` and `measured`, as far as each is known."""
        fields = [(name, kind) for name in rebalances for kind in ("forecast", "measured")]
        if not fields:
            return {}
        texts = await self._redis.hmget(redis_keys.outcomes(query), [f"{name}:{kind}" for name, kind in fields])
        known: dict[str, Json] = {}
        for (name, kind), text in zip(fields, texts, strict=True):
            if text is not None:
                known.setdefault(name, {}).update((kind, each) for each in _listed([text], json.loads))
        return known

    async def next_request(self, query: str) -> str | None:
        """The oldest request's text; it is taken off the list together with the journal's entry about it."""
        text = await self._redis.lindex(redis_keys.requests(query), 0)
        return None if text is None else str(text)

    # Events

    async def events(
        self, query: str, after: str = "0-0", count: int = 100, block_ms: int | None = None
    ) -> list[StreamEvent]:
        """Events after an id, oldest first. With `block_ms` it waits that long for the first (keep it below the
        timeout of the connection)."""
        key = redis_keys.events(query)
        streams = await self._redis.xread({key: after}, count=count, block=block_ms)
        if not streams:
            return []
        entries = streams[key] if isinstance(streams, dict) else streams[0][1]
        if entries and isinstance(entries[0], list):
            entries = entries[0]
        return [_event(entry) for entry in entries]

    async def newest_events(self, query: str, count: int = 100) -> list[StreamEvent]:
        """The newest events, oldest of them first."""
        entries = await self._redis.xrevrange(redis_keys.events(query), count=count)
        return [_event(entry) for entry in reversed(entries)]

    # What operators set

    async def auto(self, query: str) -> Settings:
        """When the balancer acts by itself. It is off until somebody switches it on."""
        text = await self._redis.get(redis_keys.auto(query))
        if text is None:
            return Settings()
        try:
            return parse_settings(json.loads(text))
        except (ValueError, TypeError):
            return Settings()  # another version wrote them: off until they are set again

    async def set_auto(self, query: str, settings: Settings) -> None:
        await self._redis.set(redis_keys.auto(query), json.dumps(settings.to_json()))

    async def decision(self, query: str) -> Json | None:
        """What the leader's balancer last decided: act, code, why, ratio, level, state, at_ms."""
        text = await self._redis.get(redis_keys.decision(query))
        bodies = [] if text is None else _listed([text], json.loads)
        return bodies[0] if bodies and isinstance(bodies[0], dict) else None

    async def trigger_state(self, query: str) -> TriggerState:
        """What the last leader's balancer remembered; nothing where this version cannot read it."""
        body = await self.decision(query)
        try:
            return TriggerState() if body is None else parse_trigger_state(body["state"])
        except (KeyError, TypeError, ValueError):
            return TriggerState()

    async def rules(self, query: str) -> Rules:
        text = await self._redis.get(redis_keys.rules(query))
        return Rules() if text is None else parse_rules(text)

    async def set_rules(self, query: str, rules: Rules) -> None:
        await self._redis.set(redis_keys.rules(query), rules.to_text())

    # Proposals

    async def save_proposal(self, proposal: Proposal) -> None:
        query = proposal.query
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.set(redis_keys.proposal(query, proposal.id), json.dumps(proposal.to_json()), ex=PROPOSAL_TTL_S)
            pipe.zadd(redis_keys.proposals(query), {proposal.id: now_ms()})
            pipe.expire(redis_keys.proposals(query), PROPOSAL_TTL_S)
            await pipe.execute()

    async def proposal(self, query: str, proposal: str) -> Proposal | None:
        """None where it has expired or cannot be read: either way another one is to be made."""
        text = await self._redis.get(redis_keys.proposal(query, proposal))
        return None if text is None else _readable({proposal: text}, parse_proposal).get(proposal)

    async def proposals(self, query: str, count: int) -> list[Proposal]:
        """The newest of those that have not expired and can be read, newest first."""
        key = redis_keys.proposals(query)
        await self._redis.zremrangebyscore(key, "-inf", now_ms() - PROPOSAL_TTL_S * 1000)
        ids = await self._redis.zrevrange(key, 0, count - 1)
        texts = await self._redis.mget([redis_keys.proposal(query, each) for each in ids]) if ids else []
        present = {name: text for name, text in zip(ids, texts, strict=True) if text is not None}
        return list(_readable(present, parse_proposal).values())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _number(text: str | None, kind: Callable[[str], Number], missing: Missing) -> Number | Missing:
    """What is not finite is none: JSON has no word for it, so no client could read a document that has one."""
    try:
        number = kind(text or "")
        return number if math.isfinite(number) else missing
    except (ValueError, OverflowError):
        return missing


def _lags(text: str | None) -> dict[str, int]:
    """By stream; nothing where somebody else wrote it."""
    try:
        body = json.loads(text or "{}")
        return {str(stream): int(lag) for stream, lag in list(body.items())[:LAGS_MAX]}
    except (ValueError, TypeError, AttributeError):
        return {}


def _definition(text: str) -> Json | None:
    """None where it cannot be read: one query's must not hide the others in a list of all."""
    try:
        body = json.loads(text)
        _ = event_time(body).track_s, int(body.get("workers", 1)), [each["name"] for each in body.get("streams", ())]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return dict(body)


def _epoch(text: str) -> Epoch | None:
    # A text that cannot be read counts as missing: the control source puts the right one back.
    try:
        return parse_epoch(text)
    except CorruptState:
        return None


def _parsed(texts: Mapping[str, str], parse: Callable[[Json], Record]) -> tuple[dict[str, Record], dict[str, str]]:
    """The records that this version can read, and for each of the others what is wrong with it."""
    records: dict[str, Record] = {}
    problems: dict[str, str] = {}
    for name, text in texts.items():
        try:
            records[name] = parse(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError, CorruptState) as error:
            problems[name] = f"{type(error).__name__}: {error}"
    return records, problems


def _readable(texts: Mapping[str, str], parse: Callable[[Json], Record]) -> dict[str, Record]:
    return _parsed(texts, parse)[0]


def readable_columns(texts: Sequence[str]) -> list[Column]:
    return _listed(texts, parse_column)


def _listed(texts: Sequence[str], parse: Callable[[str], Entry]) -> list[Entry]:
    """Those that this version can read."""
    entries = []
    for text in texts:
        with contextlib.suppress(ValueError, TypeError, KeyError, zlib.error):
            entries.append(parse(text))
    return entries


def _reports(texts: Mapping[str, str]) -> list[WorkerReport]:
    reports = []
    for text in texts.values():
        try:
            reports.append(parse_report(text))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # another version wrote it; after the upgrade the worker reports the same again
    return reports


def _alarm(text: str) -> Json:
    body = json.loads(text)
    return {"at_ms": _moment(body["at_ms"]), "kind": str(body["kind"]), "text": str(body["text"])}


def _moment(value: object) -> int:
    """Milliseconds that any clock can show; ValueError for others."""
    if not isinstance(value, int) or not 0 <= value < MOMENT_MAX_MS:
        raise ValueError(f"{value!r} is not a time")
    return value


def _event(entry: tuple[str, dict[str, str]]) -> StreamEvent:
    name, fields = entry
    try:
        body = json.loads(fields["event"])
        at_ms, kind, text, data = _moment(body["at_ms"]), str(body["kind"]), str(body["text"]), body.get("data", {})
    except (KeyError, TypeError, ValueError, AttributeError):
        # Another version wrote it, or somebody else: those after it are to be read nevertheless.
        at_ms, kind, text, data = int(name.partition("-")[0]), "unreadable", "an event that cannot be read", {}
    return StreamEvent(id=name, at_ms=at_ms, kind=kind, text=text, data=data)
