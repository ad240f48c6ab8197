"""From a committed batch to events: pure translation, and level-triggered.

Looks at the epoch that the batch was bound to and at what its workers say about the open moves, never at what changed
since the batch before. So a manager that was away, or whose Redis forgot, learns the same from the newest batch as one
that saw them all; events it has had already change nothing (`Table.repeated`).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Final

from balancing.committed import CommittedBatch
from balancing.protocols.events import (
    AllOldPurged,
    Applied,
    Deactivated,
    Event,
    ExportFailed,
    HeldTooLong,
    Holding,
    NothingToMove,
    PackageReady,
    PartitionsToMove,
    Proceed,
    RecallAnswered,
    Received,
    Returned,
    StoreRefused,
)
from balancing.protocols.migration import Migration, Wave
from balancing.protocols.table import BACK, State
from trimtab.moves import Kind, Move, RoleState, Way
from trimtab.reports import MoveReport

PATIENCE_BATCHES: Final = 3
"""Rows may wait for a package during this many committed batches before the move goes back."""


def observe(migration: Migration, committed: CommittedBatch, taken: Set[int] = frozenset()) -> list[Event]:
    """What a committed batch says to a migration. `taken`: groups of other migrations under way (taken_groups)."""
    if migration.done or committed.bound.incarnation != migration.incarnation:
        return []
    about: dict[str, Any] = {
        "migration": migration.id,
        "epoch": committed.bound.number,
        "now_ms": committed.at_ms,
        "cause": f"batch {committed.batch}",
    }
    if migration.first_state == State.CHOOSING:
        return _answer(migration, committed, taken, about)
    events: list[Event] = []
    for number, wave in enumerate(migration.waves, 1):
        if wave.final:
            continue
        at = {**about, "wave": number}
        move = committed.open_moves.get(migration.move_id(number))
        if move is None:
            events += _closed(migration, wave, committed, at)
        elif move.kind == Kind.DUPLICATE:
            events += _duplicate(wave, move, committed, at)
        elif move.way != Way.THERE:
            events += _way_back(move, committed, at)
        elif wave.state not in BACK:
            events += _transfer(wave, move, committed, at)
    return events


def _answer(migration: Migration, committed: CommittedBatch, taken: Set[int], at: dict[str, Any]) -> list[Event]:
    """Step 2 of both protocols."""
    asked = any(question.migration == migration.id for question in committed.bound.questions)
    report = committed.report(migration.sender)
    answer = report.chosen.get(migration.id) if asked and report is not None else None
    if answer is None:
        return []
    if answer.problem and migration.table.ships:
        problem = f"worker {migration.sender} cannot use the transfer store: {answer.problem}"
        return [StoreRefused(**at, problem=problem)]
    groups = tuple(sorted(answer.groups))
    wanted = set(migration.request.groups)
    if wanted:
        for problem, some in (
            (f"worker {migration.sender} does not have", wanted - set(groups)),
            ("another migration has", wanted & taken),
        ):
            if some:
                names = ", ".join(map(str, sorted(some)))
                return [NothingToMove(**at, problem=f"{problem} group {names}")]
    elif taken & set(groups):
        # Chosen before others were: the question in the next epoch leaves them out, and is answered anew.
        return []
    if not groups:
        return [NothingToMove(**at, problem=f"worker {migration.sender} has no group that comes near the amount asked")]
    return [PartitionsToMove(**at, groups=groups)]


def _closed(migration: Migration, wave: Wave, committed: CommittedBatch, at: dict[str, Any]) -> list[Event]:
    """The move is not in the epoch any more: the end of the wave, if the epoch is younger than all it has seen."""
    wants = migration.awaited_owner(wave)
    owners = committed.bound.owners
    if committed.bound.number <= wave.seen or any(owners[group] != wants for group in wave.groups):
        return []
    return [Applied(**at)]


def _duplicate(wave: Wave, move: Move, committed: CommittedBatch, at: dict[str, Any]) -> list[Event]:
    """PTLB: the sender's word that no old row is live; or the move seen open, so that it can be closed."""
    if wave.state == State.RETURNING:
        return [Returned(**at)]
    sender = committed.about(move, move.sender)
    if sender is None or sender.state != RoleState.ALL_OLD_PURGED:
        return []
    return [AllOldPurged(**at), Proceed(**at)]


def _transfer(wave: Wave, move: Move, committed: CommittedBatch, at: dict[str, Any]) -> list[Event]:
    """MSLB on its way. The sender's batch ends, packs and ships in one, so steps 4 to 6 are learnt together."""
    events: list[Event] = []
    sender, receiver = committed.about(move, move.sender), committed.about(move, move.receiver)
    if sender is not None and sender.state == RoleState.EXPORTED:
        package = PackageReady(**at, rows=sender.rows, bytes=sender.bytes, digest=sender.digest)
        events += [Deactivated(**at), Proceed(**at), package]
    elif sender is not None and sender.state == RoleState.EXPORT_FAILED:
        events.append(ExportFailed(**at, problem=f"worker {move.sender} could not pack: {sender.problem}"))
    if receiver is not None and receiver.state == RoleState.RECEIVED:
        events += [Received(**at, rows=receiver.rows, digest=receiver.digest), Proceed(**at)]
    elif receiver is not None and receiver.state == RoleState.HOLDING:
        events += _held(wave, receiver, wave.packed_digest or (sender.digest if sender else ""), committed, at)
    return events


def _way_back(move: Move, committed: CommittedBatch, at: dict[str, Any]) -> list[Event]:
    """MSLB on its way back: the receiver's answer to the recall, then the sender's word that it has its groups."""
    if move.way == Way.RECALLED:
        receiver = committed.about(move, move.receiver)
        answers = {RoleState.RECALLED_JOINED: True, RoleState.RECALLED_HELD: False}
        if receiver is None or receiver.state not in answers:
            return []
        return [RecallAnswered(**at, joined=answers[receiver.state])]
    sender = committed.about(move, move.sender)
    return [Returned(**at)] if sender is not None and sender.state == RoleState.RESTORED else []


def _held(wave: Wave, receiver: MoveReport, digest: str, committed: CommittedBatch, at: dict[str, Any]) -> list[Event]:
    """Rows wait. A problem that several packages differ is settled by the packer's word; any problem has its time."""
    problem = receiver.problem or "the package is not there"
    waited = committed.batch - wave.held_since + 1 if wave.held_since >= 0 else 1
    if waited < PATIENCE_BATCHES:
        return [Holding(**at, batch=committed.batch, problem=problem, digest=digest if receiver.problem else "")]
    return [HeldTooLong(**at, problem=f"rows wait since batch {wave.held_since}: {problem}")]
