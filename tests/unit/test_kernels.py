"""Kernels equal their naive twins."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from split_union.routing import route, route_naively
from trimtab import evidence
from worker import kernels, reference
from worker.buffers import AFTER_ALL, MIN_CAPACITY, Horizon, StateBuffer, Tuples

spans = st.tuples(st.integers(-3, 3), st.integers(-50, 50), st.integers(0, 20)).map(lambda t: (t[0], t[1], t[1] + t[2]))
extreme_codes = st.sampled_from([-(2**63), 2**63 - 1, 0, -1, 1])


def tuples(rows: list[tuple[int, int, int]], streams: tuple[str, ...] = ("A", "B")) -> Tuples:
    code, lo, hi = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    refs = np.tile(np.arange(len(rows), dtype=np.uint32), (len(streams), 1))
    return Tuples(streams, code, lo, hi, np.zeros(len(rows), np.int16), refs)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("buffers")


@settings(max_examples=200, deadline=None)
@given(
    stored=st.lists(st.one_of(spans, st.tuples(extreme_codes, st.just(0), st.just(0))), max_size=60),
    new=st.lists(st.one_of(spans, st.tuples(extreme_codes, st.just(0), st.just(0))), max_size=30),
    window=st.integers(0, 40),
    tail=st.integers(0, 10),
)
def test_probe_finds_exactly_the_pairs_that_join(
    directory: Path,
    stored: list[tuple[int, int, int]],
    new: list[tuple[int, int, int]],
    window: int,
    tail: int,
) -> None:
    buffer = StateBuffer.create(directory, ("A", "B"))
    buffer.append(tuples(stored), Horizon(-(2**62)))
    buffer.tail = min(tail, len(stored))
    work = np.zeros(1, np.int64)
    left, right = buffer.probe(tuples(new), window, work)
    pairs = list(zip(left.tolist(), right.tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == reference.probe(stored, new, buffer.tail, window)
    assert work[0] >= len(pairs)


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.lists(spans, min_size=1, max_size=400), min_size=1, max_size=12),
    horizons=st.lists(st.integers(-60, 60), min_size=12, max_size=12).map(sorted),
)
def test_a_buffer_keeps_all_live_tuples_through_growth_and_clean_up(
    directory: Path, batches: list[list[tuple[int, int, int]]], horizons: list[int]
) -> None:
    buffer = StateBuffer.create(directory, ("A", "B"))
    inserted: list[tuple[int, int, int]] = []
    for rows, horizon in zip(batches, horizons, strict=False):
        # Tuples that start before the horizon never arrive: they would be late.
        rows = [row for row in rows if row[1] >= horizon]
        buffer.append(tuples(rows), Horizon(horizon))
        inserted += rows
        buffer.purge(Horizon(horizon))
        live = [row for row in inserted if row[1] >= horizon]
        kept = buffer.live(Horizon(horizon))
        assert list(zip(kept.code.tolist(), kept.lo.tolist(), kept.hi.tolist(), strict=True)) == live
        counts = np.zeros(1, np.int64)
        assert buffer.count_live(Horizon(horizon), counts) == len(live) == counts[0]
        attached = StateBuffer.attach(directory, buffer.saved())
        assert attached.live(Horizon(horizon)).lo.tolist() == kept.lo.tolist()


def test_a_buffer_does_not_grow_while_as_much_expires_as_arrives(tmp_path: Path) -> None:
    buffer = StateBuffer.create(tmp_path, ("A",))
    rows = 4 * MIN_CAPACITY
    for step in range(40):
        time = np.full(rows, step, np.int64)
        code = np.arange(rows, dtype=np.int64) * 7919
        buffer.append(
            Tuples(("A",), code, time, time, np.zeros(rows, np.int16), np.zeros((1, rows), np.uint32)),
            Horizon(step - 2),
        )
        buffer.purge(Horizon(step - 2))
    assert buffer.capacity < 8 * rows
    assert buffer.nbytes / (3 * rows) <= 80
    assert len(list(tmp_path.iterdir())) == 1


def test_a_buffer_that_is_nearly_full_is_cleaned_up_ahead(tmp_path: Path) -> None:
    buffer = StateBuffer.create(tmp_path, ("A", "B"))
    buffer.append(tuples([(i % 7, i, i) for i in range(700)]), Horizon(0))
    buffer.make_room_ahead(Horizon(600))
    assert buffer.full_share > 0.6, "there is room still"
    buffer.append(tuples([(i % 7, i, i) for i in range(700, 900)]), Horizon(0))
    buffer.make_room_ahead(Horizon(600))
    assert buffer.full_share < 0.4
    assert buffer.live(Horizon(600)).lo.tolist() == list(range(600, 900))


@given(
    partition=st.lists(st.integers(0, 9), max_size=200),
    owners=st.lists(st.integers(0, 3), min_size=10, max_size=10),
    also=st.lists(st.integers(-1, 3), min_size=10, max_size=10),
)
@settings(deadline=None)
def test_route_brings_each_workers_rows_together_in_order(
    partition: list[int], owners: list[int], also: list[int]
) -> None:
    also = [second if second != owner else -1 for owner, second in zip(owners, also, strict=True)]
    order, ends = route(np.array(partition, np.int16), np.array(owners, np.int32), np.array(also, np.int32), 4)
    routed = [order[ends[worker] : ends[worker + 1]].tolist() for worker in range(4)]
    assert routed == route_naively(partition, owners, also, 4)
    assert order.size == sum(map(len, routed)), "all of it is somebody's: the split takes these rows"


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), data=st.data())
@settings(deadline=None)
def test_order_by_chunk_points_every_reference_at_its_chunk(sizes: list[int], data: st.DataObject) -> None:
    starts = np.cumsum([0, *sizes])[:-1].astype(np.int64)
    rows = np.array(data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=40)), np.int64)
    rank, offset, ends = kernels.order_by_chunk(rows, starts)
    rebuilt = np.concatenate([offset[ends[i] : ends[i + 1]] + starts[i] for i in range(len(sizes))])
    assert rebuilt[rank].tolist() == rows.tolist()


@given(
    rows=st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 3)), max_size=30),
    tail=st.integers(0, 30),
    horizon=st.integers(-6, 6),
    frozen=st.dictionaries(st.integers(0, 3), st.integers(-6, 6)),
    wanted=st.sets(st.integers(0, 3)),
)
@settings(deadline=None)
def test_live_tuples_of_groups(
    rows: list[tuple[int, int]], tail: int, horizon: int, frozen: dict[int, int], wanted: set[int]
) -> None:
    lo, group = [row[0] for row in rows], [row[1] for row in rows]
    columns = np.array(lo, np.int64), np.array(group, np.int16)
    flags = np.isin(np.arange(4), list(wanted))
    tail, head = min(tail, len(rows)), len(rows)
    limit = Horizon.of(horizon, frozen, 4)
    limits = [min(horizon, frozen.get(g, AFTER_ALL)) for g in range(4)]
    assert limit.by_group(4).tolist() == limits

    def live_now(groups: set[int]) -> list[int]:
        return reference.live(columns[0].tolist(), group, tail, limits, groups)

    everything = {0, 1, 2, 3}
    where: tuple[Any, ...] = (tail, head, limit.us, limit.floors)
    compiled = cast(Any, kernels)
    assert compiled.live_positions(*columns, *where).tolist() == live_now(everything)
    assert compiled.live_positions_of(*columns, *where, flags).tolist() == live_now(wanted)
    assert compiled.advance_tail(*columns, *where) == reference.advance_tail(lo, group, tail, limits)
    counts = np.zeros(4, np.int64)
    assert compiled.count_live(*columns, *where, counts) == len(live_now(everything))
    assert counts.tolist() == [len(live_now({each})) for each in range(4)]
    rest = live_now(everything - wanted)
    kernels.expire(*columns, tail, head, flags, -(2**62))
    assert live_now(everything) == rest
    assert columns[0][:tail].tolist() == lo[:tail]


@given(pairs=st.lists(st.tuples(spans, spans), max_size=20))
@settings(deadline=None)
def test_merged_spans(pairs: list[tuple[tuple[int, int, int], tuple[int, int, int]]]) -> None:
    stored, new = (np.array([pair[side][1:] for pair in pairs], np.int64).reshape(-1, 2) for side in (0, 1))
    order = np.arange(len(pairs), dtype=np.int32)
    lo, hi = kernels.merge_spans(
        stored[::-1, 0].copy(), stored[::-1, 1].copy(), order[::-1].copy(), new[:, 0].copy(), new[:, 1].copy(), order
    )
    expected = reference.merge_spans((stored[1:], new[1:]) for stored, new in pairs)
    assert list(zip(lo.tolist(), hi.tolist(), strict=True)) == expected


leaf_rows = st.tuples(st.integers(-3, 3), st.integers(-9, 9), st.integers(0, 3), st.integers(0, 40))


@given(
    rows=st.lists(leaf_rows, max_size=150),
    first=st.integers(-5, 30),
    before=st.lists(st.integers(-9, 9), min_size=4, max_size=4),
    after=st.lists(st.integers(-9, 9), min_size=4, max_size=4),
    wanted=st.sets(st.integers(0, 3)),
    tail=st.integers(0, 5),
)
@settings(deadline=None)
def test_a_leaf_is_tallied_as_by_hand(
    rows: list[tuple[int, int, int, int]], first: int, before: list[int], after: list[int], wanted: set[int], tail: int
) -> None:
    """Code, time, group and row number; numbers wrap around at 2**32."""
    tail = min(tail, len(rows))
    code, lo, group, row = (np.array([each[i] for each in rows], np.int64) for i in range(4))
    boundary = np.full(4, first, np.int64).astype(np.uint32)
    base = evidence.mixed(np.arange(4, dtype=np.uint64) ^ evidence.salt("A"))
    counts, digests = np.zeros((3, 4), np.int64), np.zeros((3, 4), np.uint64)
    positions = kernels.tally_leaf(
        code,
        lo,
        group.astype(np.int16),
        row.astype(np.uint32),
        tail,
        len(rows),
        np.isin(np.arange(4), list(wanted)),
        boundary,
        np.array(before, np.int64),
        np.array(after, np.int64),
        base,
        np.array([-3, 2], np.int64),
        counts,
        digests,
    )
    assert positions.tolist() == [
        i
        for i, (c, time, g, number) in enumerate(rows)
        if i >= tail and g in wanted and c in (-3, 2) and (number >= first or time >= before[g])
    ]
    for g in range(4):
        kept, new, left = reference.tally_leaf("A", rows[tail:] if g in wanted else [], g, first, before[g], after[g])
        assert counts[:, g].tolist() == [kept.rows, new.rows, left.rows]
        assert digests[:, g].tolist() == [kept.digest, new.digest, left.digest]


@given(
    rows=st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 2)), max_size=40),
    wanted=st.sets(st.integers(0, 2)),
    cut=st.integers(0, 40),
)
@settings(deadline=None)
def test_keys_are_picked_by_rank_and_each_once(rows: list[tuple[int, int]], wanted: set[int], cut: int) -> None:
    flags = np.isin(np.arange(3), list(wanted))
    best, code, group = np.full(3, 2**64 - 1, np.uint64), np.zeros(3, np.int64), np.full(3, -1, np.int16)
    for part in (rows[:cut], rows[cut:]):
        columns = np.array([r[0] for r in part], np.int64), np.array([r[1] for r in part], np.int16)
        kernels.pick_keys(*columns, flags, np.uint64(77), best, code, group)
    picked = [(int(c), int(g)) for c, g in zip(code, group, strict=True) if g >= 0]
    keys = {row for row in rows if row[1] in wanted}
    assert len(set(picked)) == len(picked) == min(3, len(keys))
    assert set(picked) <= keys
    assert best.tolist() == sorted(best.tolist())
