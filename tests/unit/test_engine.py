"""The engine over any plan equals the naive join, batch after batch, whatever is purged or rebuilt in between."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab import frames
from trimtab.epochs import first_epoch
from trimtab.keys import CODE, GROUP, KeySpec
from worker import reference
from worker.batch import BatchInput, BatchOutcome, run_batch
from worker.durable import Record
from worker.payload import DurableKey
from worker.resident import Residence
from worker.spec import JoinSpec, StreamSpec
from worker.transfers import TransferStore

PARTITIONS = 4
EPOCH = first_epoch("query", "life", [0] * PARTITIONS)
TIME = pa.timestamp("us", tz="UTC")


@dataclass
class HeapState:
    """A state store on the heap: what Spark's does, commit and roll-back included."""

    rows_kept: dict[DurableKey, tuple[str, bytes]] = field(default_factory=dict)
    text: Record | None = None

    def record(self) -> Record | None:
        return self.text

    def put_record(self, record: Record) -> None:
        self.text = record

    def put_rows(self, key: DurableKey, stream: str, frame: bytes) -> None:
        assert key not in self.rows_kept
        self.rows_kept[key] = (stream, frame)

    def remove_rows(self, key: DurableKey) -> None:
        del self.rows_kept[key]

    def get_rows(self, key: DurableKey) -> tuple[str, bytes]:
        return self.rows_kept[key]

    def has_rows(self, key: DurableKey) -> bool:
        return key in self.rows_kept

    def rows(self) -> Iterator[tuple[DurableKey, str, bytes]]:
        for key in sorted(self.rows_kept):
            yield key, *self.rows_kept[key]

    def copy(self) -> HeapState:
        return HeapState(dict(self.rows_kept), self.text)


def spec_of(names: str, window: int, *, hashed: bool = False, ordered: bool = False) -> JoinSpec:
    key = KeySpec(("key",), "column" if hashed else "exact")
    streams = tuple(StreamSpec(name, "at", key, ("key", "at", "id")) for name in names)
    return JoinSpec(streams, window, PARTITIONS, ordered=ordered)


Row = tuple[Any, int, int]
"""Key, time, id."""


def frame_of(rows: list[Row], *, hashed: bool = False) -> bytes:
    keys = [row[0] for row in rows]
    columns: dict[str, pa.Array] = {
        "key": pa.array([f"k{k}" for k in keys] if hashed else keys, pa.string() if hashed else pa.int64()),
        "at": pa.array([row[1] for row in rows], TIME),
        "id": pa.array([row[2] for row in rows], pa.int64()),
        GROUP: pa.array([k % PARTITIONS for k in keys], pa.int16()),
    }
    if hashed:
        # A hash that collides all the time: only the comparison of the keys themselves can keep them apart.
        columns[CODE] = pa.array([k % 2 for k in keys], pa.int64())
    return bytes(frames.encode(pa.RecordBatch.from_pydict(columns)).to_pybytes())


def result_schema(names: str, hashed: bool) -> pa.Schema:
    key = pa.string() if hashed else pa.int64()
    fields = [
        (f"{name}_{column}", kind)
        for name in names
        for column, kind in (("key", key), ("at", TIME), ("id", pa.int64()))
    ]
    return pa.schema(fields)


def ids(outcome: BatchOutcome, names: str) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = []
    for batch in outcome.pieces:
        out += zip(*(batch.column(f"{name}_id").to_pylist() for name in names), strict=True)
    return out


class Run:
    """Batches through `run_batch` as Spark would call it, with the rows that were on time recorded."""

    def __init__(self, directory: Path, names: str, window: int, plan: str, **options: bool) -> None:
        self.names, self.plan = names, plan
        self.hashed = options.get("hashed", False)
        self.spec = spec_of(names, window, **options)
        self.residence = Residence(directory, "query", 0)
        self.transfers = TransferStore(str(directory / "checkpoint"), b"key")
        self.durable = HeapState()
        self.batch = 0
        self.watermark = 0
        self.on_time: dict[str, list[Row]] = {name: [] for name in names}
        self.got: list[tuple[int, ...]] = []

    def step(self, rows: dict[str, list[Row]], watermark: int, *, rebuild: bool = False) -> BatchOutcome:
        late = self.watermark if self.batch else watermark
        given_frames = [(name, frame_of(each, hashed=self.hashed)) for name, each in rows.items() if each]
        batch = BatchInput(
            batch=self.batch,
            worker=0,
            epoch=EPOCH,
            epoch_before=EPOCH.number if self.batch else 0,
            watermark_us=watermark,
            frames=given_frames,
            plan=self.plan,
            rebuild=rebuild,
        )
        schema = result_schema(self.names, self.hashed)
        outcome = run_batch(self.spec, batch, self.durable, self.residence, self.transfers, schema)
        for name, each in rows.items():
            self.on_time[name] += [row for row in each if row[1] > late]
        self.got += ids(outcome, self.names)
        self.batch += 1
        self.watermark = watermark
        return outcome

    def check(self) -> None:
        expected = Counter(reference.join(self.on_time, self.spec.window_us))
        assert Counter(self.got) == expected


