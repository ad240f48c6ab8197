"""Sizes of states from counts of keys, and what an independent model would say instead."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plans.costs import CostModel
from plans.exact import pareto_front
from plans.statistics import Condition, Edge, from_graph, from_key_counts
from plans.tree import parse_plan
from tests.unit.plans_reference import all_plans, density, naive_cost

STREAMS = ("A", "B", "C", "D")
Counts = dict[str, list[int]]


@st.composite
def key_counts(draw: st.DrawFn) -> Counts:
    keys = draw(st.integers(1, 4))
    count = draw(st.integers(2, 4))
    rows = st.lists(st.integers(0, 4), min_size=keys, max_size=keys)
    return {stream: draw(rows) for stream in STREAMS[:count]}


@given(key_counts())
@settings(max_examples=60, deadline=None)
def test_the_size_of_any_state_is_the_number_of_its_combinations(counts: Counts) -> None:
    """One row of each stream, all of one key: the sum over keys of the products of counts."""
    statistics = from_key_counts(counts, window_s=7.0, one_in=1)
    rows = {stream: [key for key, count in enumerate(live) for _ in range(count)] for stream, live in counts.items()}
    for size in range(1, len(counts) + 1):
        for streams in itertools.combinations(counts, size):
            combinations = itertools.product(*(rows[stream] for stream in streams))
            joined = sum(len(set(keys)) == 1 for keys in combinations)
            assert statistics.size_of(streams) == pytest.approx(joined)


@given(key_counts(), st.integers(2, 64))
@settings(max_examples=20, deadline=None)
def test_a_sampled_key_stands_for_those_that_were_not_sampled(counts: Counts, one_in: int) -> None:
    sample = from_key_counts(counts, window_s=7.0, one_in=one_in)
    whole = from_key_counts({stream: live * one_in for stream, live in counts.items()}, window_s=7.0, one_in=1)
    assert sample.size_of(counts) == pytest.approx(whole.size_of(counts))


def test_a_heavy_key_that_is_known_exactly_counts_once() -> None:
    statistics = from_key_counts({"A": [100, 2], "B": [50, 3]}, window_s=1.0, one_in=[1, 64])
    assert statistics.size_of(("A", "B")) == pytest.approx(100 * 50 + 64 * 2 * 3)


@pytest.mark.parametrize("lateness_s", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("members", [1, 2, 3])
def test_windows_are_in_the_sizes(lateness_s: float, members: int) -> None:
    """Live rows span a window and the lateness, but a combination spans at most a window."""
    window_s, count = 4.0, 40
    times = (np.arange(count) + 0.5) * (window_s + lateness_s) / count
    grid = np.stack(np.meshgrid(*[times] * members))
    within = int(((grid.max(axis=0) - grid.min(axis=0)) <= window_s).sum())
    counts = {stream: [count] for stream in STREAMS[:members]}
    statistics = from_key_counts(counts, window_s=window_s, lateness_s=lateness_s, one_in=1)
    assert statistics.size_of(counts) == pytest.approx(within, rel=0.04)


def test_another_rate_makes_all_states_of_a_stream_larger_in_proportion() -> None:
    statistics = from_key_counts({"A": [4, 0], "B": [3, 1], "C": [0, 0]}, window_s=2.0, one_in=8)
    faster = statistics.with_rate("B", 10 * statistics.rate("B"))
    assert faster.size_of("AB") == pytest.approx(10 * statistics.size_of("AB"))
    assert faster.size_of("A") == statistics.size_of("A")
    begun = statistics.with_rate("C", 16.0)
    assert begun.rate("C") == pytest.approx(16.0)
    assert begun.size_of("BC") == pytest.approx(statistics.size_of("B") * 16.0 * 2.0 / 16)


def test_conditions_make_states_smaller_once_all_their_streams_are_there() -> None:
    conditions = [Condition(frozenset("AC"), 0.5), Condition(frozenset("ABC"), 0.1)]
    statistics = from_key_counts({"A": [2], "B": [3], "C": [5]}, window_s=1.0, one_in=1, conditions=conditions)
    sizes = [statistics.size_of(streams) for streams in ("A", "AB", "AC", "BC", "ABC")]
    assert sizes == pytest.approx([2, 6, 5, 15, 1.5])


@given(key_counts(), st.floats(0.01, 1.0))
@settings(max_examples=30, deadline=None)
def test_sets_are_counted_alike_with_and_without_a_table(counts: Counts, share: float) -> None:
    """Too many streams or keys for a table of all sets: each set is computed when it is asked for."""
    sample = from_key_counts(counts, window_s=3.0, lateness_s=1.0, one_in=1)
    edges = tuple(Edge(frozenset(pair), share) for pair in itertools.pairwise(counts))
    statistics = replace(sample, edges=(*edges, *edges[:1]))
    masks = np.arange(1, 1 << len(counts))
    with pytest.MonkeyPatch.context() as patched:
        listed = statistics.density(masks)
        patched.setattr("plans.statistics.TABLE_MAX", 0)
        computed = statistics.density(masks)
    assert computed == pytest.approx(listed)
    whole = [density(statistics, frozenset(statistics.names(mask))) for mask in masks.tolist()]
    assert listed == pytest.approx(whole)


def test_a_hot_key_on_two_streams_misleads_independent_edges_into_the_worst_plan() -> None:
    """50 rows of one key on A and B: by averages their state looks the smallest, and it is by far the largest."""
    counts = {"A": [50] + [0] * 99, "B": [50] + [0] * 99, "C": [1] * 100}
    truth = CostModel(from_key_counts(counts, window_s=1.0, one_in=1))
    totals = {stream: float(sum(live)) for stream, live in counts.items()}
    pairs = dict.fromkeys(itertools.combinations(totals, 2), 1 / 100)
    independent = CostModel(from_graph(totals, pairs, window_s=1.0))
    trees = [parse_plan(text, "ABC") for text in ("(A B) C", "(A C) B", "(B C) A")]
    real = {str(tree): truth.cost(tree).cpu for tree in trees}
    believed = {str(tree): independent.cost(tree).cpu for tree in trees}
    assert min(believed, key=believed.__getitem__) == max(real, key=real.__getitem__) == "((A B) C)"
    best = pareto_front(truth)[0]
    assert best.cpu == pytest.approx(min(naive_cost(truth, tree)[0] for tree in all_plans("ABC")))
