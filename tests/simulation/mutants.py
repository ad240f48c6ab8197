"""Guards of the protocols, each taken away once. The search must find out what each is good for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from balancing import compose as composing
from balancing import steering
from balancing.protocols import (
    TABLES,
    AllOldPurged,
    Applied,
    CancelRequested,
    Event,
    JournalStep,
    Migration,
    Proceed,
    RecallAnswered,
    Returned,
    Row,
    State,
    Wave,
)
from balancing.protocols.table import BACK
from tests.simulation import driving, managing, plane
from tests.simulation.scenarios import (
    ASKED_TWICE,
    FORGETFUL,
    HASTY,
    LASTING,
    LET_IN,
    LOSING,
    MSLB_ONE,
    MSLB_THERE_AND_BACK,
    PTLB_BOTH,
    TWO_MANAGERS,
)
from tests.simulation.world import Scenario
from trimtab.epochs import Epoch
from trimtab.moves import Kind, RoleState, Side, Way
from worker import roles
from worker.roles import Action, Fact

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


def role_row(kind: Kind, side: Side, state: RoleState, fact: Fact, *actions: Action) -> Patch:
    """The worker's table with other actions for one case."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        key = (kind, side, state, fact)
        monkeypatch.setitem(roles._INDEX, key, replace(roles._INDEX[key], actions=actions))

    return patch


def instead(owner: Any, name: str, function: Callable[..., Any]) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, function)


def all_of(*patches: Patch) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for each in patches:
            each(monkeypatch)

    return patch


def nothing(*_: Any, **__: Any) -> list[Any]:
    return []


def cancel(state: State, to: State) -> Row:
    return Row(state, CancelRequested, to, 0, "Cancel", publishes=True)


# -- observe


def _purged_at_once(wave: Any, move: Any, committed: Any, at: dict[str, Any]) -> list[Event]:
    return [AllOldPurged(**at), Proceed(**at)] if wave.state != State.RETURNING else [Returned(**at)]


def _closed_by_any(migration: Migration, wave: Wave, committed: Any, at: dict[str, Any]) -> list[Event]:
    wants = migration.awaited_owner(wave)
    return [Applied(**at)] if wants is not None and committed.bound.owners[wave.groups[0]] == wants else []


_way_back = observing._way_back


def _answer_mixed_up(move: Any, committed: Any, at: dict[str, Any]) -> list[Event]:
    events: list[Event] = _way_back(move, committed, at)
    return [replace(each, joined=not each.joined) if isinstance(each, RecallAnswered) else each for each in events]


# -- migrations

_in_wave = Migration._in_wave


def _forgets_the_answer(self: Migration, event: Event, row: Row) -> Any:
    return [
        replace(each, migration=_with_way(each.migration, Way.THERE)) if isinstance(each, JournalStep) else each
        for each in _in_wave(self, event, row)
    ]


def _with_way(migration: Migration, way: Way) -> Migration:
    return replace(migration, waves=tuple(replace(wave, way=way) for wave in migration.waves))


# -- compose


class _OpensAgain(composing._Composition):
    def _open(self, migration: Migration, name: str, wave: Wave) -> None:
        super()._open(migration, name, replace(wave, was_open=False))


class _OpensForeign(composing._Composition):
    def _open(self, migration: Migration, name: str, wave: Wave) -> None:
        owners = self.owners
        self.owners = [migration.sender] * len(owners)
        super()._open(migration, name, wave)
        self.owners = owners


class _ClosesAnyway(composing._Composition):
    def _close(self, move: Any, wave: Wave, owner: int) -> None:
        if move is not None:
            del self.moves[move.id]
            for group in wave.groups:
                self.owners[group] = owner


class _OpensRecalled(composing._Composition):
    def _open(self, migration: Migration, name: str, wave: Wave) -> None:
        super()._open(migration, name, wave)
        if wave.state in BACK and name in self.moves:
            self.moves[name] = replace(self.moves[name], way=Way.RECALLED)


class _GivesAway(composing._Composition):
    """Group 0 changes hands while somebody is asked for groups: no move says so."""

    def __init__(self, previous: Epoch) -> None:
        super().__init__(previous)
        if previous.questions:
            self.owners[0] = 1 - self.owners[0]


_way = composing._way


def _there_again(wave: Wave, move: Any) -> Way:
    return _way(wave, move) if wave.state in BACK else Way.THERE


NO_CONTINUITY = all_of(
    *(
        instead(module, check, nothing)
        for module, checks in (
            (composing, ("breaks_between",)),
            (driving, ("breaks_between", "wrong_between")),
            (managing, ("breaks_between", "wrong_between")),
        )
        for check in checks
    )
)
"""Nobody looks at what follows what: the workers themselves must find out."""

# -- reconcile

_reconciled_wave = reconciling._wave


