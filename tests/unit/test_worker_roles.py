"""The worker's table: complete, without dead ends, and strict."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from trimtab.errors import CorruptState
from trimtab.moves import Kind, Move, RoleState, Side, Way
from worker import roles
from worker.roles import Action, Arrival, Fact, Row


def move(way: Way = Way.THERE, kind: Kind = Kind.TRANSFER) -> Move:
    return Move(id="m.w1", kind=kind, groups=(0, 1), sender=0, receiver=1, epoch=5, way=way)


def test_the_table_is_sound() -> None:
    assert list(roles.check()) == []


@pytest.mark.parametrize("row", roles.ROWS)
def test_every_row_is_needed_by_the_check_or_leads_somewhere(row: Row) -> None:
    """A table with a row twice is refused."""
    assert any("two rows" in problem for problem in roles.check((*roles.ROWS, row)))


def test_a_fact_that_nobody_answers_is_found() -> None:
    rest = tuple(row for row in roles.ROWS if row.fact != Fact.PACK_FAILED)
    assert any("nobody answers pack-failed" in problem for problem in roles.check(rest))


def test_a_dead_end_is_found() -> None:
    rest = tuple(row for row in roles.ROWS if row.state != RoleState.DROPPED)
    assert any("no way from dropped" in problem for problem in roles.check(rest))


def changed(row: Row, **changes: Any) -> list[str]:
    """What is wrong with the table once this row is another one."""
    return list(roles.check([replace(each, **changes) if each == row else each for each in roles.ROWS]))


def test_an_action_that_yields_a_fact_is_the_last_one() -> None:
    """The fact is what happens next: whatever came after the action would be done in the wrong state."""
    row = next(row for row in roles.ROWS if row.actions[-1:] == (Action.PACK,))
    problems = changed(row, actions=(*row.actions, Action.PACK))
    assert [each for each in problems if "is not the last one" in each] == problems != []


def test_a_move_is_closed_by_the_epoch_alone() -> None:
    row = next(row for row in roles.ROWS if row.fact == Fact.OPENED and row.next != RoleState.CLOSED)
    assert any("closes a move that is open" in problem for problem in changed(row, next=RoleState.CLOSED))


def test_every_state_says_what_happens_to_rows() -> None:
    """And CLOSED need not: rows of a group whose move is closed are joined, wherever they come to."""
    row = next(row for row in roles.ROWS if (row.kind, row.side) == (Kind.DUPLICATE, Side.RECEIVER))
    problems = changed(row, next=RoleState.HOLDING)
    assert any("holding does not say what happens to rows that arrive" in problem for problem in problems)


def test_all_that_is_not_in_the_table_stops_the_query() -> None:
    known = {(row.kind, row.side, row.state, row.fact) for row in roles.ROWS}
    for kind, side, state, fact in itertools.product(Kind, Side, RoleState, Fact):
        if (kind, side, state, fact) in known:
            continue
        with pytest.raises(CorruptState, match=rf"m\.w1 \({kind}\): its {side} is {state} and learns {fact}"):
            roles.transition("m.w1", kind, side, state, fact)


@pytest.mark.parametrize(
    ("each", "epoch_before", "fact"),
    [
        (move(), 4, Fact.OPENED),
        (move(), 5, Fact.SWITCHED),
        (move(Way.RECALLED), 5, Fact.RECALLED),
        (move(Way.JOINED), 6, Fact.BACK_JOINED),
        (move(Way.HELD), 6, Fact.BACK_HELD),
        (move(kind=Kind.DUPLICATE), 4, Fact.OPENED),
        (move(kind=Kind.DUPLICATE), 9, Fact.OPENED),
    ],
)
def test_facts_of_open_moves(each: Move, epoch_before: int, fact: Fact) -> None:
    assert roles.fact_of(each, epoch_before) == fact
    assert (roles.end_fact(each) == Fact.ENDED) == (each.way == Way.THERE)


def test_facts_of_closed_moves() -> None:
    assert roles.closing_fact("m", (0, 1), (0, 0, 1), 0) == Fact.CLOSED_OURS
    assert roles.closing_fact("m", (0, 1), (0, 0, 1), 1) == Fact.CLOSED_THEIRS
    with pytest.raises(CorruptState, match="different owners"):
        roles.closing_fact("m", (1, 2), (0, 0, 1), 1)


def test_whoever_gets_rows_by_the_routes_does_something_with_them() -> None:
    """SWITCHED and RECALLED bring rows to both; BACK to the sender alone; OPENED to the sender (duplicate: to both)."""
    both = {Fact.SWITCHED, Fact.RECALLED}
    for row in roles.ROWS:
        if row.next == RoleState.CLOSED or row.fact not in {Fact.OPENED, *both, Fact.BACK_HELD, Fact.BACK_JOINED}:
            continue
        gets = row.fact in both or row.side == Side.SENDER or row.kind == Kind.DUPLICATE
        assert (roles.arrival(row.kind, row.side, row.next) == Arrival.NONE) == (not gets), row


def test_only_the_sender_of_a_transfer_freezes() -> None:
    frozen = {(row.kind, row.side) for row in roles.ROWS if roles.is_frozen(row.next)}
    assert frozen == {(Kind.TRANSFER, Side.SENDER)}


def test_what_is_frozen_is_put_aside_and_packed_only_frozen() -> None:
    for row in roles.ROWS:
        frozen = roles.is_frozen(row.next)
        if Action.PACK in row.actions or Action.FREEZE in row.actions:
            assert frozen
        if frozen:
            assert roles.arrival(row.kind, row.side, row.next) == Arrival.ASIDE
        if roles.is_frozen(row.state) and not frozen:
            assert Action.UNFREEZE in row.actions


# -- every way that epochs can lead two workers


class Ways:
    """All that can happen to the two workers of a move, batch by batch, as the manager's half of the protocols allows:
    it goes forward when the receiver can go on alone, and back by the receiver's answer."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.taken: set[Row] = set()
        self._seen: set[tuple[RoleState, RoleState, Fact | None]] = set()

    def go(self, sender: RoleState, receiver: RoleState, last: Fact | None) -> None:
        """`last`: what the batch before told the sender; None: the move is about to be opened."""
        if (sender, receiver, last) in self._seen:
            return
        self._seen.add((sender, receiver, last))
        for fact in self._next_facts(sender, receiver, last):
            mirrored = {Fact.CLOSED_OURS: Fact.CLOSED_THEIRS, Fact.CLOSED_THEIRS: Fact.CLOSED_OURS}.get(fact, fact)
            after = itertools.product(
                self._batch(Side.SENDER, sender, fact), self._batch(Side.RECEIVER, receiver, mirrored)
            )
            for new_sender, new_receiver in after:
                if fact not in roles.CLOSING:
                    self.go(new_sender, new_receiver, fact)

    def _next_facts(self, sender: RoleState, receiver: RoleState, last: Fact | None) -> set[Fact]:
        if self.kind == Kind.DUPLICATE:
            gone = {Fact.CLOSED_THEIRS} if sender == RoleState.ALL_OLD_PURGED else set()
            return {Fact.OPENED} if last is None else {Fact.OPENED, Fact.CLOSED_OURS} | gone
        if last is None:
            return {Fact.OPENED, Fact.SWITCHED, Fact.RECALLED}  # a batch may run no task
        if last in (Fact.OPENED, Fact.SWITCHED):
            arrived = {Fact.CLOSED_THEIRS} if receiver == RoleState.RECEIVED else set()
            return {Fact.SWITCHED, Fact.RECALLED} | arrived
        if last == Fact.RECALLED:
            return {Fact.RECALLED, Fact.BACK_JOINED if receiver == RoleState.RECALLED_JOINED else Fact.BACK_HELD}
        return {last, Fact.CLOSED_OURS}

    def _batch(self, side: Side, state: RoleState, fact: Fact) -> set[RoleState]:
        begun = self._learn(side, state, fact)
        if fact not in (Fact.OPENED, Fact.SWITCHED):
            return begun
        return {after for each in begun for after in self._learn(side, each, Fact.ENDED)}

    def _learn(self, side: Side, state: RoleState, fact: Fact) -> set[RoleState]:
        row = roles.transition("m.w1", self.kind, side, state, fact)
        self.taken.add(row)
        found = roles.YIELDS.get(row.actions[-1], frozenset()) if row.actions else frozenset()
        if not found:
            return {row.next}
        return {after for each in found for after in self._learn(side, row.next, each)}


@pytest.mark.parametrize("kind", Kind)
def test_every_row_is_met_and_no_way_is_stuck(kind: Kind) -> None:
    ways = Ways(kind)
    ways.go(RoleState.ACTIVE, RoleState.ACTIVE, None)
    assert ways.taken == {row for row in roles.ROWS if row.kind == kind}
