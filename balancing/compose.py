"""The next epoch, from all migrations and replans: owners, open moves, questions and plan orders.

An epoch has no history of its own: `compose` says what the machines' states mean, and there is a next epoch where that
differs from the one before. A manager that crashed between journal and publication composes the same again. Steps of
several migrations, and step 8 of one wave with step 3 of the next, share an epoch by being there at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from balancing.protocols.migration import Migration, Wave, taken_groups
from balancing.protocols.table import BACK, State
from balancing.replans.ordering import orders_after
from balancing.replans.replan import Replan
from trimtab.epochs import Epoch, breaks_between
from trimtab.errors import TrimtabError
from trimtab.moves import ComputePartitionsToMove, Kind, Move, Way


class NotComposable(TrimtabError):
    """Migrations contradict each other: a bug in who was let in, and better no epoch than a wrong one."""


def compose(
    previous: Epoch, migrations: Iterable[Migration], fence: int, replans: Iterable[Replan] = ()
) -> Epoch | None:
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
    questions = tuple(_question(migration, active) for migration in active if migration.state == State.CHOOSING)
    moves = tuple(next_epoch.moves.values())
    plans = orders_after(previous, replans)
    before = (previous.owners, previous.moves, previous.questions, previous.plans)
    if (tuple(next_epoch.owners), moves, questions, plans) == before:
        return None
    epoch = previous.successor(next_epoch.owners, fence=fence, moves=moves, questions=questions, plans=plans)
    for problem in breaks_between(previous, epoch):
        raise NotComposable(problem)
    return epoch


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
        ships=migration.table.ships,
    )


class _Composition:
    """An epoch in the making. Moves that no wave here closes stay: somebody must bring them to an end (adopt)."""

    def __init__(self, previous: Epoch) -> None:
        self.number = previous.number + 1
        self.owners = list(previous.owners)
        self.moves = {move.id: move for move in previous.moves}

    def add(self, migration: Migration, number: int, wave: Wave) -> None:
        name = migration.move_id(number)
        move = self.moves.get(name)
        owner = migration.awaited_owner(wave)
        if wave.final:
            return
        if owner is not None:
            self._close(move, wave, owner)
        elif move is None:
            self._open(migration, name, wave)
        elif move.kind == Kind.TRANSFER:
            self.moves[name] = replace(move, way=_way(wave, move), digest=wave.digest)

    def _open(self, migration: Migration, name: str, wave: Wave) -> None:
        """Step 3 of both protocols.

        A wave that was open and is not any more, or whose groups the sender does not own, has been closed while the
        journal was behind: `reconcile` says how, and until then nothing is opened.
        """
        if wave.was_open or any(self.owners[group] != migration.sender for group in wave.groups):
            return
        moving = [move.id for move in self.moves.values() if set(move.groups) & set(wave.groups)]
        if moving:
            raise NotComposable(f"{name} takes groups that {', '.join(moving)} moves")
        self.moves[name] = Move(
            id=name,
            kind=migration.table.kind,
            groups=wave.groups,
            sender=migration.sender,
            receiver=migration.receiver,
            epoch=self.number,
        )

    def _close(self, move: Move | None, wave: Wave, owner: int) -> None:
        """Step 8 of MSLB, step 5 of PTLB, or the end of the way back.

        Only from an epoch that this end can follow: a transfer ends at its receiver while it goes there, and at its
        sender once it came back. Where it cannot, the journal is behind, and `reconcile` puts it right.
        """
        if move is None or (move.kind == Kind.TRANSFER and owner != _heir(move)):
            return
        del self.moves[move.id]
        for group in wave.groups:
            self.owners[group] = owner


def _heir(move: Move) -> int | None:
    if move.way.back:
        return move.sender
    return move.receiver if move.way == Way.THERE else None


def _way(wave: Wave, move: Move) -> Way:
    """Where the epoch says that a transfer goes: one step at a time, and never forward again."""
    if wave.state in BACK and move.way == Way.THERE:
        return Way.RECALLED
    if wave.state == State.RESTORING and move.way == Way.RECALLED:
        return wave.way
    return move.way
