"""Every guard of the protocols, taken away once. The search must find out what each is good for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from balancing import compose as composing
from balancing.protocols import TABLES, AllOldPurged, Applied, CancelRequested, Event, Proceed, Row, State
from tests.simulation import model
from tests.simulation.model import Scenario
from tests.simulation.scenarios import (
    ASKED_TWICE,
    FORGETFUL,
    HASTY,
    MSLB_ONE,
    MSLB_THERE_AND_BACK,
    PTLB_BOTH,
    TWO_MANAGERS,
)

# The packages re-export functions of the same names, so that the modules are found by name only.
observing: Any = importlib.import_module("balancing.protocols.observe")
reconciling: Any = importlib.import_module("balancing.protocols.reconcile")

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    guard: str
    """What is taken away."""
    scenario: Scenario
    patch: Patch

    def __str__(self) -> str:
        return self.guard.replace(" ", "-")


def with_rows(protocol: str, *rows: Row, **changes: Any) -> Patch:
    """The protocol with other rows for these cases."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        table = TABLES[protocol]
        cases = {(row.state, row.event) for row in rows}
        kept = tuple(row for row in table.rows if (row.state, row.event) not in cases)
        monkeypatch.setitem(TABLES, protocol, replace(table, rows=(*kept, *rows), **changes))

    return patch


def without(protocol: str, state: State, event: str) -> Patch:
    """The protocol without one row: the event is ignored there."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        table = TABLES[protocol]
        kept = tuple(row for row in table.rows if (row.state, row.event.__name__) != (state, event))
        assert len(kept) == len(table.rows) - 1
        monkeypatch.setitem(TABLES, protocol, replace(table, rows=kept))

    return patch


def instead(owner: Any, name: str, function: Callable[..., Any]) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, function)


def nothing(*_: Any, **__: Any) -> list[Any]:
    return []


def _purged_at_once(wave: Any, move: Any, committed: Any, at: dict[str, Any]) -> list[Event]:
    return [AllOldPurged(**at), Proceed(**at)] if wave.state != State.RETURNING else [observing.Returned(**at)]


def _closed_by_any(migration: Any, wave: Any, committed: Any, at: dict[str, Any]) -> list[Event]:
    wants = {migration.table.closing: migration.receiver, State.RESTORING: migration.sender}.get(wave.state)
    return [Applied(**at)] if wants is not None and committed.bound.owners[wave.groups[0]] == wants else []


class _OpensAgain(composing._Composition):
    def _open(self, migration: Any, name: str, wave: Any) -> None:
        super()._open(migration, name, replace(wave, was_open=False))


class _OpensForeign(composing._Composition):
    def _open(self, migration: Any, name: str, wave: Any) -> None:
        owners = self.owners
        self.owners = [migration.sender] * len(owners)
        super()._open(migration, name, wave)
        self.owners = owners


class _ClosesAnyway(composing._Composition):
    def _close(self, migration: Any, number: int, wave: Any, owner: int) -> None:
        if self.moves.pop(migration.move_id(number), None) is not None:
            self.moves.pop(migration.undo_id(number), None)
            for group in wave.groups:
                self.owners[group] = owner


class _UndoesAtOnce(composing._Composition):
    def add(self, migration: Any, number: int, wave: Any) -> None:
        super().add(migration, number, wave)
        if wave.state == State.RETURNING and migration.move_id(number) in self.moves:
            self._bring_back(migration, migration.move_id(number), migration.undo_id(number), wave)


def _no_seen(migration: Any, number: int, wave: Any, bound: Any, open_moves: Any) -> Any:
    changed, note = _reconciled_wave(migration, number, replace(wave, seen=0), bound, open_moves)
    return (changed, note) if note else (wave, "")


_reconciled_wave = reconciling._wave


def cancel(state: State, to: State) -> Row:
    return Row(state, CancelRequested, to, 0, "Cancel", publishes=True)


MUTANTS = (
    Mutant(
        "MSLB step 8 waits for step 7",
        MSLB_ONE,
        with_rows("mslb", Row(State.RECEIVING, Proceed, State.REACTIVATING, 8, "ReactivatePartitions", publishes=True)),
    ),
    Mutant("PTLB step 5 waits for step 4", PTLB_BOTH, instead(observing, "_duplicate", _purged_at_once)),
    Mutant(
        "MSLB refuses a cancel after step 8",
        MSLB_ONE,
        with_rows("mslb", cancel(State.REACTIVATING, State.RETURNING), refusing=frozenset({State.COMMITTED})),
    ),
    Mutant(
        "PTLB refuses a cancel after step 5",
        PTLB_BOTH,
        with_rows("ptlb", cancel(State.DELETING, State.RETURNING), refusing=frozenset({State.COMMITTED})),
    ),
    Mutant(
        "a cancelled transfer is brought back",
        MSLB_ONE,
        with_rows("mslb", cancel(State.RECEIVING, State.RESTORING)),
    ),
    Mutant(
        "a wave that was not seen open may be open (MSLB)",
        MSLB_ONE,
        with_rows("mslb", cancel(State.DEACTIVATING, State.ROLLED_BACK)),
    ),
    Mutant(
        "a wave that was not seen open may be open (PTLB)",
        PTLB_BOTH,
        with_rows("ptlb", cancel(State.DUPLICATING, State.ROLLED_BACK)),
    ),
    Mutant("a failed export leads back", MSLB_ONE, without("mslb", State.DEACTIVATING, "ExportFailed")),
    Mutant("rows do not wait for ever", MSLB_ONE, without("mslb", State.RECEIVING, "HeldTooLong")),
    Mutant("an old batch proves no end", MSLB_THERE_AND_BACK, instead(observing, "_closed", _closed_by_any)),
    Mutant("the bound epoch corrects the journal", FORGETFUL, instead(model, "reconcile", nothing)),
    Mutant("an old epoch corrects nothing", MSLB_THERE_AND_BACK, instead(reconciling, "_wave", _no_seen)),
    Mutant("open moves without a journal are adopted", FORGETFUL, instead(model, "adopt", nothing)),
    Mutant(
        "an old epoch opens no migration again",
        MSLB_THERE_AND_BACK,
        instead(reconciling, "_ended_later", lambda *_: False),
    ),
    Mutant("a wave is opened once", HASTY, instead(composing, "_Composition", _OpensAgain)),
    Mutant("the sender owns what it sends", HASTY, instead(composing, "_Composition", _OpensForeign)),
    Mutant("a transfer ends at its sender by its undo only", HASTY, instead(composing, "_Composition", _ClosesAnyway)),
    Mutant("an undo comes after its move", MSLB_ONE, instead(composing, "_Composition", _UndoesAtOnce)),
    Mutant("one migration per group", ASKED_TWICE, instead(model, "taken_groups", lambda *_: frozenset())),
    Mutant(
        "the fence",
        replace(TWO_MANAGERS, fenced=False),
        lambda _: None,
    ),
    Mutant("events come again", MSLB_ONE, instead(type(TABLES["mslb"]), "ignores", lambda *_: False)),
)
