"""Invariants of epochs: one owner per group, but for the two that a declared move names."""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.epochs import Epoch
from trimtab.moves import DUPLICATE, Move, moves_of


def wrong_with(epoch: Epoch) -> Iterator[str]:
    """What is wrong with the open moves of an epoch, if anything."""
    by_group: dict[int, list[Move]] = {}
    for move in moves_of(epoch):
        if move.sender == move.receiver:
            yield f"{move.id} goes from worker {move.sender} to itself"
        if move.epoch > epoch.number:
            yield f"{move.id} was opened in epoch {move.epoch}, after this one"
        for group in move.groups:
            by_group.setdefault(group, []).append(move)
    for group, moves in by_group.items():
        yield from _of_group(epoch, group, moves)


def wrong_between(before: Epoch, after: Epoch) -> Iterator[str]:
    """What is wrong with two epochs that follow each other."""
    if after.number != before.number + 1 or after.predecessor != before.digest:
        yield f"epoch {after.number} does not follow epoch {before.number}"
    earlier = {move.id: move for move in moves_of(before)}
    moving = {group for move in earlier.values() for group in move.groups}
    for move in moves_of(after):
        known = earlier.get(move.id)
        if known is not None and (known.groups, known.epoch, known.sender) != (move.groups, move.epoch, move.sender):
            yield f"{move.id} changed from one epoch to the next"
        if known is None and move.epoch != after.number:
            yield f"{move.id} is new in epoch {after.number} and says {move.epoch}"
        if known is None and not move.undoes and moving & set(move.groups):
            yield f"{move.id} takes groups that were moving in the epoch before"
    for group, (old, new) in enumerate(zip(before.owners, after.owners, strict=True)):
        if old != new and group not in moving:
            yield f"group {group} went from worker {old} to {new} without a move"


def _of_group(epoch: Epoch, group: int, moves: list[Move]) -> Iterator[str]:
    first, *others = moves
    if first.undoes or first.sender != epoch.owners[group]:
        yield f"group {group} is worker {epoch.owners[group]}'s, and {first.id} takes it from worker {first.sender}"
    if len(others) > 1 or any(first.kind == DUPLICATE or move.undoes != first.id for move in others):
        yield f"group {group} is in several moves: {', '.join(move.id for move in moves)}"
    for move in others:
        if (move.sender, move.receiver) != (first.receiver, first.sender):
            yield f"{move.id} does not lead back where {first.id} came from"
