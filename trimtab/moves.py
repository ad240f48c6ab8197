"""Open moves of partition groups, as an epoch declares them, and the states that the two workers of a move can be in.

An epoch does not tell workers what to do next; it says which moves are open. Split and workers derive from that, and
from the number of the previous batch's epoch, where rows go and who keeps which state. A replayed batch therefore does
the same again, and a message can be lost or repeated without harm.

    transfer    MSLB (PTLB/MSLB section 4). In the *first* batch of the epoch that opens it rows still go to the sender,
                which joins them, then packs the groups' states and freezes them: the end of that batch is the paper's
                EndOfPartitionInputFlag. From the next batch on the move is *switched*: rows go to the receiver, which
                takes in the package, or holds the rows until there is one. The sender gets a copy of the rows and puts
                it aside, unjoined: with it the sender can take its groups back at any time, and needs nothing for it.
                The transfer is closed by an epoch without it.
    duplicate   PTLB (section 3). From the first batch on rows go to both; rows that arrive from then on are *new* at
                the sender, whose root leaves out combinations that are all new. Closed by an epoch without it: the
                worker that owns the groups there goes on alone, the other drops them.

The way back of a transfer has two steps, both said by `Move.way`. RECALLED: the receiver takes nothing in any more; it
says whether it had joined the rows by then (it had the package) or only held them. JOINED or HELD repeats that answer
to the sender, which gets all rows from then on: it unfreezes its groups and adds the rows that it put aside, without
results where the receiver has made them already (JOINED), with results where nobody has (HELD).
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from trimtab.errors import CorruptState

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,159}")


class Kind(StrEnum):
    """What a move does."""

    TRANSFER = "transfer"
    DUPLICATE = "duplicate"


class Side(StrEnum):
    """A worker's part in a move."""

    SENDER = "sender"
    RECEIVER = "receiver"


class Way(StrEnum):
    """Where a transfer is going; a duplicate always goes THERE."""

    THERE = "there"
    RECALLED = "recalled"
    JOINED = "joined"
    HELD = "held"

    @property
    def back(self) -> bool:
        """Whether the sender has the rows again, alone."""
        return self in (Way.JOINED, Way.HELD)


WAYS_ON: Final = {
    Way.THERE: frozenset({Way.THERE, Way.RECALLED}),
    Way.RECALLED: frozenset({Way.RECALLED, Way.JOINED, Way.HELD}),
    Way.JOINED: frozenset({Way.JOINED}),
    Way.HELD: frozenset({Way.HELD}),
}
"""How `way` may change from one epoch to the next."""


class RoleState(StrEnum):
    """Where a worker is in its part of a move (the transitions are in `worker.roles`)."""

    ACTIVE = "active"
    """Nothing was to be done so far."""

    EXPORTED = "exported"
    """Transfer, sender: frozen, the package is written."""
    EXPORT_FAILED = "export-failed"
    """Transfer, sender: frozen, the package could not be written (yet)."""
    RESTORED = "restored"
    """Transfer, sender: it has its groups back."""

    HOLDING = "holding"
    """Transfer, receiver: rows wait for the package."""
    RECEIVED = "received"
    """Transfer, receiver: the package is in, rows are joined."""
    RECALLED_HELD = "recalled-held"
    """Transfer, receiver: recalled before it had the package; rows of the move were never joined here."""
    RECALLED_JOINED = "recalled-joined"
    """Transfer, receiver: recalled after it had the package; all rows of the move so far were joined here."""
    DROPPED = "dropped"
    """Transfer, receiver: the groups went back, nothing is left here."""

    OLD_REMAINS = "old-remains"
    """Duplicate, sender: old rows are live."""
    ALL_OLD_PURGED = "all-old-purged"
    """Duplicate, sender: PTLB step 4."""

    CLOSED = "closed"
    """The move is closed; the worker counts for some batches more (the audit wants it)."""


