"""The cost models of MS/PT section 5 and HybMig sections 3.5 and 4.4, one test per equation.

Both papers' joins compare all pairs: here the selectivity is a condition, so that every pair of tuples is a candidate.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plans.costs import CostModel, canonical
from plans.forecast import (
    background_s,
    backlog_s,
    forecast_migration,
    growing_cpu_s,
    purge_s,
    recomputing_work,
    states_to_recompute,
)
from plans.statistics import Condition, from_graph
from plans.tree import Join, left_deep, parse_plan
from plans.work import APPEND, CANDIDATE, Constants
from tests.unit.plans_reference import CountingJoin, steady_rows

T_J, T_S = 3e-6, 5e-7
NESTED = Constants(append_s=T_S, expire_s=T_S, probe_s=0.0, candidate_s=T_J, pair_s=0.0, condition_s=0.0, step_s=0.0)
"""T_j for each pair compared, T_s for each tuple that enters or leaves a state (MS/PT table 1)."""

rates = st.floats(1, 100)
selectivities = st.floats(0.001, 1.0)
windows = st.floats(0.5, 20)


def nested(
    stream_rates: dict[str, float], shares: dict[str, float], window_s: float, lateness_s: float = 0.0
) -> CostModel:
    conditions = [Condition(frozenset(pair), share) for pair, share in shares.items()]
    graph = from_graph(stream_rates, {}, window_s=window_s, lateness_s=lateness_s, conditions=conditions)
    return CostModel(graph, NESTED)


@given(rates, rates, selectivities, windows)
@settings(max_examples=40, deadline=None)
def test_equation_1_recomputing_a_state(l_a: float, l_b: float, s_ab: float, window_s: float) -> None:
    """T_SAB = λ_A λ_B W² (T_j + T_s σ_AB). MS/PT §5.1, eq 1."""
    model = nested({"A": l_a, "B": l_b}, {"AB": s_ab}, window_s)
    printed = l_a * l_b * window_s**2 * (T_J + T_S * s_ab)
    assert float(NESTED.seconds(recomputing_work(model, [1, 2]))) == pytest.approx(printed)


@given(rates, rates, selectivities, windows)
@settings(max_examples=40, deadline=None)
def test_equation_2_the_output_rate_of_a_join(l_a: float, l_b: float, s_ab: float, window_s: float) -> None:
    """λ_AB = 2 λ_A λ_B W σ_AB: what flows into a state of AB. MS/PT §5.1, eq 2."""
    model = nested({"A": l_a, "B": l_b, "C": 1.0}, {"AB": s_ab}, window_s)
    (appended,) = model.append_work(model.walk(left_deep("ABC")).kept[2:3])[:, APPEND]
    assert appended == pytest.approx(2 * l_a * l_b * window_s * s_ab)


def test_equation_3_moving_state_takes_what_recomputing_unmatched_states_takes() -> None:
    """T_MS = T_match + T_move + T_S; the first two are look-ups and cost nothing here. MS/PT §5.1, eq 3."""
    model = nested(dict.fromkeys("ABCD", 10.0), {"AB": 0.1, "BC": 0.1, "CD": 0.1}, 5.0)
    old, new = left_deep("ABCD"), parse_plan("(B A) (C D)", "ABCD")
    states = states_to_recompute(model, old, new)
    assert [each.streams for each in states] == [("C", "D")], "(B A) is (A B)"
    forecast = forecast_migration(model, old, new)["ms"]
    assert forecast.seconds == forecast.work_s == forecast.pause_s == pytest.approx(states[0].cpu_s)


@pytest.mark.parametrize("plan", ["(A B)", "((A B) C)", "(((A B) C) D)"])
def test_equation_4_all_old_rows_are_purged_after_a_window_and_the_lateness(plan: str) -> None:
    """2W above one join, where a combination goes by its newest row; ours goes by its oldest. MS/PT §5.2, eq 4."""
    streams = [each for each in plan if each.isalpha()]
    window_s, lateness_s = 4.0, 1.0
    model = nested(dict.fromkeys(streams, 3.0), {}, window_s, lateness_s)
    tree = parse_plan(plan, streams)
    join = CountingJoin(tree, model.cost(tree).orders, window_s, lateness_s)
    start = 12.0
    oldest_after = []
    for row in steady_rows(model.statistics, 20.0, 1):
        join.insert(row)
        oldest = min(each.at for state in join.states.values() for tuples in state for each in tuples.values())
        oldest_after.append((row.at, oldest))
    done = next(at for at, oldest in oldest_after if oldest >= start)
    assert done - start == pytest.approx(purge_s(model), abs=0.5)
    assert purge_s(model) == window_s + lateness_s
    assert purge_s(model, event_rate=0.5) == 2 * (window_s + lateness_s)
    assert purge_s(model, event_rate=0.0) == math.inf


@given(rates, rates, selectivities, windows)
@settings(max_examples=40, deadline=None)
def test_equation_5_a_join_of_the_old_plan(l_a: float, l_b: float, s_ab: float, window_s: float) -> None:
    """T_AB over 2W: purges, insertions and comparisons. MS/PT §5.2, eq 5."""
    model = nested({"A": l_a, "B": l_b}, {"AB": s_ab}, window_s)
    printed = 2 * window_s * (2 * T_J * l_a * l_b * window_s + 2 * T_S * (l_a + l_b))
    assert 2 * window_s * model.cost(left_deep("AB")).cpu == pytest.approx(printed)


@given(rates, rates, selectivities, windows)
@settings(max_examples=40, deadline=None)
def test_equation_6_a_join_of_the_new_plan(l_b: float, l_c: float, s_bc: float, window_s: float) -> None:
    """In the first W nothing is purged and states grow; as printed the integral counts W times. MS/PT §5.2, eq 6."""
    model = nested({"B": l_b, "C": l_c}, {"BC": s_bc}, window_s)
    first = window_s * T_S * (l_b + l_c) + T_J * (l_b * l_c + l_c * l_b) * window_s**2 / 2
    second = window_s * (2 * T_J * l_b * l_c * window_s + 2 * T_S * (l_b + l_c))
    assert growing_cpu_s(model, left_deep("BC"), window_s) == pytest.approx(first)
    assert growing_cpu_s(model, left_deep("BC"), 2 * window_s) == pytest.approx(first + second)


@given(rates, rates, selectivities, windows, st.floats(0.01, 3))
@settings(max_examples=40, deadline=None)
def test_equation_7_the_output_rate_of_a_growing_join(
    l_b: float, l_c: float, s_bc: float, window_s: float, share: float
) -> None:
    """λ_BC(t) = 2 λ_b λ_c σ t up to W, then constant; as printed it is integrated once more. MS/PT §5.2, eq 7."""
    graph = from_graph({"B": l_b, "C": l_c, "D": 1e-9}, {("B", "C"): s_bc}, window_s=window_s)
    only_pairs = Constants(
        append_s=1.0, expire_s=0.0, probe_s=0.0, candidate_s=0.0, pair_s=0.0, condition_s=0.0, step_s=0.0
    )
    model = CostModel(graph, only_pairs)
    t = share * window_s
    produced = growing_cpu_s(model, left_deep("BCD"), t) - (l_b + l_c + 1e-9) * t
    until = min(t, window_s)
    assert produced == pytest.approx(
        l_b * l_c * s_bc * until**2 + 2 * l_b * l_c * s_bc * window_s * (t - until),
        rel=1e-6,
        abs=1e-6 * (l_b + l_c) * t,
    )


@given(rates, rates, rates, selectivities, selectivities, windows)
@settings(max_examples=40, deadline=None)
def test_equation_8_moving_state_in_figure_4(
    l_b: float, l_c: float, l_d: float, s_bc: float, s_bcd: float, window_s: float
) -> None:
    """T_MS for ((A B) C) D to A ((B C) D). MS/PT §6.2, eq 8.

    Its second term has a factor 2: |S_BC| = λ_BC W with λ_BC of eq 2, right where a combination lives a whole window
    after its newest row. By our purge rule |S_BC| is λ_B λ_C W² σ_BC, and the factor goes.
    """
    stream_rates = {"A": 10.0, "B": l_b, "C": l_c, "D": l_d}
    model = nested(stream_rates, {"BC": s_bc, "CD": s_bcd}, window_s)
    printed = l_b * l_c * window_s**2 * (T_J + T_S * s_bc)
    ours = printed + l_b * l_c * l_d * window_s**3 * (T_J * s_bc + T_S * s_bc * s_bcd)
    forecast = forecast_migration(model, left_deep("ABCD"), parse_plan("A ((B C) D)", "ABCD"))["ms"]
    assert forecast.work_s == pytest.approx(ours)


def test_a_counting_join_has_states_of_our_size_not_twice_that() -> None:
    """What decides between eq 8 as printed and ours: live combinations, counted."""
    model = nested({"A": 4.0, "B": 6.0, "C": 0.05}, {}, 3.0)
    plan = left_deep("ABC")
    join = CountingJoin(plan, model.cost(plan).orders, 3.0, 0.0)
    sizes = []
    for row in steady_rows(model.statistics, 60.0, 2):
        join.insert(row)
        if row.at > 6.0:
            sizes.append(len(join.states[frozenset("AB")]))
    assert sum(sizes) / len(sizes) == pytest.approx(4 * 6 * 3**2, rel=0.05)


def plans_of(model: CostModel) -> tuple[Join, Join]:
    return left_deep("ABC"), canonical(parse_plan("A (B C)", "ABC"), model.statistics.streams)


def test_hybmig_lasts_a_window_and_less_where_there_is_cpu_to_spare() -> None:
    """Duration w, or when background computation has finished. HybMig §3.5 (with our lateness)."""
    idle = nested(dict.fromkeys("ABC", 5.0), {}, 10.0, 2.0)
    quick = forecast_migration(idle, *plans_of(idle))["hybmig"]
    assert 0 < quick.seconds < 1.0
    busy = forecast_migration(idle, *plans_of(idle), available_cpu=1e-6)["hybmig"]
    assert busy.seconds == 12.0
    stalled = forecast_migration(idle, *plans_of(idle), available_cpu=1e-6, event_rate=0.0)
    assert stalled["hybmig"].seconds == stalled["pt"].seconds == math.inf
    assert math.isfinite(stalled["ms"].seconds), "moving state needs no watermark"


def test_hybmig_shares_states_that_match() -> None:
    """There is one list of tuples for both plans: only what the plans do not share comes on top. HybMig §3.2."""
    model = nested(dict.fromkeys("ABC", 5.0), {"AB": 0.1, "BC": 0.1}, 10.0)
    old, new = plans_of(model)
    forecast = forecast_migration(model, old, new)["hybmig"]
    only_new = float(model.state_bytes(np.array([model.statistics.mask("BC")]))[0])
    assert forecast.memory_bytes == pytest.approx(model.cost(old).memory_bytes + only_new)


fractions = st.floats(0.01, 0.45)


@given(st.floats(0.01, 100), fractions)
def test_the_spike_after_moving_state(duration_s: float, cpu_new: float) -> None:
    """SpikeLen_GMS = τ n Duration / (1/T_new - τ n), with τ n T_new as the plan's CPU. HybMig §4.4."""
    tau_n = 50.0
    t_new = cpu_new / tau_n
    printed = tau_n * duration_s / (1 / t_new - tau_n)
    assert backlog_s(duration_s, cpu_new) == pytest.approx(printed)
    assert backlog_s(duration_s, 1.0) == math.inf, "a plan that needs all there is never catches up"


