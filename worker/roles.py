"""A worker's half of PTLB and MSLB as one table: Algorithms 2 and 4 of the paper, driven by the epoch's open moves.

Theory. A worker is never sent a message. In every batch it looks at the epoch that the batch is bound to, and at the
state of its role in its own durable record, and derives a *fact* about each move: opened, switched, recalled, back,
closed. The table says what the fact means in that state: the next state, and the *actions* to be done, in their order.
Some actions find something out (is the package there? could it be written?) and so yield another fact, which the table
answers again. State and rows are committed together by Spark's state store, so a batch that is repeated starts
from the same state, meets the same facts and does the same again.

    transfer (MSLB section 4.2)                           duplicate (PTLB section 3.2)
      sender    OPENED     joins; at the end packs (5, 6)   sender    OPENED     what is here is old, what comes new (3)
                SWITCHED   puts its copy of the rows aside            ENDED      has all that is old expired? (4)
                RECALLED   goes on putting aside                      CLOSED     drops the groups, or goes on (5)
                BACK       adds what it put aside           receiver  OPENED     joins what is new
                CLOSED     drops the groups (8)                       CLOSED     goes on, or drops the groups
      receiver  SWITCHED   takes the package in (7), or
                           holds the rows (3)
                RECALLED   takes nothing in any more
                BACK       drops what it has
                CLOSED     goes on as the owner (8)

Rows that a worker keeps unjoined are *aside*, at the sender as at the receiver: durable, in order of arrival.

A batch may run no task at all (an input of empty files), so that the sender first hears of a transfer when the rows go
to the receiver already. Nothing is lost by that: it freezes the groups at the batch's beginning instead of the previous
batch's end, which is the same state, and packs at the end. EXPORT_FAILED says just this: frozen, not packed. A sender
in EXPORT_FAILED may be closed forward all the same: the receiver may have taken the package of a losing attempt, which
packed the same rows.

Whatever the table does not list is a CorruptState: no manager does it, and going on would lose or double rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from trimtab.errors import CorruptState
from trimtab.moves import Kind, Move, RoleState, Side, Way, is_switched


class Fact(StrEnum):
    """What a worker learns about a move, in the order in which a batch learns it."""

    OPENED = "opened"
    """The move is in the epoch, and the sender gets the rows (a duplicate: as long as it is open)."""
    SWITCHED = "switched"
    """The receiver gets the rows, the sender a copy."""
    RECALLED = "recalled"
    """As SWITCHED, but nothing is taken in any more."""
    BACK_JOINED = "back-joined"
    """The sender gets the rows again, alone; those that it put aside were joined by the receiver."""
    BACK_HELD = "back-held"
    """The same; nobody joined those that it put aside."""
    CLOSED_OURS = "closed-ours"
    """The move is not in the epoch any more, and this worker owns the groups."""
    CLOSED_THEIRS = "closed-theirs"
    """The same, and the other worker owns them."""

    PACKAGE_THERE = "package-there"
    PACKAGE_MISSING = "package-missing"
    """There is none, or none that is good."""

    ENDED = "ended"
    """The rows of the batch are joined, and the move goes THERE (one that is recalled has nothing to do at the end)."""
    PACKED = "packed"
    PACK_FAILED = "pack-failed"
    OLD_EXPIRED = "old-expired"
    OLD_LIVE = "old-live"


class Action(StrEnum):
    """What a worker does about a move."""

    FREEZE = "freeze"
    """Let nothing of the groups expire from here on."""
    UNFREEZE = "unfreeze"
    PACK = "pack"
    """Write the groups' states as they were frozen to the transfer store; yields PACKED or PACK_FAILED."""
    CHECK_PACKAGE = "check-package"
    """Sender: is the package still there? Yields PACKAGE_THERE or PACKAGE_MISSING."""
    LOOK_FOR_PACKAGE = "look-for-package"
    """Receiver: is there a package to take in? Yields PACKAGE_THERE or PACKAGE_MISSING."""
    TAKE_IN = "take-in"
    """Insert the package's states, and let nothing of them expire until UNFREEZE: rows that waited want them all."""
    JOIN_ASIDE = "join-aside"
    """Join the rows that were kept aside: their results are new."""
    ADD_ASIDE_SILENTLY = "add-aside-silently"
    """Add the rows that were kept aside without their results: the other worker has made them."""
    DROP_ASIDE = "drop-aside"
    """Forget the rows that were kept aside."""
    DROP_GROUPS = "drop-groups"
    """Forget all states of the groups."""
    DROP_PACKAGE = "drop-package"
    """Remove what is left in the transfer store."""
    TRACK = "track"
    """What is here now is old, what comes is new; leave out results that are all new."""
    UNTRACK = "untrack"
    CHECK_OLD = "check-old"
    """Is any old row live? Yields OLD_EXPIRED or OLD_LIVE."""


