"""Epochs: versioned, immutable mapping tables from partition groups to workers.

An epoch is published to Redis by whoever steers (the manager, or `join` for the first one) and bound to a
micro-batch by Spark's offset log. Its text is canonical JSON, so that equal epochs have equal digests wherever they
are read. An epoch is a level, not an edge: what it says holds until another one says otherwise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.errors import CorruptState, InvalidInput
from trimtab.moves import WAYS_ON, ComputePartitionsToMove, Kind, Move, Way, parse_move, parse_question
from trimtab.plan_orders import PlanOrder, changes_of_order, parse_plan_order

FORMAT: Final = 3
WITHOUT_PLANS: Final = 2
"""The format before: still written where no worker has been ordered another plan, so that older readers go on."""
NO_PREDECESSOR: Final = ""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One mapping version with the moves that are open in it and the questions that workers are asked."""

    query: str
    number: int
    incarnation: str
    """Drawn once per checkpoint: epochs of an earlier life of a query's name are never taken for its own."""
    owners: tuple[int, ...]
    """Owner worker of each partition group, by partition number."""
    questions: tuple[ComputePartitionsToMove, ...] = ()
    moves: tuple[Move, ...] = ()
    plans: tuple[PlanOrder, ...] = ()
    """By worker; a worker without an order keeps the plan that the query was started with."""
    predecessor: str = NO_PREDECESSOR
    """Digest of the epoch before: only a successor of the bound epoch can be bound."""
    fence: int = 0
    """Fencing token of the manager that published it."""

    def to_text(self) -> str:
        body: dict[str, Any] = {
            "format": FORMAT if self.plans else WITHOUT_PLANS,
            "query": self.query,
            "number": self.number,
            "incarnation": self.incarnation,
            "owners": _pack(self.owners),
            "questions": [question.to_json() for question in self.questions],
            "moves": [move.to_json() for move in self.moves],
            "predecessor": self.predecessor,
            "fence": self.fence,
        }
        if self.plans:
            body["plans"] = [order.to_json() for order in self.plans]
        return json.dumps(body, sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        return text_digest(self.to_text())

    def successor(
        self,
        owners: Sequence[int],
        *,
        fence: int = 0,
        moves: Sequence[Move] = (),
        questions: Sequence[ComputePartitionsToMove] = (),
        plans: Sequence[PlanOrder] | None = None,
    ) -> Epoch:
        """The next epoch. Orders stay as they are where none are given: nothing else ends one."""
        return Epoch(
            query=self.query,
            number=self.number + 1,
            incarnation=self.incarnation,
            owners=tuple(owners),
            questions=tuple(questions),
            moves=tuple(moves),
            plans=self.plans if plans is None else tuple(plans),
            predecessor=self.digest,
            fence=fence,
        )

    def move(self, move: str) -> Move | None:
        return next((each for each in self.moves if each.id == move), None)

    def order(self, worker: int) -> PlanOrder | None:
        return next((each for each in self.plans if each.worker == worker), None)

    @property
    def moving(self) -> dict[int, Move]:
        """Group -> the open move that it is in."""
        return {group: move for move in self.moves for group in move.groups}

    def render(self) -> str:
        """A table for people: one line per worker with the groups that it owns."""
        lines = [f"epoch {self.number} of {self.query} ({self.digest[:12]})"]
        for worker in sorted(set(self.owners)):
            groups = [str(group) for group, owner in enumerate(self.owners) if owner == worker]
            lines.append(f"  worker {worker}: {' '.join(groups)}")
        return "\n".join(lines)


def first_epoch(query: str, incarnation: str, owners: Sequence[int]) -> Epoch:
    return Epoch(query=query, number=1, incarnation=incarnation, owners=tuple(owners))


def dealt_in_turn(partitions: int, workers: int) -> tuple[int, ...]:
    """The mapping a query starts with where none is asked for."""
    return tuple(group % workers for group in range(partitions))


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def parse_epoch(text: str, expected_digest: str | None = None) -> Epoch:
    """The epoch in `text`; refuses a text whose digest is not the expected one or whose fields are off."""
    if expected_digest is not None and text_digest(text) != expected_digest:
        raise CorruptState(f"epoch text has digest {text_digest(text)[:12]}, expected {expected_digest[:12]}")
    try:
        body = json.loads(text)
        if body["format"] not in (WITHOUT_PLANS, FORMAT):
            raise CorruptState(f"epoch format {body['format']} is not {FORMAT}: written by another version of Trimtab")
        return Epoch(
            query=str(body["query"]),
            number=int(body["number"]),
            incarnation=str(body["incarnation"]),
            owners=_unpack(body["owners"]),
            questions=tuple(map(parse_question, body["questions"])),
            moves=tuple(map(parse_move, body["moves"])),
            plans=tuple(map(parse_plan_order, body.get("plans", ()))),
            predecessor=str(body["predecessor"]),
            fence=int(body["fence"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptState(f"epoch text cannot be read: {error}") from error


def check_owners(owners: Sequence[int], partitions: int, workers: int) -> None:
    """Refuse a mapping that would route a row nowhere."""
    if len(owners) != partitions:
        raise InvalidInput("owners", len(owners), f"the query has {partitions} partitions", "Give one owner for each.")
    for group, owner in enumerate(owners):
        if not 0 <= owner < workers:
            raise InvalidInput(
                f"owners[{group}]", owner, "is not a worker of this query", f"Use a number from 0 to {workers - 1}."
            )


def check_epoch(epoch: Epoch, partitions: int, workers: int) -> None:
    """Refuse an epoch that would send rows nowhere: it must never be bound, since what is bound stays so."""
    check_owners(epoch.owners, partitions, workers)
    taken: dict[int, str] = {}
    for move in epoch.moves:
        inside = all(0 <= group < partitions for group in move.groups)
        if not inside or not 0 <= move.sender < workers or not 0 <= move.receiver < workers:
            raise CorruptState(f"move {move.id} names a group or worker that the query does not have")
        for group in move.groups:
            if group in taken:
                raise CorruptState(f"group {group} is in move {taken[group]} and in move {move.id}")
            taken[group] = move.id
            if epoch.owners[group] != move.sender:
                owner = epoch.owners[group]
                raise CorruptState(
                    f"move {move.id} takes group {group} from worker {move.sender}, but worker {owner} owns it"
                )
    ordered = [order.worker for order in epoch.plans]
    if ordered != sorted(set(ordered)):
        raise CorruptState(f"plan orders of workers {ordered}: each worker has one at most, in the order of workers")
    for order in epoch.plans:
        if order.worker >= workers:
            raise CorruptState(f"plan order {order.id} is for worker {order.worker}, which the query does not have")


def breaks_between(before: Epoch, after: Epoch) -> Iterator[str]:
    """Why `after` cannot follow `before`: groups change hands by a move only, and a move changes as it is meant to.

    Checked where epochs are bound, whoever published them; each worker checks its own groups once more.
    """
    if after.number != before.number + 1 or after.predecessor != before.digest:
        yield f"epoch {after.number} does not follow epoch {before.number}"
    if (after.query, after.incarnation) != (before.query, before.incarnation):
        yield "the query, or its checkpoint, is another one"
    if after.fence < before.fence:
        yield f"its fencing token {after.fence} is older than {before.fence}"
    if len(after.owners) != len(before.owners):
        yield f"it has {len(after.owners)} groups instead of {len(before.owners)}"
        return
    for order in before.plans:
        if after.order(order.worker) is None:
            yield f"the plan order of worker {order.worker} is gone: an order ends by another one only"
    for order in after.plans:
        yield from changes_of_order(before.order(order.worker), order, after.number)
    still_open = {move.id: move for move in after.moves}
    may_own: dict[int, frozenset[int]] = {}
    for move in before.moves:
        later = still_open.pop(move.id, None)
        if later is not None:
            yield from _changes(move, later)
        may_own |= dict.fromkeys(move.groups, frozenset({move.sender}) if later is not None else _heirs(move))
    for move in still_open.values():
        if move.epoch != after.number or move.way != Way.THERE:
            yield f"move {move.id} begins in the middle: epoch {move.epoch}, {move.way}"
        moving = sorted(set(move.groups) & set(may_own))
        if moving:
            yield f"move {move.id} takes groups {moving} that were moving in the epoch before"
    for group, (old, new) in enumerate(zip(before.owners, after.owners, strict=True)):
        allowed = may_own.get(group, frozenset({old}))
        if new not in allowed:
            yield f"group {group} goes from worker {old} to {new}, and no move says so"


def _changes(before: Move, after: Move) -> Iterator[str]:
    fixed = ("kind", "groups", "sender", "receiver", "epoch")
    if any(getattr(before, name) != getattr(after, name) for name in fixed):
        yield f"move {before.id} changes from one epoch to the next"
    if after.way not in WAYS_ON[before.way]:
        yield f"move {before.id} goes from {before.way} to {after.way}"


def _heirs(move: Move) -> frozenset[int]:
    """Who may own the groups of a move once it is closed."""
    if move.kind == Kind.DUPLICATE:
        return frozenset({move.sender, move.receiver})
    if move.way.back:
        return frozenset({move.sender})
    return frozenset({move.receiver}) if move.way == Way.THERE else frozenset()


def _pack(owners: Sequence[int]) -> str:
    return ",".join(map(str, owners))


def _unpack(packed: str) -> tuple[int, ...]:
    return tuple(map(int, packed.split(","))) if packed else ()
