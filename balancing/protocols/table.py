"""What a protocol is: a table of transitions, and the traits in which protocols differ.

The migration (migration.py) finds its transition here, the search tries every row, and the diagrams in docs/protocols/
are drawn from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from balancing.protocols.events import CancelRequested, Event
from trimtab.moves import Kind


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
    """A transfer is recalled; a duplicate is awaited to be seen open, so that it can be closed."""
    RESTORING = "restoring"
    """The sender is to take its groups back."""
    CLEARING = "clearing"
    """The sender has its groups; the epoch is to be without the move."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled-back"


FINAL: Final = frozenset({State.COMMITTED, State.ROLLED_BACK})
BACK: Final = frozenset({State.RETURNING, State.RESTORING, State.CLEARING})
"""States on the way back."""


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
    """Whether the next epoch is another one because of it (compose.py; for the diagrams)."""


@dataclass(frozen=True)
class Table:
    """One protocol."""

    name: str
    title: str
    steps: int
    kind: Kind
    """Of the moves that it opens."""
    paced: bool
    """Whether its groups go in waves that a budget of bytes bounds; else all groups go at once."""
    waits_for_expiry: bool
    """Whether it ends when old rows have left the window; else when the state has arrived."""
    rows: tuple[Row, ...]
    repeated: frozenset[type[Event]]
    """Events that change nothing where no row names them: duplicates, or premature ones."""
    refusing: frozenset[State]
    """States in which a cancel comes too late: the point of no return lies before them."""
    shipping: frozenset[State]
    """States of a wave in which batches pack or take in its groups."""
    opening: State
    """The state in which a wave starts: its move is to be in the epoch."""
    closing: State
    """The state in which a wave's groups are to be the receiver's. Journaling it is the point of no return."""

    @property
    def ships(self) -> bool:
        """Whether the groups' states go through the transfer store."""
        return self.kind == Kind.TRANSFER

    def find(self, state: State, event: type[Event]) -> Row | None:
        return self.index.get((state, event))

    @cached_property
    def index(self) -> Mapping[tuple[State, type[Event]], Row]:
        return {(row.state, row.event): row for row in self.rows}

    def ignores(self, state: State, event: type[Event]) -> bool:
        if event is CancelRequested:
            return state in BACK
        return event in self.repeated


def check(table: Table) -> Iterable[str]:
    """What is wrong with a table, if anything: two rows for one case, steps left out, dead ends."""
    cases: set[tuple[State, type[Event]]] = set()
    for row in table.rows:
        if (row.state, row.event) in cases:
            yield f"two rows for {row.event.__name__} in {row.state}"
        cases.add((row.state, row.event))
    missing = set(range(1, table.steps + 1)) - {row.step for row in table.rows}
    if missing:
        yield f"no row for steps {sorted(missing)}"
    for state in {row.next for row in table.rows} - FINAL - {row.state for row in table.rows}:
        yield f"no way out of {state}"
