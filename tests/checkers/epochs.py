"""Invariants of epochs: one owner per group, but for the two that a declared move names.

A second opinion: `trimtab.epochs.breaks_between` and `check_epoch` are what drivers refuse epochs by.
"""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.epochs import Epoch
from trimtab.moves import Kind, Move, Way

LATER = {Way.THERE: {Way.RECALLED}, Way.RECALLED: {Way.JOINED, Way.HELD}, Way.JOINED: set(), Way.HELD: set()}
"""How the way of a transfer may go on."""


def wrong_with(epoch: Epoch) -> Iterator[str]:
    """What is wrong with the open moves of an epoch, if anything."""
    taken: dict[int, Move] = {}
    for move in epoch.moves:
        if move.sender == move.receiver:
            yield f"{move.id} goes from worker {move.sender} to itself"
        if move.epoch > epoch.number:
            yield f"{move.id} was opened in epoch {move.epoch}, after this one"
        for group in move.groups:
            if epoch.owners[group] != move.sender:
                yield f"group {group} is worker {epoch.owners[group]}'s, and {move.id} takes it from {move.sender}"
            if group in taken:
                yield f"group {group} is in {taken[group].id} and in {move.id}"
            taken[group] = move


def wrong_between(before: Epoch, after: Epoch) -> Iterator[str]:
    """What is wrong with two epochs that follow each other."""
    if after.number != before.number + 1 or after.predecessor != before.digest:
        yield f"epoch {after.number} does not follow epoch {before.number}"
    now = {move.id: move for move in after.moves}
    moving = {group: move for move in before.moves for group in move.groups}
    for move in before.moves:
        later = now.pop(move.id, None)
        if later is None:
            continue
        if (later.kind, later.groups, later.epoch) != (move.kind, move.groups, move.epoch):
            yield f"{move.id} changed from one epoch to the next"
        if (later.sender, later.receiver) != (move.sender, move.receiver):
            yield f"{move.id} has other workers than before"
        if later.way != move.way and later.way not in LATER[move.way]:
            yield f"{move.id} was {move.way} and is {later.way}"
    for move in now.values():
        if move.epoch != after.number or move.way != Way.THERE:
            yield f"{move.id} is new in epoch {after.number} and says {move.epoch}, {move.way}"
        if moving.keys() & set(move.groups):
            yield f"{move.id} takes groups that were moving in the epoch before"
    for group, (old, new) in enumerate(zip(before.owners, after.owners, strict=True)):
        yield from _of_group(group, old, new, moving.get(group), after)


def _of_group(group: int, old: int, new: int, move: Move | None, after: Epoch) -> Iterator[str]:
    if move is None or after.move(move.id) is not None:
        if old != new:
            yield f"group {group} went from worker {old} to {new} without a move that ends"
    elif move.kind == Kind.DUPLICATE:
        if new not in (move.sender, move.receiver):
            yield f"group {group} went to worker {new}, which has no part in {move.id}"
    elif move.way == Way.RECALLED:
        yield f"{move.id} ends, and nobody knows whether its receiver has joined rows"
    elif new != (move.receiver if move.way == Way.THERE else move.sender):
        yield f"group {group} went to worker {new}, and {move.id} was {move.way}"
