"""Promises of PTLB/MSLB about its protocols, one test each.

The manager's side is the production tables and machines. Where a promise is about rows, it is shown on the small data
plane of the search (tests/simulation/plane.py); that real workers do the same is for the tests of `worker`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from balancing.protocols import TABLES, Row, State
from tests.simulation.model import Model
from tests.simulation.plane import LUCKY, WINDOW, Luck, Plane, levels, start
from tests.simulation.plane_batch import run_batch
from tests.simulation.scenarios import request
from tests.simulation.world import Scenario
from trimtab.epochs import Epoch, first_epoch
from trimtab.moves import Kind, Move, RoleState, Way


def steps(name: str) -> list[Row]:
    """The rows of the paper's steps in their order, the first wave's only."""
    table = TABLES[name]
    return [next(row for row in table.rows if row.step == step) for step in range(1, table.steps + 1)]


def plain_run(scenario: Scenario) -> list[tuple[Epoch, Plane]]:
    """What happens where nothing goes wrong, up to the end: the bound epoch and the data plane after each step."""
    model = Model(scenario)
    values, world = model.values, model.first()
    worlds = [world]
    while not model.at_the_end(world):
        step = model.good_step(world)
        assert step is not None
        world = step[1]
        worlds.append(world)
    return [(values.epochs[values.drivers[each.driver].bound], values.planes[each.plane]) for each in worlds]


def batches(
    plane: Plane, epochs: list[Epoch], luck: Luck = LUCKY
) -> list[tuple[Plane, dict[tuple[int, str], RoleState]]]:
    """One batch per epoch: what the workers have afterwards, and where each then is in the move."""
    found = []
    before = epochs[0].number - 1
    for epoch in epochs:
        plane = run_batch(plane, epoch, before, luck)
        found.append((plane, {(each.worker, each.move): each.state for each in levels(plane, epoch)}))
        before = epoch.number
    return found


def opened(kind: Kind) -> Epoch:
    move = Move(id="m.w1", kind=kind, groups=(0,), sender=0, receiver=1, epoch=2)
    return first_epoch("q", "i", (0,)).successor((0,), moves=(move,))


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
    scenario = Scenario("whole", (request("m1", name, (0, 1)),), {}, total=0)  # type: ignore[arg-type]
    epoch, plane = plain_run(scenario)[-1]
    assert epoch.owners == (1, 1)
    assert [cell.rows for cell in plane.workers[0].cells] == [(), ()]


def test_rows_go_to_both_machines_from_step_3_on() -> None:
    """A row goes to the sender and the receiver. PTLB/MSLB §3.2, step 3."""
    ((plane, _),) = batches(start((0,)), [opened(Kind.DUPLICATE)])
    assert [0 in worker.cells[0].rows for worker in plane.workers] == [True, True]


def test_the_receiver_has_only_new_rows() -> None:
    """The receiver has no tuples when the move starts, so all of its own are new. PTLB/MSLB §3.1."""
    ((plane, _),) = batches(start((0,)), [opened(Kind.DUPLICATE)])
    assert plane.workers[1].cells[0].rows == (0,)


def test_no_result_twice_while_both_machines_work() -> None:
    """The sender's root leaves out all-new combinations; `plane` fails on a doubled result. PTLB/MSLB §3.1."""
    batches(start((0,)), [opened(Kind.DUPLICATE)] * 6)


def test_all_old_are_purged_after_one_window() -> None:
    """After W the sender has new rows only. PTLB/MSLB §3.1, case h = 1.

    For h > 1 the paper needs 2W. We need W: a combination is live while its oldest part is, so no combination with an
    old row outlives that row.
    """
    states = [states[0, "m.w1"] for _, states in batches(start((0,)), [opened(Kind.DUPLICATE)] * (WINDOW + 2))]
    assert states == [RoleState.OLD_REMAINS] * WINDOW + [RoleState.ALL_OLD_PURGED] * 2


def test_deletion_waits_for_all_old_purged() -> None:
    """The manager sends DeletePartitions only after AllOldPurged. PTLB/MSLB §3.2, steps 4 and 5."""
    table = TABLES["ptlb"]
    ways = {row.state for row in table.rows if row.next == State.DELETING}
    assert ways == {State.ALL_OLD_PURGED}


def test_ptlb_never_stops_a_group() -> None:
    """Execution does not stop at any time. PTLB/MSLB §3.2, summary."""
    scenario = Scenario("no stop", (request("m1", "ptlb", (0,)),), {}, total=0, groups=1)
    for _, plane in plain_run(scenario):
        assert all(cell.aside == () for worker in plane.workers for cell in worker.cells)


