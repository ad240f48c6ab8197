"""What may be asked of the manager, and when it is refused.

A request is checked where it is made (the API, so that the user hears at once) and again when the leader takes it up,
since the world may have changed in between. Both use `check`. Nothing has changed when a request is refused.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from balancing.situation import Situation
from balancing.words import (
    MOVES_MAX,
    ORDERS,
    PAUSE_MAX_MS,
    SHARE_MEASURES,
    STRATEGIES,
    AskedStrategy,
    Order,
    ShareMeasure,
)
from trimtab.errors import InvalidInput
from trimtab.records import known_fields

Json = dict[str, Any]

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

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
    measure: ShareMeasure = "cpu"
    strategy: AskedStrategy | None = None
    """Where it differs from the request's."""

    def to_json(self) -> Json:
        return {**asdict(self), "groups": list(self.groups)}


@dataclass(frozen=True, kw_only=True)
class RebalanceRequest:
    id: str
    query: str
    moves: tuple[MoveRequest, ...]
    strategy: AskedStrategy = "auto"
    max_pause_ms: float | None = None
    order: Order = "hot-first"
    reason: str = ""
    by: str = ""
    proposal: str | None = None
    """The proposal that is carried out; refused where it has become stale."""
    expected_epoch: int | None = None
    """Refused where the query stands at another epoch."""
    automatic: bool = False
    at_ms: int = 0
    """When it was made."""

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
    at_ms: int = 0
    """When it was made."""

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
    return Rebalance(**{**known_fields(Rebalance, body), "migrations": tuple(body["migrations"])})


def parse_request(body: Any) -> Request:
    """A request as the list has it; ValueError for a text that is not a request."""
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


def check(request: RebalanceRequest, situation: Situation) -> None:
    """Raise Refused where the request cannot be granted, naming field, value and remedy."""
    _check_form(request)
    check_running(situation)
    check_expected_epoch(request.expected_epoch, situation)
    taken: dict[int, int] = {}
    for index, move in enumerate(request.moves):
        at = f"moves[{index}]."
        for name, worker in (("sender", move.sender), ("receiver", move.receiver)):
            check_worker(at + name, worker, situation)
        if move.sender == move.receiver:
            raise Refused(at + "receiver", move.receiver, "is the sender itself", "Name another worker.")
        for group in move.groups:
            _check_group(at + "groups", group, move, situation, taken, index)
        if not situation.movable(move.sender):
            raise Refused(at + "sender", move.sender, "owns no group that could be moved", "Name another worker.", 409)


def check_running(situation: Situation) -> None:
    if situation.stopped:
        raise Refused(
            "query", situation.query, "is not running: no batch for 30 s", "Start the query, then ask again.", 409
        )


def check_expected_epoch(expected: int | None, situation: Situation) -> None:
    """Refuse a request that was made for another mapping than the newest one."""
    if expected is not None and expected != situation.epoch.number:
        raise Refused(
            "expected_epoch",
            expected,
            f"is not the query's epoch, which is {situation.epoch.number}",
            "Look at the mapping again, then repeat the request with the new epoch.",
            409,
        )


def check_worker(field: str, worker: int, situation: Situation) -> None:
    """Refuse a worker that the query does not have, or that does not report."""
    if not 0 <= worker < situation.workers:
        raise Refused(
            field, worker, "is not a worker of this query", f"Use a number from 0 to {situation.workers - 1}."
        )
    if worker not in situation.up:
        raise Refused(field, worker, "is down: it does not report", "Wait until it reports again.", 409)


def _check_group(
    at: str, group: int, move: MoveRequest, situation: Situation, taken: dict[int, int], index: int
) -> None:
    if not 0 <= group < situation.partitions:
        raise Refused(at, group, "is not a group of this query", f"Use numbers from 0 to {situation.partitions - 1}.")
    if group in taken:
        raise Refused(at, group, f"is in moves[{taken[group]}] already", "Name each group once.")
    taken[group] = index
    if group in situation.moving:
        raise Refused(
            at, group, f"is in migration {situation.moving[group]}", "Wait until that has ended, or cancel it.", 409
        )
    owner = situation.epoch.owners[group]
    if owner != move.sender:
        raise Refused(at, group, f"belongs to worker {owner}", f"Name worker {owner} as its sender.", 409)
    if group in situation.rules.pinned:
        raise Refused(at, group, "is pinned to its worker", "Take the pin off first.", 409)


def _check_form(request: RebalanceRequest) -> None:
    if not REQUEST_ID.fullmatch(request.id):
        raise Refused("id", request.id, "is not an id", "Use letters, digits, - and _; at most 64.")
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
        _known(at + "measure", move.measure, SHARE_MEASURES)
        if move.strategy is not None:
            _known(at + "strategy", move.strategy, STRATEGIES)
        if bool(move.groups) == (move.share is not None):
            raise Refused(
                at + "groups",
                list(move.groups),
                "cannot be combined with an amount",
                "Give either groups or an amount.",
            )
        if move.share is not None and not 0 < move.share <= 1:
            raise Refused(at + "share", move.share, "is out of range", "Give more than 0 and at most 100%.")


def _known(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise Refused(name, value, "is not known", f"Choose one of {', '.join(choices)}.")


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
