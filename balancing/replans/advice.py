"""Which plan would be better at a worker, what the change costs, and why: said as a person would."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from balancing.replans.statistics import PlanPicture
from plans.costs import CostModel, PlanCost, canonical
from plans.forecast import MigrationForecast, forecast_migration
from plans.optimiser import Answer, Limits, optimise
from plans.tree import Join, parse_plan
from trimtab.errors import InvalidInput
from trimtab.plan_orders import PlanStrategy
from trimtab.records import Json, known_fields

HALF: Final = 0.5
"""Of the time of a batch that its change of plans may take at most, where the budget is larger than that."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """From the plan that a worker has to another one."""

    worker: int
    now: str
    plan: str
    """The other one."""
    saves: float
    """Share of CPU; below zero where the other plan is dearer."""
    saved_cpu: float
    """CPU seconds per second."""
    strategy: PlanStrategy
    why: str
    """Why this strategy."""
    seconds: float | None
    """How long the change takes; None: no end in sight."""
    work_s: float | None
    payback_s: float | None
    """Until what it costs has been saved; None: never."""
    needed_bytes: int
    """Of the states of both plans."""
    text: str
    """All of it in a sentence."""

    def to_json(self) -> Json:
        return {**asdict(self), "strategy": str(self.strategy)}


@dataclass(frozen=True, kw_only=True)
class Advice:
    """About one worker."""

    worker: int
    plan: str
    cpu: float
    """CPU seconds per second that the model gives the plan it has."""
    memory_bytes: int
    states: tuple[tuple[str, int], ...]
    """State -> rows, by the statistics."""
    change: Change | None
    """To the best plan; None where the worker has it."""
    text: str

    def to_json(self) -> Json:
        return {
            **asdict(self),
            "states": [list(each) for each in self.states],
            "change": None if self.change is None else self.change.to_json(),
        }


def parse_advice(body: Mapping[str, Any]) -> Advice:
    known = known_fields(Advice, body)
    known["states"] = tuple((str(name), int(rows)) for name, rows in body["states"])
    if body["change"] is not None:
        change = known_fields(Change, body["change"])
        known["change"] = Change(**{**change, "strategy": PlanStrategy(change["strategy"])})
    return Advice(**{each.name: known[each.name] for each in fields(Advice)})


def advise(
    picture: PlanPicture, *, budget_ms: int, limits: Limits | None = None, workers: Iterable[int] | None = None
) -> tuple[Advice, ...]:
    """About each worker that enough is known of. Takes up to a fifth of a second for each."""
    wanted = None if workers is None else frozenset(workers)
    found = []
    for known in picture.workers:
        if wanted is not None and known.worker not in wanted:
            continue
        model = picture.model(known.worker)
        tree = tree_of(known.plan, picture.streams)
        if model is None or tree is None:
            continue
        answer = optimise(model, limits)
        found.append(advice_on(picture, known.worker, model, tree, answer, budget_ms=budget_ms))
    return tuple(found)


def advice_on(
    picture: PlanPicture, worker: int, model: CostModel, tree: Join, answer: Answer, *, budget_ms: int
) -> Advice:
    now = model.cost(canonical(tree, picture.streams))
    change = None
    if answer.chosen is None:
        text = answer.explanation
    elif answer.chosen.plan == now.plan or answer.chosen.cpu >= now.cpu:
        text = f"worker {worker} has the best plan, {tree}."
    else:
        change = change_to(picture, worker, model, tree, answer.chosen.plan, budget_ms=budget_ms)
        text = change.text
    return Advice(
        worker=worker,
        plan=str(tree),
        cpu=now.cpu,
        memory_bytes=round(now.memory_bytes),
        states=tuple((" ".join(each.streams), round(each.rows)) for each in now.states),
        change=change,
        text=text,
    )


def change_to(
    picture: PlanPicture,
    worker: int,
    model: CostModel,
    old: Join,
    new: Join,
    *,
    budget_ms: int,
    strategy: PlanStrategy | None = None,
) -> Change:
    """What it costs and saves; the strategy is chosen where none is given."""
    before = model.cost(canonical(old, picture.streams))
    after = model.cost(canonical(new, picture.streams))
    share = budget_share(budget_ms, picture.batch_s)
    forecasts = forecast_migration(model, before.plan, after.plan, budget=share)
    chosen, why = choose_strategy(forecasts["ms"], forecasts["hybmig"], budget_ms)
    if strategy is not None:
        chosen, why = strategy, "asked for"
    forecast = forecasts["ms" if chosen == PlanStrategy.MS else "hybmig"]
    saved = before.cpu - after.cpu
    saves = saved / before.cpu if before.cpu > 0 else 0.0
    return Change(
        worker=worker,
        now=str(old),
        plan=str(new),
        saves=saves,
        saved_cpu=saved,
        strategy=chosen,
        why=why,
        seconds=_finite(forecast.seconds),
        work_s=_finite(forecast.work_s),
        payback_s=_finite(forecast.payback_s),
        needed_bytes=round(forecast.memory_bytes),
        text=_sentence(before, after, str(old), str(new), saves, forecast.payback_s),
    )


def budget_share(budget_ms: int, batch_s: float) -> float:
    """Of a core, what a budget per batch comes to."""
    return min(HALF, budget_ms / 1000 / batch_s) if batch_s > 0 else min(HALF, budget_ms / 1000)


def choose_strategy(ms: MigrationForecast, hybmig: MigrationForecast, budget_ms: int) -> tuple[PlanStrategy, str]:
    """`auto`: moving state where that is done in a batch, else whichever ends sooner."""
    if ms.work_s <= budget_ms / 1000:
        return PlanStrategy.MS, f"moving state takes {_seconds(ms.work_s)}, within the budget of one batch"
    if hybmig.seconds < ms.seconds:
        return PlanStrategy.HYBMIG, (
            f"HybMig ends after {_seconds(hybmig.seconds)}, moving state within its budget after {_seconds(ms.seconds)}"
        )
    return PlanStrategy.MS, (
        f"moving state within its budget ends after {_seconds(ms.seconds)}, HybMig after {_seconds(hybmig.seconds)}"
    )


def tree_of(text: str, streams: tuple[str, ...]) -> Join | None:
    try:
        return parse_plan(text, streams)
    except InvalidInput:
        return None


def _sentence(before: PlanCost, after: PlanCost, now: str, other: str, saves: float, payback_s: float) -> str:
    """((A C) B) instead of ((A B) C): |AB| = 2.5 M against |AC| = 0.2 M rows; saves 38 % CPU; pays back in 40 s"""
    states = _differing(before, after)
    saved = (
        f"saves {saves:.0%} CPU".replace("%", " %") if saves >= 0 else f"costs {-saves:.0%} more CPU".replace("%", " %")
    )
    ends = f"pays back in {_seconds(payback_s)}" if math.isfinite(payback_s) else "never pays back"
    return "; ".join([f"{other} instead of {now}{f': {states}' if states else ''}", saved, ends])


def _differing(before: PlanCost, after: PlanCost) -> str:
    """The states that only one of the two plans keeps."""
    old = {frozenset(each.streams): each for each in before.states if len(each.streams) > 1}
    new = {frozenset(each.streams): each for each in after.states if len(each.streams) > 1}
    gone = [each for name, each in old.items() if name not in new]
    come = [each for name, each in new.items() if name not in old]

    def listed(some: Iterable[Any]) -> str:
        return ", ".join(f"|{''.join(_short(each.streams))}| = {count_text(each.rows)}" for each in some)

    if gone and come:
        return f"{listed(gone)} against {listed(come)} rows"
    if come:
        return f"it keeps {listed(come)} rows"
    return f"it need not keep {listed(gone)} rows" if gone else ""


def _short(streams: tuple[str, ...]) -> tuple[str, ...]:
    """AB where names are letters, else orders·payments."""
    return streams if all(len(each) == 1 for each in streams) else ("·".join(streams),)


def count_text(count: float) -> str:
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        # 0.2 M beside 2.5 M reads better than 200 k; below that it would be nothing.
        if count >= factor / 10:
            return f"{count / factor:.1f} {unit}" if count < 100 * factor else f"{count / factor:.0f} {unit}"
    return f"{count:.0f}"


def _seconds(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "no end in sight"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