YIELDS: Final[Mapping[Action, frozenset[Fact]]] = {
    Action.PACK: frozenset({Fact.PACKED, Fact.PACK_FAILED}),
    Action.CHECK_PACKAGE: frozenset({Fact.PACKAGE_THERE, Fact.PACKAGE_MISSING}),
    Action.LOOK_FOR_PACKAGE: frozenset({Fact.PACKAGE_THERE, Fact.PACKAGE_MISSING}),
    Action.CHECK_OLD: frozenset({Fact.OLD_EXPIRED, Fact.OLD_LIVE}),
}
"""Facts that an action may lead to: exactly one of them follows, in the state that the action's row leads to."""

CLOSING: Final = frozenset({Fact.CLOSED_OURS, Fact.CLOSED_THEIRS})


class Arrival(StrEnum):
    """What happens to rows of the groups that arrive on time."""

    JOIN = "join"
    ASIDE = "aside"
    """They are kept, unjoined."""
    NONE = "none"
    """None may arrive here."""


@dataclass(frozen=True)
class Row:
    """One transition."""

    kind: Kind
    side: Side
    state: RoleState
    fact: Fact
    next: RoleState
    actions: tuple[Action, ...] = ()
    step: int = 0
    """Of the paper's protocol; 0 for what the paper does not have."""


def _rows(kind: Kind, side: Side, *rows: tuple[RoleState, Fact, RoleState, tuple[Action, ...], int]) -> tuple[Row, ...]:
    return tuple(Row(kind, side, *row) for row in rows)


_S, _F, _A = RoleState, Fact, Action
_DROP_ALL: Final = (_A.DROP_ASIDE, _A.UNFREEZE, _A.DROP_GROUPS, _A.DROP_PACKAGE)

