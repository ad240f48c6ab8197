"""What may be asked about plans, and when it is refused: checked by the API, and again by the leader."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from balancing.replans.replan import Replan, replan_at
from balancing.replans.table import State
from balancing.requests import REQUEST_ID, Refused, check_expected_epoch, check_running, check_worker
from balancing.situation import Situation
from balancing.words import BUDGET_MS, PAUSE_MAX_MS, PLAN_STRATEGIES
from plans.costs import canonical
from plans.tree import Join, parse_plan
from trimtab.errors import InvalidInput
from trimtab.plan_orders import PlanStrategy
from trimtab.records import Json, known_fields


@dataclass(frozen=True, kw_only=True)
class ReplanRequest:
    """One worker shall have another plan."""

    id: str
    query: str
    worker: int
    plan: str
    strategy: str
    budget_ms: int = BUDGET_MS
    needed_bytes: int | None = None
    """What the states of both plans take at the worker, side by side; None: not known."""
    reason: str = ""
    by: str = ""
    expected_epoch: int | None = None
    automatic: bool = False
    note: str = ""
    """How plan and strategy were chosen."""
    forecast: Json | None = None
    at_ms: int = 0

    def to_json(self) -> Json:
        return {"kind": "replan", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class CancelReplan:
    id: str
    query: str
    replan: str
    reason: str = ""
    by: str = ""
    at_ms: int = 0

    def to_json(self) -> Json:
        return {"kind": "cancel-replan", **asdict(self)}


KINDS: Final[dict[str, type[ReplanRequest] | type[CancelReplan]]] = {
    "replan": ReplanRequest,
    "cancel-replan": CancelReplan,
}


def parse_plan_request(body: Any) -> ReplanRequest | CancelReplan | None:
    """A request about plans, as the list of requests has it; None for one that is about something else."""
    if not isinstance(body, dict) or body.get("kind") not in KINDS:
        return None
    kind = KINDS[body["kind"]]
    try:
        return kind(**known_fields(kind, body))
    except TypeError as error:
        raise ValueError(f"not a request: {error}") from error


def asked_for(request: ReplanRequest) -> Replan:
    """The record with which a replan begins."""
    known = request.strategy in tuple(PlanStrategy)
    return Replan(
        id=request.id,
        query=request.query,
        worker=request.worker,
        plan=request.plan,
        strategy=PlanStrategy(request.strategy) if known else PlanStrategy.MS,
        budget_ms=request.budget_ms,
        reason=request.reason,
        by=request.by,
        automatic=request.automatic,
        note=request.note,
        forecast=request.forecast,
        created_ms=request.at_ms,
    )


def accepted(request: ReplanRequest, situation: Situation) -> Replan:
    """The replan that a request leads to which `check_replan` has passed."""
    return replace(
        asked_for(request),
        plan=str(parse_plan(request.plan, situation.streams)),
        former=situation.plans[request.worker],
        incarnation=situation.epoch.incarnation,
        since=situation.epoch.number,
        state=State.WAITING,
    )


def check_replan(request: ReplanRequest, situation: Situation, memory_max: int | None = None) -> None:
    """Raise Refused where the request cannot be granted. `memory_max`: what states may take at a worker meanwhile."""
    if not REQUEST_ID.fullmatch(request.id):
        raise Refused("id", request.id, "is not an id", "Use letters, digits, - and _; at most 64.")
    if request.strategy not in tuple(PlanStrategy):
        raise Refused("strategy", request.strategy, "is not known", f"Choose one of {', '.join(PLAN_STRATEGIES)}.")
    check_budget(request.budget_ms)
    check_running(situation)
    check_expected_epoch(request.expected_epoch, situation)
    check_replannable(request.worker, situation)
    tree = plan_of(request.plan, situation)
    if is_same(tree, situation.plans[request.worker], situation):
        raise Refused(
            "plan", request.plan, f"is what worker {request.worker} has already", "Name another plan or worker.", 409
        )
    if memory_max is not None and request.needed_bytes is not None and request.needed_bytes > memory_max:
        raise Refused(
            "plan",
            request.plan,
            f"needs {request.needed_bytes:,} bytes at worker {request.worker} while both plans are there, "
            f"and {memory_max:,} are allowed",
            "Raise the setting plan_memory_bytes, or move groups away from the worker first.",
            409,
        )


def check_budget(budget_ms: int) -> None:
    if not 1 <= budget_ms <= PAUSE_MAX_MS:
        raise Refused("budget", budget_ms, "is out of range", "Give more than 0 and at most an hour, such as 100ms.")


def check_replannable(worker: int, situation: Situation) -> None:
    """Whether this worker's plan may be changed now, whatever to."""
    check_worker("worker", worker, situation)
    under_way = replan_at(situation.replans, worker)
    if under_way is not None:
        raise Refused(
            "worker",
            worker,
            f"is in replan {under_way.id}, which is {under_way.state}",
            "Wait until that has ended, or cancel it.",
            409,
        )
    if worker in situation.rules.plans:
        remedy = f"Take the pin off first: trimtab unpin --workers {worker} --plan."
        raise Refused("worker", worker, "has a pinned plan", remedy, 409)
    if worker not in situation.follow:
        remedy = "Restart the query with this version of Trimtab."
        raise Refused("worker", worker, "does not take plan orders: its version is older", remedy, 409)


def plan_of(text: str, situation: Situation, field: str = "plan") -> Join:
    """The tree in a request; Refused (422) where it is not one over exactly the query's streams."""
    if not situation.streams:
        problem = "has streams that are not known: Redis has lost its definition"
        raise Refused("query", situation.query, problem, "Wait until the leader has put it back, then ask again.", 409)
    try:
        return parse_plan(text, situation.streams, field)
    except InvalidInput as error:
        raise Refused(error.field, error.value, error.problem, error.remedy) from None


def is_same(tree: Join, text: str, situation: Situation) -> bool:
    """Whether a plan's text says the same tree; in which order a node has its inputs makes no difference."""
    try:
        other = parse_plan(text, situation.streams)
    except InvalidInput:
        return False
    return canonical(tree, situation.streams) == canonical(other, situation.streams)
