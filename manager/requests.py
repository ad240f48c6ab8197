"""What may be asked of the manager, and when it is refused.

A request is checked where it is made (the API, so that the user hears at once) and again when the leader takes it up,
since the world may have changed in between. Both use `check`. Nothing has changed when a request is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, cast

import redis.asyncio

from manager.settings import REQUESTS_MAX, Rules
from manager.snapshots import snapshot_age_ms
from manager.store import Heartbeat, Json, ManagerStore, now_ms
from trimtab import redis_keys
from trimtab.epochs import Epoch
from trimtab.errors import InvalidInput, TrimtabError
from trimtab.moves import moves_of
from trimtab.reports import WorkerReport

STRATEGIES: Final = ("auto", "ptlb", "mslb")
ORDERS: Final = ("hot-first", "hot-last")
MEASURES: Final = ("cpu", "bytes")
MOVES_MAX: Final = 1_000
PAUSE_MAX_MS: Final = 3_600_000
SILENT_BATCHES: Final = 3
"""A worker that did not report in this many committed batches is down: every worker runs in every batch."""

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

RebalanceState = Literal["requested", "running", "committed", "rolled-back", "partly-committed", "refused"]
CLOSED_STATES: Final = frozenset({"committed", "rolled-back", "partly-committed", "refused"})


class Refused(InvalidInput):
    """A request that cannot be granted; `status` is what HTTP calls it (404, 409, 422, 503)."""

    def __init__(self, field: str, value: object, problem: str, remedy: str, status: int = 422) -> None:
        super().__init__(field, value, problem, remedy)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.value, self.problem, self.remedy, self.status)

    def to_json(self) -> Json:
        return {
            "field": self.field,
            "value": self.value,
            "problem": self.problem,
            "remedy": self.remedy,
            "status": self.status,
        }


@dataclass(frozen=True, kw_only=True)
class MoveRequest:
    """Groups by name, or a share of the sender's load (its own choice of groups, steps 1 and 2)."""

    sender: int
    receiver: int
    groups: tuple[int, ...] = ()
    share: float | None = None
    """Of the sender's load, above 0 and at most 1; where no groups are given."""
    measure: Literal["cpu", "bytes"] = "cpu"
    strategy: Literal["auto", "ptlb", "mslb"] | None = None
    """Where it differs from the request's."""

    def to_json(self) -> Json:
        return {**asdict(self), "groups": list(self.groups)}


@dataclass(frozen=True, kw_only=True)
class RebalanceRequest:
    id: str
    query: str
    moves: tuple[MoveRequest, ...]
    strategy: Literal["auto", "ptlb", "mslb"] = "auto"
    max_pause_ms: float | None = None
    order: Literal["hot-first", "hot-last"] = "hot-first"
    reason: str = ""
    by: str = ""
    proposal: str | None = None
    """The proposal that is carried out; refused where it has become stale."""
    expected_epoch: int | None = None
    """Refused where the query stands at another epoch."""
    automatic: bool = False
    at_ms: int = field(default_factory=now_ms)

    def to_json(self) -> Json:
        return {"kind": "rebalance", **asdict(self), "moves": [move.to_json() for move in self.moves]}


@dataclass(frozen=True, kw_only=True)
class CancelRequest:
    """Cancels one migration, or all of a rebalance."""

    id: str
    query: str
    migration: str | None = None
    rebalance: str | None = None
    reason: str = ""
    by: str = ""
    at_ms: int = field(default_factory=now_ms)

    def to_json(self) -> Json:
        return {"kind": "cancel", **asdict(self)}


Request = RebalanceRequest | CancelRequest


@dataclass(frozen=True, kw_only=True)
class Rebalance:
    """One request and what became of it: what the API calls a rebalance."""

    id: str
    query: str
    state: RebalanceState
    request: Json
    by: str
    reason: str
    created_ms: int
    migrations: tuple[str, ...] = ()
    """Their records are migrations of their own; disjoint ones run side by side."""
    automatic: bool = False
    closed_ms: int | None = None
    refusal: Json | None = None
    """Why it was refused: field, value, problem, remedy, status."""
    note: str = ""
    """How the strategy was chosen, and what came in between."""

    def to_json(self) -> Json:
        return {**asdict(self), "migrations": list(self.migrations)}

    @property
    def open(self) -> bool:
        return self.state not in CLOSED_STATES


def parse_rebalance(body: Json) -> Rebalance:
    return Rebalance(**{**body, "migrations": tuple(body["migrations"])})


