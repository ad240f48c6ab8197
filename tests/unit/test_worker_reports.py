"""What a worker says: levels of its record, true bytes per group, answers; and epochs that it refuses."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from split_union.split import Watcher, ticks
from tests.checkers.cluster import Cluster, HeapState
from tests.checkers.feed import go, make, record
from trimtab import frames
from trimtab.epochs import first_epoch
from trimtab.errors import CorruptState
from trimtab.evidence import NOTHING, Seen, arriving_digests, tally_of
from trimtab.keys import GROUP, KeySpec
from trimtab.moves import Answer, ComputePartitionsToMove
from trimtab.reports import parse_report
from worker.arriving import SCHEMA, SplitCounts, frame_row, read_rows
from worker.batch import BatchInput, BatchOutcome, run_batch
from worker.reporting import Attempt, worker_report
from worker.resident import Residence
from worker.spec import JoinSpec, StreamSpec
from worker.transfers import FOLDER, TransferStore

TIME = pa.timestamp("us", tz="UTC")


def test_a_report_says_what_was_committed_when_the_batch_began(tmp_path: Path) -> None:
    """So a losing attempt says the same as the winner, and no step is ever learned from one that was not committed."""
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("m.w1", "transfer", [0], 0, 1)])
    states = []
    for _ in range(4):
        go(cluster, feed)
        states.append([cluster.report("m.w1", worker).state.value for worker in (0, 1)])
    assert states == [["active", "active"], ["exported", "active"], ["exported", "received"], ["exported", "received"]]
    assert cluster.report("m.w1", 0).packed_bytes == 0
    assert cluster.report("m.w1", 0).bytes > 0
    cluster.publish([], {0: 1})
    go(cluster, feed)
    assert cluster.report("m.w1", 1).state == "received"
    for _ in range(2):
        go(cluster, feed)
        assert cluster.report("m.w1", 1).state == "closed"
    go(cluster, feed)
    assert [outcome.moves for outcome in cluster.last] == [[], [], []]


def test_a_report_names_the_attempt_that_it_goes_on_from(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    go(cluster, feed)
    before = cluster.last[0]
    cluster.step(feed.rows(), feed.watermark, repeated=[0])
    assert cluster.last[0].stamp_before == before.stamp == before.stamp
    assert cluster.last[0].stamp == record(cluster, 0).stamp != before.stamp


def test_a_store_that_cannot_be_listed_fails_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing about what is in it: a receiver that took it for empty would report what is not so."""
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("m.w1", "transfer", [0], 0, 1)])
    go(cluster, feed)
    kept = copy.deepcopy(cluster.durable)

    def unreachable(*_: Any) -> Any:
        raise OSError("connection reset")

    with monkeypatch.context() as patch:
        patch.setattr("worker.transfers.TransferStore._ready", unreachable)
        with pytest.raises(OSError, match="connection reset"):
            cluster.step(feed.rows(), feed.watermark, order=[1])
    cluster.durable = kept
    go(cluster, feed)
    assert cluster.told("m.w1", 1).state == "received"


def test_an_owner_that_changes_without_a_move_is_refused(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    cluster.publish([], {0: 1})
    with pytest.raises(CorruptState, match=r"takes group 0 from worker 0, .* took part in no move"):
        go(cluster, feed)
    with pytest.raises(CorruptState, match=r"gives group 0 to worker 1, .* took part in no move"):
        cluster.step({}, feed.watermark, order=[1])


def test_a_move_whose_only_epoch_was_missed_is_refused(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("p.w1", "duplicate", [0], 0, 1)])
    cluster.skip(feed.watermark)
    cluster.publish([], {0: 1})
    with pytest.raises(CorruptState, match="its state would be lost"):
        go(cluster, feed)


@pytest.mark.parametrize("steps", [-1, 2])
def test_an_epoch_that_does_not_follow_is_refused(tmp_path: Path, steps: int) -> None:
    cluster, feed = make(tmp_path)
    if steps < 0:
        first = cluster.epoch
        cluster.publish([])
        go(cluster, feed)
        cluster.epoch = first
    else:
        cluster.publish([])
        cluster.publish([])
    with pytest.raises(CorruptState, match=r"is bound to epoch \d, but worker 0 applied epoch"):
        go(cluster, feed)


