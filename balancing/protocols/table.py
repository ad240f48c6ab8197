"""Transition tables: what a protocol is, as data.

A protocol is a list of rows (state, event) -> next state. Each row that enacts a step of the paper carries the step's
number and message. Everything that may happen is in the table: rows, events that may come again or early without
consequence (`repeated`: reports are levels, told in every batch), and states in which a cancel is refused. Whatever
else happens is a ProtocolError. The diagrams in docs/protocols/ are drawn from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from balancing.protocols.events import CancelRequested, Event


class State(StrEnum):
    """Where a migration is. The first three concern it as a whole, the others one wave of its groups."""

    NEW = "new"
    CHOOSING = "choosing"
    CHOSEN = "chosen"

    DEACTIVATING = "deactivating"
    DEACTIVATED = "deactivated"
    SENDING = "sending"
    RECEIVING = "receiving"
    RECEIVED = "received"
    REACTIVATING = "reactivating"

    DUPLICATING = "duplicating"
    ALL_OLD_PURGED = "all-old-purged"
    DELETING = "deleting"

    RETURNING = "returning"
    RESTORING = "restoring"

    COMMITTED = "committed"
    ROLLED_BACK = "rolled-back"


FINAL: Final = frozenset({State.COMMITTED, State.ROLLED_BACK})


@dataclass(frozen=True)
class Row:
    """One transition."""

    state: State
    event: type[Event]
    next: State
    step: int
    """Of the paper's protocol; 0 for the way back and the end, which the paper does not have."""
    message: str
    """The paper's name of the message that the step sends or receives."""
    publishes: bool = False
    """Whether the next epoch is another one because of it."""


@dataclass(frozen=True)
class Table:
    """One protocol."""

    name: str
    title: str
    steps: int
    rows: tuple[Row, ...]
    repeated: frozenset[type[Event]]
    """Events that change nothing where no row names them: told again, or told before what they rest on was."""
    refusing: frozenset[State]
    """States in which a cancel comes too late: the point of no return lies before them."""
    opening: State
    """The state in which a wave starts: its move is to be in the epoch."""
    closing: State
    """The state in which a wave's groups are to be the receiver's. Journaling it is the point of no return."""

    def find(self, state: State, event: type[Event]) -> Row | None:
        return self.index.get((state, event))

    @cached_property
    def index(self) -> Mapping[tuple[State, type[Event]], Row]:
        return {(row.state, row.event): row for row in self.rows}

    def ignores(self, state: State, event: type[Event]) -> bool:
        if event is CancelRequested:
            return state in (State.RETURNING, State.RESTORING, State.ROLLED_BACK)
        return event in self.repeated


def check(table: Table) -> Iterable[str]:
    """What is wrong with a table, if anything: two rows for one case, steps left out, dead ends."""
    seen: set[tuple[State, type[Event]]] = set()
    for row in table.rows:
        if (row.state, row.event) in seen:
            yield f"two rows for {row.event.__name__} in {row.state}"
        seen.add((row.state, row.event))
    missing = set(range(1, table.steps + 1)) - {row.step for row in table.rows}
    if missing:
        yield f"no row for steps {sorted(missing)}"
    for state in {row.next for row in table.rows} - FINAL - {row.state for row in table.rows}:
        yield f"no way out of {state}"
