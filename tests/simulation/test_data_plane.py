"""The simulated data plane does what moves.py says, and notices when somebody steers it wrongly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.data_plane import DataPlane
from trimtab.embedded import EmbeddedRedis
from trimtab.moves import Move

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


def transfer(plane: DataPlane, **changes: Any) -> Move:
    given: dict[str, Any] = {"id": "m", "sender": 0, "receiver": 1, "epoch": plane.bound.number + 1, **changes}
    return Move(kind="transfer", groups=(0,), **given)


def test_a_transfer_that_commits(plane: DataPlane) -> None:
    publish(plane, 0, transfer(plane))
    assert plane.store.reports("orders", plane.committed)[0].moves[0].state == "exported"
    plane.step()
    assert plane.store.reports("orders", plane.committed)[1].moves[0].state == "received"
    publish(plane, 1)
    plane.step()
    assert plane.verdict() == (0, 0)


@pytest.mark.parametrize("exports_fail", [False, True])
@pytest.mark.parametrize("batches", range(4))
def test_a_transfer_that_is_undone_at_any_time(plane: DataPlane, batches: int, exports_fail: bool) -> None:
    plane.exports_fail = exports_fail
    move = transfer(plane)
    publish(plane, 0, move)
    for _ in range(batches):
        plane.step()
    plane.exports_fail = False
    publish(plane, 0, move, transfer(plane, id="m.undo", undoes="m", sender=1, receiver=0))
    plane.step()
    assert plane.store.reports("orders", plane.committed)[0].moves[1].state == "received"
    publish(plane, 0)
    plane.step()
    assert plane.verdict() == (0, 0)


def test_a_late_package_is_taken_in_with_the_rows_held_for_it(plane: DataPlane) -> None:
    plane.exports_fail = True
    publish(plane, 0, transfer(plane))
    for _ in range(5):
        plane.step()
    assert plane.store.reports("orders", plane.committed)[1].moves[0].held_rows == 5
    plane.exports_fail = False
    plane.step()
    plane.step()
    publish(plane, 1)
    assert plane.verdict() == (0, 0)


def duplicate(plane: DataPlane) -> Move:
    return Move(id="d", kind="duplicate", groups=(0,), sender=0, receiver=1, epoch=plane.bound.number + 1)


def test_a_duplicate_that_commits_once_all_old_rows_are_purged(plane: DataPlane) -> None:
    publish(plane, 0, duplicate(plane))
    states = []
    for _ in range(6):
        plane.step()
        states.append(plane.store.reports("orders", plane.committed)[0].moves[0].state)
    assert states[0] == "old-remains" and states[-1] == "all-old-purged"
    publish(plane, 1)
    plane.step()
    assert plane.verdict() == (0, 0)


@pytest.mark.parametrize("batches", range(6))
def test_a_duplicate_may_be_cancelled_at_any_time(plane: DataPlane, batches: int) -> None:
    publish(plane, 0, duplicate(plane))
    for _ in range(batches):
        plane.step()
    publish(plane, 0)
    plane.step()
    assert plane.verdict() == (0, 0)


def test_closing_a_duplicate_too_early_shows(plane: DataPlane) -> None:
    publish(plane, 0, duplicate(plane))
    publish(plane, 1)
    plane.step()
    assert plane.verdict()[0] > 0


def test_an_owner_changed_without_a_move_shows(plane: DataPlane) -> None:
    publish(plane, 1)
    assert plane.verdict()[0] > 0


def test_redis_that_went_back_is_put_right(plane: DataPlane) -> None:
    publish(plane, 0, transfer(plane))
    bound = plane.bound
    plane.store.client.flushall()
    plane.step()
    assert plane.store.epoch("orders", bound.number) == bound
    assert plane.store.current_number("orders") == bound.number
