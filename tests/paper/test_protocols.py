"""Promises of PTLB/MSLB about its protocols, one test each.

The manager's side is the production tables and machines. Where a promise is about rows, it is shown on the small data
plane of the search (tests/simulation/plane.py); that real workers do the same is for the tests of `worker`.
"""

from __future__ import annotations

import pytest

from balancing.protocols import TABLES, Row, State
from tests.simulation.model import Model, Scenario, World, epoch_of
from tests.simulation.plane import WINDOW, Plane, exporting, run_batch, start
from tests.simulation.scenarios import migration
from trimtab.epochs import Epoch, first_epoch
from trimtab.moves import Move


def steps(name: str) -> list[Row]:
    """The rows of the paper's steps in their order, the first wave's only."""
    table = TABLES[name]
    return [next(row for row in table.rows if row.step == step) for step in range(1, table.steps + 1)]


def plain_run(scenario: Scenario) -> list[World]:
    """What happens where nothing goes wrong, up to the end."""
    model, world = Model(scenario), scenario.first()
    worlds = [world]
    while not model.at_the_end(world):
        _, world = next(model.good_steps(world))
        worlds.append(world)
    return worlds


def batches(plane: Plane, epochs: list[Epoch]) -> list[tuple[Plane, dict[tuple[int, str], str]]]:
    """One batch per epoch: what the workers have afterwards, and what each says about the move."""
    found = []
    before = epochs[0].number - 1
    for epoch in epochs:
        plane, told = run_batch(plane, epoch, before)
        found.append((plane, {(each.worker, each.move): each.state for each in told}))
        before = epoch.number
    return found


def opened(kind: str) -> Epoch:
    move = Move(id="m.w1", kind=kind, groups=(0,), sender=0, receiver=1, epoch=2)  # type: ignore[arg-type]
    return first_epoch("q", "i", (0,)).successor((0,), migrations=(move.to_json(),))


def test_ptlb_is_a_protocol_of_5_steps_with_these_messages() -> None:
    """Five steps, each a message between the manager and a processor. PTLB/MSLB §3.2, steps 1-5, Algorithm 1."""
    assert [row.message for row in steps("ptlb")] == [
        "ComputePartitionsToMove",
        "PartitionsToMove",
        "DuplicatePartitions",
        "AllOldPurged",
        "DeletePartitions",
    ]


def test_mslb_is_a_protocol_of_8_steps_with_these_messages() -> None:
    """Eight steps. PTLB/MSLB §4.2, steps 1-8, Algorithm 3 (whose line 6 waits for our step 7)."""
    assert [row.message for row in steps("mslb")] == [
        "ComputePartitionsToMove",
        "PartitionsToMove",
        "DeactivatePartitions",
        "Deactivated",
        "SendPartitions",
        "ReceivePartitions",
        "Received",
        "ReactivatePartitions",
    ]


@pytest.mark.parametrize("name", ["ptlb", "mslb"])
def test_each_step_rests_on_the_one_before(name: str) -> None:
    """Every wait of the manager is for the message before. PTLB/MSLB §3.2 and §4.2, Algorithms 1 and 3."""
    rows = steps(name)
    assert [row.state for row in rows[1:]] == [row.next for row in rows[:-1]]


@pytest.mark.parametrize("name", ["ptlb", "mslb"])
def test_a_group_moves_as_a_whole(name: str) -> None:
    """All partitions with one ID are the unit that moves: no result needs two machines. PTLB/MSLB §3.2, step 2."""
    scenario = Scenario("whole", (migration("m1", name, (0, 1)),), {}, total=0)  # type: ignore[arg-type]
    last = plain_run(scenario)[-1]
    assert epoch_of(last.bound).owners == (1, 1)
    assert [group.cells[0].rows for group in last.plane.value] == [None, None]


def test_rows_go_to_both_machines_from_step_3_on() -> None:
    """A row goes to the sender and the receiver. PTLB/MSLB §3.2, step 3."""
    ((plane, _),) = batches(start(1, 0), [opened("duplicate")])
    assert [cell.rows is not None and 0 in cell.rows for cell in plane[0].cells] == [True, True]


def test_the_receiver_has_only_new_rows() -> None:
    """The receiver has no tuples when the move starts, so all of its own are new. PTLB/MSLB §3.1."""
    ((plane, _),) = batches(start(1, 0), [opened("duplicate")])
    assert plane[0].cells[1].rows == (0,)