def _no_seen(migration: Any, number: int, wave: Any, bound: Any, open_moves: Any) -> Any:
    changed, note = _reconciled_wave(migration, number, replace(wave, seen=0), bound, open_moves)
    return (changed, note) if note else (wave, "")


NOBODY_TAKES = all_of(
    *(instead(module, "taken_groups", lambda *_: frozenset()) for module in (steering, composing)),
)
SENDER = (Kind.TRANSFER, Side.SENDER)
RESTORED = (Action.UNFREEZE, Action.DROP_PACKAGE)

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
        "a cancelled transfer is recalled before it is restored",
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
    Mutant("a failed export leads back", LASTING, without("mslb", State.DEACTIVATING, "ExportFailed")),
    Mutant("a failed export leads back from step 4 too", LASTING, without("mslb", State.DEACTIVATED, "ExportFailed")),
    Mutant("a failed export leads back from step 5 too", LASTING, without("mslb", State.SENDING, "ExportFailed")),
    Mutant("rows do not wait for ever", LASTING, without("mslb", State.RECEIVING, "HeldTooLong")),
    Mutant("an old batch proves no end", MSLB_THERE_AND_BACK, instead(observing, "_closed", _closed_by_any)),
    Mutant("the bound epoch corrects the journal", FORGETFUL, instead(steering, "reconcile", nothing)),
    Mutant("an old epoch corrects nothing", MSLB_THERE_AND_BACK, instead(reconciling, "_wave", _no_seen)),
    Mutant("open moves without a journal are adopted", FORGETFUL, instead(steering, "adopt", nothing)),
    Mutant(
        "an old epoch opens no migration again",
        MSLB_THERE_AND_BACK,
        instead(reconciling, "_ended_later", lambda *_: False),
    ),
    Mutant("a wave is opened once", HASTY, instead(composing, "_Composition", _OpensAgain)),
    Mutant("the sender owns what it sends", HASTY, instead(composing, "_Composition", _OpensForeign)),
    Mutant("a transfer ends at its sender once it is back", HASTY, instead(composing, "_Composition", _ClosesAnyway)),
    Mutant("a transfer is recalled after it was opened", FORGETFUL, instead(composing, "_Composition", _OpensRecalled)),
    Mutant("one migration per group", ASKED_TWICE, NOBODY_TAKES),
    Mutant("groups that another one moves are let go", LET_IN, instead(reconciling, "_moved_by_others", lambda *_: "")),
    Mutant("a record says why it went back", FORGETFUL, instead(reconciling, "_with_reason", lambda each, _: each)),
    Mutant("the fence", replace(TWO_MANAGERS, fenced=False), lambda _: None),
    Mutant("events come again", MSLB_ONE, instead(type(TABLES["mslb"]), "ignores", lambda *_: False)),
    # The way back without a transfer store.
    Mutant(
        "the receiver's answer is repeated to the sender", MSLB_ONE, instead(observing, "_way_back", _answer_mixed_up)
    ),
    Mutant("the receiver's answer is remembered", MSLB_ONE, instead(Migration, "_in_wave", _forgets_the_answer)),
    Mutant(
        "rows that the receiver joined come back silently",
        MSLB_ONE,
        role_row(*SENDER, RoleState.EXPORTED, Fact.BACK_JOINED, Action.JOIN_ASIDE, *RESTORED),
    ),
    Mutant(
        "rows that nobody joined come back with results",
        MSLB_ONE,
        role_row(*SENDER, RoleState.EXPORTED, Fact.BACK_HELD, Action.ADD_ASIDE_SILENTLY, *RESTORED),
    ),
    Mutant(
        "a recalled sender keeps the rows that it put aside",
        MSLB_ONE,
        role_row(*SENDER, RoleState.EXPORTED, Fact.RECALLED, Action.DROP_ASIDE),
    ),
    Mutant(
        "groups are frozen until they are back",
        MSLB_ONE,
        role_row(*SENDER, RoleState.ACTIVE, Fact.ENDED, Action.PACK),
    ),
    Mutant(
        "the epoch is without the move before a wave has ended",
        MSLB_ONE,
        with_rows("mslb", Row(State.RESTORING, Returned, State.ROLLED_BACK, 0, "Returned")),
    ),
    Mutant(
        "reconcile looks at the way of a move",
        HASTY,
        instead(reconciling, "_as_the_move_goes", lambda wave, *_: (wave, "")),
    ),
    Mutant("a recalled transfer never goes there again", HASTY, instead(composing, "_way", _there_again)),
    Mutant(
        "groups change hands by moves only",
        MSLB_ONE,
        all_of(NO_CONTINUITY, instead(composing, "_Composition", _GivesAway)),
    ),
    # Reports are what was committed.
    Mutant(
        "a report says what was when the batch began",
        LOSING,
        instead(plane, "reported", lambda before, after, epoch: plane.levels(after, epoch)),
    ),
)