@st.composite
def histories(draw: st.DrawFn) -> tuple[str, str, int, list[tuple[dict[str, list[Row]], int, bool]]]:
    names = draw(st.sampled_from(["AB", "ABC", "ABCD"]))
    shapes = {
        "AB": ["left-deep"],
        "ABC": ["left-deep", "mjoin", "((B C) A)", "((A C) B)"],
        "ABCD": ["left-deep", "mjoin", "((A B) (C D))", "((A B C) D)"],
    }
    plan = draw(st.sampled_from(shapes[names]))
    window = draw(st.integers(1, 30))
    batches = []
    watermark = 0
    number = 0
    for step in range(draw(st.integers(1, 6))):
        rows: dict[str, list[Row]] = {}
        for name in names:
            count = draw(st.integers(0, 6))
            rows[name] = []
            for _ in range(count):
                rows[name].append(
                    (draw(st.integers(0, 3)), draw(st.integers(1 + 8 * step - 10, 12 + 8 * step)), number)
                )
                number += 1
        watermark = max(watermark, draw(st.integers(0, 8 * step + 4)))
        batches.append((rows, watermark, draw(st.booleans())))
    return names, plan, window, batches


@settings(max_examples=120, deadline=None)
@given(history=histories(), hashed=st.booleans())
def test_any_plan_gives_each_combination_once(
    history: tuple[str, str, int, list[tuple[dict[str, list[Row]], int, bool]]], hashed: bool
) -> None:
    names, plan, window, batches = history
    with tempfile.TemporaryDirectory() as directory:
        run = Run(Path(directory), names, window, plan, hashed=hashed)
        for rows, watermark, rebuild in batches:
            run.step(rows, watermark, rebuild=rebuild)
        run.check()


def steady(run: Run, batches: int, *, rebuild: bool = False) -> list[BatchOutcome]:
    outcomes = []
    for _ in range(batches):
        start = run.batch * 10 + 1
        rows = {name: [(k, start + k, run.batch * 100 + k) for k in range(8)] for name in run.names}
        outcomes.append(run.step(rows, max(0, start - 12), rebuild=rebuild))
    return outcomes


def test_state_is_found_again_and_expired_rows_leave_every_store(tmp_path: Path) -> None:
    run = Run(tmp_path, "ABC", 20, "left-deep")
    outcomes = steady(run, 40)
    assert all(outcome.hit for outcome in outcomes)
    assert len(run.durable.rows_kept) <= 3 * 16
    assert max(outcome.state_rows for outcome in outcomes) <= 3 * 8 * 5
    run.check()


def test_a_rebuild_in_every_batch_gives_the_same(tmp_path: Path) -> None:
    run = Run(tmp_path, "ABC", 20, "left-deep")
    outcomes = steady(run, 12, rebuild=True)
    assert not any(outcome.hit for outcome in outcomes[1:])
    run.check()


def test_a_failed_attempt_leaves_nothing_that_a_retry_could_mistake_for_state(tmp_path: Path) -> None:
    run = Run(tmp_path, "AB", 20, "left-deep")
    steady(run, 3)
    before = run.durable.copy()
    results = list(run.got)
    rows = {"A": [(1, 31, 900)], "B": [(1, 32, 901)]}
    run.step(rows, 19)
    # Spark did not commit: the store is what it was, the batch runs again, on this executor or on another.
    run.durable, run.got, run.batch, run.watermark = before, results, 3, 9
    run.on_time = {name: kept[:-1] for name, kept in run.on_time.items()}
    outcome = run.step(rows, 19)
    assert not outcome.hit
    steady(run, 2)
    run.check()


def test_two_attempts_at_once_never_share_a_directory(tmp_path: Path) -> None:
    residence = Residence(tmp_path, "query", 0)
    first, saved = residence.claim(None, "0-aa")
    assert saved is None
    residence.publish("0-aa", {"plan": "x"})
    winner, saved = residence.claim("0-aa", "1-bb")
    assert saved == {"plan": "x"}
    zombie, nothing = residence.claim("0-aa", "1-cc")
    assert nothing is None
    assert len({first, winner, zombie}) == 3


def test_late_rows_are_counted_and_dropped_by_the_watermark_of_the_batch_before(tmp_path: Path) -> None:
    run = Run(tmp_path, "AB", 10, "left-deep")
    run.step({"A": [(1, 100, 0)], "B": [(1, 100, 1)]}, 0)
    run.step({"A": [(1, 101, 2)], "B": []}, 95)
    outcome = run.step({"A": [(1, 95, 3), (1, 96, 4)], "B": []}, 99)
    assert outcome.late["A"] == 1
    assert outcome.results == 1
    run.check()


def test_ordered_results_leave_by_result_time(tmp_path: Path) -> None:
    run = Run(tmp_path, "AB", 100, "left-deep", ordered=True)
    outcome = run.step({"A": [(1, t, t) for t in (9, 3, 7)], "B": [(1, t, t) for t in (8, 2, 5)]}, 0)
    times = [max(pair) for pair in ids(outcome, "AB")]
    assert times == sorted(times)
    assert len(times) == 9


def test_load_is_told_per_group_and_adds_up(tmp_path: Path) -> None:
    run = Run(tmp_path, "ABC", 20, "mjoin")
    for outcome in steady(run, 4):
        assert outcome.load is not None and outcome.group_state_rows is not None
        assert outcome.load.rows.sum() == 24
        assert outcome.load.results.sum() == outcome.results
        assert outcome.group_state_rows.sum() == outcome.state_rows


def test_many_small_batches_do_not_make_many_chunks(tmp_path: Path) -> None:
    run = Run(tmp_path, "AB", 10_000, "left-deep")
    steady(run, 70)
    _, saved = run.residence.claim(run.durable.text.stamp if run.durable.text else None, f"{run.batch}-zz")
    assert saved is not None
    assert all(len(entry["chunks"]) <= 8 for entry in saved["payload"])
    run.residence.publish(f"{run.batch}-zz", saved)


@pytest.mark.parametrize("plan", ["left-deep", "mjoin", "((B C) A)"])
def test_plans_agree_on_a_long_run(tmp_path: Path, plan: str) -> None:
    run = Run(tmp_path, "ABC", 25, plan)
    steady(run, 15)
    run.check()
