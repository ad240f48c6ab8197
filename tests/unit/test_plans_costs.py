"""The cost model against definitions and against a join that counts what it does; constants from measured runs."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plans.costs import CostModel, canonical, greedy_orders, kind_of, path
from plans.drawing import draw
from plans.exact import pareto_front
from plans.statistics import Condition, from_graph, from_key_counts
from plans.tree import Step, left_deep, mjoin, parse_plan
from plans.work import ACTIVITIES, DEFAULT_CONSTANTS, Constants, calibrated
from tests.unit.plans_reference import (
    CountingJoin,
    all_plans,
    naive_cost,
    order_cost,
    steady_rows,
)

STREAMS = ("A", "B", "C", "D", "E")


@st.composite
def models(draw: st.DrawFn, streams_max: int = 5) -> CostModel:
    """Few keys and rows, so that plans differ; any constants."""
    count = draw(st.integers(2, streams_max))
    keys = draw(st.integers(1, 3))
    rows = st.lists(st.integers(0, 9), min_size=keys, max_size=keys)
    counts = {stream: draw(rows) for stream in STREAMS[:count]}
    sets = st.frozensets(st.sampled_from(STREAMS[:count]), min_size=2)
    conditions = draw(st.lists(st.builds(Condition, sets, st.floats(0.01, 1.0)), max_size=2))
    prices = [draw(st.floats(0, 1e-6)) for _ in ACTIVITIES]
    statistics = from_key_counts(
        counts,
        window_s=draw(st.floats(0.5, 20.0)),
        lateness_s=draw(st.sampled_from([0.0, 2.0])),
        one_in=draw(st.sampled_from([1, 64])),
        conditions=conditions,
        row_bytes={stream: draw(st.floats(0, 500)) for stream in counts},
    )
    return CostModel(statistics, Constants(**dict(zip(Constants.__dataclass_fields__, prices, strict=True))))


@given(models(4), st.data())
@settings(max_examples=60, deadline=None)
def test_any_tree_costs_what_the_definitions_say(model: CostModel, data: st.DataObject) -> None:
    plan = data.draw(st.sampled_from(all_plans(model.statistics.streams)))
    cost = model.cost(plan)
    cpu, memory = naive_cost(model, plan)
    assert cost.cpu == pytest.approx(cpu, rel=1e-9, abs=1e-18)
    assert cost.memory_bytes == pytest.approx(memory, rel=1e-9)


@given(models(5))
@settings(max_examples=30, deadline=None)
def test_each_input_of_a_node_has_the_best_of_all_orders(model: CostModel) -> None:
    cost = model.cost(mjoin(model.statistics.streams))
    for own, order in cost.orders.items():
        chosen = order_cost(model, frozenset(own), [frozenset(each) for each in order])
        others = [frozenset(each) for each in order]
        best = min(order_cost(model, frozenset(own), each) for each in itertools.permutations(others))
        assert chosen == pytest.approx(best, rel=1e-9, abs=1e-18)


@given(models(5))
@settings(max_examples=30, deadline=None)
def test_a_greedy_order_visits_every_other_input_once(model: CostModel) -> None:
    inputs = [1 << bit for bit in range(len(model.statistics.streams))]
    for own, order in enumerate(greedy_orders(model.statistics, inputs)):
        assert sorted([own, *order]) == list(range(len(inputs)))


def kendall(one: list[float], two: list[float]) -> float:
    pairs = list(itertools.combinations(range(len(one)), 2))
    signs = [np.sign(one[a] - one[b]) * np.sign(two[a] - two[b]) for a, b in pairs]
    return float(sum(signs)) / len(pairs)


@pytest.mark.parametrize(
    ("seed", "lateness_s", "conditions"),
    [
        (1, 0.0, []),
        (2, 1.0, [Condition(frozenset("AC"), 0.5)]),
        (3, 0.5, [Condition(frozenset("ABD"), 0.3), Condition(frozenset("BD"), 0.6)]),
    ],
)
def test_a_join_that_counts_does_the_predicted_work_in_all_26_trees(
    seed: int, lateness_s: float, conditions: list[Condition]
) -> None:
    chance = random.Random(seed)
    counts = {stream: [chance.randint(1, 4) for _ in range(3)] for stream in "ABCD"}
    statistics = from_key_counts(counts, window_s=2.0, lateness_s=lateness_s, one_in=1, conditions=conditions)
    # Steps per batch are not a matter of tuples: without batches there are none.
    model = CostModel(statistics, batches_per_s=0.0)
    warm_s, seconds = 4.0, 40.0
    rows = steady_rows(statistics, warm_s + seconds, seed)
    plans = all_plans("ABCD")
    assert len(plans) == 26
    predicted, measured = [], []
    for plan in plans:
        cost = model.cost(plan)
        join = CountingJoin(plan, cost.orders, 2.0, lateness_s, conditions)
        before: dict[str, int] = {}
        for row in rows:
            if row.at >= warm_s and not before:
                before = dict(join.counted)
            join.insert(row)
        counted = np.array([(join.counted[each] - before[each]) / seconds for each in ACTIVITIES])
        expected = np.array([cost.work[each] for each in ACTIVITIES])
        assert counted == pytest.approx(expected, rel=0.12, abs=1.0), str(plan)
        predicted.append(cost.cpu)
        measured.append(float(DEFAULT_CONSTANTS.seconds(counted)))
    assert kendall(predicted, measured) > 0.9
    best = pareto_front(model)[0]
    found = measured[[canonical(plan, "ABCD") for plan in plans].index(canonical(best.plan, "ABCD"))]
    assert found <= 1.05 * min(measured)


def test_a_path_has_the_order_of_its_own_input() -> None:
    """An mjoin needs one order per stream. JTree §2.1."""
    rates = {"A": 10.0, "B": 10.0, "C": 10.0}
    model = CostModel(from_graph(rates, {("A", "B"): 0.01, ("B", "C"): 0.5}, window_s=1.0))
    cost = model.cost(mjoin("ABC"))
    assert path(cost.plan, "A", cost.orders) == [Step(("B",), None), Step(("C",), None)]
    assert path(cost.plan, "C", cost.orders) == [Step(("B",), None), Step(("A",), None)]
    deep = model.cost(left_deep("ABC"))
    assert path(deep.plan, "B", deep.orders) == [Step(("A",), ("A", "B")), Step(("C",), None)]
    assert path(deep.plan, "C", deep.orders) == [Step(("A", "B"), None)]


def test_a_plan_is_drawn_with_its_states_and_orders() -> None:
    rates = {"A": 10.0, "B": 10.0, "C": 10.0, "D": 1.0}
    edges = {("A", "B"): 0.01, ("B", "C"): 0.5, ("C", "D"): 0.1}
    model = CostModel(from_graph(rates, edges, window_s=10.0, row_bytes=dict.fromkeys(rates, 74.0)))
    assert draw(model.cost(parse_plan("(A B) C D", "ABCD"))) == [
        "3-way join of A B C D: results",
        "│   new (A B) probes D then C",
        "│   new C probes D then (A B)",
        "│   new D probes C then (A B)",
        "├── join of A B: kept, 100 rows, 3.8 kB",
        "│   ├── A  100 rows, 10 kB",
        "│   └── B  100 rows, 10 kB",
        "├── C  100 rows, 10 kB",
        "└── D  10 rows, 1 kB",
    ]


def test_kinds_have_the_names_of_the_paper() -> None:
    """Mjoin, bjtree, jtree. JTree §1.2, definition 3."""
    kinds = [kind_of(parse_plan(text, "ABCD")) for text in ("mjoin", "left-deep", "(A B) (C D)", "(A B C) D")]
    assert kinds == ["mjoin", "bjtree", "bjtree", "jtree"]


def test_constants_are_found_again_from_runs() -> None:
    chance = np.random.default_rng(5)
    true = Constants(
        append_s=5e-8, expire_s=0.0, probe_s=2e-8, candidate_s=3e-9, pair_s=4e-8, condition_s=0.0, step_s=1e-4
    )
    work = chance.uniform(0, 1, (40, 7)) * [1e5, 1e5, 1e5, 1e7, 1e6, 0, 100]
    cpu_s = true.seconds(work) * chance.uniform(0.999, 1.001, 40)
    found = calibrated(work, cpu_s)
    assert found.seconds(work) == pytest.approx(cpu_s, rel=0.005)
    assert found.pair_s == pytest.approx(true.pair_s, rel=0.02)
    assert found.step_s == pytest.approx(true.step_s, rel=0.05)
    assert found.condition_s == 0.0, "no run shows any"
    assert (found.vector() >= 0).all()


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_no_constant_is_negative_however_odd_the_measurements(seed: int) -> None:
    chance = np.random.default_rng(seed)
    work = chance.uniform(0, 1, (10, 7))
    cpu_s = chance.uniform(0.1, 1, 10)
    found = calibrated(work, cpu_s)
    assert (found.vector() >= 0).all()
    # No small change of any one constant explains the runs better.
    error = float((((found.seconds(work) - cpu_s) / cpu_s) ** 2).sum())
    for at, step in itertools.product(range(7), (1e-4, -1e-4)):
        moved = found.vector()
        moved[at] = max(0.0, moved[at] + step)
        assert (((work @ moved - cpu_s) / cpu_s) ** 2).sum() >= error - 1e-9


def test_calibration_needs_runs() -> None:
    with pytest.raises(ValueError, match="positive CPU time"):
        calibrated(np.zeros((1, 7)), [0.0])
