"""A worker gets another plan: states and transitions.

Theory. The tree is decided here and said in the epoch as an order, which is a level: it stays until another one takes
its place. So nothing is sent twice, nothing is lost, and to take an order back is another order, for the old plan. The
worker compares the order with its durable record in every batch and says where it is (trimtab/plan_orders.py).

    waiting     accepted. A wave of MSLB that is open at the worker is let end first, and the next one yields to it
    ordered     the next epoch has the order
    migrating   the worker has both plans (HybMig), or recomputes states for the new one (moving state)
    settled     its durable record says that it runs the new plan alone
    closing     journaled: from here on nobody takes it back. One batch more is awaited, the first to measure by
    committed

    returning   cancelled: the epoch orders the old plan, and that is followed until the worker has settled on it
    cancelled   the old plan runs, or the order was never published
    refused     nothing was ordered: the worker's plan is pinned, both plans need too much memory, ...
    superseded  another order took its place, or the query began anew, while the journal was behind

HybMig waits for streams to go on (HybMig section 3.5: at most one window). One that is idle would keep both plans for
ever, so after a while the same order goes on by moving state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from balancing.replans.events import (
    CancelRequested,
    Event,
    Migrating,
    OrderAllowed,
    Proceed,
    RanAlone,
    Returned,
    Settled,
    StoodStill,
)


class State(StrEnum):
    REQUESTED = "requested"
    """Asked for; the leader has not seen it yet."""
    WAITING = "waiting"
    ORDERED = "ordered"
    MIGRATING = "migrating"
    SETTLED = "settled"
    CLOSING = "closing"
    RETURNING = "returning"

    COMMITTED = "committed"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    SUPERSEDED = "superseded"


FINAL: Final = frozenset({State.COMMITTED, State.CANCELLED, State.REFUSED, State.SUPERSEDED})
YIELDED_TO: Final = frozenset({State.WAITING, State.ORDERED})
"""States in which no wave of MSLB begins at the worker."""


@dataclass(frozen=True)
class Row:
    """One transition."""

    state: State
    event: type[Event]
    next: State
    message: str
    publishes: bool = False
    """Whether the next epoch is another one because of it."""


@dataclass(frozen=True)
class Table:
    rows: tuple[Row, ...]
    repeated: frozenset[type[Event]]
    """Events that change nothing where no row names them: duplicates, or premature ones."""
    refusing: frozenset[State]
    """States in which a cancel comes too late."""

    def find(self, state: State, event: type[Event]) -> Row | None:
        return self.index.get((state, event))

    @cached_property
    def index(self) -> Mapping[tuple[State, type[Event]], Row]:
        return {(row.state, row.event): row for row in self.rows}


TABLE: Final = Table(
    rows=(
        Row(State.WAITING, OrderAllowed, State.ORDERED, "OrderPlan", publishes=True),
        Row(State.ORDERED, Migrating, State.MIGRATING, "Migrating"),
        # A small state is there at once, and a report may have been lost.
        Row(State.ORDERED, Settled, State.SETTLED, "Settled"),
        Row(State.MIGRATING, Settled, State.SETTLED, "Settled"),
        Row(State.SETTLED, Proceed, State.CLOSING, "Close"),
        Row(State.CLOSING, RanAlone, State.COMMITTED, "RanAlone"),
        # A stream is idle: the same order, by moving state.
        Row(State.MIGRATING, StoodStill, State.MIGRATING, "FallBack", publishes=True),
        # The way back. An order whose epoch cannot be seen yet may be bound nevertheless, so it is taken back, too.
        Row(State.WAITING, CancelRequested, State.CANCELLED, "Cancel"),
        Row(State.ORDERED, CancelRequested, State.RETURNING, "Cancel", publishes=True),
        Row(State.MIGRATING, CancelRequested, State.RETURNING, "Cancel", publishes=True),
        Row(State.SETTLED, CancelRequested, State.RETURNING, "Cancel", publishes=True),
        Row(State.RETURNING, Returned, State.CANCELLED, "Returned"),
    ),
    repeated=frozenset({OrderAllowed, Migrating, StoodStill, Settled, Proceed, RanAlone, Returned}),
    refusing=frozenset({State.CLOSING}),
)


def check(table: Table) -> Iterable[str]:
    """What is wrong with a table, if anything: two rows for one case, dead ends."""
    cases: set[tuple[State, type[Event]]] = set()
    for row in table.rows:
        if (row.state, row.event) in cases:
            yield f"two rows for {row.event.__name__} in {row.state}"
        cases.add((row.state, row.event))
    for state in {row.next for row in table.rows} - FINAL - {row.state for row in table.rows}:
        yield f"no way out of {state}"