ROWS: Final[tuple[Row, ...]] = (
    *_rows(
        Kind.TRANSFER,
        Side.SENDER,
        (_S.ACTIVE, _F.OPENED, _S.ACTIVE, (), 3),
        (_S.ACTIVE, _F.ENDED, _S.EXPORT_FAILED, (_A.FREEZE, _A.PACK), 5),
        (_S.EXPORT_FAILED, _F.PACKED, _S.EXPORTED, (), 6),
        (_S.EXPORT_FAILED, _F.PACK_FAILED, _S.EXPORT_FAILED, (), 0),
        (_S.EXPORTED, _F.SWITCHED, _S.EXPORTED, (), 0),
        (_S.EXPORT_FAILED, _F.SWITCHED, _S.EXPORT_FAILED, (), 0),
        (_S.EXPORT_FAILED, _F.ENDED, _S.EXPORT_FAILED, (_A.PACK,), 0),
        # A package that was lost or damaged is packed again.
        (_S.EXPORTED, _F.ENDED, _S.EXPORTED, (_A.CHECK_PACKAGE,), 0),
        (_S.EXPORTED, _F.PACKAGE_THERE, _S.EXPORTED, (), 0),
        (_S.EXPORTED, _F.PACKAGE_MISSING, _S.EXPORT_FAILED, (_A.PACK,), 0),
        # The batch that opened the move ran no task.
        (_S.ACTIVE, _F.SWITCHED, _S.EXPORT_FAILED, (_A.FREEZE,), 0),
        (_S.ACTIVE, _F.RECALLED, _S.EXPORT_FAILED, (_A.FREEZE,), 0),
        # The way back.
        (_S.EXPORTED, _F.RECALLED, _S.EXPORTED, (), 0),
        (_S.EXPORT_FAILED, _F.RECALLED, _S.EXPORT_FAILED, (), 0),
        (_S.EXPORTED, _F.BACK_JOINED, _S.RESTORED, (_A.ADD_ASIDE_SILENTLY, _A.UNFREEZE, _A.DROP_PACKAGE), 0),
        (_S.EXPORT_FAILED, _F.BACK_JOINED, _S.RESTORED, (_A.ADD_ASIDE_SILENTLY, _A.UNFREEZE, _A.DROP_PACKAGE), 0),
        (_S.EXPORTED, _F.BACK_HELD, _S.RESTORED, (_A.JOIN_ASIDE, _A.UNFREEZE, _A.DROP_PACKAGE), 0),
        (_S.EXPORT_FAILED, _F.BACK_HELD, _S.RESTORED, (_A.JOIN_ASIDE, _A.UNFREEZE, _A.DROP_PACKAGE), 0),
        (_S.RESTORED, _F.BACK_JOINED, _S.RESTORED, (), 0),
        (_S.RESTORED, _F.BACK_HELD, _S.RESTORED, (), 0),
        (_S.RESTORED, _F.CLOSED_OURS, _S.CLOSED, (_A.DROP_PACKAGE,), 0),
        # Forward.
        (_S.EXPORTED, _F.CLOSED_THEIRS, _S.CLOSED, _DROP_ALL, 8),
        (_S.EXPORT_FAILED, _F.CLOSED_THEIRS, _S.CLOSED, _DROP_ALL, 0),
    ),
    *_rows(
        Kind.TRANSFER,
        Side.RECEIVER,
        (_S.ACTIVE, _F.OPENED, _S.ACTIVE, (), 3),
        (_S.ACTIVE, _F.ENDED, _S.ACTIVE, (), 0),
        (_S.ACTIVE, _F.SWITCHED, _S.HOLDING, (_A.LOOK_FOR_PACKAGE,), 3),
        (_S.HOLDING, _F.SWITCHED, _S.HOLDING, (_A.LOOK_FOR_PACKAGE,), 0),
        (_S.HOLDING, _F.PACKAGE_MISSING, _S.HOLDING, (), 0),
        (_S.HOLDING, _F.PACKAGE_THERE, _S.RECEIVED, (_A.TAKE_IN, _A.JOIN_ASIDE, _A.UNFREEZE), 7),
        (_S.HOLDING, _F.ENDED, _S.HOLDING, (), 0),
        (_S.RECEIVED, _F.SWITCHED, _S.RECEIVED, (), 0),
        (_S.RECEIVED, _F.ENDED, _S.RECEIVED, (), 0),
        (_S.RECEIVED, _F.CLOSED_OURS, _S.CLOSED, (), 8),
        # The way back.
        (_S.ACTIVE, _F.RECALLED, _S.RECALLED_HELD, (), 0),
        (_S.HOLDING, _F.RECALLED, _S.RECALLED_HELD, (), 0),
        (_S.RECEIVED, _F.RECALLED, _S.RECALLED_JOINED, (), 0),
        (_S.RECALLED_HELD, _F.RECALLED, _S.RECALLED_HELD, (), 0),
        (_S.RECALLED_JOINED, _F.RECALLED, _S.RECALLED_JOINED, (), 0),
        (_S.RECALLED_HELD, _F.BACK_HELD, _S.DROPPED, (_A.DROP_ASIDE,), 0),
        (_S.RECALLED_JOINED, _F.BACK_JOINED, _S.DROPPED, (_A.DROP_GROUPS,), 0),
        (_S.DROPPED, _F.BACK_HELD, _S.DROPPED, (), 0),
        (_S.DROPPED, _F.BACK_JOINED, _S.DROPPED, (), 0),
        (_S.DROPPED, _F.CLOSED_THEIRS, _S.CLOSED, (), 0),
    ),
    *_rows(
        Kind.DUPLICATE,
        Side.SENDER,
        (_S.ACTIVE, _F.OPENED, _S.OLD_REMAINS, (_A.TRACK,), 3),
        (_S.OLD_REMAINS, _F.OPENED, _S.OLD_REMAINS, (), 0),
        (_S.OLD_REMAINS, _F.ENDED, _S.OLD_REMAINS, (_A.CHECK_OLD,), 0),
        (_S.OLD_REMAINS, _F.OLD_LIVE, _S.OLD_REMAINS, (), 0),
        (_S.OLD_REMAINS, _F.OLD_EXPIRED, _S.ALL_OLD_PURGED, (), 4),
        (_S.ALL_OLD_PURGED, _F.OPENED, _S.ALL_OLD_PURGED, (), 0),
        (_S.ALL_OLD_PURGED, _F.ENDED, _S.ALL_OLD_PURGED, (), 0),
        (_S.ALL_OLD_PURGED, _F.CLOSED_THEIRS, _S.CLOSED, (_A.UNTRACK, _A.DROP_GROUPS), 5),
        # Cancelled.
        (_S.OLD_REMAINS, _F.CLOSED_OURS, _S.CLOSED, (_A.UNTRACK,), 0),
        (_S.ALL_OLD_PURGED, _F.CLOSED_OURS, _S.CLOSED, (_A.UNTRACK,), 0),
    ),
    *_rows(
        Kind.DUPLICATE,
        Side.RECEIVER,
        (_S.ACTIVE, _F.OPENED, _S.ACTIVE, (), 3),
        (_S.ACTIVE, _F.ENDED, _S.ACTIVE, (), 0),
        (_S.ACTIVE, _F.CLOSED_OURS, _S.CLOSED, (), 5),
        (_S.ACTIVE, _F.CLOSED_THEIRS, _S.CLOSED, (_A.DROP_GROUPS,), 0),
    ),
)

