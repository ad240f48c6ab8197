"""The history of loads and owners, and forecast against outcome: what is kept, how exact it is, what it costs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancing.committed import CommittedBatch
from balancing.protocols.migration import Migration, Request, Wave
from balancing.protocols.table import State
from balancing.requests import MoveRequest, Rebalance, RebalanceRequest, requested
from balancing.settings import Settings
from balancing.steering import Steering
from manager.chronicle import Chronicle, Entries
from manager.history import (
    CELLS_MAX,
    FINE_KEPT,
    BatchRow,
    Column,
    columns_text,
    load_codes,
    load_values,
    merged,
    parse_batch_row,
    parse_column,
    reaches_back,
    thinned,
)
from manager.outcomes import Outcomes, foresee
from manager.store import Heartbeat
from tests.unit.balancing_snapshots import snapshot
from tests.unit.test_runner import _report
from trimtab.epochs import first_epoch

OWNERS = (0, 1, 0, 1)
LOADS = (6e8, 1e8, 2e8, 1e8)
SEEN = snapshot(OWNERS, LOADS, ["a", "b"])


def column(at_ms: int, loads: tuple[float, ...] = LOADS, **changes: object) -> Column:
    plain = Column(
        at_ms=at_ms,
        epoch=3,
        ratio=1.5,
        batch_ms=800.0,
        rows_per_s=1000.0,
        loads=load_codes(loads).tobytes(),
        owners=OWNERS,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def committed(batch: int, at_ms: int) -> CommittedBatch:
    reports = {worker: replace(_report(worker, 10), batch=batch, at_ms=at_ms - worker) for worker in (0, 1)}
    return CommittedBatch(batch=batch, bound=first_epoch("q", "i", OWNERS), at_ms=at_ms, reports=reports)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=50))
def test_a_load_is_right_to_three_percent(loads: list[float]) -> None:
    total = sum(loads)
    for load, value in zip(loads, load_values(load_codes(loads)), strict=True):
        share = load / total * 10_000 if total > 0 else 0.0
        assert value == pytest.approx(share, rel=0.035, abs=0.01)


def test_thousands_of_groups_still_differ() -> None:
    loads = np.arange(4096) % 7 + 1.0
    values = load_values(load_codes(loads.tolist()))
    assert len(set(values)) == 7
    assert sum(values) == pytest.approx(10_000, rel=0.03)


def test_columns_and_rows_come_back_as_they_were() -> None:
    full = column(5, owners=(0, 65_535, 0, 1))
    assert parse_column(full.to_text()) == full
    row = BatchRow(1, 2, 3.5, 4.0, 5.25, 1.0625)
    assert parse_batch_row(row.to_text())[:5] == (1, 2, 3.5, 4.0, 5.2)
    assert full.load_values == pytest.approx([6000, 1000, 2000, 1000], rel=0.035)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"owners": "x"}', '{"owners": "eJw=", "loads": ""}'])
def test_a_column_of_another_version_cannot_be_read(text: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        parse_column(text)


def test_sizes_are_as_documented() -> None:
    """docs/redis.md: 1,080 columns take 0.3 MB for 64 groups, at most 11 MB for 4,096."""
    random = np.random.default_rng(1)
    for groups, workers, most in ((64, 4, 300), (4096, 64, 10_500)):
        loads = tuple((random.random(groups) / np.arange(1, groups + 1)).tolist())
        owners = tuple(random.integers(0, workers, groups).tolist())
        assert len(column(1_767_225_600_000, loads, owners=owners).to_text()) <= most


def test_a_minute_has_means_and_the_largest() -> None:
    quiet = column(1, (1.0, 1.0, 1.0, 1.0), ratio=1.1, batch_ms=100.0, rows_per_s=10.0)
    busy = column(2, (1.0, 0.0, 0.0, 0.0), ratio=1.9, batch_ms=900.0, rows_per_s=30.0, owners=(1, 1, 0, 1))
    both = merged([quiet, busy])
    assert (both.at_ms, both.ratio, both.batch_ms, both.rows_per_s) == (2, 1.9, 900.0, 20.0)
    assert both.owners == (1, 1, 0, 1)
    assert both.load_values == pytest.approx([6250, 1250, 1250, 1250], rel=0.04)
    # A query that was started anew with other groups begins anew.
    assert merged([column(1, (1.0,) * 8, owners=(0,) * 8), busy]).loads == busy.loads


def test_one_picture_has_one_step() -> None:
    fine = [column(number * 10_000) for number in range(FINE_KEPT)]
    assert reaches_back(fine, since_ms=50_000) and reaches_back(fine, since_ms=-60_000)
    assert not reaches_back(fine, since_ms=-60_001)
    # A young query has no more than its fine columns.
    assert reaches_back(fine[:3], since_ms=-(10**9)) and reaches_back([], since_ms=0)


def test_an_answer_has_no_more_than_can_be_sent() -> None:
    columns = [column(number * 60_000) for number in range(720)]
    few, stride = thinned(columns, since_ms=600_000)
    assert (len(few), stride) == (355, 2) and few[-1].at_ms == columns[-1].at_ms
    assert thinned(columns[:5], since_ms=60_000) == (columns[1:5], 1)
    assert thinned([], since_ms=0) == ([], 1)
    large = [column(number, (1.0,) * 4096, owners=(0,) * 4096) for number in range(360)]
    few, stride = thinned(large, since_ms=0)
    assert len(few) * 4096 <= CELLS_MAX and stride == 2


def test_owners_are_told_where_they_change() -> None:
    columns = [column(1), column(2), column(3, owners=(1, 1, 0, 1))]
    shown = json.loads(columns_text(columns))
    assert [each["owners"] for each in shown] == [[0, 1, 0, 1], None, [1, 1, 0, 1]]
    assert [each["loads"] for each in shown] == [each.load_values for each in columns]
    assert columns_text([]) == "[]"


def test_batches_become_rows_and_columns() -> None:
    chronicle, written = Chronicle(), []
    steering = Steering(query="q")
    for batch in range(200):
        at_ms = 1000 * batch
        chronicle.note([committed(batch, at_ms)], SEEN, Settings(), steering)
        entries = chronicle.entries(SEEN, at_ms)
        chronicle.written(entries)
        written.append(entries)
    rows = [row for entries in written for row in entries.batches]
    assert [row.batch for row in rows] == list(range(1, 200))
    assert rows[0] == BatchRow(1000, 1, 1000.0, 30.0, 6.0, rows[0].ratio)
    fine = [entries.fine.at_ms for entries in written if entries.fine]
    assert fine == list(range(1000, 200_000, 10_000))
    coarse = [entries.coarse.at_ms for entries in written if entries.coarse]
    assert coarse == [61_000, 121_000, 181_000]
    assert written[-1].fine is None and written[-1].coarse is None


def test_what_is_not_written_is_written_later() -> None:
    chronicle, steering = Chronicle(), Steering(query="q")
    chronicle.note([committed(1, 1000), committed(2, 2500)], SEEN, Settings(), steering)
    assert chronicle.entries(SEEN, 3000) == chronicle.entries(SEEN, 3000)
    chronicle.note([committed(4, 4500)], SEEN, Settings(), steering)
    entries = chronicle.entries(SEEN, 5000)
    # Batch 3 is lost: it took half of the time.
    assert [(row.batch, row.batch_ms) for row in entries.batches] == [(2, 1500.0), (4, 1000.0)]
    chronicle.written(entries)
    assert chronicle.entries(SEEN, 5001) == Entries()
    chronicle.note([committed(4, 4500), replace(committed(5, 9999), reports={})], SEEN, Settings(), steering)
    assert chronicle.entries(SEEN, 5002) == Entries()


def heard(batch: int, batch_ms: int | None) -> Heartbeat:
    return Heartbeat(committed=batch, epoch=1, digest="", at_ms=0, progress_batch=batch, batch_ms=batch_ms)


def test_batch_times_are_the_drivers_where_it_tells_them() -> None:
    """A batch that took 200 ms is none of a second, though one comes each second; throughput is per second."""
    chronicle, steering = Chronicle(), Steering(query="q")

    def rows() -> list[tuple[int, float, float]]:
        entries = chronicle.entries(SEEN, 0)
        chronicle.written(entries)
        return [(row.batch, row.batch_ms, row.rows_per_s) for row in entries.batches]

    chronicle.told(heard(0, 900))
    chronicle.note([committed(1, 1000)], SEEN, Settings(), steering)
    chronicle.told(heard(2, 200))  # before its reports were read
    chronicle.note([committed(2, 2000)], SEEN, Settings(), steering)
    assert rows() == [(2, 200.0, 30.0)]
    chronicle.note([committed(3, 3000)], SEEN, Settings(), steering)
    assert rows() == [], "the driver will tell in a moment"
    chronicle.told(heard(3, 250))
    assert rows() == [(3, 250.0, 30.0)]
    # A progress that got lost does not keep a batch back for ever.
    chronicle.note([committed(4, 4000)], SEEN, Settings(), steering)
    chronicle.note([committed(5, 5000)], SEEN, Settings(), steering)
    chronicle.told(heard(5, 300))
    chronicle.told(None)
    assert rows() == [(4, 1000.0, 30.0), (5, 300.0, 30.0)]


def test_a_failure_of_the_history_does_not_fail_the_turn(caplog: pytest.LogCaptureFixture) -> None:
    broken = replace(SEEN, owners=(9, 9, 9, 9))
    Chronicle().note([committed(1, 1000)], broken, Settings(), Steering(query="q"))
    assert "missing in the history" in caplog.text


def rebalance(state: str = "running", closed_ms: int | None = None) -> Rebalance:
    request = RebalanceRequest(id="r-1", query="q", moves=(MoveRequest(sender=0, receiver=1, groups=(2,)),), at_ms=5000)
    record = replace(requested(request), state=state, migrations=("r-1-1",), closed_ms=closed_ms)  # type: ignore[arg-type]
    return record


def migration(outcome: str = "") -> Migration:
    return Migration(
        id="r-1-1",
        query="q",
        incarnation="i",
        strategy="mslb",
        sender=0,
        receiver=1,
        request=Request(groups=(2,)),
        chosen=(2,),
        waves=(Wave(groups=(2,), state=State.COMMITTED, seen=1, bytes=777),),
        outcome=outcome,
    )


def test_a_forecast_and_then_what_was_measured() -> None:
    outcomes = Outcomes()
    before = [BatchRow(at_ms, at_ms // 1000, 1000.0, 1.0, 1.0, 1.6) for at_ms in range(1000, 5001, 1000)]
    under_way = Steering(query="q", migrations=(migration(),), rebalances=(rebalance(),))
    outcomes.note(under_way, SEEN, Settings(), before)
    (foreseen,) = outcomes.unwritten()
    assert (foreseen.kind, foreseen.rebalance) == ("forecast", "r-1")
    assert (foreseen.outcome.ratio_before, foreseen.outcome.ratio_after, foreseen.outcome.bytes) == (1.6, 1.2, 1000)
    outcomes.written([foreseen])
    outcomes.note(under_way, SEEN, Settings(), [BatchRow(6500, 6, 1500.0, 1.0, 1.0, 1.6)])
    assert outcomes.unwritten() == ()

    ended = Steering(
        query="q", ended=(migration("committed"),), ended_rebalances=(rebalance("committed", closed_ms=9000),)
    )
    levelled = replace(SEEN, owners=(0, 1, 1, 1), at_ms=9500, batches=2)
    outcomes.note(ended, levelled, Settings(), [BatchRow(9400, 9, 5000.0, 1.0, 1.0, 1.2)])
    assert outcomes.unwritten() == (), "too few batches under the new mapping"
    outcomes.note(ended, replace(levelled, batches=5), Settings(), [])
    (measured,) = outcomes.unwritten()
    assert measured.kind == "measured"
    assert measured.outcome.to_json() == {
        "ratio_before": 1.6,
        "ratio_after": 1.2,
        "pause_ms": 500.0,
        "bytes": 777,
        "seconds": 4.0,
    }
    outcomes.written([measured])
    outcomes.note(ended, levelled, Settings(), [])
    assert outcomes.unwritten() == ()


def test_an_idle_stream_is_measured_after_a_minute() -> None:
    outcomes = Outcomes()
    outcomes.note(Steering(query="q", migrations=(migration(),), rebalances=(rebalance(),)), SEEN, Settings(), [])
    ended = Steering(query="q", ended=(migration("committed"),), ended_rebalances=(rebalance("committed", 9000),))
    outcomes.note(ended, replace(SEEN, batches=0, at_ms=69_001), Settings(), [])
    assert [(note.kind, note.outcome.pause_ms) for note in outcomes.unwritten()][1:] == [("measured", None)]


def test_a_forecast_is_made_as_if_nothing_had_begun() -> None:
    assert foresee([migration()], replace(SEEN, moving={2: 1}), Settings()) == foresee([migration()], SEEN, Settings())
