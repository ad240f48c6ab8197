"""Which epochs a worker can go on with, by its own record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trimtab.epochs import Epoch, first_epoch
from trimtab.errors import BindingError, CorruptState
from trimtab.moves import Kind, Move, RoleState, Side
from worker import protocol
from worker.continuity import check_continuity, owned_groups
from worker.durable import Record, Role
from worker.roles import Action

EPOCH = replace(first_epoch("q", "i", (0, 0, 1)), number=5, fence=3)
MOVE = Move(id="m.w1", kind=Kind.TRANSFER, groups=(1,), sender=0, receiver=1, epoch=5)


def check(epoch: Epoch, *, batch: int = 8, worker: int = 0, **changes: Any) -> None:
    record = Record(
        batch=7,
        stamp="s",
        applied_epoch=5,
        fence=3,
        watermark_us=0,
        horizon_us=0,
        plan="",
        groups=owned_groups(EPOCH, worker),
        owned=owned_groups(EPOCH, worker),
    )
    check_continuity(replace(record, **changes), batch, epoch, worker)


def role(side: Side, **changes: Any) -> Role:
    return replace(Role(move="m.w1", kind=Kind.TRANSFER, side=side, groups=[1], epoch=5), **changes)


def following(*owners: int, number: int = 6, moves: tuple[Move, ...] = ()) -> Epoch:
    return replace(EPOCH, owners=owners, number=number, moves=moves)


def test_the_same_epoch_and_the_next_one_can_follow() -> None:
    check(EPOCH)
    check(following(0, 0, 1))
    check(following(0, 0, 1, number=8), batch=10)


def test_an_older_token_is_refused() -> None:
    with pytest.raises(BindingError, match="fencing token 2, after one with 3"):
        check(replace(EPOCH, fence=2))


@pytest.mark.parametrize(("number", "batch"), [(4, 8), (7, 8), (9, 10)])
def test_no_epoch_is_skipped_or_comes_back(number: int, batch: int) -> None:
    with pytest.raises(CorruptState, match="can follow"):
        check(following(0, 0, 1, number=number), batch=batch)


def test_groups_come_and_go_by_moves_that_are_closed() -> None:
    gone = following(0, 1, 1)
    check(gone, worker=0, roles=[role(Side.SENDER)])
    check(gone, worker=1, roles=[role(Side.RECEIVER)])


NOT_CLOSED = [
    pytest.param([], (), id="no part in it"),
    pytest.param(["other side"], (), id="the other part"),
    pytest.param(["closed"], (), id="closed before"),
    pytest.param(["open"], (MOVE,), id="still open"),
]


@pytest.mark.parametrize(("roles", "moves"), NOT_CLOSED)
@pytest.mark.parametrize("side", Side)
def test_by_no_other_move(side: Side, roles: list[str], moves: tuple[Move, ...]) -> None:
    worker, problem = (0, "would be lost") if side == Side.SENDER else (1, "is missing")
    other = Side.RECEIVER if side == Side.SENDER else Side.SENDER
    made = {"other side": role(other), "closed": role(side, state=RoleState.CLOSED), "open": role(side)}
    with pytest.raises(CorruptState, match=problem):
        check(following(0, 1, 1, moves=moves), worker=worker, roles=[made[each] for each in roles])


def test_a_move_of_the_same_name_that_was_opened_later_is_another_one() -> None:
    again = replace(MOVE, epoch=6, sender=1, receiver=0)
    check(following(0, 1, 1, moves=(again,)), worker=0, roles=[role(Side.SENDER)])


def test_every_action_is_executed() -> None:
    assert set(protocol._EXECUTE) == set(Action)
