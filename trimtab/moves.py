"""Open moves of partition groups, as an epoch declares them, and what workers say about them.

An epoch does not tell workers what to do next; it says which moves are open. Split and workers derive from that, and
from the number of the batch before's epoch, where rows go and who keeps which state, so a replayed batch does the same
again and a message can be lost or told twice without harm.

    transfer    MSLB (PTLB/MSLB section 4). In the *first* batch of the epoch that opens it rows still go to the sender,
                which joins them, then packs the groups' states and freezes them: the end of that batch is the paper's
                EndOfPartitionInputFlag. From the next batch on the move is *switched*: rows go to the receiver, which
                takes in the package, or holds the rows until there is one. It is closed by an epoch without it.
    duplicate   PTLB (section 3). From the first batch on rows go to both; rows that arrive from then on are *new* at
                the sender, whose root leaves out combinations that are all new. Closed by an epoch without it: the
                worker that owns the groups there goes on alone, the other drops them.

A transfer that `undoes` another brings back what that one took: the package, or the rows held in wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from trimtab.epochs import Epoch, check_owners
from trimtab.errors import CorruptState

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,159}")
TRANSFER: Final = "transfer"
DUPLICATE: Final = "duplicate"
NOBODY: Final = -1

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Move:
    """One open move in an epoch."""

    id: str
    """Migration, wave, and ".undo" for the way back: a name that may stand in a path."""
    kind: Literal["transfer", "duplicate"]
    groups: tuple[int, ...]
    sender: int
    receiver: int
    epoch: int
    """The epoch that opened it."""
    undoes: str = ""
    """Id of the transfer that this one brings back."""
    digest: str = ""
    """Which package to take, where attempts left several that differ."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "groups": list(self.groups)}


def parse_move(body: dict[str, Any]) -> Move:
    """The id becomes part of a path, so nothing but a plain name is taken for one."""
    try:
        move = Move(**{**body, "groups": tuple(map(int, body["groups"]))})
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptState(f"a move cannot be read: {error}") from error
    if not _ID.fullmatch(move.id) or move.kind not in (TRANSFER, DUPLICATE):
        raise CorruptState(f"{move.kind!r} {move.id!r} is no move")
    numbers = (move.sender, move.receiver, move.epoch)
    if any(type(number) is not int for number in numbers) or move.sender == move.receiver:
        raise CorruptState(f"move {move.id} has no sender, receiver and epoch: {numbers}")
    return move


def moves_of(epoch: Epoch) -> tuple[Move, ...]:
    return tuple(parse_move(body) for body in epoch.migrations)


def check_epoch(epoch: Epoch, partitions: int, workers: int) -> None:
    """Refuse an epoch that would send rows nowhere: it must never be bound, since what is bound stays so."""
    check_owners(epoch.owners, partitions, workers)
    for move in moves_of(epoch):
        inside = all(0 <= group < partitions for group in move.groups)
        if not inside or not 0 <= move.sender < workers or not 0 <= move.receiver < workers:
            raise CorruptState(f"move {move.id} names a group or worker that the query does not have")
        if move.kind == DUPLICATE and any(epoch.owners[group] != move.sender for group in move.groups):
            raise CorruptState(f"move {move.id} duplicates groups that its sender does not own")
    commands_of(epoch)


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

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "groups": list(self.groups), "excluded": list(self.excluded)}


def commands_of(epoch: Epoch) -> tuple[ComputePartitionsToMove, ...]:
    try:
        return tuple(
            ComputePartitionsToMove(
                **{
                    **body,
                    "worker": int(body["worker"]),
                    "share": float(body["share"]),
                    "groups": tuple(map(int, body["groups"])),
                    "excluded": tuple(map(int, body["excluded"])),
                }
            )
            for body in epoch.commands
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptState(f"a command cannot be read: {error}") from error


@dataclass(frozen=True)
class Routing:
    """Where the rows of each group go in one batch."""

    owner: Int32s
    also: Int32s
    """A second worker that gets a copy (PTLB step 3), or NOBODY."""


def is_switched(move: Move, epoch_before: int) -> bool:
    """Whether a transfer's rows go to the receiver already, given the epoch of the batch before."""
    return move.kind == TRANSFER and epoch_before >= move.epoch


def routing(epoch: Epoch, moves: Sequence[Move], epoch_before: int) -> Routing:
    owner = np.array(epoch.owners, np.int32)
    also = np.full(owner.size, NOBODY, np.int32)
    # In the order of the epoch: a move that undoes another comes after it.
    for move in moves:
        groups = np.array(move.groups, np.int64)
        if move.kind == DUPLICATE:
            also[groups] = move.receiver
        elif is_switched(move, epoch_before):
            owner[groups] = move.receiver
    return Routing(owner, also)


@dataclass(frozen=True, kw_only=True)
class MoveReport:
    """What a worker says about an open move in every batch: a level, not an edge, so that none is ever missed."""

    move: str
    role: Literal["sender", "receiver"]
    state: Literal["active", "exported", "export-failed", "holding", "received", "old-remains", "all-old-purged"]
    """Transfer: the sender is active, then exported (frozen, package written) or export-failed; the receiver is active,
    then holding or received. Duplicate: the sender has old-remains, then all-old-purged; the receiver is active."""
    rows: int = 0
    """Leaf rows in the package that was exported or taken in."""
    bytes: int = 0
    digest: str = ""
    """Of the package's rows, whatever their order."""
    held_rows: int = 0
    """Rows that wait for the package at the end of this batch."""
    newest_old_us: int | None = None
    """PTLB: the largest timestamp of an old row; all are purged once watermark - window is beyond it."""
    problem: str = ""
    arrived: dict[str, int] = field(default_factory=dict)
    """Rows of this batch, by group, late ones included."""
    results: dict[str, int] = field(default_factory=dict)
    """Results of this batch, by group."""
    suppressed: dict[str, int] = field(default_factory=dict)
    """PTLB, sender: all-new combinations left out in this batch, by group. The receiver's results, if all is well."""
