"""When the balancer acts, and what it says when it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from balancing.load import Snapshot
from balancing.policies import Level, Pairwise
from balancing.proposal import Proposal, make_proposal
from balancing.settings import Settings, parse_settings
from balancing.triggers import TriggerState, accept, decide, parse_trigger_state, resting
from tests.unit.balancing_snapshots import snapshot
from trimtab.errors import InvalidInput

SETTINGS = Settings(auto=True, start_ratio=1.2, stop_ratio=1.1, cool_down_s=20, min_batches=5)
BALANCING = TriggerState(balancing=True)
UNIT = 1e7
"""Ten of these are a tenth of a core."""


def two(a: float, b: float, **changes: Any) -> Snapshot:
    """Two executors with these loads, in ten groups each."""
    loads = [a / 10 * UNIT] * 10 + [b / 10 * UNIT] * 10
    return snapshot([0] * 10 + [1] * 10, loads, ["a", "b"], **changes)


def proposal(seen: Snapshot) -> Proposal:
    return make_proposal(seen, Level(), SETTINGS, id="p")


def test_acts_when_the_largest_load_is_far_above_the_mean() -> None:
    decision = decide(two(75, 25), SETTINGS, TriggerState(), 0)
    assert (decision.act, decision.code, decision.level) == (True, "act", "executor")
    assert decision.ratio == pytest.approx(1.5)
    assert decision.state == BALANCING
    assert accept(decision, proposal(two(75, 25)), SETTINGS, 0).act


@pytest.mark.parametrize(
    ("load", "state", "acts"),
    [(59, TriggerState(), False), (61, TriggerState(), True), (57, BALANCING, True), (54, BALANCING, False)],
)
def test_hysteresis_starts_high_and_stops_low(load: float, state: TriggerState, acts: bool) -> None:
    decision = decide(two(load, 100 - load), SETTINGS, state, 0)
    assert decision.act == acts
    assert decision.state.balancing == acts


@pytest.mark.parametrize(
    ("seen", "settings", "state", "code"),
    [
        (two(75, 25), replace(SETTINGS, auto=False), TriggerState(), "off"),
        (two(75, 25, moving={0: 1}), SETTINGS, TriggerState(), "moving"),
        (two(75, 25), SETTINGS, TriggerState(rest_until_ms=1), "cooling-down"),
        (two(75, 25, batches=4), SETTINGS, TriggerState(), "too-few-batches"),
        (two(75, 25, excluded=frozenset({1})), SETTINGS, TriggerState(), "nowhere"),
        (two(0.75, 0.25), SETTINGS, TriggerState(), "idle"),
        (two(50, 50), SETTINGS, TriggerState(), "level"),
    ],
)
def test_reasons_not_to_act(seen: Snapshot, settings: Settings, state: TriggerState, code: str) -> None:
    decision = decide(seen, settings, state, 0)
    assert (decision.act, decision.code) == (False, code)
    assert decision.why.endswith(".")


def test_rest_ends() -> None:
    state = resting(SETTINGS, 1000)
    assert state == TriggerState(rest_until_ms=21_000)
    assert decide(two(75, 25), SETTINGS, state, 20_999).code == "cooling-down"
    assert decide(two(75, 25), SETTINGS, state, 21_000).act
    assert parse_trigger_state(state.to_json()) == state


def test_a_group_that_cannot_be_levelled_is_told_and_followed_by_rest_not_by_circles() -> None:
    seen = snapshot([0, 1, 1], [90 * UNIT, 5 * UNIT, 5 * UNIT], ["a", "b"])
    decision = accept(decide(seen, SETTINGS, TriggerState(), 0), proposal(seen), SETTINGS, 0)
    assert (decision.act, decision.code) == (False, "no-moves")
    assert "Group 0 alone has 1.80 times the mean" in decision.why
    assert decide(seen, SETTINGS, decision.state, 1).code == "cooling-down"


def test_too_little_gain_is_not_worth_a_move() -> None:
    seen = snapshot([0, 0, 1], [90 * UNIT, 2 * UNIT, 5 * UNIT], ["a", "b"])
    assert proposal(seen).moves
    decision = accept(decide(seen, SETTINGS, TriggerState(), 0), proposal(seen), SETTINGS, 0)
    assert (decision.act, decision.code) == (False, "too-little-gain")


def test_pairwise_acts_although_another_executor_is_loaded_as_much() -> None:
    """One pair at a time: the largest load of all falls only when both have had their turn."""
    settings = replace(SETTINGS, policy="pairwise")
    owners, state = [0] * 10 + [1] * 10 + [2, 3], TriggerState()
    for _ in range(2):
        seen = snapshot(owners, [UNIT] * 22, ["a", "b", "c", "d"])
        made = make_proposal(seen, Pairwise(), settings, id="p")
        decision = accept(decide(seen, settings, state, 0), made, settings, 0)
        assert decision.act and made.forecast.gain == pytest.approx(0.4), decision.why
        (move,) = made.moves
        owners = [move.receiver if group in move.groups else owner for group, owner in enumerate(owners)]
        state = decision.state
    assert sorted(owners.count(worker) for worker in range(4)) == [5, 5, 6, 6]


def test_workers_matter_once_executors_are_level() -> None:
    loads = [10 * UNIT] * 8
    seen = snapshot([0, 0, 0, 0, 2, 2, 3, 3], loads, ["a", "a", "b", "b"], slots={"a": 2, "b": 2})
    decision = decide(seen, SETTINGS, TriggerState(), 0)
    assert (decision.act, decision.level, decision.ratio) == (True, "worker", 2.0)
    accepted = accept(decision, proposal(seen), SETTINGS, 0)
    assert accepted.act, accepted.why
    one_core = replace(seen, slots={"a": 1, "b": 1})
    assert decide(one_core, SETTINGS, TriggerState(), 0).code == "level"


def test_settings_survive_json_and_are_merged() -> None:
    settings = parse_settings({"auto": True, "start_ratio": 2, "max_moved_bytes": 10})
    assert parse_settings(settings.to_json()) == settings
    assert parse_settings({"stop_ratio": 1.5}, settings) == replace(settings, stop_ratio=1.5)
    unbounded = parse_settings({"max_moved_bytes": None, "max_pause_ms": None}, replace(settings, max_pause_ms=5.0))
    assert unbounded == replace(settings, max_moved_bytes=None)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"colour": 1}, "colour"),
        ({"auto": 1}, "auto"),
        ({"start_ratio": 0.5}, "start_ratio"),
        ({"start_ratio": True}, "start_ratio"),
        ({"start_ratio": 10**400}, "start_ratio"),
        ({"max_moved_bytes": 10**400}, "max_moved_bytes"),
        ({"max_pause_ms": 1e305}, "max_pause_ms"),
        ({"start_ratio": float("nan")}, "start_ratio"),
        ({"stop_ratio": 1.9}, "stop_ratio"),
        ({"measure": "heat"}, "measure"),
        ({"policy": "drain"}, "policy"),
        ({"strategy": "best"}, "strategy"),
        ({"min_batches": 1.5}, "min_batches"),
        ({"max_pause_ms": 0}, "max_pause_ms"),
        ({"stop_ratio": 0.5}, "stop_ratio"),
        ({"cool_down_s": -1}, "cool_down_s"),
        ({"min_gain": 1.5}, "min_gain"),
        ({"min_batches": 0}, "min_batches"),
        ({"min_busy": -1}, "min_busy"),
        ({"max_moved_bytes": 1.5}, "max_moved_bytes"),
        ({"start_ratio": None}, "start_ratio"),
    ],
)
def test_wrong_settings_are_refused_by_name(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_settings(body)
    assert refused.value.field == field