def parse_request(body: Any) -> Request:
    """A request from the list; ValueError for one that is none."""
    if not isinstance(body, dict) or not isinstance(body.get("id"), str):
        raise ValueError("not a request: no object with an id")
    rest = {name: value for name, value in body.items() if name != "kind"}
    try:
        if body["kind"] == "rebalance":
            moves = tuple(MoveRequest(**{**move, "groups": tuple(move["groups"])}) for move in rest.pop("moves"))
            return RebalanceRequest(**rest, moves=moves)
        if body["kind"] == "cancel":
            return CancelRequest(**rest)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a request: {error}") from error
    raise ValueError(f"not a request: kind {body['kind']!r}")


@dataclass(frozen=True, kw_only=True)
class View:
    """What a query looks like to somebody who checks a request."""

    query: str
    workers: int
    epoch: Epoch
    """The newest one that is published."""
    moving: Mapping[int, str]
    """Group -> the open migration that it belongs to."""
    up: frozenset[int]
    """Workers that report."""
    stopped: bool
    """No batch was committed for long: nothing can move."""
    rules: Rules = field(default_factory=Rules)

    @property
    def partitions(self) -> int:
        return len(self.epoch.owners)


async def view(store: ManagerStore, query: str, heartbeat_max_ms: int) -> View:
    """The query as Redis has it; Refused (404) where there is none."""
    epoch = await store.current_epoch(query)
    if epoch is None:
        known = await store.queries()
        told = f"There are: {', '.join(known)}." if known else "No query has been started on this Redis yet."
        raise Refused("query", query, "is not known", told, 404)
    heartbeat = await store.heartbeat(query)
    reports = await store.reports(query)
    migrations = await store.open_migrations(query)
    return View(
        query=query,
        workers=count_workers(await store.definition(query), epoch, reports),
        epoch=epoch,
        moving=groups_moving(epoch, migrations.values()),
        up=workers_up(reports, None if heartbeat is None else heartbeat.committed),
        stopped=await _is_silent(store, query, heartbeat, heartbeat_max_ms),
        rules=await store.rules(query),
    )


async def _is_silent(store: ManagerStore, query: str, heartbeat: Heartbeat | None, least_ms: int) -> bool:
    if heartbeat is None:
        return True
    silence_ms = heartbeat.silence_max_ms(least_ms)
    if abs(now_ms() - heartbeat.at_ms) <= silence_ms:
        return False
    # The driver's clock may be wrong; a leader has noticed by its own when it spoke, and wrote a snapshot then.
    return await store.leader(query) is None or await snapshot_age_ms(store.client, query) > silence_ms


def count_workers(definition: Json | None, epoch: Epoch, reports: Mapping[int, WorkerReport]) -> int:
    if definition is not None and "workers" in definition:
        return int(definition["workers"])
    # Redis has lost the definition: as many as we can see.
    return max([*epoch.owners, *reports], default=0) + 1


def workers_up(reports: Mapping[int, WorkerReport], committed: int | None) -> frozenset[int]:
    if committed is None:
        return frozenset()
    return frozenset(worker for worker, report in reports.items() if report.batch > committed - SILENT_BATCHES)


def groups_moving(epoch: Epoch, migrations: Any) -> dict[int, str]:
    """Groups of open moves in the epoch and of open migrations in the journal."""
    moving = {group: move.id for move in moves_of(epoch) for group in move.groups}
    for body in migrations:
        if body.get("outcome"):
            continue
        for group in groups_of(body):
            moving[group] = body["id"]
    return moving


def groups_of(migration: Json) -> set[int]:
    """Groups that a migration's record names: those that were asked for and those that the sender chose."""
    return {*migration["chosen"], *migration["request"]["groups"]}


def check(request: RebalanceRequest, seen: View) -> None:
    """Raise Refused where the request cannot be granted, naming field, value and remedy."""
    _check_form(request)
    if seen.stopped:
        raise Refused("query", seen.query, "is not running: no batch for 30 s", "Start the query, then ask again.", 409)
    if request.expected_epoch is not None and request.expected_epoch != seen.epoch.number:
        raise Refused(
            "expected_epoch",
            request.expected_epoch,
            f"is not the query's epoch, which is {seen.epoch.number}",
            "Look at the mapping again, then repeat the request with the new epoch.",
            409,
        )
    taken: dict[int, int] = {}
    for index, move in enumerate(request.moves):
        at = f"moves[{index}]."
        for name, worker in (("sender", move.sender), ("receiver", move.receiver)):
            if not 0 <= worker < seen.workers:
                raise Refused(
                    at + name, worker, "is no worker of this query", f"Use a number from 0 to {seen.workers - 1}."
                )
            if worker not in seen.up:
                raise Refused(at + name, worker, "is down: it does not report", "Wait until it reports again.", 409)
        if move.sender == move.receiver:
            raise Refused(at + "receiver", move.receiver, "is the sender itself", "Name another worker.")
        for group in move.groups:
            _check_group(at + "groups", group, move, seen, taken, index)
        owned = [g for g, owner in enumerate(seen.epoch.owners) if owner == move.sender and g not in seen.moving]
        if not move.groups and not owned:
            raise Refused(at + "sender", move.sender, "owns no group that could be moved", "Name another worker.", 409)