def test_a_batch_without_tasks_may_have_had_an_epoch_of_its_own(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    cluster.publish([])
    cluster.skip(feed.watermark)
    cluster.publish([])
    go(cluster, feed, 2)
    assert record(cluster, 0).applied_epoch == 3
    cluster.check()


def test_rows_that_come_where_none_may_come_stop_the_query(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("m.w1", "transfer", [0], 0, 1)])
    cluster.group = lambda row: 0  # type: ignore[method-assign]
    frame = cluster.frame([(0, feed.now, 1)])
    batch = BatchInput(
        batch=cluster.batch,
        worker=1,
        epoch=cluster.epoch,
        epoch_before=cluster.epoch_before,
        watermark_us=feed.watermark,
        frames=[("A", frame)],
        plan="((B C) A)",
    )
    with pytest.raises(CorruptState, match="was not routed by epoch 2"):
        run_batch(
            cluster.spec, batch, cluster.durable[1], Residence(tmp_path, "q", 1), cluster.transfers, cluster._schema()
        )


# -- bytes


def wide_and_narrow(tmp_path: Path, share: float) -> tuple[BatchOutcome, dict[int, int]]:
    """Group 0: few rows with long texts. Group 1: many short ones. Group 2: one key, so that its rows combine a lot."""
    rng = np.random.default_rng(3)
    names = "ABC"
    streams = tuple(StreamSpec(name, "at", KeySpec(("key",), "exact"), ("key", "at", "text")) for name in names)
    spec = JoinSpec(streams, 1_000_000, 4)
    kinds = (("key", pa.int64()), ("at", TIME), ("text", pa.string()))
    schema = pa.schema([(f"{name}_{column}", kind) for name in names for column, kind in kinds])
    given, true = [], dict.fromkeys(range(4), 0)
    for number, name in enumerate(names):
        # The plan keeps AB: C has none of key 2, so that the results stay few.
        third = [2] * (60 if number < 2 else 0)
        keys = np.array([*(4 * rng.integers(0, 1000, 20)), *(4 * rng.integers(0, 10**6, 900) + 1), *third])
        texts = ["w" * 5000 if key % 4 == 0 else "n" * int(rng.integers(0, 20)) for key in keys]
        batch = pa.RecordBatch.from_pydict(
            {
                "key": pa.array(keys, pa.int64()),
                "at": pa.array(np.arange(keys.size) + 1, pa.int64()).cast(TIME),
                "text": pa.array(texts, pa.string()),
                GROUP: pa.array((keys % 4).astype(np.int16)),
            }
        )
        for key, text in zip(keys.tolist(), texts, strict=True):
            true[key % 4] += 26 + 8 + 8 + 4 + 2 + len(text)  # columns of the leaf, and payload with its offsets
        given.append((name, frames.encode(batch).to_pybytes()))
    true[2] += 60 * 60 * (8 + 16 + 2 + 8 + 4)  # the state AB
    epoch = first_epoch("query", "life", [0] * 4)
    question = ComputePartitionsToMove(migration="m", worker=0, share=share, measure="bytes")
    epoch = epoch.successor(epoch.owners, questions=[question])
    batch_input = BatchInput(
        batch=0, worker=0, epoch=epoch, epoch_before=0, watermark_us=0, frames=given, plan="left-deep"
    )
    transfers = TransferStore(str(tmp_path / "checkpoint"), b"key")
    outcome = run_batch(spec, batch_input, HeapState(), Residence(tmp_path, "q", 0), transfers, schema)
    return outcome, true


def test_bytes_of_a_group_are_those_of_its_rows_and_combinations(tmp_path: Path) -> None:
    outcome, true = wide_and_narrow(tmp_path, 0.5)
    assert outcome.group_bytes is not None and outcome.group_state_rows is not None
    told, rows = outcome.group_bytes, outcome.group_state_rows
    for group in range(4):
        assert told[group] / told.sum() == pytest.approx(true[group] / sum(true.values()), rel=0.1, abs=0.001)
    assert rows[1] > 10 * rows[0], "by rows alone group 1 would be the large one"
    assert told[0] > told[1]


def test_asked_for_bytes_the_sender_names_the_group_that_has_them(tmp_path: Path) -> None:
    outcome, true = wide_and_narrow(tmp_path, 0.55)
    assert max(true, key=lambda group: true[group]) == 0
    assert outcome.chosen == {"m": Answer(groups=(0,))}