BATCHES_AFTER_CLOSE: Final = 2
"""Workers report on a move in the batch that closes it, and in so many more: the audit wants it."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """One open move in an epoch."""

    id: str
    """Migration and wave: a name that may stand in a path (`move_id`)."""
    kind: Kind
    groups: tuple[int, ...]
    sender: int
    receiver: int
    epoch: int
    """The epoch that opened it."""
    way: Way = Way.THERE
    digest: str = ""
    """Which package to take, where attempts left several that differ."""

    @property
    def migration(self) -> str:
        """The migration that it belongs to; "" where its name is of another making."""
        return (parse_move_id(self.id) or ("", 0))[0]

    @property
    def wave(self) -> int:
        """Of the migration, from 1 on; 0 where its name is of another making."""
        return (parse_move_id(self.id) or ("", 0))[1]

    @property
    def destination(self) -> int:
        """The worker that the groups will be with once the move has ended."""
        return self.receiver if self.way == Way.THERE else self.sender

    def side_of(self, worker: int) -> Side | None:
        if worker == self.sender:
            return Side.SENDER
        return Side.RECEIVER if worker == self.receiver else None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "groups": list(self.groups)}


def parse_move(body: dict[str, Any]) -> Move:
    """The id becomes part of a path, so only a plain name is accepted."""
    try:
        move = Move(
            **{
                **body,
                "groups": tuple(map(int, body["groups"])),
                "kind": Kind(body["kind"]),
                "way": Way(body.get("way", Way.THERE)),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptState(f"a move cannot be read: {error}") from error
    if not isinstance(move.id, str) or not _ID.fullmatch(move.id) or not isinstance(move.digest, str):
        raise CorruptState(f"{move.id!r} is not the name of a move")
    numbers = (move.sender, move.receiver, move.epoch)
    if any(type(number) is not int for number in numbers) or move.sender == move.receiver:
        raise CorruptState(f"move {move.id} has no sender, receiver and epoch: {numbers}")
    if move.kind == Kind.DUPLICATE and move.way != Way.THERE:
        raise CorruptState(f"move {move.id} is a duplicate and cannot be {move.way}")
    return move


def is_switched(move: Move, epoch_before: int) -> bool:
    """Whether the receiver of a transfer gets its rows already, given the epoch of the previous batch."""
    return move.kind == Kind.TRANSFER and epoch_before >= move.epoch


# -- names: the migration and the wave

_MOVE: Final = re.compile(r"(?P<migration>.+)\.w(?P<wave>[1-9][0-9]*)")


def move_id(migration: str, wave: int) -> str:
    return f"{migration}.w{wave}"


def parse_move_id(move: str) -> tuple[str, int] | None:
    """Migration and wave of a move; None for a name that `move_id` did not make."""
    match = _MOVE.fullmatch(move)
    return (match["migration"], int(match["wave"])) if match else None


@dataclass(frozen=True, kw_only=True)
class ComputePartitionsToMove:
    """Step 1 of both protocols: a worker is asked which groups come nearest to an amount (or: are these yours?)."""

    migration: str
    worker: int
    share: float = 0.0
    """Of the worker's load; ignored where groups are given."""
    measure: Literal["cpu", "bytes"] = "cpu"
    groups: tuple[int, ...] = ()
    excluded: tuple[int, ...] = ()
    ships: bool = False
    """Whether the groups' state will go through the transfer store: then the worker tries the store first."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "groups": list(self.groups), "excluded": list(self.excluded)}


def parse_question(body: dict[str, Any]) -> ComputePartitionsToMove:
    try:
        return ComputePartitionsToMove(
            **{
                **body,
                "worker": int(body["worker"]),
                "share": float(body["share"]),
                "groups": tuple(map(int, body["groups"])),
                "excluded": tuple(map(int, body["excluded"])),
                "ships": bool(body["ships"]),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptState(f"a question cannot be read: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Answer:
    """PartitionsToMove, step 2 of both protocols: what a worker answers to one question."""

    groups: tuple[int, ...]
    problem: str = ""
    """Why nothing can be shipped: the transfer store was tried and failed."""

    def to_json(self) -> dict[str, Any]:
        return {"groups": list(self.groups), "problem": self.problem}
