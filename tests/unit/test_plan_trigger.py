"""When the optimiser acts by itself, and that it comes before moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from balancing.happenings import LoadWeighed
from balancing.instructions import Instruction, Propose, Write
from balancing.replans.advice import Advice, Change
from balancing.replans.replan import Replan
from balancing.replans.table import State
from balancing.replans.trigger import PlanTrigger, weigh
from balancing.rules import Rules
from balancing.settings import Settings, parse_settings
from balancing.situation import Situation
from balancing.steering import Steering
from tests.unit.balancing_snapshots import snapshot
from trimtab.epochs import first_epoch
from trimtab.errors import InvalidInput
from trimtab.plan_orders import PlanStrategy

OLD, NEW = "((A B) C)", "((A C) B)"
AUTO = Settings(plans=True)
SITUATION = Situation(
    query="q",
    workers=2,
    epoch=first_epoch("q", "i", (0, 0, 1)),
    up=frozenset({0, 1}),
    streams=("A", "B", "C"),
    plans={0: OLD, 1: OLD},
    follow=frozenset({0, 1}),
)


def advice(worker: int = 0, plan: str = OLD, **changes: Any) -> Advice:
    change = Change(
        worker=worker, now=plan, plan=NEW, saves=0.38, saved_cpu=0.2, strategy=PlanStrategy.HYBMIG, why="sooner",
        seconds=4.0, work_s=8.0, payback_s=40.0, needed_bytes=1000, text="a better one",
    )  # fmt: skip
    return Advice(
        worker=worker, plan=plan, cpu=0.5, memory_bytes=10, states=(), change=replace(change, **changes), text="text"
    )


def due(each: Advice, *, held_ms: int = 10_000, **more: Any) -> bool:
    trigger = more.pop("trigger", PlanTrigger(better_since_ms={each.worker: 0}))
    weighed = weigh([each], more.pop("settings", AUTO), trigger, more.pop("situation", SITUATION), held_ms)
    assert not (weighed.due and weighed.waiting)
    return bool(weighed.due)


def test_it_must_be_better_for_long_enough() -> None:
    first = weigh([advice()], AUTO, PlanTrigger(), SITUATION, 5_000)
    assert (first.due, len(first.waiting), first.trigger.better_since_ms) == ((), 1, {0: 5_000})
    assert not weigh([advice()], AUTO, first.trigger, SITUATION, 14_999).due
    assert weigh([advice()], AUTO, first.trigger, SITUATION, 15_000).due
    broken = weigh([advice(saves=0.09)], AUTO, first.trigger, SITUATION, 9_000)
    assert (broken.due, broken.waiting, broken.trigger.better_since_ms) == ((), (), {})
    assert first.trigger.interrupted().better_since_ms == {}


@pytest.mark.parametrize(
    ("each", "more"),
    [
        (advice(saves=0.099), {}),
        (advice(payback_s=300.5), {}),
        (advice(payback_s=None), {}),
        (replace(advice(), change=None), {}),
        (advice(plan=NEW), {}),
        (advice(), {"situation": replace(SITUATION, rules=Rules(plans=frozenset({0})))}),
        (advice(), {"situation": replace(SITUATION, up=frozenset({1}))}),
        (advice(), {"situation": replace(SITUATION, follow=frozenset({1}))}),
        (advice(), {"trigger": PlanTrigger(better_since_ms={0: 0}, changed_ms={0: -49_999})}),
    ],
)
def test_what_keeps_it_from_acting(each: Advice, more: dict[str, Any]) -> None:
    assert due(advice()) and due(advice(saves=0.1, payback_s=300.0))
    assert due(advice(), trigger=PlanTrigger(better_since_ms={0: 0}, changed_ms={0: -50_000, 1: 0}))
    assert not due(each, **more)


# -- in steering

LOAD = snapshot([0, 0, 1], [9e8, 8e8, 1e8], ["a", "b"])


def weighed(settings: Settings, *advices: Advice, now_ms: int = 20_000, **more: Any) -> LoadWeighed:
    fields = {"snapshot": LOAD, "situation": SITUATION, "request_id": "auto-1", **more}
    return LoadWeighed(now_ms=now_ms, settings=settings, advice=advices, **fields)


def steering(**changes: Any) -> Steering:
    return replace(Steering(query="q", fence=3, planner=PlanTrigger(better_since_ms={0: 0, 1: 0})), **changes)


def replans(instructions: list[Instruction]) -> list[Replan]:
    return [replan for each in instructions if isinstance(each, Write) for replan in each.replans]


def test_plans_come_before_moves_in_the_same_round() -> None:
    both = replace(AUTO, auto=True, min_batches=0)
    assert any(isinstance(each, Propose) for each in steering().handle(weighed(both)))
    instructions = steering().handle(weighed(both, advice(), advice(1, saves=0.05)))
    (made,) = replans(instructions)
    assert (made.id, made.worker, made.state, made.automatic, made.by) == (
        "auto-1-w0",
        0,
        State.WAITING,
        True,
        "optimiser",
    )
    assert (made.plan, made.former, made.strategy, made.budget_ms) == (NEW, OLD, PlanStrategy.HYBMIG, 100)
    assert not any(isinstance(each, Propose) for each in instructions)
    then = instructions[-1].then
    (held,) = then.handle(weighed(both, advice(1)))
    assert held.then.was_busy and held.then.planner.better_since_ms == {}, "what follows is measured anew"


def test_moves_wait_while_a_better_plan_waits_for_its_time() -> None:
    both = replace(AUTO, auto=True, min_batches=0)
    (write,) = steering(planner=PlanTrigger()).handle(weighed(both, advice()))
    assert isinstance(write, Write) and write.decision is not None
    assert (write.decision.act, write.decision.code) == (False, "plans-first")
    assert "worker 0 is about to get a better plan: a better one" in write.decision.why
    assert write.then.planner.better_since_ms == {0: 20_000}


def test_two_workers_may_change_at_once() -> None:
    assert [each.worker for each in replans(steering().handle(weighed(AUTO, advice(), advice(1))))] == [0, 1]


def test_it_is_off_until_it_is_switched_on() -> None:
    assert replans(steering().handle(weighed(Settings(), advice()))) == []
    assert replans(steering().handle(weighed(AUTO, advice(), situation=None))) == []
    assert replans(steering(parked=True).handle(weighed(AUTO, advice()))) == []


def test_a_change_that_is_refused_is_not_tried_again_at_once() -> None:
    tight = replace(AUTO, plan_memory_bytes=999)
    instructions = steering().handle(weighed(tight, advice()))
    told = [event for each in instructions if isinstance(each, Write) for event in each.events]
    assert [event.kind for event in told] == ["refused"] and "999 are allowed" in told[0].text
    assert instructions[-1].then.planner.changed_ms == {0: 20_000}
    again = instructions[-1].then.handle(weighed(tight, advice(), now_ms=79_000))
    assert not [event for each in again if isinstance(each, Write) for event in each.events]


def test_a_strategy_may_be_set() -> None:
    (made,) = replans(steering().handle(weighed(replace(AUTO, plan_strategy="ms", plan_budget_ms=20), advice())))
    assert (made.strategy, made.budget_ms, made.note) == (PlanStrategy.MS, 20, "ms: set")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("plans", 1),
        ("plan_min_gain", 1.5),
        ("plan_hold_s", -1),
        ("plan_horizon_s", 0),
        ("plan_budget_ms", 0),
        ("plan_budget_ms", 1.5),
        ("plan_memory_bytes", 0),
        ("plan_strategy", "pt"),
    ],
)
def test_settings_out_of_range(name: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_settings({name: value})
    assert caught.value.field == name and caught.value.remedy
