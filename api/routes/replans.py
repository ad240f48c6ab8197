"""Plans: what each worker runs, what would be better, and changes of plans."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.access import Caller
from api.backend import Backend, By, Id, Operation, QueryName, Use, not_found
from api.plan_schemas import PlanQuestion, ReplanBody
from api.planning import answered, plans_view, replan_view, resolved
from api.problems import Problem
from api.routes.documents import MUTATION, answers
from api.schemas import CancelBody
from balancing.replans.replan import Replan
from balancing.replans.requests import CancelReplan, asked_for
from balancing.replans.table import TABLE, State
from manager.store import Json, now_ms

router = APIRouter(prefix="/v1/queries/{query}", tags=["plans"])

_CHANGE: Json = {
    "worker": 3,
    "now": "((A B) C)",
    "plan": "((A C) B)",
    "saves": 0.38,
    "saved_cpu": 0.21,
    "strategy": "hybmig",
    "why": "HybMig ends after 4.0 s, moving state within its budget after 31 s",
    "seconds": 4.0,
    "work_s": 8.4,
    "payback_s": 40.0,
    "needed_bytes": 96_000_000,
    "text": "((A C) B) instead of ((A B) C): |AB| = 2.5 M against |AC| = 0.2 M rows; saves 38 % CPU; pays back in 40 s",
}
_WORKER: Json = {
    "worker": 3,
    "plan": "((A B) C)",
    "ordered": None,
    "migrating": False,
    "replan": None,
    "pinned": False,
    "states": [{"state": "A", "rows": 100_415}, {"state": "A B", "rows": 2_500_112}],
    "cost": {"cpu": 0.55, "memory_bytes": 81_000_000, "states": [["A B", 2_500_112]]},
    "best": _CHANGE,
    "text": _CHANGE["text"],
}
_REPLAN: Json = {
    "id": "p-5f0c2a9d11e8",
    "query": "orders",
    "worker": 3,
    "plan": "((A C) B)",
    "former": "((A B) C)",
    "strategy": "hybmig",
    "state": "migrating",
    "open": True,
    "progress": 0.6,
    "done": 120_000,
    "total": 200_000,
    "waits_for": None,
    "can_be_cancelled": True,
    "by": "ops (a1b2c3d4e5f6)",
    "reason": "C became slow",
    "problem": "",
    "refusal": None,
    "forecast": _CHANGE,
    "story": [{"at_ms": 1_767_225_600_000, "message": "Accept", "state": "waiting", "note": ""}],
}
_QUESTION: Json = {"query": "orders", "worker": 3, "answer": "bjtree", "chosen": {"plan": "((A C) B)", "cpu": 0.34}}


@router.get(
    "/plans",
    summary="Each worker's plan, its cost, its states, the best alternative and why",
    responses=answers({"query": "orders", "epoch": 12, "workers": [_WORKER]}, 404),
)
async def plans(query: QueryName, use: Use) -> Json:
    return await plans_view(use, query)


@router.post(
    "/plans/what-if",
    summary="What the optimiser would choose for a worker, also under other rates and limits",
    responses=answers(_QUESTION, 404, 413, 415, 422),
)
async def what_if(query: QueryName, body: PlanQuestion, use: Use) -> Json:
    async with use.asking.turn():
        return await answered(use, query, body)


@router.post(
    "/replans",
    status_code=202,
    summary="Change a worker's plan: to a named one, or to what the optimiser would choose",
    responses=answers(_REPLAN, *MUTATION, status=202),
)
async def create(
    query: QueryName, body: ReplanBody, use: Use, by: By, operation: Operation, response: Response
) -> Json:
    known = await use.store.replan(query, f"p-{operation}")
    if known is not None:
        # Its answer got lost. By now it is under way, and the same request would be refused.
        _locate(response, known)
        return replan_view(known)
    found = await resolved(use, query, body, operation, by)
    if body.dry_run:
        response.status_code = 200
        change = None if found.change is None else found.change.to_json()
        return {"query": query, "dry_run": True, "worker": body.worker, "plan": found.request.plan, "change": change}
    await use.submit_replan(found.request)
    record = asked_for(found.request)
    _locate(response, record)
    return replan_view(record)


@router.get(
    "/replans",
    summary="Changes of plans, newest first",
    responses=answers({"query": "orders", "replans": [_REPLAN]}, 404),
)
async def list_replans(query: QueryName, use: Use, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Json:
    await use.check_known(query)
    records = sorted((await use.store.replans(query)).values(), key=lambda each: (-each.created_ms, each.id))
    reports = await use.store.reports(query)
    return {"query": query, "replans": [replan_view(each, reports.get(each.worker)) for each in records[:limit]]}


@router.get("/replans/{replan}", summary="One change of plans, step by step", responses=answers(_REPLAN, 404))
async def one_replan(query: QueryName, replan: Id, use: Use) -> Json:
    record = await _known(use, query, replan)
    return replan_view(record, (await use.store.reports(query)).get(record.worker))


@router.delete(
    "/replans/{replan}",
    status_code=202,
    summary="Cancel: the old plan is put back, and followed until the worker has settled on it",
    responses=answers(_REPLAN, *MUTATION, status=202),
)
async def cancel_replan(
    query: QueryName,
    replan: Id,
    use: Use,
    by: By,
    operation: Operation,
    reason: Annotated[str, Query(max_length=500, description="Why; stored in the record and in the audit log.")] = "",
) -> Json:
    return await _cancel(use, query, replan, reason, by, operation)


@router.post(
    "/replans/{replan}/cancel",
    status_code=202,
    summary="The same as DELETE, for clients that say why in a body",
    responses=answers(_REPLAN, *MUTATION, status=202),
)
async def cancel_with_reason(
    query: QueryName, replan: Id, body: CancelBody, use: Use, by: By, operation: Operation
) -> Json:
    return await _cancel(use, query, replan, body.reason, by, operation)


async def _cancel(use: Backend, query: str, replan: str, reason: str, by: Caller, operation: str) -> Json:
    record = await _known(use, query, replan)
    if not await use.cancelled_before(operation) and (record.done or record.state in TABLE.refusing):
        raise Problem(
            409,
            "too-late",
            f"replan {replan} cannot be cancelled: it is {record.state}.",
            field="replan",
            value=replan,
            remedy=f"To have the old plan back, request a replan of worker {record.worker} to {record.former}."
            if record.state in (State.CLOSING, State.COMMITTED)
            else "There is nothing to take back.",
        )
    request = CancelReplan(id=f"c-{operation}", query=query, replan=replan, reason=reason, by=str(by), at_ms=now_ms())
    await use.cancel(request, operation)
    return replan_view(record)


async def _known(use: Backend, query: str, replan: str) -> Replan:
    await use.check_known(query)
    record = await use.store.replan(query, replan)
    if record is None:
        raise not_found("replan", replan, "replan", f"See GET /v1/queries/{query}/replans.")
    return record


def _locate(response: Response, record: Replan) -> None:
    response.headers["Location"] = f"/v1/queries/{record.query}/replans/{record.id}"