@given(st.floats(0.01, 100), fractions, fractions)
def test_background_computation_beside_both_plans(work_s: float, cpu_old: float, cpu_new: float) -> None:
    """d1 + d2 from the two equations that define them; the printed sum has lost a factor. HybMig §4.4."""
    d1 = work_s / (1 - cpu_old)
    assert d1 == pytest.approx(work_s + d1 * cpu_old)
    d2 = d1 * cpu_new / (1 - cpu_new - cpu_old)
    assert d2 == pytest.approx((d1 + d2) * cpu_new + d2 * cpu_old)
    assert background_s(work_s, cpu_old, cpu_new) == pytest.approx(d1 + d2)
    assert background_s(work_s, 0.6, 0.5) == math.inf


def test_gpt_runs_both_plans_for_a_window() -> None:
    """CPU_GPT = τ n w (T_old + T_new): an upper bound, since the new plan starts empty. HybMig §4.4."""
    model = nested(dict.fromkeys("ABC", 5.0), {"AB": 0.1}, 10.0)
    _, new = plans_of(model)
    full = 10.0 * model.cost(new).cpu
    assert 0.2 * full < growing_cpu_s(model, new, 10.0) < full


def test_candidates_are_what_nested_loops_compare() -> None:
    """Guards the translation above: with a condition instead of an edge, all |S_A||S_B| pairs are candidates."""
    model = nested({"A": 2.0, "B": 3.0}, {"AB": 0.5}, 4.0)
    assert recomputing_work(model, [1, 2])[CANDIDATE] == pytest.approx(2 * 3 * 4**2)
