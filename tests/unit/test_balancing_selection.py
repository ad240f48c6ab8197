"""Choosing groups by load: near, deterministic, and quick enough for step 2 inside a batch."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from balancing.selection import nearest


def naive(loads: dict[int, float], amount: float) -> float:
    """How near any subset comes to `amount`."""
    groups = sorted(loads)
    subsets = itertools.chain.from_iterable(itertools.combinations(groups, n) for n in range(len(groups) + 1))
    return min(abs(sum(loads[group] for group in subset) - amount) for subset in subsets)


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 99), st.integers(0, 1000), max_size=9), st.integers(1, 4000))
def test_few_groups_come_as_near_as_any_subset_does(loads: dict[int, int], amount: int) -> None:
    as_floats = {group: float(load) for group, load in loads.items()}
    chosen = nearest(as_floats, amount)
    assert abs(sum(loads[group] for group in chosen) - amount) == naive(as_floats, amount)
    assert all(loads[group] > 0 for group in chosen)
    assert list(chosen) == sorted(set(chosen))


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 1000), min_size=17, max_size=200), st.floats(0.01, 1.5))
def test_many_groups_come_nearer_than_half_the_smallest_left_out(sizes: list[float], share: float) -> None:
    loads = dict(enumerate(sizes))
    amount = share * sum(sizes)
    chosen = nearest(loads, amount)
    off = abs(sum(loads[group] for group in chosen) - amount)
    left_out = [loads[group] for group in loads if group not in chosen]
    if share >= 1:
        assert not left_out
    else:
        assert off <= min(left_out, default=0.0) / 2 + 1e-6 or off <= max(sizes) / 2 + 1e-6
    assert chosen == nearest(dict(reversed(loads.items())), amount)


def test_ties_prefer_some_groups_then_few_groups_then_low_numbers() -> None:
    assert nearest({7: 2.0}, 1.0) == (7,)
    assert nearest({7: 2.1}, 1.0) == ()
    assert nearest({1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0}, 2.0) == (3,)


def test_nothing_to_choose() -> None:
    assert nearest({}, 5.0) == ()
    assert nearest({1: 0.0, 2: float("nan")}, 5.0) == ()
    assert nearest({1: 1.0}, 0.0) == ()
    assert nearest({1: 1.0}, float("nan")) == ()


def test_excluded_groups_stay() -> None:
    assert nearest({1: 5.0, 2: 4.0}, 5.0, excluded={1}) == (2,)


def test_many_equal_groups_give_the_exact_share() -> None:
    assert len(nearest(dict.fromkeys(range(10_000), 0.1), 250.0)) == 2_500
