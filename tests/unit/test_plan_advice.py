"""What is made of workers' reports: smoothed statistics, costs, and what the optimiser advises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from balancing.committed import CommittedBatch
from balancing.replans.advice import advise, budget_share, change_to, choose_strategy, count_text
from balancing.replans.statistics import (
    DECAY,
    KEYS_MAX,
    SAMPLES_KEPT,
    Passing,
    PlanPicture,
    PlanStatistics,
    conditions_of,
)
from manager.advising import Planning, parse_planning
from plans.forecast import MigrationForecast
from plans.optimiser import Limits
from plans.tree import parse_plan
from tests.simulation.leading import report_of
from trimtab.epochs import Epoch, first_epoch
from trimtab.plan_orders import KeySample, PlanReport, PlanState, PlanStrategy, StepCount
from trimtab.reports import WorkerReport

EPOCH = first_epoch("q", "i", (0, 0))
STREAMS = ("A", "B", "C")
OLD, NEW = "((A B) C)", "((A C) B)"
CONDITIONS = (frozenset("AB"), frozenset("ABC"))


def keys(a: int = 50, b: int = 500, c: int = 4, one_in: int = 64) -> KeySample:
    """Ten keys; many rows of B, and rows of C of one key only: most of AB finds no C."""
    return KeySample(one_in=one_in, counts={"A": (a,) * 10, "B": (b,) * 10, "C": (c,) + (0,) * 9})


def report(sample: KeySample | None = None, epoch: Epoch = EPOCH, **changes: Any) -> WorkerReport:
    fields = {"plan": OLD, "cpu_ns": 10**8, "state_rows": 100, "state_bytes": 10_000, **changes}
    return replace(report_of(0, 7, epoch, ()), keys=sample, **fields)


def picture(*reports: WorkerReport, epoch: Epoch = EPOCH) -> PlanPicture:
    statistics = PlanStatistics()
    for number, each in enumerate(reports):
        statistics.add(CommittedBatch(batch=number, bound=epoch, at_ms=number, reports={0: each}), CONDITIONS)
    return statistics.picture("q", STREAMS, CONDITIONS, window_s=10.0, lateness_s=0.0, batch_s=1.0)


def sizes(seen: PlanPicture) -> Mapping[str, float]:
    model = seen.model(0)
    assert model is not None
    return {name: model.statistics.size_of(name) for name in ("A", "AB", "AC")}


def test_the_size_of_any_state_is_a_sum_over_keys() -> None:
    """Not the product of averages: keys that meet count, others do not."""
    apart = KeySample(one_in=2, counts={"A": (30, 0), "B": (0, 30), "C": (1, 1)})
    assert sizes(picture(report(apart))) == pytest.approx({"A": 60, "AB": 0, "AC": 60})
    assert sizes(picture(report(keys()))) == pytest.approx({"A": 32_000, "AB": 16e6, "AC": 12_800})


def test_samples_are_mixed_with_decaying_weights() -> None:
    """Keys have no names in a sample, and none are needed: sizes are sums."""
    seen = picture(report(keys(a=100)), report(keys(a=200)))
    assert sizes(seen)["A"] == pytest.approx(640 * (100 * DECAY + 200) / (1 + DECAY))
    assert sizes(seen)["AB"] == pytest.approx(640 * 500 * (100 * DECAY + 200) / (1 + DECAY))
    worker = picture(*[report(keys())] * 20).worker(0)
    assert worker is not None and (len(worker.samples), worker.batches) == (SAMPLES_KEPT, 20)
    large = KeySample(one_in=1, counts=dict.fromkeys(STREAMS, (1,) * (KEYS_MAX - 1)))
    worker = picture(report(keys()), report(large), report(large)).worker(0)
    assert worker is not None and len(worker.samples) == 1


def test_a_stream_that_a_sample_does_not_name_has_no_rows() -> None:
    sample = KeySample(one_in=1, counts={"A": (1, 2), "C": (3, 4)})
    assert sizes(picture(report(sample))) == pytest.approx({"A": 3, "AB": 0, "AC": 11})


@pytest.mark.parametrize("what", ["plan", "owners", "incarnation", "order"])
def test_the_mixture_begins_anew(what: str) -> None:
    statistics = PlanStatistics()
    first = report(keys(a=100))
    statistics.add(CommittedBatch(batch=1, bound=EPOCH, at_ms=1, reports={0: first}), CONDITIONS)
    order = PlanReport(order="r.p1", state=PlanState.MIGRATING, plan=NEW)
    later = {"plan": report(plan=NEW), "order": report(order=order)}.get(what, report())
    bound = {"owners": replace(EPOCH, owners=(0, 1)), "incarnation": replace(EPOCH, incarnation="j")}.get(what, EPOCH)
    statistics.add(CommittedBatch(batch=2, bound=bound, at_ms=2, reports={0: later}), CONDITIONS)
    seen = statistics.picture("q", STREAMS, CONDITIONS, window_s=10.0, lateness_s=0.0, batch_s=1.0)
    assert seen.model(0) is None
    assert advise(seen, budget_ms=100) == ()


def step(stream: str, other: str, matched: int, *passed: int) -> StepCount:
    return StepCount(stream=stream, other=tuple(other), tuples=1, candidates=1, matched=matched, passed=passed)


def test_conditions_are_those_of_the_step_that_brings_their_last_stream() -> None:
    steps = [step("A", "B", 100, 40), step("A", "C", 50, 10), step("C", "AB", 100, 30), step("B", "A", 10)]
    worker = picture(report(keys(), steps=steps)).worker(0)
    assert worker is not None
    assert worker.conditions == {0: Passing(100, 40), 1: Passing(150, 40)}
    seen = picture(report(keys(), steps=steps))
    model = seen.model(0)
    assert model is not None
    assert [each.selectivity for each in model.statistics.conditions] == pytest.approx([0.4, 40 / 150])


def test_which_conditions_there_are() -> None:
    where = ["orders.amount < payments.amount", "Orders.x > 1", "payments.a + visits.b = orders.c", "preorders.x < 2"]
    named = conditions_of({"where": where}, ("orders", "payments", "visits"))
    assert named == (frozenset({"orders", "payments"}), frozenset({"orders", "payments", "visits"}))
    assert conditions_of(None, STREAMS) == ()


def test_explained_as_a_person_would() -> None:
    (advice,) = advise(picture(report(keys())), budget_ms=100)
    change = advice.change
    assert change is not None and change.plan == NEW and change.saves > 0.3
    assert advice.text.startswith(f"{NEW} instead of {OLD}: |AB| = 16.0 M against |AC| = 12.8 k rows; saves ")
    assert " % CPU; pays back in " in advice.text
    assert change.payback_s is not None and change.needed_bytes > 16e6 * 30
    assert dict(advice.states)["A B"] == pytest.approx(16e6)


def test_nothing_better() -> None:
    (advice,) = advise(picture(report(keys(), plan=NEW)), budget_ms=100)
    assert advice.change is None and advice.text == f"worker 0 has the best plan, {NEW}."
    (none,) = advise(picture(report(keys())), budget_ms=100, limits=Limits(memory_bytes=1.0))
    assert none.change is None and "No plan qualifies" in none.text
    assert advise(picture(report(keys())), budget_ms=100, workers=[1]) == ()
    assert advise(picture(report(keys(), plan="?")), budget_ms=100) == ()


def test_a_plan_that_is_dearer_is_said_to_be() -> None:
    seen = picture(report(keys(), plan=NEW))
    model = seen.model(0)
    assert model is not None
    change = change_to(
        seen, 0, model, parse_plan(NEW, STREAMS), parse_plan(OLD, STREAMS), budget_ms=100, strategy=PlanStrategy.HYBMIG
    )
    assert change.saves < 0 and change.payback_s is None
    assert "more CPU; never pays back" in change.text and change.strategy == PlanStrategy.HYBMIG


def forecast(strategy: Any, seconds: float, work_s: float) -> MigrationForecast:
    return MigrationForecast(
        strategy=strategy, seconds=seconds, work_s=work_s, pause_s=0, backlog_s=0, memory_bytes=0, payback_s=0
    )


@pytest.mark.parametrize(
    ("work_s", "ms_s", "hybmig_s", "chosen"),
    [(0.05, 0.5, 0.1, PlanStrategy.MS), (5.0, 50.0, 10.0, PlanStrategy.HYBMIG), (5.0, 5.0, 10.0, PlanStrategy.MS)],
)
def test_auto_chooses_a_strategy_and_says_why(work_s: float, ms_s: float, hybmig_s: float, chosen: str) -> None:
    strategy, why = choose_strategy(forecast("ms", ms_s, work_s), forecast("hybmig", hybmig_s, 1.0), 100)
    assert strategy == chosen and why


def test_figures() -> None:
    assert [count_text(n) for n in (3, 999, 2_500_000, 200_000, 0)] == ["3", "1.0 k", "2.5 M", "0.2 M", "0"]
    assert [budget_share(ms, s) for ms, s in ((100, 1.0), (900, 1.0), (100, 0.0))] == [0.1, 0.5, 0.1]


def test_it_comes_back_from_redis_as_it_went() -> None:
    seen = picture(report(keys(), steps=[step("A", "B", 100, 40)]))
    planning = Planning(picture=seen, advice=advise(seen, budget_ms=100))
    again = parse_planning(planning.to_text())
    assert again == planning and json.loads(planning.to_text())["picture"]["batch"] == 0