def test_no_result_twice_while_both_machines_work() -> None:
    """The sender's root leaves out all-new combinations; `plane` fails on a doubled result. PTLB/MSLB §3.1."""
    batches(start(1, 0), [opened("duplicate")] * 6)


def test_all_old_are_purged_after_one_window() -> None:
    """After W the sender has new rows only. PTLB/MSLB §3.1, case h = 1.

    For h > 1 the paper needs 2W. We need W: a combination is live while its oldest part is, so no combination with an
    old row outlives that row (architecture, section 5).
    """
    said = [told[0, "m.w1"] for _, told in batches(start(1, 0), [opened("duplicate")] * (WINDOW + 2))]
    assert said == ["old-remains"] * WINDOW + ["all-old-purged"] * 2


def test_deletion_waits_for_all_old_purged() -> None:
    """The manager sends DeletePartitions only after AllOldPurged. PTLB/MSLB §3.2, steps 4 and 5."""
    table = TABLES["ptlb"]
    ways = {row.state for row in table.rows if row.next == State.DELETING}
    assert ways == {State.ALL_OLD_PURGED}


def test_ptlb_never_stops_a_group() -> None:
    """Execution does not stop at any time. PTLB/MSLB §3.2, summary."""
    scenario = Scenario("no stop", (migration("m1", "ptlb", (0,)),), {}, total=0, groups=1)
    for world in plain_run(scenario):
        assert all(cell.held == () for group in world.plane.value for cell in group.cells)


def test_the_sender_finishes_what_is_on_the_fly_before_it_packs() -> None:
    """Deactivated means that all tuples sent before are processed. PTLB/MSLB §4.2, steps 3 and 4.

    The end of the batch stands for the EndOfPartitionInputFlag: the row of that batch is joined, and in the package.
    """
    ((plane, told),) = batches(start(1, 0), [opened("transfer")])
    assert told[0, "m.w1"] == "exported"
    assert plane[0].due == frozenset()
    assert 0 in plane[0].packages[0].rows


def test_rows_of_deactivated_groups_wait_for_the_package() -> None:
    """New tuples are kept in buffers until the partitions are there. PTLB/MSLB §4.2, step 3, second action.

    The buffer is the receiver's durable state, not the split's memory.
    """
    first, _ = run_batch(start(1, 0), opened("transfer"), 1, "late")
    packless = (first[0]._replace(cells=(first[0].cells[0]._replace(frozen=None), first[0].cells[1])),)
    waiting, told = run_batch(packless, opened("transfer"), 2)
    assert waiting[0].cells[1].held == (0,)
    assert "holding" in {each.state for each in told}


def test_rows_that_waited_are_joined_all_at_once() -> None:
    """Buffered tuples are forwarded to the receiver after the partitions. PTLB/MSLB §4.2, step 8."""
    plane, _ = run_batch(start(1, 0), opened("transfer"), 1, "differ")
    for _ in range(2):
        plane, _ = run_batch(plane, opened("transfer"), 2)
    assert plane[0].cells[1].held == (0, 1)
    move = Move(id="m.w1", kind="transfer", groups=(0,), sender=0, receiver=1, epoch=2, digest="d")
    settled = opened("transfer").successor((0,), migrations=(move.to_json(),))
    plane, _ = run_batch(plane, settled, 2)
    assert (plane[0].cells[1].held, plane[0].due) == ((), frozenset())


def test_mslb_does_not_wait_for_the_window() -> None:
    """Partitions move without delay: the sender is relieved at once. PTLB/MSLB §4.2, discussion."""
    said = [told for _, told in batches(start(1, 0), [opened("transfer")] * 2)]
    assert said[1][1, "m.w1"] == "received"


def test_reactivation_waits_for_received() -> None:
    """The manager sends ReactivatePartitions after Received. PTLB/MSLB §4.2, steps 7 and 8."""
    ways = {row.state for row in TABLES["mslb"].rows if row.next == State.REACTIVATING}
    assert ways == {State.RECEIVED}
    assert {row.state for row in TABLES["mslb"].rows if row.next == State.RECEIVED} == {State.RECEIVING}


def test_no_row_is_sent_twice_by_mslb() -> None:
    """No overhead of sending new tuples to both machines. PTLB/MSLB §4.2, discussion."""
    for plane, _ in batches(start(1, 0), [opened("transfer")] * 3):
        joined = [cell.rows is not None and 0 in cell.rows for cell in plane[0].cells]
        assert sum(joined) <= 1
    assert not exporting(plane, opened("transfer"))
