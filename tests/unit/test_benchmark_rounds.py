"""What the benchmarks of batches make of their figures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.engines import FORMS, Inside, native_settings
from benchmarks.flink.process import JARS_VARIABLE, FlinkMissing, class_path
from benchmarks.flink_join import Outcome
from benchmarks.native_join import JoinOutcome
from benchmarks.rounds import Batch, Entrant, Measured, cpu_s, differences, in_turn, is_flat
from benchmarks.scale import AXES, PointOutcome, findings, fit, points_of
from benchmarks.workload import JoinWorkload, write


def entrant(name: str, digests: dict[int, tuple[int, ...]] | None = None) -> Entrant:
    def build(*_: object) -> None:
        raise AssertionError

    made = Entrant(name, build, Path(), JoinWorkload("AB", 10, 3), Path())  # type: ignore[arg-type]
    made.digests = digests or {}
    return made


@pytest.mark.parametrize(
    ("medians", "flat"),
    [
        ([900, 500, 505, 498], True),
        ([500, 500, 500], False),  # the first step has the start of everything in it
        ([900, 700, 600, 550], False),
        ([900, 700, 600, 550, 540, 545], True),
        ([500, 500, 500, 600], False),
    ],
)
def test_a_slope_is_flat_when_three_steps_take_as_long(medians: list[float], flat: bool) -> None:
    assert is_flat(medians, 0.1) is flat


def test_the_order_of_a_round_is_turned_round() -> None:
    a, b = entrant("a"), entrant("b")
    assert [(number, each.name) for number, each in in_turn(2, [a, b])] == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]


def test_results_differ_where_a_batch_that_both_have_does() -> None:
    ours = entrant("ours", {0: (1, 2, 3), 1: (4, 5, 6), 2: (7, 8, 9)})
    theirs = entrant("theirs", {0: (1, 2, 3), 1: (4, 5, 7)})
    assert differences([ours, theirs]) == ["batch 1: ours has (4, 5, 6), theirs has (4, 5, 7)"]
    assert differences([ours, entrant("same", dict(ours.digests))]) == []


def test_files_are_not_fed_from_where_they_go(tmp_path: Path) -> None:
    workload = JoinWorkload("AB", 10, 3)
    with pytest.raises(ValueError, match="write them elsewhere"):
        Entrant("x", entrant, tmp_path / "in", workload, tmp_path)  # type: ignore[arg-type]


def test_a_round_counts_by_its_median_and_a_query_by_its_middle_round() -> None:
    rounds = [[Batch(n, ms, {}, ()) for n, ms in enumerate(times)] for times in ((1, 2, 90), (5, 5, 5), (3, 3, 3))]
    measured = Measured(rounds, [10.0, 30.0, 20.0])
    assert (measured.medians, measured.ms, measured.spread, measured.cpu) == ([2, 5, 3], 3, (2, 5), 20)


def test_cpu_of_children_is_counted() -> None:
    before = cpu_s()
    with subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert cpu_s() - before >= 0.25
        assert cpu_s(child.pid) >= 0.25
        child.communicate(b"\n")


def test_the_best_form_is_the_fastest_one() -> None:
    rounds = {"trimtab": [10.0, 12.0, 11.0], "memory": [70.0, 66.0, 50.0], "rocksdb": [300.0, 280.0, 310.0]}
    outcome = JoinOutcome("3-way uniform 50k", rounds, {}, 1.0, 3, [], Inside(), "")
    assert outcome.best == "memory"
    assert outcome.ratio("memory") == 6.0
    assert outcome.spread("memory") == (50 / 11, 7.0)


def test_forms_of_spark_s_join_differ_in_store_and_format() -> None:
    made = {form: native_settings(form) for form in FORMS}
    provider = "spark.sql.streaming.stateStore.providerClass"
    version = "spark.sql.streaming.join.stateFormatVersion"
    assert [provider in made[form] for form in FORMS] == [False, True, True]
    assert [made[form].get(version) for form in FORMS] == [None, None, "4"]


def test_flink_counts_by_its_best_form() -> None:
    outcome = Outcome("x")
    for ours, interval, multi in ((100.0, 10.0, 20.0), (120.0, 10.0, 30.0)):
        outcome.add("trimtab", ours, 1)
        outcome.add("interval", interval, 1)
        outcome.add("multi", multi, 1)
    assert outcome.best == "multi"
    assert outcome.ratios == [5.0, 4.0]


def test_without_flink_s_jars_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    with pytest.raises(FlinkMissing, match=f"{JARS_VARIABLE} = .* no jars of Flink"):
        class_path()
    monkeypatch.delenv(JARS_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(FlinkMissing, match=r"Install Maven\. Or put"):
        class_path()


def test_fixed_cost_and_cost_per_row_are_found_again() -> None:
    found = fit([1_000, 10_000, 100_000], [300 + 1, 300 + 10, 300 + 100])
    assert found.fixed_ms == pytest.approx(300)
    assert found.us_per_row == pytest.approx(1)


def test_every_axis_has_points_and_holds_the_rest() -> None:
    base = JoinWorkload("ABC", 20_000, 10)
    for axis in AXES:
        points = points_of([axis], base)
        assert len(points) >= 3
        assert len({(each.workload, each.workers, each.partitions) for each in points}) == len(points)
        assert len({each.label for each in points}) == len(points)
    assert {each.workload for each in points_of(["workers", "partitions"], base)} == {base}
    with pytest.raises(ValueError, match="no axis 'colour'"):
        points_of(["colour"], base)


def test_findings_compare_with_the_floor_and_with_two_workers() -> None:
    outcomes = [
        PointOutcome("rows", "10k", 30_000, [320, 300], [600, 600]),
        PointOutcome("rows", "50k", 150_000, [420, 440], [800, 800]),
        PointOutcome("floor", "10k", 30_000, [200, 200], [300, 300]),
        PointOutcome("floor", "50k", 150_000, [250, 250], [350, 350]),
        PointOutcome("workers", "2", 60_000, [300, 300], [500, 500]),
        PointOutcome("workers", "16", 60_000, [1000, 1000], [2000, 2000]),
    ]
    text = "\n".join(findings(outcomes))
    assert "Trimtab: 280 ms and 1.00 us per input row of time" in text
    assert "10k rows per stream: 1.55 times the floor, 1.50..1.60 (wanted: at most 1.6)" in text
    assert "16 workers: 3.33 times the time of 2 (wanted: at most 1.5), 50 ms for each further worker" in text


@pytest.mark.parametrize(("key", "payload"), [("long", 0), ("text", 5), ("pair", 300)])
def test_files_have_the_columns_that_the_schema_names(tmp_path: Path, key: str, payload: int) -> None:
    workload = JoinWorkload("AB", 50, 3, key=key, payload_bytes=payload)
    write(workload, tmp_path)
    for batch, rows in ((0, 500), (1, 50), (2, 50)):
        table = pq.read_table(tmp_path / "A" / f"{batch:05d}.parquet")
        assert table.num_rows == rows
        assert table.column_names == [column.split()[0] for column in workload.schema.split(", ")]
        if payload:
            assert {len(text.as_py()) for text in table["note"]} == {payload}
