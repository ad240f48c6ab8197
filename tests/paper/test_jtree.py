"""JTree's equations and algorithms, one test each: the formulas as printed against the model for any tree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plans.costs import CostModel, TupleBytes, kind_of
from plans.exact import pareto_front
from plans.optimiser import METHODS, Limits, optimise
from plans.statistics import from_graph
from plans.tree import left_deep, mjoin, parse_plan
from plans.two_layer import candidates
from plans.work import Constants
from tests.unit.plans_reference import all_plans, naive_cost

C_J, C_I, C_D = 2.2e-6, 2.0e-7, 2.0e-7
"""Table 3, in seconds."""
PRICES = Constants(append_s=C_I, expire_s=C_D, probe_s=0.0, candidate_s=0.0, pair_s=C_J, condition_s=0.0, step_s=0.0)
TUPLES = TupleBytes(leaf=1.0, combined=1.0, reference=0.0)
"""The paper counts tuples."""

rates = st.floats(1, 100)
selectivities = st.floats(0.001, 0.999)
windows = st.floats(0.5, 60)


def chain(l_a: float, l_b: float, l_c: float, s_ab: float, s_bc: float, window_s: float) -> CostModel:
    """The join graph of figure 4a."""
    graph = from_graph({"A": l_a, "B": l_b, "C": l_c}, {("A", "B"): s_ab, ("B", "C"): s_bc}, window_s=window_s)
    return CostModel(graph, PRICES, TUPLES)


three = {"l_a": rates, "l_b": rates, "l_c": rates, "s_ab": selectivities, "s_bc": selectivities, "window_s": windows}


def orders_of_figure_4(model: CostModel) -> float:
    """CPU of the mjoin with the orders A: B C, B: A C, C: B A, whether or not they are the best."""
    a, b, c = 0, 1, 2
    steps = model.node_steps([1, 2, 4], [[b, c], [a, c], [b, a]])
    work = model.steps_work(steps).sum(axis=0) + model.append_work(np.array([1, 2, 4])).sum(axis=0)
    return float(model.constants.seconds(work))


@given(**three)
@settings(max_examples=40, deadline=None)
def test_equation_1_what_stream_a_costs_in_an_mjoin(
    l_a: float, l_b: float, l_c: float, s_ab: float, s_bc: float, window_s: float
) -> None:
    """CPU_A, with C_j where the scan has C_i: the text before it has C_j. JTree §2.2, eq 1."""
    model = chain(l_a, l_b, l_c, s_ab, s_bc, window_s)
    printed = l_a * (C_I + C_D) + l_a * l_b * s_ab * window_s * C_J + l_a * l_b * s_ab * l_c * s_bc * window_s**2 * C_J
    steps = model.step_cpu(np.array([1, 3]), np.array([2, 4])).sum() + model.append_cpu(np.array([1]))[0]
    assert steps == pytest.approx(printed)


@given(**three)
@settings(max_examples=40, deadline=None)
def test_equation_2_cpu_of_an_mjoin(
    l_a: float, l_b: float, l_c: float, s_ab: float, s_bc: float, window_s: float
) -> None:
    """CPU_mjoin with the orders of figure 4b; ours are at least as good. JTree §2.2, eq 2."""
    model = chain(l_a, l_b, l_c, s_ab, s_bc, window_s)
    printed = (
        (l_a + l_b + l_c) * (C_I + C_D)
        + l_b * l_c * s_bc * window_s * C_J
        + 3 * l_a * l_b * l_c * s_ab * s_bc * window_s**2 * C_J
        + 2 * l_a * l_b * s_ab * window_s * C_J
    )
    assert orders_of_figure_4(model) == pytest.approx(printed)
    assert model.cost(mjoin("ABC")).cpu <= printed * (1 + 1e-9)


@given(**three)
@settings(max_examples=40, deadline=None)
def test_equation_3_memory_of_an_mjoin(
    l_a: float, l_b: float, l_c: float, s_ab: float, s_bc: float, window_s: float
) -> None:
    """The leaves and nothing else. JTree §2.2, eq 3."""
    model = chain(l_a, l_b, l_c, s_ab, s_bc, window_s)
    assert model.cost(mjoin("ABC")).memory_bytes == pytest.approx((l_a + l_b + l_c) * window_s)


@given(**three)
@settings(max_examples=40, deadline=None)
def test_equation_4_cpu_of_a_bjtree(
    l_a: float, l_b: float, l_c: float, s_ab: float, s_bc: float, window_s: float
) -> None:
    """((A B) C): the state AB is maintained. JTree §2.3, eq 4."""
    model = chain(l_a, l_b, l_c, s_ab, s_bc, window_s)
    printed = (
        (l_a + l_b + l_c) * (C_I + C_D)
        + 3 * l_a * l_b * l_c * s_ab * s_bc * window_s**2 * C_J
        + 2 * l_a * l_b * s_ab * window_s * (C_J + C_I + C_D)
    )
    assert model.cost(left_deep("ABC")).cpu == pytest.approx(printed)


@given(**three)
@settings(max_examples=40, deadline=None)
def test_equation_5_memory_of_a_bjtree(
    l_a: float, l_b: float, l_c: float, s_ab: float, s_bc: float, window_s: float
) -> None:
    """An mjoin's, and |S_AB|. JTree §2.3, eq 5."""
    model = chain(l_a, l_b, l_c, s_ab, s_bc, window_s)
    extra = model.cost(left_deep("ABC")).memory_bytes - model.cost(mjoin("ABC")).memory_bytes
    assert extra == pytest.approx(l_a * l_b * s_ab * window_s**2, rel=1e-6)