_INDEX: Final[Mapping[tuple[Kind, Side, RoleState, Fact], Row]] = {
    (row.kind, row.side, row.state, row.fact): row for row in ROWS
}

_ARRIVALS: Final[Mapping[tuple[Kind, Side], Mapping[RoleState, Arrival]]] = {
    (Kind.TRANSFER, Side.SENDER): {
        _S.ACTIVE: Arrival.JOIN,
        _S.EXPORTED: Arrival.ASIDE,
        _S.EXPORT_FAILED: Arrival.ASIDE,
        _S.RESTORED: Arrival.JOIN,
    },
    (Kind.TRANSFER, Side.RECEIVER): {
        _S.ACTIVE: Arrival.NONE,
        _S.HOLDING: Arrival.ASIDE,
        _S.RECEIVED: Arrival.JOIN,
        _S.RECALLED_HELD: Arrival.ASIDE,
        _S.RECALLED_JOINED: Arrival.JOIN,
        _S.DROPPED: Arrival.NONE,
    },
    (Kind.DUPLICATE, Side.SENDER): {_S.OLD_REMAINS: Arrival.JOIN, _S.ALL_OLD_PURGED: Arrival.JOIN},
    (Kind.DUPLICATE, Side.RECEIVER): {_S.ACTIVE: Arrival.JOIN},
}

_REASONS: Final[Mapping[tuple[Kind, Side, Fact], str]] = {
    (Kind.TRANSFER, Side.RECEIVER, Fact.CLOSED_OURS): "it was closed before its receiver had the package",
    (Kind.TRANSFER, Side.SENDER, Fact.CLOSED_OURS): "it was closed before its sender had its groups back",
    (Kind.DUPLICATE, Side.SENDER, Fact.CLOSED_THEIRS): "it was closed while its sender has rows that nobody else has",
    (Kind.TRANSFER, Side.RECEIVER, Fact.BACK_JOINED): "the receiver has not joined the rows",
    (Kind.TRANSFER, Side.RECEIVER, Fact.BACK_HELD): "the receiver has not held the rows",
}


