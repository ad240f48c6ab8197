"""Journal and bound epoch disagree: the bound epoch is right.

Redis may lose its last writes, the journal's among them, after a batch was bound to what they led to; a batch cannot be
unbound. `reconcile` moves journaled migrations to where the bound epoch shows they are; `adopt` makes migrations again
whose journal is gone while their moves are open. Both are for every committed batch, not just for a manager's start:
where nothing is off they answer with nothing.

An epoch proves something only if it is younger than all that a wave has seen bound (`Wave.seen`): when Redis goes back,
the driver's heartbeat does too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from balancing.audit import MigrationAudit
from balancing.protocols.migration import (
    ROLLED_BACK,
    Instruction,
    Migration,
    Request,
    Wave,
    strategy_of,
)
from balancing.protocols.table import BACK, State
from trimtab.epochs import Epoch
from trimtab.moves import Kind, Move, Way


def reconcile(migrations: Iterable[Migration], bound: Epoch, now_ms: int) -> list[Instruction]:
    """What to journal so that every migration agrees with the bound epoch."""
    open_moves = {move.id: move for move in bound.moves}
    instructions: list[Instruction] = []
    for migration in migrations:
        if migration.done:
            continue
        if migration.incarnation != bound.incarnation:
            ended = replace(
                migration,
                outcome=ROLLED_BACK,
                remaining=(),
                problem="the query was started again with another checkpoint",
            )
            instructions += ended.noted("Reconciled", now_ms, ended.problem)
            continue
        found, notes = _unknown_waves(migration, bound, open_moves)
        for number, wave in enumerate(found.waves, 1):
            changed, note = _wave(found, number, wave, bound, open_moves)
            if note:
                found = found.with_wave(number, changed, problem=note if changed.state == State.ROLLED_BACK else "")
                notes = [*notes, note]
        if notes:
            found = _with_reason(found, bound)
            instructions += found.noted("Reconciled", now_ms, f"epoch {bound.number}: {'; '.join(notes)}")
    return instructions


def _wave(
    migration: Migration, number: int, wave: Wave, bound: Epoch, open_moves: Mapping[str, Move]
) -> tuple[Wave, str]:
    """The wave as the bound epoch shows it, and what was wrong; "" where nothing is."""
    if wave.final or bound.number < wave.seen:
        return wave, ""
    owners = {bound.owners[group] for group in wave.groups}
    move = open_moves.get(migration.move_id(number))
    if move is not None:
        return _as_the_move_goes(wave, move, bound, number)
    others = _moved_by_others(migration, wave.groups, bound)
    arrived = bound.number > wave.seen and owners == {migration.receiver}
    if others and not wave.was_open and not arrived:
        # Let in while the journal did not know of them. It cannot be opened, and would keep all epochs from being made.
        return replace(wave, state=State.ROLLED_BACK, seen=bound.number), f"wave {number} cannot be opened: {others}"
    # Closed as it was to be closed: `observe` says so.
    if bound.number <= wave.seen or owners == {migration.awaited_owner(wave)}:
        return wave, ""
    if arrived:
        return replace(wave, state=State.COMMITTED, seen=bound.number), f"wave {number} is the receiver's already"
    if owners == {migration.sender} and not wave.was_open:
        return wave, ""
    text = f"wave {number} is closed, its groups are with {', '.join(map(str, sorted(owners)))}"
    return replace(wave, state=State.ROLLED_BACK, seen=bound.number), text


def _as_the_move_goes(wave: Wave, move: Move, bound: Epoch, number: int) -> tuple[Wave, str]:
    """A wave whose move is open: is it on its way back there, and not here?"""
    state = _state_on_the_way(move)
    behind = state in BACK and (wave.state not in BACK or (move.way.back and wave.state == State.RETURNING))
    if not behind:
        return wave, ""
    back = replace(wave, state=state, way=_answer_of(move), seen=bound.number, was_open=True, held_since=-1)
    return back, f"wave {number} is on its way back"


def _state_on_the_way(move: Move) -> State:
    """Where a wave is whose move is open like this, as far as the move alone tells."""
    if move.kind == Kind.DUPLICATE:
        return State.DUPLICATING
    return {Way.THERE: State.DEACTIVATING, Way.RECALLED: State.RETURNING}.get(move.way, State.RESTORING)


def _answer_of(move: Move) -> Way:
    return move.way if move.way.back else Way.THERE


def _unknown_waves(migration: Migration, bound: Epoch, open_moves: Mapping[str, Move]) -> tuple[Migration, list[str]]:
    """With waves that the journal forgot: open ones, groups that others move, groups that left the sender already."""
    notes = []
    for move in open_moves.values():
        if move.migration != migration.id or move.wave <= len(migration.waves):
            continue
        migration = _with_open_wave(migration, move, bound)
        notes.append(f"wave {move.wave} is open")
    newest = max([migration.since, *(wave.seen for wave in migration.waves)])
    others = _moved_by_others(migration, migration.remaining, bound)
    if others and bound.number >= newest:
        wave = Wave(groups=migration.remaining, state=State.ROLLED_BACK, seen=bound.number)
        return migration.with_wave(len(migration.waves) + 1, wave, problem=others), [*notes, others]
    under_way = any(not wave.final for wave in migration.waves)
    gone = tuple(group for group in migration.remaining if bound.owners[group] != migration.sender)
    if gone and not under_way and bound.number > newest:
        at_receiver = all(bound.owners[group] == migration.receiver for group in gone)
        state = State.COMMITTED if at_receiver else State.ROLLED_BACK
        wave = Wave(groups=gone, state=state, seen=bound.number, was_open=True)
        remaining = tuple(group for group in migration.remaining if group not in gone)
        number = len(migration.waves) + 1
        note = f"groups {', '.join(map(str, gone))} have left the sender already"
        problem = "" if at_receiver else note
        migration = replace(migration, remaining=remaining).with_wave(number, wave, problem=problem)
        notes.append(note)
    return migration, notes


def _moved_by_others(migration: Migration, groups: Collection[int], bound: Epoch) -> str:
    """Which of these groups are in moves of other migrations, in words; "" where none is."""
    moves = {group: move.id for group, move in bound.moving.items() if move.migration != migration.id}
    return ", ".join(f"group {group} is in move {moves[group]}" for group in sorted(moves.keys() & set(groups)))


def _with_open_wave(migration: Migration, move: Move, bound: Epoch) -> Migration:
    """With one wave more, at work. Waves between it and the last one known must have ended before it began."""
    forgotten = tuple(
        Wave(groups=(), state=State.COMMITTED, seen=bound.number) for _ in range(len(migration.waves) + 1, move.wave)
    )
    state = _state_on_the_way(move)
    wave = Wave(groups=move.groups, state=state, way=_answer_of(move), seen=bound.number, was_open=True)
    return replace(
        migration,
        first_state=State.CHOSEN,
        since=migration.since or bound.number,
        chosen=migration.chosen or move.groups,
        remaining=tuple(group for group in migration.remaining if group not in move.groups),
        waves=(*migration.waves, *forgotten, wave),
    )


def adopt(bound: Epoch, known: Iterable[Migration], now_ms: int) -> list[Instruction]:
    """Migrations for the open moves that no migration under way is responsible for.

    They go on from the move alone: forward, or back where it is recalled. What was to move later is forgotten, and the
    story says so. A migration that had ended, as its journal saw it, is opened again.
    """
    by_id = {migration.id: migration for migration in known}
    instructions: list[Instruction] = []
    for move in bound.moves:
        if not move.migration:
            continue
        migration = by_id.get(move.migration)
        if migration is not None and not migration.done:
            continue
        if migration is not None and _ended_later(migration, move.wave, bound):
            continue
        adopted = _with_reason(_adopted(migration, move, bound, now_ms), bound)
        note = f"the journal was gone or behind; made again from move {move.id} in epoch {bound.number}"
        by_id[adopted.id] = adopted
        instructions += adopted.noted("Adopted", now_ms, note)
    return instructions


def _with_reason(migration: Migration, bound: Epoch) -> Migration:
    """A record says why a migration goes back, also where only the epoch is left to say that it does."""
    if migration.problem or not any(wave.state in BACK for wave in migration.waves):
        return migration
    return replace(migration, problem=f"epoch {bound.number} recalls it; the reason was lost with the journal")


def _ended_later(migration: Migration, number: int, bound: Epoch) -> bool:
    """Whether the migration saw the wave closed in an epoch as young as this one: then this one is old news."""
    return number <= len(migration.waves) and migration.waves[number - 1].seen >= bound.number


def _adopted(migration: Migration | None, move: Move, bound: Epoch, now_ms: int) -> Migration:
    if migration is None:
        migration = Migration(
            id=move.migration,
            query=bound.query,
            incarnation=bound.incarnation,
            strategy=strategy_of(move.kind),
            sender=move.sender,
            receiver=move.receiver,
            request=Request(groups=move.groups),
            reason="adopted",
            requested_by="manager",
            created_ms=now_ms,
            audit=MigrationAudit(unchecked_batches=1),  # at least: nobody knows what came before
        )
    waves = migration.waves[: move.wave - 1]
    adopted = _with_open_wave(replace(migration, outcome="", adopted=True, remaining=(), waves=waves), move, bound)
    under_way = {group for wave in adopted.waves for group in wave.groups}
    if move.way != Way.THERE or not under_way >= set(adopted.chosen):
        return adopted
    # All of it is to arrive: what it had ended for, in a journal that is behind or ahead, is not why it ends.
    return replace(adopted, problem="")
