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