def transition(move: str, kind: Kind, side: Side, state: RoleState, fact: Fact) -> Row:
    """The row for a fact in a state; a pair that the table does not have is a CorruptState."""
    row = _INDEX.get((kind, side, state, fact))
    if row is None:
        reason = _REASONS.get((kind, side, fact))
        raise CorruptState(
            f"move {move} ({kind}): its {side} is {state} and learns {fact}, which must not happen"
            + (f": {reason}" if reason else "")
        )
    return row


def fact_of(move: Move, epoch_before: int) -> Fact:
    """What the beginning of a batch says about a move that its epoch has. A duplicate goes THERE, never switched."""
    facts = {Way.RECALLED: Fact.RECALLED, Way.JOINED: Fact.BACK_JOINED, Way.HELD: Fact.BACK_HELD}
    return facts.get(move.way) or (Fact.SWITCHED if is_switched(move, epoch_before) else Fact.OPENED)


def closing_fact(move: str, groups: Sequence[int], owners: Sequence[int], worker: int) -> Fact:
    """What the beginning of a batch says about a move that its epoch has no more."""
    ours = {owners[group] == worker for group in groups}
    if len(ours) > 1:
        raise CorruptState(f"move {move} was closed, and its groups have different owners")
    return Fact.CLOSED_OURS if ours == {True} else Fact.CLOSED_THEIRS


def end_fact(move: Move) -> Fact | None:
    """What the end of a batch says about a move that its epoch has."""
    return Fact.ENDED if move.way == Way.THERE else None


def arrival(kind: Kind, side: Side, state: RoleState) -> Arrival:
    """What happens to on-time rows of the groups, once the beginning of the batch has been dealt with.

    A role that is CLOSED has no say any more: rows of groups that the worker owns are joined.
    """
    return Arrival.JOIN if state == RoleState.CLOSED else _ARRIVALS[kind, side][state]


def is_frozen(state: RoleState) -> bool:
    """Whether nothing of the groups may expire: only a transfer's sender comes to these states."""
    return state in (RoleState.EXPORTED, RoleState.EXPORT_FAILED)


def check(rows: Sequence[Row] = ROWS) -> Iterator[str]:
    """What is wrong with the table, if anything: two rows for one case, dead ends, facts that nobody answers."""
    cases: set[tuple[Kind, Side, RoleState, Fact]] = set()
    for row in rows:
        case = (row.kind, row.side, row.state, row.fact)
        if case in cases:
            yield f"two rows for {row.fact} in {row.state} ({row.kind}, {row.side})"
        cases.add(case)
    for row in rows:
        where = f"{row.kind}, {row.side}: {row.state}, {row.fact}"
        if any(action in YIELDS for action in row.actions[:-1]):
            yield f"{where}: an action that yields a fact is not the last one"
        for fact in YIELDS.get(row.actions[-1], ()) if row.actions else ():
            if (row.kind, row.side, row.next, fact) not in cases:
                yield f"{where}: nobody answers {fact} in {row.next}"
        if row.next == RoleState.CLOSED and row.fact not in CLOSING:
            yield f"{where}: closes a move that is open"
        if not _leads_on(rows, row):
            yield f"{where}: no way from {row.next} to the end"
        if row.next != RoleState.CLOSED and row.next not in _ARRIVALS[row.kind, row.side]:
            yield f"{where}: {row.next} does not say what happens to rows that arrive"


def _leads_on(rows: Sequence[Row], start: Row) -> bool:
    """Whether CLOSED can be reached after a row."""
    reached = {start.next}
    while True:
        more = {
            row.next for row in rows if (row.kind, row.side) == (start.kind, start.side) and row.state in reached
        } - reached
        if not more:
            return RoleState.CLOSED in reached
        reached |= more
