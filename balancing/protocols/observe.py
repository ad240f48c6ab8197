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
    Received,
    Returned,
)
from balancing.protocols.migration import Migration, Wave
from balancing.protocols.table import State
from trimtab.moves import DUPLICATE, Move, MoveReport, commands_of

PATIENCE_BATCHES: Final = 3
"""Rows may wait for a package during this many committed batches before the move goes back."""

_GOING_BACK: Final = frozenset({State.RETURNING, State.RESTORING})


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
    if migration.first_state == State.CHOOSING and not migration.waves:
        return _answer(migration, committed, taken, about)
    events: list[Event] = []
    for number, wave in enumerate(migration.waves, 1):
        if wave.final:
            continue
        at = {**about, "wave": number}
        move = committed.open_moves.get(migration.move_id(number))
        undo = committed.open_moves.get(migration.undo_id(number))
        if move is None:
            events += _closed(migration, wave, committed, at)
        elif move.kind == DUPLICATE:
            events += _duplicate(wave, move, committed, at)
        elif undo is not None:
            events += _way_back(wave, undo, committed, at)
        elif wave.state not in _GOING_BACK:
            events += _transfer(wave, move, committed, at)
    return events


def _answer(migration: Migration, committed: CommittedBatch, taken: Set[int], at: dict[str, Any]) -> list[Event]:
    """Step 2 of both protocols."""
    asked = any(command.migration == migration.id for command in commands_of(committed.bound))
    report = committed.report(migration.sender)
    if not asked or report is None or migration.id not in report.chosen:
        return []
    groups = tuple(sorted(report.chosen[migration.id]))
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
        # Chosen before others were: the command in the next epoch leaves them out, and is answered anew.
        return []
    if not groups:
        return [NothingToMove(**at, problem=f"worker {migration.sender} has no group that comes near the amount asked")]
    return [PartitionsToMove(**at, groups=groups)]


def _closed(migration: Migration, wave: Wave, committed: CommittedBatch, at: dict[str, Any]) -> list[Event]:
    """The move is in the epoch no more: the end of the wave, if the epoch is younger than all it has seen."""
    wants = {migration.table.closing: migration.receiver, State.RESTORING: migration.sender}.get(wave.state)
    owners = committed.bound.owners
    if wants is None or committed.bound.number <= wave.seen or any(owners[group] != wants for group in wave.groups):
        return []
    return [Applied(**at)]


def _duplicate(wave: Wave, move: Move, committed: CommittedBatch, at: dict[str, Any]) -> list[Event]:
    """PTLB: the sender's word that no old row is live; or the move seen open, so that it can be closed."""
    if wave.state == State.RETURNING:
        return [Returned(**at)]
    told = committed.about(move, move.sender)
    if told is None or told.state != "all-old-purged":
        return []
    return [AllOldPurged(**at), Proceed(**at)]


def _transfer(wave: Wave, move: Move, committed: CommittedBatch, at: dict[str, Any]) -> list[Event]:
    """MSLB on its way. The sender's batch ends, packs and ships in one, so steps 4 to 6 are told together."""
    events: list[Event] = []
    sender, receiver = committed.about(move, move.sender), committed.about(move, move.receiver)
    if sender is not None and sender.state == "exported":
        package = PackageReady(**at, rows=sender.rows, bytes=sender.bytes, digest=sender.digest)
        events += [Deactivated(**at), Proceed(**at), package]
    elif sender is not None and sender.state == "export-failed":
        events.append(ExportFailed(**at, problem=f"worker {move.sender} could not pack: {sender.problem}"))
    if receiver is not None and receiver.state == "received":
        events += [Received(**at, rows=receiver.rows, digest=receiver.digest), Proceed(**at)]
    elif receiver is not None and receiver.state == "holding":
        events += _held(wave, receiver, wave.packed_digest or (sender.digest if sender else ""), committed, at)
    return events


def _way_back(wave: Wave, undo: Move, committed: CommittedBatch, at: dict[str, Any]) -> list[Event]:
    """MSLB on its way back: until the sender has taken in what the receiver packed."""
    if wave.state != State.RETURNING:
        return []
    packer, taker = committed.about(undo, undo.sender), committed.about(undo, undo.receiver)
    if taker is not None and taker.state == "received":
        return [Returned(**at)]
    if taker is not None and taker.state == "holding":
        return _held(wave, taker, packer.digest if packer else "", committed, at)
    if packer is not None and packer.state == "export-failed":
        return _held(wave, packer, "", committed, at)
    return []


def _held(wave: Wave, told: MoveReport, digest: str, committed: CommittedBatch, at: dict[str, Any]) -> list[Event]:
    """Rows wait. A problem that several packages differ is settled by the packer's word; any problem has its time."""
    problem = told.problem or "the package is not there"
    waited = committed.batch - wave.held_since + 1 if wave.held_since >= 0 else 1
    if waited < PATIENCE_BATCHES:
        return [Holding(**at, batch=committed.batch, problem=problem, digest=digest if told.problem else "")]
    if wave.state == State.RETURNING and waited > PATIENCE_BATCHES:
        return []  # There is nowhere else to go, and it has been said once.
    return [HeldTooLong(**at, problem=f"rows wait since batch {wave.held_since}: {problem}")]
