"""From a request about plans to an answer: which tree, by which strategy, at what cost."""

from __future__ import annotations

import asyncio
import math
from dataclasses import asdict, dataclass
from functools import partial

from api.access import Caller
from api.backend import Backend
from api.plan_schemas import PlanQuestion, ReplanBody
from api.problems import Problem, unavailable
from balancing.replans.advice import Advice, Change, budget_share, change_to, tree_of
from balancing.replans.replan import Replan
from balancing.replans.requests import (
    ReplanRequest,
    check_budget,
    check_replan,
    check_replannable,
    plan_of,
)
from balancing.replans.statistics import PlanPicture
from balancing.replans.table import TABLE, State
from balancing.requests import Refused, check_expected_epoch, check_running, check_worker
from balancing.settings import Settings
from balancing.situation import Situation
from manager.advising import Planning, limits_of
from manager.store import Json, now_ms
from plans.costs import CostModel, canonical
from plans.forecast import forecast_migration
from plans.optimiser import Limits, optimise
from trimtab.plan_orders import PlanState, PlanStrategy
from trimtab.reports import WorkerReport

NOT_KNOWN = "What this worker's plans cost is not known yet: it has reported no sample of keys recently"


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A request whose plan and strategy are settled."""

    request: ReplanRequest
    change: Change | None
    """None where nothing is known that a forecast could be made from."""


async def resolved(use: Backend, query: str, body: ReplanBody, operation: str, by: Caller) -> Resolved:
    """Checked as far as it can be: 404, 409 or 422 with field, value and remedy."""
    situation, settings = await use.situation(query), await use.store.auto(query)
    check_running(situation)
    check_expected_epoch(body.expected_epoch, situation)
    check_replannable(body.worker, situation)
    budget_ms = body.budget if body.budget is not None else settings.plan_budget_ms
    check_budget(budget_ms)
    plan = None if body.plan is None else str(plan_of(body.plan, situation))
    planning = await use.planning(query)
    change = await asyncio.to_thread(
        _change, planning, situation, settings, body.worker, plan, body.strategy, budget_ms
    )
    if plan is None and change is None:
        raise unavailable(NOT_KNOWN)
    request = ReplanRequest(
        id=f"p-{operation}",
        query=query,
        worker=body.worker,
        plan=plan or (change.plan if change else ""),
        strategy=change.strategy if change else _blind(body.strategy),
        budget_ms=budget_ms,
        needed_bytes=None if change is None else change.needed_bytes,
        reason=body.reason,
        by=str(by),
        expected_epoch=body.expected_epoch,
        note="" if change is None else f"{change.text}; {change.strategy}: {change.why}",
        forecast=None if change is None else change.to_json(),
        at_ms=now_ms(),
    )
    check_replan(request, situation, settings.plan_memory_bytes)
    return Resolved(request=request, change=change)


def _blind(strategy: str) -> str:
    """Where nothing is known yet, moving state ends for certain, whatever the streams do."""
    return PlanStrategy.MS if strategy == "auto" else strategy


def _change(
    planning: Planning | None,
    situation: Situation,
    settings: Settings,
    worker: int,
    plan: str | None,
    strategy: str,
    budget_ms: int,
) -> Change | None:
    """From the plan that the worker has to the one that is asked for, or to the best one."""
    if planning is None:
        return None
    picture = planning.picture
    model = picture.model(worker)
    now = tree_of(situation.plans[worker], picture.streams)
    if model is None or now is None or picture.streams != situation.streams:
        return None
    if plan is None:
        answer = optimise(model, limits_of(settings))
        if answer.chosen is None:
            raise Problem(
                409, "no-plan", answer.explanation, field="plan", value=None,
                remedy="Raise the setting plan_memory_bytes, or move groups away from the worker.",
            )  # fmt: skip
        if answer.chosen.plan == canonical(now, picture.streams):
            raise Problem(
                409, "nothing-to-do", f"Worker {worker} has the best plan already, {now}.", field="worker",
                value=worker, remedy="Name a plan to have another one all the same.",
            )  # fmt: skip
        tree = answer.chosen.plan
    else:
        tree = plan_of(plan, situation)
    wanted = None if strategy == "auto" else PlanStrategy(strategy)
    return change_to(picture, worker, model, now, tree, budget_ms=budget_ms, strategy=wanted)


async def answered(use: Backend, query: str, body: PlanQuestion) -> Json:
    """What the optimiser would choose: as `trimtab plan graph.yaml --json` prints it."""
    situation = await use.situation(query)
    check_worker("worker", body.worker, situation)
    for stream in body.rates:
        if stream not in situation.streams:
            remedy = f"There are: {', '.join(situation.streams)}."
            raise Refused(f"rates.{stream}", stream, "is not a stream of this query", remedy)
    planning = await use.planning(query)
    if planning is None or planning.picture.worker(body.worker) is None:
        raise unavailable(NOT_KNOWN)
    limits = Limits(
        cpu=body.cpu if body.cpu is not None else math.inf,
        memory_bytes=body.memory_bytes if body.memory_bytes is not None else math.inf,
    )
    settings = await use.store.auto(query)
    model = planning.picture.model(body.worker, body.rates)
    if model is None:
        raise unavailable(NOT_KNOWN)
    now = situation.plans.get(body.worker, "")
    share = budget_share(settings.plan_budget_ms, planning.picture.batch_s)
    found = await asyncio.to_thread(partial(_answer, planning.picture, model, limits, now, share))
    return {"query": query, "worker": body.worker, **found}


def _answer(picture: PlanPicture, model: CostModel, limits: Limits, now: str, share: float) -> Json:
    answer = optimise(model, limits)
    body: Json = {
        "rates": {stream: model.statistics.rate(stream) for stream in picture.streams},
        "streams": list(picture.streams),
        **answer.to_json(),
    }
    tree = tree_of(now, picture.streams)
    if tree is not None:
        before = model.cost(canonical(tree, picture.streams))
        body["now"] = before.to_json()
        body["change"] = []
        if answer.chosen is not None and answer.chosen.plan != before.plan:
            forecasts = forecast_migration(model, before.plan, answer.chosen.plan, budget=share)
            body["change"] = [forecasts["ms"].to_json(), forecasts["hybmig"].to_json()]
    return body


# -- what is shown


async def plans_view(use: Backend, query: str) -> Json:
    situation = await use.situation(query)
    reports, planning, settings = (
        await use.store.reports(query),
        await use.planning(query),
        await use.store.auto(query),
    )
    return {
        "query": query,
        "epoch": situation.epoch.number,
        "streams": list(situation.streams),
        "auto": settings.plans,
        "measured_ms": None if planning is None else planning.picture.at_ms,
        "workers": [
            _worker_view(worker, situation, reports.get(worker), planning) for worker in range(situation.workers)
        ],
    }


def _worker_view(worker: int, situation: Situation, report: WorkerReport | None, planning: Planning | None) -> Json:
    order = situation.epoch.order(worker)
    said = None if report is None else report.order
    under_way = next((each.id for each in situation.replans if each.worker == worker), None)
    advice = None if planning is None else planning.of(worker)
    running = None if report is None else report.plan
    fresh = advice is not None and advice.plan == situation.plans.get(worker)
    measured = None if planning is None else planning.picture.worker(worker)
    return {
        "worker": worker,
        "plan": running,
        "ordered": None if order is None else order.plan,
        "migrating": said is not None and said.state == PlanState.MIGRATING,
        "strategy": said.strategy or None if said is not None and said.state == PlanState.MIGRATING else None,
        "done": said.done if said is not None else 0,
        "total": said.total if said is not None else 0,
        "waits_for": said.waits_for or None if said is not None else None,
        "replan": under_way,
        "pinned": worker in situation.rules.plans,
        "states": [] if report is None else [{"state": name, "rows": n} for name, n in report.plan_states.items()],
        "state_bytes": None if report is None else report.state_bytes,
        "cpu_s_per_batch": None if measured is None else round(measured.cpu_s, 4),
        "cost": None
        if advice is None or not fresh
        else {"cpu": advice.cpu, "memory_bytes": advice.memory_bytes, "states": [list(s) for s in advice.states]},
        "best": None if advice is None or not fresh or advice.change is None else advice.change.to_json(),
        "text": _text(worker, situation, advice if fresh else None),
    }


def _text(worker: int, situation: Situation, advice: Advice | None) -> str:
    under_way = next((each for each in situation.replans if each.worker == worker), None)
    if under_way is not None:
        return f"replan {under_way.id} is {under_way.state}: to {under_way.wanted_plan}"
    if worker not in situation.up:
        return "the worker does not report"
    if advice is None:
        return NOT_KNOWN
    pinned = " (its plan is pinned)" if worker in situation.rules.plans and advice.change is not None else ""
    return f"{advice.text}{pinned}"


def replan_view(record: Replan, report: WorkerReport | None = None) -> Json:
    """A replan, and how far its worker says that it has come."""
    said = None if report is None or report.order is None else report.order
    mine = said is not None and said.order == record.order_id and not record.done
    done, total = (said.done, max(said.total, said.done)) if said is not None and mine else (0, 0)
    body = record.to_json()
    for name in ("format", "oldest_reader", "incarnation", "since", "seen", "settled_batch"):
        del body[name]
    return {
        **body,
        "state": str(record.state),
        "strategy": str(record.strategy),
        "story": [asdict(each) for each in record.story],
        "open": not record.done,
        "progress": _progress(record, done, total),
        "done": done,
        "total": total,
        "waits_for": said.waits_for or None if said is not None and mine else None,
        "can_be_cancelled": not record.done and record.state not in TABLE.refusing and not record.goes_back,
    }


def _progress(record: Replan, done: int, total: int) -> float:
    if record.done:
        return 1.0
    known = {State.REQUESTED: 0.0, State.WAITING: 0.0, State.ORDERED: 0.05, State.SETTLED: 0.95, State.CLOSING: 0.98}
    return known.get(record.state, 0.1 + 0.85 * (done / total if total else 0.0))


def explained(planning: Planning | None, situation: Situation) -> list[Json]:
    """About workers whose plan is being changed or could be better, for `explain`."""
    found = []
    for worker in range(situation.workers):
        advice = None if planning is None else planning.of(worker)
        fresh = advice is not None and advice.plan == situation.plans.get(worker)
        better = advice is not None and fresh and advice.change is not None
        if better or any(each.worker == worker for each in situation.replans):
            found.append({"worker": worker, "text": _text(worker, situation, advice if fresh else None)})
    return found
