"""The optimiser's benchmark measures what it says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.optimiser import clocked, qualified_share, random_graph, random_sample, times_of_cheapest
from plans.costs import CostModel
from plans.exact import pareto_front
from plans.statistics import Statistics


def test_two_layers_never_beat_the_exact_search() -> None:
    assert all(share >= 1 - 1e-9 for share in times_of_cheapest(4, 5))
    assert qualified_share(3, 0.25, 5) == 1.0


@pytest.mark.parametrize("make", [random_graph, random_sample])
def test_random_statistics_make_a_front(make: Callable[[int, int], Statistics]) -> None:
    assert pareto_front(CostModel(make(4, 1)))


def test_both_clocks_run() -> None:
    wall_ms, cpu_ms = clocked(lambda: sum(range(100_000)))
    assert wall_ms > 0 and cpu_ms >= 0
