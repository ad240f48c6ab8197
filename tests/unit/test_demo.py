"""The demo without Spark: its workload keeps its promises, its oracle finds every kind of wrong result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands.demo import workload as work
from commands.demo.__main__ import main
from commands.demo.board import Board
from commands.demo.oracle import JoinVerdict, committed_files, verdict
from commands.runner.progress import BatchProgress
from trimtab.reports import WorkerReport

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
Row = tuple[int | None, float, int]


def _input(directory: Path, stream: str, rows: list[Row]) -> list[Path]:
    path = directory / f"{stream}.parquet"
    columns = list(zip(*rows, strict=True))
    pq.write_table(
        pa.table(
            {
                "user": pa.array(columns[0], pa.int64()),
                "price": pa.array(columns[1], pa.float64()),
                "at": pa.array(columns[2], pa.timestamp("us", tz="UTC")),
            }
        ),
        path,
    )
    return [path]


def _output(directory: Path, rows: list[tuple[Row, Row, Row]]) -> list[Path]:
    path = directory / "output.parquet"
    columns: dict[str, pa.Array] = {}
    for index, stream in enumerate("ABC"):
        columns[f"{stream}_user"] = pa.array([row[index][0] for row in rows], pa.int64())
        columns[f"{stream}_price"] = pa.array([row[index][1] for row in rows], pa.float64())
        columns[f"{stream}_at"] = pa.array([row[index][2] for row in rows], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table(columns), path)
    return [path]


A1: Row = (1, 1.0, START)
A2: Row = (2, 1.0, START)
B1: Row = (1, 2.0, START + SECOND)
B1_TWIN: Row = (1, 2.0, START + SECOND)
C1: Row = (1, 3.0, START + 5 * SECOND)
C1_TOO_FAR: Row = (1, 3.0, START + 5 * SECOND + 1)
OLD: Row = (1, 1.0, START - 3600 * SECOND)
OLD_B: Row = (1, 2.0, START - 3600 * SECOND)
NULL: Row = (None, 1.0, START)
NULL_B: Row = (None, 2.0, START)
GOOD: list[tuple[Row, Row, Row]] = [(A1, B1, C1), (A1, B1_TWIN, C1)]


def _judge(directory: Path, rows: list[tuple[Row, Row, Row]]) -> JoinVerdict:
    inputs = {
        "A": _input(directory, "A", [A1, A2, OLD, NULL]),
        "B": _input(directory, "B", [B1, B1_TWIN, OLD_B, NULL_B]),
        "C": _input(directory, "C", [C1, C1_TOO_FAR, OLD_B, NULL]),
    }
    late_before_us = START - 1800 * SECOND
    return verdict(inputs, _output(directory, rows), window_us=5 * SECOND, late_before_us=late_before_us)


def test_the_right_result_is_found_right_twins_included(tmp_path: Path) -> None:
    judged = _judge(tmp_path, GOOD)
    assert judged == JoinVerdict(2, 2, 0, 0)
    assert judged.good
    assert str(judged) == "expected 2, got 2, missing 0, extra 0"


def test_a_missing_row_is_reported(tmp_path: Path) -> None:
    assert _judge(tmp_path, GOOD[:1]) == JoinVerdict(2, 1, 1, 0)
    assert not _judge(tmp_path, GOOD[:1]).good


def test_an_extra_row_is_reported(tmp_path: Path) -> None:
    for wrong in ((A1, B1, C1_TOO_FAR), (OLD, OLD_B, OLD_B), (A2, B1, C1)):
        assert _judge(tmp_path, [*GOOD, wrong]) == JoinVerdict(2, 3, 0, 1)


def test_a_doubled_row_is_reported(tmp_path: Path) -> None:
    assert _judge(tmp_path, [*GOOD, GOOD[0]]) == JoinVerdict(2, 3, 0, 1)


def test_a_row_in_the_place_of_another_is_reported_as_both(tmp_path: Path) -> None:
    assert _judge(tmp_path, [GOOD[0], (A1, B1, C1_TOO_FAR)]) == JoinVerdict(2, 2, 1, 1)


def test_no_output_at_all_is_all_missing(tmp_path: Path) -> None:
    inputs = {
        "A": _input(tmp_path, "A", [A1]),
        "B": _input(tmp_path, "B", [B1]),
        "C": _input(tmp_path, "C", [C1]),
    }
    assert verdict(inputs, [], window_us=5 * SECOND, late_before_us=0) == JoinVerdict(1, 0, 1, 0)


def test_only_files_in_the_sinks_log_count(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()

    def entry(name: str) -> str:
        return json.dumps({"path": (tmp_path / name).as_uri(), "action": "add"})

    (log / "8").write_text("v1\n" + entry("stale.parquet"))
    (log / "9.compact").write_text("v1\n" + entry("a b.parquet") + "\n" + entry("two.parquet"))
    (log / "10").write_text("v1\n" + entry("three.parquet"))
    (log / ".11.tmp").write_text("half")
    assert committed_files(tmp_path) == [tmp_path / name for name in ("a b.parquet", "two.parquet", "three.parquet")]


@pytest.fixture
def load(tmp_path: Path) -> work.DemoWorkload:
    groups = np.arange(work.KEYS) % work.PARTITIONS
    return work.DemoWorkload(tmp_path, seed=3, rows_per_s=9000, groups=groups, workers=4, start_us=START)


def test_no_row_is_late_but_those_that_should_be(load: work.DemoWorkload) -> None:
    for number in range(6):
        load.write_slice(late=number >= 3)
    for stream in work.STREAMS:
        files = sorted((load.directory / stream).iterdir())
        assert [path.name for path in files] == [f"{number:06d}.parquet" for number in range(6)]
        assert len({path.stat().st_mtime for path in files}) == 6
        watermark = 0
        for number, path in enumerate(files):
            table = pq.read_table(path)
            times = table["at"].cast(pa.int64()).to_numpy()
            late = times < load.late_before_us
            assert late.sum() == (work.ODD_ROWS if number >= 3 else 0)
            assert times[~late].min() > watermark
            assert table["user"].null_count == work.ODD_ROWS
            # The most that a watermark can be: all streams have been read up to here.
            watermark = max(watermark, int(times.max()) - work.LATENESS_US)


def test_one_worker_gets_most(load: work.DemoWorkload) -> None:
    load.write_slice(late=False)
    users = pq.read_table(load.directory / "A")["user"].drop_null().to_numpy()
    counts = np.bincount(users % work.PARTITIONS % 4, minlength=4)
    assert counts.argmax() == work.HOT_WORKER
    assert counts.max() == pytest.approx(work.HOT_SHARE * counts.sum(), rel=0.05)


def test_the_producer_waits_for_a_query_that_is_behind(load: work.DemoWorkload) -> None:
    producer = work.Producer(load, backlog=lambda: 10, backlog_max=5)
    producer.start()
    producer.stop()
    assert load.rows_written == 0


def test_the_board_adds_up_and_shows_who_has_the_load() -> None:
    board = Board()
    none, hit = BatchProgress(2, 0, 0, 10, "-"), "hit"
    board.add(BatchProgress(0, 40, 4, 2000, "-"), {0: _report(0, 0, 10, "rebuild"), 1: _report(0, 1, 30, hit)}, 5.0)
    board.add(BatchProgress(1, 40, 4, 1000, "-"), {0: _report(1, 0, 10, hit), 1: _report(1, 1, 30, hit)}, 6.0)
    board.add(none, {0: _report(2, 0, 0, hit), 1: _report(2, 1, 0, hit)}, 16.0)
    first, second = board.lines()
    assert (first.share, second.share) == (0.25, 0.75)
    assert second.rows_per_s == pytest.approx(20)
    assert (first.hits, first.rebuilds) == (2, 1)
    assert board.summary(4.0) == {
        "rows": 80,
        "results": 12,
        "late_rows": 6,
        "null_key_rows": 0,
        "rows_per_s": 20.0,
        "batches": 2,
        "median_batch_ms": 1500,
        "resident_hit_rate": 0.8333,
        "rows_per_s_before": 30,
        "rows_per_s_after": 0,
        "gain": 0.0,
        "groups_moved": 1,
    }
    assert "batch 2 | watermark" in board.plain("running")
    assert "w1 20/s 75%" in board.plain("running")


def test_a_directory_that_is_not_empty_is_not_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("precious")
    assert main(["--keep", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err


def _report(batch: int, worker: int, rows: int, resident: str) -> WorkerReport:
    return WorkerReport(
        query="demo",
        batch=batch,
        epoch=1,
        worker=worker,
        attempt=0,
        executor="0",
        process=1,
        at_ms=0,
        rows={"A": rows},
        late_rows={"A": 1},
        bad_rows={},
        results=2,
        state_rows=rows,
        combined_rows=0,
        state_bytes=1000,
        index_bytes=100,
        watermark_us=START,
        cpu_ns=1_000_000,
        resident=resident,
        groups=[0],
        group_rows=[rows],
        group_probes=[0],
        group_results=[0],
    )