def _check_group(at: str, group: int, move: MoveRequest, seen: View, taken: dict[int, int], index: int) -> None:
    if not 0 <= group < seen.partitions:
        raise Refused(at, group, "is no group of this query", f"Use numbers from 0 to {seen.partitions - 1}.")
    if group in taken:
        raise Refused(at, group, f"is in moves[{taken[group]}] already", "Name each group once.")
    taken[group] = index
    if group in seen.moving:
        raise Refused(
            at, group, f"is in migration {seen.moving[group]}", "Wait until that has ended, or cancel it.", 409
        )
    owner = seen.epoch.owners[group]
    if owner != move.sender:
        raise Refused(at, group, f"belongs to worker {owner}", f"Name worker {owner} as its sender.", 409)
    if group in seen.rules.pinned:
        raise Refused(at, group, "is pinned to its worker", "Take the pin off first.", 409)


def _check_form(request: RebalanceRequest) -> None:
    if not _ID.fullmatch(request.id):
        raise Refused("id", request.id, "is no id", "Use letters, digits, - and _; at most 64.")
    _known("strategy", request.strategy, STRATEGIES)
    _known("order", request.order, ORDERS)
    pause = request.max_pause_ms
    if pause is not None and not 0 < pause <= PAUSE_MAX_MS:
        raise Refused("max_pause", pause, "is out of range", "Give more than 0 and at most an hour, for example 500ms.")
    if not request.moves:
        raise Refused("moves", [], "is empty", "Name at least one move.")
    if len(request.moves) > MOVES_MAX:
        raise Refused("moves", len(request.moves), "are too many", f"Ask for at most {MOVES_MAX} at a time.")
    for index, move in enumerate(request.moves):
        at = f"moves[{index}]."
        _known(at + "measure", move.measure, MEASURES)
        if move.strategy is not None:
            _known(at + "strategy", move.strategy, STRATEGIES)
        if bool(move.groups) == (move.share is not None):
            raise Refused(
                at + "groups", list(move.groups), "and an amount go ill together", "Give either groups or an amount."
            )
        if move.share is not None and not 0 < move.share <= 1:
            raise Refused(at + "share", move.share, "is out of range", "Give more than 0 and at most 100%.")


def _known(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise Refused(name, value, "is not known", f"Choose one of {', '.join(choices)}.")


# KEYS: requests, rebalances. ARGV: request text, rebalance id ("" for none), its record, most requests.
# The record and the request appear together, so whoever asked can look at it at once; the same id again adds nothing.
ENQUEUE: Final = """
if redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[4]) then return redis.error_reply('FULL too many requests wait') end
if ARGV[2] ~= '' and redis.call('HSETNX', KEYS[2], ARGV[2], ARGV[3]) == 0 then return 0 end
redis.call('RPUSH', KEYS[1], ARGV[1])
return 1
"""


class QueueFull(TrimtabError):
    """Too many requests wait: the leader is away or slow."""


async def enqueue(client: redis.asyncio.Redis, request: Request) -> bool:
    """Hand a checked request to the leader, whoever that is. False: one with this id is known already."""
    text = json.dumps(request.to_json(), separators=(",", ":"))
    record = ""
    if isinstance(request, RebalanceRequest):
        record = json.dumps(requested(request).to_json(), separators=(",", ":"))
    try:
        added = await client.eval(
            ENQUEUE,
            2,
            redis_keys.requests(request.query),
            redis_keys.rebalances(request.query),
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


def requested(request: RebalanceRequest) -> Rebalance:
    """The record with which a rebalance begins."""
    return Rebalance(
        id=request.id,
        query=request.query,
        state="requested",
        request=request.to_json(),
        by=request.by,
        reason=request.reason,
        created_ms=request.at_ms,
        automatic=request.automatic,
    )
