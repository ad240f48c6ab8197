"""PTLB or MSLB: the cost models, against figures worked out by hand and what the papers found."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from balancing.load import Snapshot
from balancing.policies import SuggestedMove
from balancing.strategy import (
    ASK_BATCHES,
    CLOSE_BATCHES,
    WAVE_BATCHES,
    choose,
    kept_states,
    mslb_cost,
    parse_choice,
    ptlb_cost,
    recomputing_ns,
)
from tests.unit.balancing_snapshots import snapshot, worker
from trimtab.errors import InvalidInput

MOVES = (SuggestedMove(sender=0, receiver=1, groups=(0, 1)),)
SEEN = snapshot(
    [0, 0, 1],
    [100e6, 100e6, 100e6],
    ["a", "b"],
    group_rows=(1000.0, 2000.0, 1.0),
    group_bytes=(10e6, 30e6, 1.0),
    group_state_rows=(1000.0, 3000.0, 1.0),
    export_ns_per_byte=5.0,
    import_ns_per_byte=10.0,
    batch_ms=500.0,
)


def test_parallel_track_lasts_a_window_and_a_lateness_and_doubles_the_rows_of_that_time() -> None:
    """T_PT = W, not 2W: combined tuples are purged by their smallest timestamp. MS/PT §5.2, eq 4."""
    cost = ptlb_cost(SEEN, MOVES)
    assert cost.seconds == pytest.approx(60 + 5 + (ASK_BATCHES + CLOSE_BATCHES) * 0.5)
    assert cost.rows_duplicated == pytest.approx(3000 * 65)
    assert cost.pause_ms == 0


def test_the_new_box_starts_empty_and_does_half_the_work_of_the_first_window() -> None:
    """MS/PT §5.2, eq 6: the integral over a state that grows from nothing."""
    assert ptlb_cost(SEEN, MOVES).work_ns == pytest.approx(200e6 * (60 / 2 + 5))


def test_event_time_that_runs_slower_than_the_clock_makes_parallel_track_longer() -> None:
    assert ptlb_cost(replace(SEEN, event_time_rate=0.5), MOVES).rows_duplicated == pytest.approx(3000 * 130)


def test_moving_state_costs_its_bytes_packed_and_unpacked() -> None:
    """T_MS = T_match + T_move + T_S, with T_S = 0 where plans agree. MS/PT §5.1, eq 3."""
    cost = mslb_cost(SEEN, MOVES)
    assert cost.work_ns == pytest.approx(40e6 * 15)
    assert cost.pause_ms == pytest.approx(400)
    assert cost.waves == 1
    assert cost.seconds == pytest.approx((ASK_BATCHES + WAVE_BATCHES + CLOSE_BATCHES) * 0.5 + 0.6)
    assert cost.rows_duplicated == 0


def test_waves_shorten_the_pause_to_the_largest_group_at_best() -> None:
    assert mslb_cost(SEEN, MOVES, wave_bytes=1e6).pause_ms == pytest.approx(300)
    assert mslb_cost(SEEN, MOVES, wave_bytes=1e6).waves == 2


def test_the_moves_of_an_executor_share_what_it_may_ship() -> None:
    """Two workers of executor a send 40 MB each; b and c take in 40 MB each, side by side."""
    seen = snapshot([0, 1, 2], [1e6] * 3, ["a", "a", "b", "c"], group_bytes=(40e6,) * 3, export_ns_per_byte=5.0)
    moves = tuple(SuggestedMove(sender=each, receiver=each + 2, groups=(each,)) for each in (0, 1))
    assert mslb_cost(seen, moves).pause_ms == pytest.approx(max(80 * 5, 40 * seen.import_ns_per_byte))
    paced = mslb_cost(seen, moves, wave_bytes=40e6)
    assert paced.waves == 2 and paced.pause_ms == pytest.approx(40 * seen.import_ns_per_byte)
    assert paced.unrelieved_ns > mslb_cost(seen, moves).unrelieved_ns


def test_unmatched_states_are_recomputed_where_plans_differ() -> None:
    """MS/PT §5.1, eq 1, by hashing instead of nested loops."""
    workers = (worker(0, "a", state_rows=8000, combined_rows=4000), worker(1, "b"))
    seen = replace(SEEN, workers=workers, ns_per_work=100.0)
    assert recomputing_ns(seen, MOVES[0]) == 0
    differ = replace(seen, plans={0: "(A B) C", 1: "(B C) A"})
    blind = (2 * 4000 * 2 / 3 + 2000) * 100
    assert recomputing_ns(differ, MOVES[0]) == pytest.approx(blind), "BC is new: as many tuples as the sender has"
    assert mslb_cost(differ, MOVES).work_ns - mslb_cost(seen, MOVES).work_ns == pytest.approx(blind)
    known = replace(
        differ, workers=(workers[0], worker(1, "b", state_rows=1000)), plan_states={1: {"A": 400, "B C": 3000}}
    )
    assert recomputing_ns(known, MOVES[0]) == pytest.approx((2 * 4000 * 2 / 3 + 3 * 4000) * 100)


def test_states_are_matched_by_their_streams_and_under_the_ordered_plan() -> None:
    """(B A) C keeps what (A B) C keeps; a plan that is ordered counts before the one that still runs."""
    workers = (worker(0, "a", state_rows=8000, combined_rows=4000), worker(1, "b"))
    seen = replace(SEEN, workers=workers, ns_per_work=100.0)
    same = replace(seen, plans={0: "((A B) C)", 1: "(C (B A))"})
    assert recomputing_ns(same, MOVES[0]) == 0
    assert recomputing_ns(replace(same, ordered={1: "((A C) B)"}), MOVES[0]) > 0
    assert recomputing_ns(replace(same, ordered={0: "((A C) B)"}), MOVES[0]) == 0, "the sender ships what it has now"
    less = replace(seen, plans={0: "((A B) C)", 1: "(A B C)"})
    assert recomputing_ns(less, MOVES[0]) == 0, "an mjoin keeps no state to be recomputed"
    assert kept_states("mjoin") == kept_states("((A B)") == frozenset()


def test_moving_state_wins_at_high_rates_and_long_windows() -> None:
    """PTLB/MSLB §5.3, figures 9-11: the longer the window and the higher the rates, the more."""
    choice = choose(SEEN, MOVES)
    assert choice.strategy == "mslb" and choice.cost == choice.mslb
    longer = choose(replace(SEEN, window_s=600.0), MOVES)
    assert longer.ptlb.total_ns - longer.mslb.total_ns > choice.ptlb.total_ns - choice.mslb.total_ns


def test_parallel_track_wins_with_much_state_and_little_left_to_do() -> None:
    """PTLB/MSLB §5.3, figure 13: rates fell, state is still large."""
    seen = replace(SEEN, group_cpu=(1e5, 1e5, 1e5), group_bytes=(1e9, 1e9, 1.0))
    choice = choose(seen, MOVES)
    assert choice.strategy == "ptlb" and choice.cost == choice.ptlb


def test_an_idle_stream_rules_parallel_track_out() -> None:
    seen = replace(SEEN, event_time_rate=0.0, group_bytes=(1e9, 1e9, 1.0), group_cpu=(1.0, 1.0, 1.0))
    choice = choose(seen, MOVES)
    assert choice.strategy == "mslb" and "watermark stands still" in choice.explanation
    assert math.isinf(choice.ptlb.seconds)
    assert choice.to_json()["ptlb"]["seconds"] is None


def test_a_pause_that_is_not_allowed_rules_moving_state_out() -> None:
    choice = choose(SEEN, MOVES, wave_bytes=1e6, max_pause_ms=200)
    assert choice.strategy == "ptlb" and "300 ms" in choice.explanation


@pytest.mark.parametrize("asked", ["ptlb", "mslb"])
def test_what_is_asked_for_is_done(asked: str) -> None:
    choice = choose(SEEN, MOVES, strategy=asked)
    assert choice.strategy == asked and "asked for" in choice.explanation


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not a strategy"):
        choose(SEEN, MOVES, strategy="best")


def test_the_explanation_names_equations_and_figures() -> None:
    text = choose(SEEN, MOVES).explanation
    for part in ("eqs 1-3", "eqs 4-7", "40.0 MB", "(assumed)", "window 60 s", "195,000 rows"):
        assert part in text
    assert "(measured)" in choose(replace(SEEN, measured=frozenset({"export", "import"})), MOVES).explanation


def test_choices_survive_json() -> None:
    for seen in (SEEN, replace(SEEN, event_time_rate=0.0)):
        choice = choose(seen, MOVES)
        assert parse_choice(choice.to_json()) == choice


def test_nothing_costs_nothing() -> None:
    seen: Snapshot = replace(SEEN, event_time_rate=0.0)
    assert (mslb_cost(seen, ()).total_ns, ptlb_cost(seen, ()).total_ns, ptlb_cost(seen, ()).seconds) == (0, 0, 0)
