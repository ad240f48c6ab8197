"""Walks through two plans, old and new by row numbers, and the kernels that go with them."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plans.tree import left_deep, parse_plan
from worker.buffers import Horizon, StateBuffer, Tuples
from worker.lineage import grown, is_old, may_satisfy
from worker.sampling import ZEROS
from worker.walks import Level, Segment, is_same, joins, matched, segments, task_of, way

MIX = 0x9E3779B97F4A7C15


def level(streams: str, *others: str) -> Level:
    return Level(frozenset(streams), tuple(map(frozenset, others)))


def test_a_way_leads_from_the_leaf_to_the_root() -> None:
    plan = parse_plan("((A B) (C D E))", "ABCDE")
    assert way(plan, "B") == [level("AB", "A"), level("ABCDE", "CDE")]
    assert way(plan, "D") == [level("CDE", "C", "E"), level("ABCDE", "AB")]
    assert list(joins(plan)) == [frozenset("AB"), frozenset("CDE"), frozenset("ABCDE")]


def test_a_state_that_both_plans_have_parts_two_tasks() -> None:
    """HybMig section 3.1: from ((AB)C)D to (A(BC))D only what makes ABC differs; the join with D is shared."""
    old, new = parse_plan("(((A B) C) D)", "ABCD"), parse_plan("(D (A (B C)))", "ABCD")
    common = matched(old, new)
    assert common == {frozenset("ABC"), frozenset("ABCD")}
    assert task_of(frozenset("BC"), common) == frozenset("ABC")
    assert segments(old, new, "B") == [
        Segment(frozenset("ABC"), (level("AB", "A"), level("ABC", "C")), (level("BC", "C"), level("ABC", "A"))),
        Segment(frozenset("ABCD"), (level("ABCD", "D"),)),
    ]
    assert segments(old, new, "D") == [Segment(frozenset("ABCD"), (level("ABCD", "ABC"),))]
    assert segments(old, None, "D") == segments(old, old, "D")


def test_the_order_in_which_a_plan_is_written_is_no_difference() -> None:
    one, other = parse_plan("((A B) (D C E))", "ABCDE"), parse_plan("((E C D) (B A))", "ABCDE")
    assert is_same(one, other) and not is_same(one, left_deep("ABCDE"))
    assert all(not segment.new for stream in "ABCDE" for segment in segments(one, other, stream))


def tuples(streams: str, refs: list[list[int]]) -> Tuples:
    columns = np.array(refs, np.int64).astype(np.uint32)
    zeros = np.zeros(columns.shape[1], np.int64)
    return Tuples(tuple(streams), zeros, zeros, zeros, zeros.astype(np.int16), columns)


@pytest.mark.parametrize("cut", [5, 2**31 + 2, 2**32 - 2, 2**32, 2**33 + 1])
def test_old_is_what_has_a_smaller_number_also_where_numbers_begin_anew(cut: int) -> None:
    numbers = np.arange(cut - 4, cut + 4)
    assert is_old((numbers & 0xFFFFFFFF).astype(np.uint32), cut).tolist() == [True] * 4 + [False] * 4


def test_an_entry_is_satisfied_by_rows_that_are_all_before_its_cuts() -> None:
    """HybMig table 2: (old, old, *, *) or (*, *, old, old); here each stream has a cut of its own."""
    table = [{"A": 10, "B": 20}, {"C": 30, "D": 40}]
    found = tuples("ABCD", [[9, 10, 10, 9], [19, 19, 19, 20], [30, 29, 30, 29], [39, 39, 40, 39]])
    assert may_satisfy(found, table).tolist() == [True, True, False, True]
    assert not may_satisfy(found, []).any()
    parts = tuples("AC", [[9, 10, 10], [30, 29, 30]])
    assert may_satisfy(parts, table).tolist() == [True, True, False], "what is not there yet may still be old"
    assert grown(table[0], "ABC", {"A": 50, "B": 50, "C": 60}) == {"A": 10, "B": 20, "C": 60}


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2)), max_size=30),
    cut=st.integers(-3, 33),
    horizon=st.integers(0, 30),
    passed=st.sets(st.integers(0, 2)),
    first=st.sampled_from([0, 2**32 - 7]),
)
def test_whether_an_old_row_is_live(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, int]],
    cut: int,
    horizon: int,
    passed: set[int],
    first: int,
) -> None:
    leaf = StateBuffer.create(tmp_path_factory.getbasetemp(), ("A",))
    times, groups = (np.array([row[i] for row in rows], np.int64) for i in range(2))
    numbers = ((first + np.arange(len(rows))) & 0xFFFFFFFF).astype(np.uint32)
    leaf.append(Tuples(("A",), times, times, times, groups.astype(np.int16), numbers[None]), Horizon(0))
    flags = np.array([group in passed for group in range(3)])
    expected = any(
        number < cut and time >= horizon and group not in passed for number, (time, group) in enumerate(rows)
    )
    assert leaf.has_live_before(first + cut, horizon, flags) == expected


def test_matches_are_counted_before_they_are_looked_at(tmp_path: Path) -> None:
    luck = random.Random(4)
    codes = np.array([luck.randrange(40) for _ in range(900)], np.int64)
    leaf = StateBuffer.create(tmp_path, ("A",))
    leaf.append(Tuples(("A",), codes, codes, codes, codes.astype(np.int16), codes[None].astype(np.uint32)), Horizon(0))
    leaf.tail = 100
    wanted, counts = np.arange(-2, 50), np.full(52, 2.0)
    leaf.multiply_matches(wanted, counts)
    here = Counter(codes[100:].tolist())
    assert counts.tolist() == [2.0 * here[code] for code in wanted.tolist()]


def test_a_sample_stands_at_the_front_of_the_index_wherever_it_was_pushed_to(tmp_path: Path) -> None:
    """Codes with nearly the same hash: their slots run over into the next part of the table, and others into this."""
    inverse = pow(MIX, -1, 2**64)
    edge = 2 ** (64 - ZEROS)
    hashes = [*range(300), *range(edge - 200, edge + 200), *range(2**64 - 300, 2**64)]
    codes = np.array([each * inverse % 2**64 for each in hashes], np.uint64).view(np.int64)
    leaf = StateBuffer.create(tmp_path, ("A",))
    zeros = np.zeros(codes.size, np.int64)
    leaf.append(Tuples(("A",), codes, zeros, zeros, zeros.astype(np.int16), zeros[None].astype(np.uint32)), Horizon(0))
    found, counts = leaf.sample_keys(ZEROS, Horizon(0))
    expected = {int(code) for code, each in zip(codes, hashes, strict=True) if each < edge}
    assert set(found.tolist()) == expected and counts.tolist() == [1] * 500
