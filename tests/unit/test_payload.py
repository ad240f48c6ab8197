"""Payload rows come back as they went in, across chunks, merges, expiry and the wrap of their numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from trimtab import frames
from trimtab.keys import GROUP
from worker.payload import MERGE_ROWS_MAX, PayloadStore


def frame(first: int, rows: int) -> pa.Buffer:
    numbers = list(range(first, first + rows))
    return frames.encode(
        pa.RecordBatch.from_pydict(
            {
                "id": numbers,
                "tags": [[str(n)] * (n % 3) if n % 5 else None for n in numbers],
                GROUP: pa.array([n % 4 for n in numbers], pa.int16()),
            }
        )
    )


def test_rows_are_gathered_in_the_order_asked_for(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path, "A", 4)
    numbers = np.concatenate(
        [store.append(frame(first, 20_000), first, (first, 0)) for first in range(0, 100_000, 20_000)]
    )
    assert len(store.chunks) > 1
    wanted = np.random.default_rng(1).integers(0, 100_000, 5_000)
    ids, tags = store.gather(numbers[wanted], ["id", "tags"])
    assert ids.to_pylist() == wanted.tolist()
    assert tags.to_pylist() == [[str(n)] * (n % 3) if n % 5 else None for n in wanted.tolist()]


def test_row_numbers_may_wrap_around(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path, "A", 4)
    store.next_row = 2**32 - 30_000
    numbers = [store.append(frame(first, 20_000), first, (first, 0)) for first in (0, 20_000, 40_000)]
    assert numbers[1].max() > numbers[1][-1], "the second batch wraps"
    (ids,) = store.gather(np.concatenate(numbers), ["id"])
    assert ids.to_pylist() == list(range(60_000))


def test_expired_chunks_leave_and_name_what_the_durable_state_may_drop(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path, "A", 4)
    for batch in range(4):
        store.append(frame(batch * 40_000, 40_000), batch, (batch, 0))
    assert store.drop_expired(2) == [(0, 0), (1, 0)]
    assert len(list(tmp_path.glob("rows-*"))) == 2
    (ids,) = store.gather(np.array([80_000, 159_999], np.uint32), ["id"])
    assert ids.to_pylist() == [80_000, 159_999]


def test_small_neighbours_are_merged_and_found_again_by_another_process(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path, "A", 4)
    for batch in range(100):
        store.append(frame(batch * 50, 50), batch, (batch, 0))
    assert len(store.chunks) <= 8
    assert max(chunk.rows for chunk in store.chunks) <= MERGE_ROWS_MAX
    attached = PayloadStore.attach(tmp_path, store.saved(), 4)
    (ids,) = attached.gather(np.arange(5_000, dtype=np.uint32), ["id"])
    assert ids.to_pylist() == list(range(5_000))
    assert sorted(key for chunk in attached.chunks for key in chunk.durable) == [(batch, 0) for batch in range(100)]


def wide(rows: int, widths: tuple[int, int]) -> pa.Buffer:
    """Rows of two groups, each with texts and lists of its own width."""
    group = np.arange(rows) % 2
    sizes = [widths[each] for each in group.tolist()]
    columns = {
        "text": ["x" * size for size in sizes],
        "tags": [[str(size)] * (size // 100) if size > 10 else None for size in sizes],
        "by": pa.array([{"n": [1.0] * (size // 50), "s": "s" * size} for size in sizes]),
        "pairs": pa.array([[("k", size)] * (size // 20) for size in sizes], pa.map_(pa.string(), pa.int64())),
        "ends": pa.array([[size, size] for size in sizes], pa.list_(pa.int64(), 2)),
        GROUP: pa.array(group.astype(np.int16)),
    }
    return frames.encode(pa.RecordBatch.from_pydict(columns))


def test_bytes_of_a_group_are_those_of_its_rows_that_are_there(tmp_path: Path) -> None:
    """The groups change places half-way: the one that had the wide rows has the narrow ones. Once all rows of before
    have left, nothing of them is in the averages, whatever chunks were merged."""
    (tmp_path / "changing").mkdir()
    store = PayloadStore(tmp_path / "changing", "A", 4)
    for batch in range(40):
        store.append(wide(20, (2000, 10) if batch < 20 else (10, 2000)), batch, (batch, 0))
        store.drop_expired(batch - 5)
    assert any(len(chunk.durable) > 1 for chunk in store.chunks), "chunks are merged"
    (tmp_path / "fresh").mkdir()
    fresh = PayloadStore(tmp_path / "fresh", "A", 4)
    fresh.append(wide(20, (10, 2000)), 0, (0, 0))
    assert store.chunks[0].newest_us >= 20, "all rows of before have left"
    assert store.row_bytes_by_group.tolist() == fresh.row_bytes_by_group.tolist()
    assert fresh.row_bytes_by_group[2:].tolist() == [0, 0]