@given(**three)
@settings(max_examples=40, deadline=None)
def test_equations_6_and_7_recomputing_against_maintaining(
    l_a: float, l_b: float, l_c: float, s_ab: float, s_bc: float, window_s: float
) -> None:
    """CPU saved by a state is what recomputing costs less what maintaining costs. JTree §2.4, eqs 6 and 7."""
    model = chain(l_a, l_b, l_c, s_ab, s_bc, window_s)
    recompute = l_b * l_c * s_bc * window_s * C_J
    maintain = 2 * l_a * l_b * s_ab * window_s * (C_I + C_D)
    mjoin_cpu, bjtree_cpu = orders_of_figure_4(model), model.cost(left_deep("ABC")).cpu
    assert mjoin_cpu - bjtree_cpu == pytest.approx(recompute - maintain, rel=1e-6, abs=1e-12 * mjoin_cpu)


SETS = {
    1: ({"A": 20, "B": 20, "C": 20}, {("A", "B"): 0.05, ("B", "C"): 0.5}, 5.0),
    2: ({"A": 20, "B": 20, "C": 50}, {("A", "B"): 0.02, ("B", "C"): 0.5}, 15.0),
    3: ({"A": 10, "B": 10, "C": 10, "D": 10}, {("A", "B"): 0.1, ("B", "C"): 0.15, ("C", "D"): 0.1}, 15.0),
    4: ({"A": 20, "B": 20, "C": 20, "D": 20}, {("A", "B"): 0.02, ("B", "C"): 0.2, ("C", "D"): 0.05}, 50.0),
}
"""Table 2."""


@pytest.mark.parametrize("number", SETS)
def test_the_settings_of_table_2_have_the_order_that_the_paper_reports(number: int) -> None:
    """A bjtree needs less CPU than the mjoin and more memory, so both limits matter. JTree §4.2, table 2."""
    stream_rates, edges, window_s = SETS[number]
    model = CostModel(from_graph(stream_rates, edges, window_s=window_s), PRICES, TUPLES)
    answer = optimise(model)
    every = model.cost(mjoin(tuple(stream_rates)))
    assert answer.chosen is not None
    assert answer.chosen.kind == "bjtree"
    assert answer.chosen.cpu < every.cpu
    assert answer.chosen.memory_bytes > every.memory_bytes


