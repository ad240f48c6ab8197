"""The data plane of the manager's tests does what moves.py says, and notices when somebody steers it wrongly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.data_plane import DataPlane
from trimtab.embedded import EmbeddedRedis
from trimtab.errors import CorruptState
from trimtab.moves import Kind, Move, RoleState, Way

pytestmark = pytest.mark.redis


@pytest.fixture
def plane(server: EmbeddedRedis) -> DataPlane:
    plane = DataPlane(server.url)
    plane.store.client.flushall()
    plane.define()
    for _ in range(5):
        plane.step()
    return plane


def publish(plane: DataPlane, owner: int, *moves: Move) -> None:
    """An epoch in which group 0 belongs to `owner`, and the batch that binds it."""
    plane.store.publish(plane.bound.successor((owner, *plane.owners[1:]), moves=moves))
    number = plane.bound.number
    plane.step(crash=True)  # lost once: the same binding, the same result
    plane.step()
    assert plane.bound.number == number + 1


def opening(plane: DataPlane, kind: Kind) -> Move:
    return Move(id="m", kind=kind, groups=(0,), sender=0, receiver=1, epoch=plane.bound.number + 1)


def state(plane: DataPlane, worker: int) -> RoleState:
    """As the batch has left it: the next one will report it."""
    record = plane.durable[worker].record()
    assert record is not None
    return record.roles[0].state


def check(plane: DataPlane) -> None:
    plane.step()
    assert plane.verdict() == (0, 0)
    assert plane.leftovers() == []


def test_a_transfer_that_commits(plane: DataPlane) -> None:
    publish(plane, 0, opening(plane, Kind.TRANSFER))
    assert state(plane, 0) == RoleState.EXPORTED
    plane.step()
    assert state(plane, 1) == RoleState.RECEIVED
    assert plane.store.reports("orders", plane.committed)[1].moves[0].state == RoleState.ACTIVE
    plane.step()
    assert plane.store.reports("orders", plane.committed)[1].moves[0].state == RoleState.RECEIVED
    publish(plane, 1)
    check(plane)


@pytest.mark.parametrize("exports_fail", [False, True])
@pytest.mark.parametrize("batches", range(4))
def test_a_transfer_that_is_recalled_at_any_time(plane: DataPlane, batches: int, exports_fail: bool) -> None:
    """A store that fails goes on failing: the way back does not need it."""
    plane.exports_fail = exports_fail
    move = opening(plane, Kind.TRANSFER)
    publish(plane, 0, move)
    for _ in range(batches):
        plane.step()
    publish(plane, 0, replace(move, way=Way.RECALLED))
    answers = {RoleState.RECALLED_JOINED: Way.JOINED, RoleState.RECALLED_HELD: Way.HELD}
    publish(plane, 0, replace(move, way=answers[state(plane, 1)]))
    assert state(plane, 0) == RoleState.RESTORED
    publish(plane, 0)
    check(plane)


def test_a_late_package_is_taken_in_with_the_rows_held_for_it(plane: DataPlane) -> None:
    plane.exports_fail = True
    publish(plane, 0, opening(plane, Kind.TRANSFER))
    for _ in range(5):
        plane.step()
    plane.step()
    assert plane.store.reports("orders", plane.committed)[1].moves[0].held_rows == 10
    plane.exports_fail = False
    plane.step()
    plane.step()
    publish(plane, 1)
    check(plane)


def test_a_duplicate_that_commits_once_all_old_rows_are_purged(plane: DataPlane) -> None:
    publish(plane, 0, opening(plane, Kind.DUPLICATE))
    states = []
    for _ in range(6):
        plane.step()
        states.append(state(plane, 0))
    assert states[0] == RoleState.OLD_REMAINS and states[-1] == RoleState.ALL_OLD_PURGED
    publish(plane, 1)
    check(plane)


@pytest.mark.parametrize("batches", range(6))
def test_a_duplicate_may_be_cancelled_at_any_time(plane: DataPlane, batches: int) -> None:
    publish(plane, 0, opening(plane, Kind.DUPLICATE))
    for _ in range(batches):
        plane.step()
    publish(plane, 0)
    check(plane)


def test_closing_a_duplicate_too_early_stops_the_query(plane: DataPlane) -> None:
    publish(plane, 0, opening(plane, Kind.DUPLICATE))
    with pytest.raises(CorruptState, match="rows that nobody else has"):
        publish(plane, 1)


def test_an_owner_changed_without_a_move_is_never_bound(plane: DataPlane) -> None:
    number = plane.bound.number
    plane.store.publish(plane.bound.successor((1, *plane.owners[1:])))
    plane.step()
    assert (plane.bound.number, plane.restored) == (number, 1)
    check(plane)


def test_redis_that_went_back_is_put_right(plane: DataPlane) -> None:
    publish(plane, 0, opening(plane, Kind.TRANSFER))
    bound = plane.bound
    plane.store.client.flushall()
    plane.step()
    assert plane.store.epoch("orders", bound.number) == bound
    assert plane.store.current_number("orders") == bound.number
