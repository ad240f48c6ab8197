"""The next epoch, from all migrations: owners, open moves and questions.

An epoch has no history of its own: `compose` says what the machines' states mean, and there is a next epoch where that
differs from the one before. A manager that crashed between journal and publication composes the same again. Steps of
several migrations, and step 8 of one wave with step 3 of the next, share an epoch by being there at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from balancing.protocols.migration import Migration, Wave, taken_groups
from balancing.protocols.table import State
from trimtab.epochs import Epoch
from trimtab.errors import TrimtabError
from trimtab.moves import DUPLICATE, TRANSFER, ComputePartitionsToMove, Move, moves_of


class NotComposable(TrimtabError):
    """Migrations contradict each other: a bug in who was let in, and better no epoch than a wrong one."""


def compose(previous: Epoch, migrations: Iterable[Migration], fence: int) -> Epoch | None:
    """The epoch that follows `previous` (newest published, and bound); None where nothing is to change.

    Waves that are behind `previous` change nothing until they are reconciled with it. Should `previous` be an old one,
    because Redis has gone back, no harm is done: what follows an old epoch cannot be bound, and the driver puts Redis
    right.
    """
    active = sorted(
        (each for each in migrations if not each.done and each.incarnation == previous.incarnation),
        key=lambda each: (each.created_ms, each.id),
    )
    next_epoch = _Composition(previous)
    for migration in active:
        for number, wave in enumerate(migration.waves, 1):
            next_epoch.add(migration, number, wave)
    next_epoch.check()
    commands = [_question(migration, active).to_json() for migration in active if migration.state == State.CHOOSING]
    moves = tuple(move.to_json() for move in next_epoch.moves.values())
    if (tuple(next_epoch.owners), moves, tuple(commands)) == (
        previous.owners,
        previous.migrations,
        previous.commands,
    ):
        return None
    return previous.successor(next_epoch.owners, fence=fence, migrations=moves, commands=tuple(commands))


def _question(migration: Migration, active: list[Migration]) -> ComputePartitionsToMove:
    """Step 1 of both protocols. Groups that others move meanwhile are left out, so the answer may change."""
    request = migration.request
    excluded = set(migration.excluded) | taken_groups(active, migration.id)
    return ComputePartitionsToMove(
        migration=migration.id,
        worker=migration.sender,
        share=request.share,
        measure=request.measure,
        groups=request.groups,
        excluded=tuple(sorted(excluded)),
    )


class _Composition:
    """An epoch in the making. Moves that no wave here closes stay: somebody must bring them to an end (adopt)."""

    def __init__(self, previous: Epoch) -> None:
        self.number = previous.number + 1
        self.owners = list(previous.owners)
        self.moves = {move.id: move for move in moves_of(previous)}

    def add(self, migration: Migration, number: int, wave: Wave) -> None:
        name, undo = migration.move_id(number), migration.undo_id(number)
        was_open = name in self.moves
        if wave.state == migration.table.closing:
            self._close(migration, number, wave, migration.receiver)
        elif wave.state == State.RESTORING:
            self._close(migration, number, wave, migration.sender)
        elif wave.final:
            return
        elif not was_open:
            self._open(migration, name, wave)
        elif wave.state == State.RETURNING and migration.table.name == "mslb":
            self._bring_back(migration, name, undo, wave)
        elif self.moves[name].digest != wave.digest:
            self.moves[name] = replace(self.moves[name], digest=wave.digest)

    def _open(self, migration: Migration, name: str, wave: Wave) -> None:
        """Step 3 of both protocols.

        A wave that was open and is not any more, or whose groups the sender does not own, has been closed while the
        journal was behind: `reconcile` says how, and until then nothing is opened.
        """
        if wave.was_open or any(self.owners[group] != migration.sender for group in wave.groups):
            return
        self.moves[name] = Move(
            id=name,
            kind=DUPLICATE if migration.table.name == "ptlb" else TRANSFER,
            groups=wave.groups,
            sender=migration.sender,
            receiver=migration.receiver,
            epoch=self.number,
        )

    def _bring_back(self, migration: Migration, name: str, undo: str, wave: Wave) -> None:
        """The same groups, the other way. Stands after the move it undoes: split applies them in this order."""
        there = self.moves[name]
        if undo in self.moves:
            self.moves[undo] = replace(self.moves[undo], digest=wave.undo_digest)
            return
        self.moves[undo] = Move(
            id=undo,
            kind=TRANSFER,
            groups=there.groups,
            sender=migration.receiver,
            receiver=migration.sender,
            epoch=self.number,
            undoes=name,
        )

    def _close(self, migration: Migration, number: int, wave: Wave, owner: int) -> None:
        """Step 8 of MSLB, step 5 of PTLB, or the end of the way back.

        Only from an epoch that this end can follow: a transfer ends at its sender by way of its undo, and at its
        receiver without one. Where it cannot, the journal is behind, and `reconcile` puts it right.
        """
        name, undo = migration.move_id(number), migration.undo_id(number)
        by_undo = owner == migration.sender and migration.table.name == "mslb"
        if name not in self.moves or (undo in self.moves) != by_undo:
            return
        del self.moves[name]
        self.moves.pop(undo, None)
        for group in wave.groups:
            self.owners[group] = owner

    def check(self) -> None:
        """One owner per group and one way for it to go: an epoch in which that is not so is never published."""
        moving: dict[int, Move] = {}
        for move in self.moves.values():
            for group in move.groups:
                other = moving.get(group)
                if other is None and self.owners[group] != move.sender:
                    raise NotComposable(f"{move.id} takes group {group} from worker {move.sender}, not its owner")
                if other is not None and (not move.undoes or move.undoes != other.id):
                    raise NotComposable(f"group {group} is in {other.id} and in {move.id}")
                moving[group] = move