def test_between_an_mjoin_and_a_bjtree_that_both_miss_a_limit_a_jtree_qualifies() -> None:
    """Figure 5d, with set 4's streams. JTree §3.2, §4.2.4."""
    stream_rates, edges, window_s = SETS[4]
    model = CostModel(from_graph(stream_rates, edges, window_s=window_s), PRICES, TUPLES)
    least_cpu, least_memory = pareto_front(model)[0], model.cost(mjoin("ABCD"))
    one_state = min((model.cost(parse_plan(text, "ABCD")) for text in ("(A B) C D", "(C D) A B")), key=lambda c: c.cpu)
    limits = Limits(cpu=one_state.cpu * 1.0001, memory_bytes=one_state.memory_bytes * 1.0001)
    assert least_memory.cpu > limits.cpu and least_cpu.memory_bytes > limits.memory_bytes
    assert [optimise(model, limits, method).kind for method in METHODS] == ["jtree", "jtree"]


def test_algorithm_1_guarantees_a_qualified_plan_where_one_exists() -> None:
    """For every tree as the limit itself. As printed, line 14 would return -1 always. JTree §3.3, algorithm 1."""
    model = chain(20, 20, 50, 0.02, 0.5, 15.0)
    for plan in all_plans("ABC"):
        cpu, memory = naive_cost(model, plan)
        answer = optimise(model, Limits(cpu=cpu * (1 + 1e-9), memory_bytes=memory * (1 + 1e-9)))
        assert answer.chosen is not None


def test_algorithm_2_stops_at_the_mjoin_where_that_is_too_large() -> None:
    """Every plan has all leaves, so none is smaller. JTree §5.1, algorithm 2, line 6."""
    model = chain(20, 20, 20, 0.05, 0.5, 5.0)
    assert [each.origin for each in candidates(model, memory_bytes=299)] == ["mjoin"]
    assert len(list(candidates(model, memory_bytes=301))) > 1


def test_algorithm_2_goes_on_where_the_bjtree_needs_too_much_cpu() -> None:
    """Line 10 gives up, though keeping a state may cost more than it saves: here a jtree beats every bjtree."""
    dear = Constants(append_s=C_J, expire_s=C_J, probe_s=0.0, candidate_s=0.0, pair_s=C_J, condition_s=0.0, step_s=0.0)
    stream_rates = {"A": 5.0, "B": 20.0, "C": 50.0, "D": 5.0}
    edges = {("A", "B"): 0.05, ("B", "C"): 0.2, ("C", "D"): 0.5}
    model = CostModel(from_graph(stream_rates, edges, window_s=1.0), dear, TUPLES)
    bjtree = min(model.cost(plan).cpu for plan in all_plans("ABCD") if kind_of(plan) == "bjtree")
    limits = Limits(cpu=bjtree * 0.95)
    assert model.cost(mjoin("ABCD")).cpu > limits.cpu
    assert optimise(model, limits, "two-layer").kind == "jtree"


def test_algorithm_3_tries_another_edge_where_one_exceeds_the_memory() -> None:
    """Line 15 gives up at the first. The best edge's state may be too large, and another still save CPU."""
    edges = {("A", "B"): 0.02, ("B", "C"): 0.2, ("C", "D"): 0.05}
    model = CostModel(from_graph(dict.fromkeys("ABCD", 20.0), edges, window_s=50.0), PRICES, TUPLES)
    selected = [each for each in candidates(model) if each.origin == "state selection"]
    assert [each.cpu for each in selected] == sorted((each.cpu for each in selected), reverse=True)
    assert len(selected) >= 2
    limit = selected[-1].memory_bytes - 1
    within = [each for each in candidates(model, limit) if each.origin == "state selection"]
    assert within and all(each.memory_bytes <= limit for each in within)


def test_algorithm_4_ends_at_the_mjoin() -> None:
    """States go one at a time, memory falls each time. JTree §5.3, algorithm 4."""
    model = CostModel(from_graph(SETS[4][0], SETS[4][1], window_s=50.0), PRICES, TUPLES)
    made = list(candidates(model))
    start = next(each for each in made if each.origin == "bjtree")
    removed = [start, *(each for each in made if each.origin == "state removal")]
    memory = [each.memory_bytes for each in removed]
    assert memory == sorted(memory, reverse=True)
    assert len(removed) == 3
    assert math.isclose(memory[-1], 4 * 20 * 50)
