"""Proposals, their forecasts and explanations: what is said before anything is moved."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from balancing.explain import Arrival, why_here, why_no_move
from balancing.policies import Drain, Fill, Level, Pairwise, Policy
from balancing.proposal import Proposal, make_proposal, parse_proposal, stale
from balancing.settings import Settings
from balancing.triggers import TriggerState, accept, decide
from tests.unit.balancing_snapshots import snapshot
from trimtab.epochs import Epoch
from trimtab.errors import CorruptState, InvalidInput

SEEN = snapshot([0] * 6 + [1] * 2, [10e6] * 8, ["a", "b"])
SETTINGS = Settings(auto=True)


def proposal(policy: Policy | None = None, **changes: Any) -> Proposal:
    return make_proposal(replace(SEEN, **changes), policy or Level(), SETTINGS, id="p-1", reason="skew")


def epoch(owners: tuple[int, ...] = SEEN.owners, **changes: Any) -> Epoch:
    return Epoch(**{"query": "q", "number": 9, "incarnation": "i", "owners": owners, **changes})


def test_a_forecast_says_what_comes_of_it_and_what_it_costs() -> None:
    made = proposal()
    told = made.forecast
    assert [(each.executor, each.before, each.after) for each in told.executors] == [
        ("a", 60e6, 40e6),
        ("b", 20e6, 40e6),
    ]
    assert [(each.worker, each.before, each.after) for each in told.workers] == [(0, 60e6, 40e6), (1, 20e6, 40e6)]
    assert (told.ratio_before, told.ratio_after) == (1.5, 1.0)
    assert told.gain == pytest.approx(1 / 3)
    assert (told.groups, told.bytes, told.state_rows) == (2, 2000, 20)
    assert told.rows_duplicated == 0 and told.waves == 1
    assert told.seconds is not None and told.seconds > 0
    assert made.owners == {group: 0 for move in made.moves for group in move.groups}
    assert (made.epoch, made.query, made.made_at_ms, made.policy, made.reason) == (3, "q", 1000, "level", "skew")


def test_ptlb_is_forecast_to_double_rows_and_to_pause_nothing() -> None:
    told = make_proposal(SEEN, Level(), SETTINGS, id="p", strategy="ptlb").forecast
    assert told.rows_duplicated == 2 * 10_000 * 65 and told.pause_ms == 0


def test_ptlb_on_an_idle_stream_is_forecast_never_to_end() -> None:
    made = make_proposal(replace(SEEN, event_time_rate=0.0), Level(), SETTINGS, id="p", strategy="ptlb")
    assert made.forecast.seconds is None and made.forecast.rows_duplicated is None
    assert parse_proposal(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize("policy", [Level(), Pairwise(), Drain(0), Fill(1)])
def test_proposals_survive_json(policy: Policy) -> None:
    made = proposal(policy)
    assert made.moves
    assert parse_proposal(json.loads(json.dumps(made.to_json(), allow_nan=False))) == made


def test_a_text_that_is_no_proposal_is_refused() -> None:
    body = proposal().to_json()
    for broken in (
        {},
        {**body, "format": body["format"] + 1},
        {**body, "moves": [{"sender": "x"}]},
        {**body, "forecast": {}},
    ):
        with pytest.raises(CorruptState):
            parse_proposal(broken)


def test_a_proposal_is_fresh_while_its_groups_are_where_they_were() -> None:
    made = proposal()
    assert stale(made, epoch()) == []
    untouched = next(group for group in range(6) if group not in made.groups)
    elsewhere = tuple(1 if group == untouched else owner for group, owner in enumerate(SEEN.owners))
    assert stale(made, epoch(elsewhere), moving=[untouched]) == []


def test_a_proposal_is_stale_when_a_group_it_touches_has_changed() -> None:
    made = proposal()
    group = min(made.groups)
    moved = tuple(1 if each == group else owner for each, owner in enumerate(SEEN.owners))
    assert stale(made, epoch(moved)) == [f"Group {group} belonged to worker 0 and belongs to worker 1 now."]
    assert stale(made, epoch(), moving=[group]) == [f"Group {group} is in a migration."]
    assert len(stale(made, epoch(()))) == len(made.groups)
    assert len(stale(made, epoch(incarnation="other"))) == 1
    assert len(stale(made, epoch(query="other"))) == 1


def test_a_proposal_is_stale_when_rules_have_changed() -> None:
    made = proposal()
    group, other = min(made.groups), next(group for group in range(6) if group not in made.groups)
    assert stale(made, epoch(), pinned=[group]) == [f"Group {group} is pinned to its worker now."]
    assert stale(made, epoch(), pinned=[other], excluded=[2]) == []
    for worker in (0, 1):
        assert stale(made, epoch(), excluded=[worker]) == [f"Worker {worker} is excluded from balancing now."]
    drained = proposal(Drain(0))
    assert stale(drained, epoch(), excluded=[0]) == [], "excluded, so that it stays empty"
    assert len(stale(drained, epoch(), excluded=[1])) == 1


def test_an_excluded_executor_does_not_hide_the_gain_of_the_others() -> None:
    seen = snapshot([0] * 6 + [1] * 2 + [2] * 20, [10e6] * 28, ["a", "b", "c"], excluded=frozenset({2}))
    told = make_proposal(seen, Level(), SETTINGS, id="p").forecast
    assert told.gain == pytest.approx(1 / 3) and told.ratio_before == 1.5


def test_why_a_group_is_where_it_is() -> None:
    told = why_here(SEEN, SETTINGS, 3)
    assert "belongs to worker 0 on executor a" in told.text and "No move of it is on record" in told.text
    assert "Nothing keeps it there" in told.text
    assert told.data["owner"] == 0 and told.data["share_of_worker"] == pytest.approx(1 / 6)
    arrival = Arrival(migration="m-7", sender=1, at_ms=5, strategy="mslb", reason="skew", requested_by="ops")
    assert (
        "came from worker 1 by MSLB with migration m-7, asked for by ops: skew."
        in why_here(SEEN, SETTINGS, 3, arrival).text
    )
    json.dumps(told.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"moving": {3: 1}}, "on its way to worker 1"),
        ({"pinned": frozenset({3})}, "is pinned"),
        ({"excluded": frozenset({0})}, "is excluded"),
        ({"workers": snapshot([0], [1], ["a", "b"], down=[0]).workers}, "is down"),
        ({"group_cpu": (0.0, 0.0, 0.0, 90e6, 0.0, 0.0, 1e6, 1e6)}, "Group 3 alone has"),
    ],
)
def test_what_keeps_a_group(changes: dict[str, Any], text: str) -> None:
    assert text in why_here(replace(SEEN, **changes), SETTINGS, 3).text


def test_no_explanation_of_unknown_groups() -> None:
    with pytest.raises(InvalidInput, match="not a group"):
        why_here(SEEN, SETTINGS, 8)


def test_why_nothing_is_moved_now() -> None:
    seen = replace(SEEN, group_cpu=(200e6, *([1e6] * 7)))
    decision = decide(seen, SETTINGS, TriggerState(), 0)
    told = why_no_move(seen, SETTINGS, accept(decision, make_proposal(seen, Level(), SETTINGS, id="p"), SETTINGS, 0))
    assert told.data["act"] is False
    assert told.text.count("Group 0 alone") == 1
    assert told.data["executors"] == seen.executor_loads("cpu")
    level = why_no_move(seen, SETTINGS, decide(replace(seen, batches=0), SETTINGS, TriggerState(), 0))
    assert level.data["code"] == "too-few-batches" and "Group 0 alone" in level.text
    json.dumps(told.to_json(), allow_nan=False)