def test_the_sender_finishes_what_is_on_the_fly_before_it_packs() -> None:
    """Deactivated means that all tuples sent before are processed. PTLB/MSLB §4.2, steps 3 and 4.

    The end of the batch stands for the EndOfPartitionInputFlag: the row of that batch is joined, and in the package.
    """
    ((plane, states),) = batches(start((0,)), [opened(Kind.TRANSFER)])
    assert states[0, "m.w1"] == RoleState.EXPORTED
    assert plane.due == (frozenset(),)
    assert 0 in plane.store[0].rows[0]


def test_rows_of_deactivated_groups_wait_for_the_package() -> None:
    """New tuples are kept in buffers until the partitions are there. PTLB/MSLB §4.2, step 3, second action.

    The buffer is the receiver's durable state, not the split's memory.
    """
    *_, (plane, states) = batches(start((0,)), [opened(Kind.TRANSFER)] * 2, Luck(full=True))
    assert plane.workers[1].cells[0].aside == (0,)
    assert states[1, "m.w1"] == RoleState.HOLDING


def test_rows_that_waited_are_joined_all_at_once() -> None:
    """Buffered tuples are forwarded to the receiver after the partitions. PTLB/MSLB §4.2, step 8."""
    *_, (plane, _) = batches(start((0,)), [opened(Kind.TRANSFER)] * 3, Luck(differ=True))
    assert plane.workers[1].cells[0].aside == (0, 1)
    move = Move(id="m.w1", kind=Kind.TRANSFER, groups=(0,), sender=0, receiver=1, epoch=2, digest="d")
    settled = opened(Kind.TRANSFER).successor((0,), moves=(move,))
    plane = run_batch(plane, settled, 2)
    assert (plane.workers[1].cells[0].aside, plane.due) == ((), (frozenset(),))


def test_mslb_does_not_wait_for_the_window() -> None:
    """Partitions move without delay: the sender is relieved at once. PTLB/MSLB §4.2, discussion."""
    _, (_, states) = batches(start((0,)), [opened(Kind.TRANSFER)] * 2)
    assert states[1, "m.w1"] == RoleState.RECEIVED


def test_reactivation_waits_for_received() -> None:
    """The manager sends ReactivatePartitions after Received. PTLB/MSLB §4.2, steps 7 and 8."""
    ways = {row.state for row in TABLES["mslb"].rows if row.next == State.REACTIVATING}
    assert ways == {State.RECEIVED}
    assert {row.state for row in TABLES["mslb"].rows if row.next == State.RECEIVED} == {State.RECEIVING}


def test_no_row_is_joined_twice_by_mslb() -> None:
    """No overhead of new tuples at both machines. PTLB/MSLB §4.2, discussion.

    We deviate: while the transfer is open a copy of each row goes to the sender, which puts it aside and does not join
    it. With it the sender can take its groups back at any time, and needs nothing for it.
    """
    for plane, states in batches(start((0,)), [opened(Kind.TRANSFER)] * 3):
        assert sum(0 in worker.cells[0].rows for worker in plane.workers) <= 1
        assert states[0, "m.w1"] == RoleState.EXPORTED
    assert plane.workers[0].cells[0].aside == (0, 1)


@pytest.mark.parametrize(("luck", "way"), [(LUCKY, Way.JOINED), (Luck(full=True), Way.HELD)])
def test_a_transfer_is_taken_back_without_its_store(luck: Luck, way: Way) -> None:
    """The paper has no way back (§4.2). Ours needs the two workers only: `plane` fails on a lost or doubled result."""
    there = opened(Kind.TRANSFER)
    recalled = there.successor((0,), moves=(_on(there, Way.RECALLED),))
    back = recalled.successor((0,), moves=(_on(there, way),))
    closed = back.successor((0,))
    *_, (plane, states) = batches(start((0,)), [there, there, recalled, back], luck)
    assert states == {(0, "m.w1"): RoleState.RESTORED, (1, "m.w1"): RoleState.DROPPED}
    plane = run_batch(plane, closed, back.number, luck)
    assert [worker.cells[0].rows for worker in plane.workers] == [tuple(range(WINDOW + 1)), ()]
    assert plane.due == (frozenset(),)


def _on(epoch: Epoch, way: Way) -> Move:
    return replace(epoch.moves[0], way=way)