def test_the_averages_follow_what_leaves(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    go(cluster, feed, 30)
    told = cluster.last[0].group_bytes
    rows = cluster.last[0].group_state_rows
    assert told is not None and rows is not None
    assert ((told > 0) == (rows > 0)).all()
    assert (told[rows > 0] >= 26 * rows[rows > 0]).all()


# -- questions about the transfer store


def ask(cluster: Cluster, **more: Any) -> None:
    question = ComputePartitionsToMove(migration="m", worker=0, share=1.0, ships=True, **more)
    cluster.epoch = cluster.epoch.successor(cluster.epoch.owners, questions=[question])


def test_a_store_that_works_is_left_as_it_was(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    ask(cluster)
    go(cluster, feed)
    assert cluster.last[0].chosen == {"m": Answer(groups=(0, 3))}
    assert not [path for path in (cluster.checkpoint / FOLDER).rglob("*") if path.is_file()]


def test_a_store_that_takes_nothing_is_named_before_anything_moves(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    (cluster.checkpoint / "trimtab").mkdir(parents=True)
    (cluster.checkpoint / FOLDER).write_text("a file where a folder should be")
    ask(cluster)
    go(cluster, feed)
    answer = cluster.last[0].chosen["m"]
    assert "takes no package" in answer.problem


def test_a_store_without_room_is_named(tmp_path: Path) -> None:
    store = TransferStore(str(tmp_path), b"key")
    assert store.probe(1) == ""
    assert "bytes free" in store.probe(2**62)


def test_a_store_that_gives_back_other_bytes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TransferStore(str(tmp_path), b"key")
    filesystem = store._filesystem

    class Forgetful:
        def __getattr__(self, name: str) -> Any:
            return getattr(filesystem, name)

        def open_input_stream(self, path: str) -> Any:
            return pa.input_stream(pa.py_buffer(b"other"))

    monkeypatch.setattr(store, "_filesystem", Forgetful())
    assert "other bytes" in store.probe(1)


# -- from split to worker


def test_split_tasks_count_rows_of_moving_groups_and_which_are_on_time() -> None:
    watcher = Watcher("A", [1, 2], 4, 10)
    group, time = np.array([0, 1, 1, 2, 1], np.int16), np.array([20, 10, 11, 9, 30], np.int64)
    watcher.add(pa.array(group), pa.array(time).cast(TIME))
    on_time = tally_of(arriving_digests("A", group[[2, 4]], time[[2, 4]]))
    assert watcher.seen == {1: Seen(rows=3, on_time=on_time), 2: Seen(rows=1, on_time=NOTHING)}


def test_what_a_split_task_sends_is_what_the_worker_reads() -> None:
    seen = {3: Seen(rows=2, on_time=tally_of(np.array([5, 6], np.uint64)))}
    sent = [
        frame_row(70, 1, pa.py_buffer(b"frame")),
        ticks((70, 71), 0, {0}, listener=1, bad_rows=4, seen=seen),
        ticks((70, 71), 1, {0, 1}, listener=1, bad_rows=1, seen=seen),
    ]
    assert all(batch.schema == SCHEMA for batch in sent)
    counts = SplitCounts()
    tables = [batch.to_pandas() for batch in sent]
    assert list(read_rows(tables, ["A", "B"], counts)) == [("B", b"frame")]
    assert counts == SplitCounts(bad_rows={"A": 4, "B": 1}, seen={3: seen[3] + seen[3]})


def test_a_report_survives_its_text(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("m.w1", "transfer", [0], 0, 1)])
    go(cluster, feed, 3)
    attempt = Attempt(query="q", attempt=3, executor="1", process=7, run="r", at_ms=5, cpu_ns=1000)
    batch = BatchInput(
        batch=cluster.batch,
        worker=0,
        epoch=cluster.epoch,
        epoch_before=0,
        watermark_us=feed.watermark,
        frames=[],
        plan="",
    )
    for outcome in cluster.last:
        emitted = sum(piece.num_rows for piece in outcome.pieces)
        report = worker_report(attempt, batch, outcome, SplitCounts({"A": 1}, cluster.seen), emitted)
        assert report.emitted == report.results == sum(report.group_results)
        assert sum(report.group_state_rows) == report.state_rows
        assert parse_report(report.to_text()) == report
