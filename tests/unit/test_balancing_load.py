"""The load model: what counts, what does not, and that a worker's fixed cost is not taken for load that can move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from balancing.load import EXPORT_PHASE, IMPORT_PHASE, NS_PER_BYTE, Context, LoadModel, Snapshot
from trimtab.epochs import Epoch, first_epoch
from trimtab.moves import Kind, Move, RoleState, Side, Way
from trimtab.reports import MoveReport, WorkerReport

FIXED_NS = 40_000_000
NS_PER_WORK = 1_000


def report(worker: int, batch: int, group_rows: list[int], **changes: Any) -> WorkerReport:
    """A worker whose cost is exactly fixed + rows x cost, apportioned to its groups by rows."""
    rows = sum(group_rows)
    groups = [group for group, each in enumerate(group_rows) if each]
    group_rows = [group_rows[group] for group in groups]
    cpu_ns = FIXED_NS + rows * NS_PER_WORK
    given = WorkerReport(
        query="q",
        batch=batch,
        epoch=1,
        worker=worker,
        attempt=0,
        executor=f"e{worker % 2}",
        process=worker % 2,
        at_ms=batch * 1000,
        rows={"a": rows},
        late_rows={},
        bad_rows={},
        results=0,
        state_rows=rows,
        combined_rows=0,
        state_bytes=rows * 100,
        index_bytes=0,
        watermark_us=(batch + 1) * 1_000_000,
        cpu_ns=cpu_ns,
        resident="hit",
        groups=groups,
        group_rows=group_rows,
        group_state_rows=group_rows,
        group_bytes=[100 * each for each in group_rows],
        group_cpu_ns=[cpu_ns * each // rows if rows else 0 for each in group_rows],
    )
    return replace(given, **changes)


EPOCH = first_epoch("q", "i", (0, 0, 1, 1))
MOVE = Move(id="m", kind=Kind.TRANSFER, groups=(0,), sender=0, receiver=1, epoch=2)


def snapshot(model: LoadModel, epoch: Epoch = EPOCH, **context: Any) -> Snapshot:
    return model.snapshot(epoch, Context(now_ms=0, **context))


def model_after(batches: int) -> LoadModel:
    model = LoadModel(partitions=4, workers=2)
    for batch in range(batches):
        model.add({0: report(0, batch, [6000, 3000, 0, 0]), 1: report(1, batch, [0, 0, 1000, 0])}, EPOCH, span_s=1.0)
    return model


def test_what_a_worker_costs_when_idle_is_no_load_of_its_groups() -> None:
    seen = snapshot(model_after(5))
    assert seen.fixed_cpu_ns_per_s == pytest.approx(FIXED_NS, rel=1e-6)
    assert seen.ns_per_work == pytest.approx(NS_PER_WORK, rel=1e-6)
    assert "work" in seen.measured
    assert seen.group_cpu == pytest.approx((6e6, 3e6, 1e6, 0.0), rel=1e-3)
    assert seen.worker_loads("cpu").tolist() == pytest.approx([FIXED_NS + 9e6, FIXED_NS + 1e6], rel=1e-3)


def test_plans_are_the_workers_own() -> None:
    """A transfer between unlike ones recomputes states, and a forecast must know."""
    model = LoadModel(partitions=4, workers=2)
    given = {0: report(0, 0, [1, 1, 0, 0], plan="((A B) C)"), 1: report(1, 0, [0, 0, 1, 1], plan="(A B C)")}
    model.add(given, EPOCH, span_s=1.0)
    assert snapshot(model).plans == {0: "((A B) C)", 1: "(A B C)"}


def test_where_all_workers_do_the_same_no_fixed_cost_is_guessed() -> None:
    model = LoadModel(partitions=4, workers=2)
    for batch in range(5):
        model.add({0: report(0, batch, [50, 50, 0, 0]), 1: report(1, batch, [0, 0, 50, 50])}, EPOCH, span_s=1.0)
    assert snapshot(model).fixed_cpu_ns_per_s == 0
    assert snapshot(model).group_cpu[0] == pytest.approx((FIXED_NS + 100 * NS_PER_WORK) / 2)


def test_a_batch_without_rows_says_nothing_about_load() -> None:
    model = model_after(3)
    before = snapshot(model)
    assert not model.add({0: report(0, 3, [0] * 4), 1: report(1, 3, [0] * 4)}, EPOCH, span_s=60.0)
    after = snapshot(model)
    assert after.group_cpu == before.group_cpu
    assert after.batches == before.batches == 3
    assert after.batch == 3


def test_a_lost_report_is_not_an_idle_worker() -> None:
    model = model_after(3)
    before = snapshot(model)
    model.add({1: report(1, 3, [0, 0, 1000, 0])}, EPOCH, span_s=1.0)
    assert snapshot(model).group_cpu[:2] == before.group_cpu[:2]
    assert snapshot(model).group_bytes[:2] == before.group_bytes[:2]


def test_a_batch_spent_on_rebuilding_the_state_is_no_load() -> None:
    model = model_after(3)
    before = snapshot(model)
    rebuilding = report(0, 3, [6000, 3000, 0, 0], resident="rebuild", cpu_ns=10**10)
    model.add({0: rebuilding, 1: report(1, 3, [0, 0, 1000, 0])}, EPOCH, span_s=1.0)
    assert snapshot(model).group_cpu[0] == before.group_cpu[0]


def test_a_worker_that_rebuilds_every_time_has_that_load() -> None:
    model = LoadModel(partitions=4, workers=2)
    for batch in range(3):
        reports = {
            0: report(0, batch, [6000, 0, 0, 0], resident="rebuild"),
            1: report(1, batch, [0, 0, 1000, 0], resident="rebuild"),
        }
        model.add(reports, EPOCH, span_s=1.0)
    assert snapshot(model).group_cpu[0] == pytest.approx(6e6, rel=1e-3)


def test_recent_batches_outweigh_old_ones_by_half_lives() -> None:
    model = LoadModel(partitions=4, workers=2, half_life_s=1.0)
    model.add({0: report(0, 0, [100, 0, 0, 0]), 1: report(1, 0, [0, 0, 100, 0])}, EPOCH, span_s=1.0)
    model.add({0: report(0, 1, [400, 0, 0, 0]), 1: report(1, 1, [0, 0, 100, 0])}, EPOCH, span_s=1.0)
    assert snapshot(model).group_rows[0] == pytest.approx((100 / 2 + 400) / 1.5)


def test_groups_on_the_move_count_where_they_are_going() -> None:
    moved = EPOCH.successor(EPOCH.owners, moves=(MOVE,))
    seen = snapshot(model_after(3), moved, moving={1: 1})
    assert seen.moving == {0: 1, 1: 1}
    assert seen.placed().tolist() == [1, 1, 1, 1]
    assert not seen.movable(0)


@pytest.mark.parametrize("way", [Way.RECALLED, Way.JOINED, Way.HELD])
def test_a_move_that_is_undone_leads_back(way: Way) -> None:
    epoch = EPOCH.successor(EPOCH.owners, moves=(replace(MOVE, way=way),))
    seen = snapshot(model_after(1), epoch, moving={0: 1})
    assert seen.moving == {0: 0}
    assert seen.placed().tolist() == [0, 0, 1, 1]


def test_packing_is_measured_once_and_is_no_load() -> None:
    model = model_after(3)
    before = snapshot(model)
    assert before.export_ns_per_byte == NS_PER_BYTE
    epoch = EPOCH.successor(EPOCH.owners, moves=(MOVE,))
    for batch in (3, 4):
        spent, size = (6_000_000, 600_000) if batch == 3 else (50, 0)
        sender = report(
            0,
            batch,
            [6000, 3000, 0, 0],
            cpu_ns=FIXED_NS + 9000 * NS_PER_WORK + spent,
            phase_ns={EXPORT_PHASE: spent},
            moves=[MoveReport(move="m", side=Side.SENDER, state=RoleState.EXPORTED, bytes=1, packed_bytes=size)],
        )
        receiver = report(
            1,
            batch,
            [0, 0, 1000, 0],
            cpu_ns=FIXED_NS + 1000 * NS_PER_WORK + spent,
            phase_ns={IMPORT_PHASE: spent},
            moves=[MoveReport(move="m", side=Side.RECEIVER, state=RoleState.RECEIVED, bytes=1, taken_bytes=size)],
        )
        model.add({0: sender, 1: receiver}, epoch, span_s=1.0)
    after = snapshot(model)
    assert after.export_ns_per_byte == after.import_ns_per_byte == 6_000_000 / 600_000
    assert {"export", "import"} <= after.measured
    assert after.group_cpu == pytest.approx(before.group_cpu, rel=1e-3)


def test_workers_not_heard_of_are_down() -> None:
    model = model_after(1)
    for batch in range(1, 4):
        model.add({0: report(0, batch, [10, 0, 0, 0])}, EPOCH, span_s=1.0)
    assert [each.alive for each in snapshot(model).workers] == [True, False]
    assert [each.alive for each in snapshot(model, alive=[1]).workers] == [False, True]


def test_a_changed_mapping_starts_the_count_of_batches_again() -> None:
    model = model_after(3)
    assert snapshot(model).batches == 3
    assert snapshot(model, EPOCH.successor((1, 0, 1, 1))).batches == 0


def test_event_time_is_measured_against_the_clock() -> None:
    model = LoadModel(partitions=4, workers=2)
    for batch in range(4):
        model.add(
            {0: report(0, batch, [9, 0, 0, 0]), 1: report(1, batch, [0, 0, 9, 0])}, EPOCH, span_s=2.0, batch_s=1.5
        )
    assert snapshot(model).event_time_rate == pytest.approx(0.5)
    assert snapshot(model).batch_ms == 1500


def test_workers_of_one_process_share_a_slot() -> None:
    assert snapshot(model_after(3)).slots == {"e0": 1, "e1": 1}
    model = LoadModel(partitions=4, workers=4)
    reports = {worker: report(worker, 0, [5, 5, 5, 5], executor="e", process=worker // 2) for worker in range(4)}
    model.add(reports, first_epoch("q", "i", (0, 1, 2, 3)), span_s=1.0)
    assert snapshot(model, first_epoch("q", "i", (0, 1, 2, 3))).slots == {"e": 2}


def test_no_reports_at_all() -> None:
    model = LoadModel(partitions=4, workers=2)
    assert not model.add({}, EPOCH, span_s=1.0)
    seen = snapshot(model)
    assert seen.group_cpu == (0.0,) * 4 and not any(each.alive for each in seen.workers)
