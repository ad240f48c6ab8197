"""Moving groups: rebalances, the migrations they are made of, cancelling, history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from api.access import Caller
from api.backend import Backend, By, Id, Operation, QueryName, Use, not_found
from api.heat import MINUTES_MAX, heat_map
from api.planning import replan_view
from api.problems import Problem
from api.progress import migration_view, rebalance_view
from api.proposing import carry_out, fresh_proposal, named_proposal
from api.routes.documents import MUTATION, answers
from api.schemas import CancelBody, OneWorkerBody, ProposalBody, RebalanceBody
from balancing.requests import CancelRequest, MoveRequest, Rebalance, RebalanceRequest, requested
from manager.store import Json, now_ms

router = APIRouter(prefix="/v1/queries/{query}", tags=["rebalances"])

_MIGRATION: Json = {
    "id": "r-5f0c2a9d11e8-1",
    "strategy": "mslb",
    "from": 0,
    "to": 3,
    "groups": [4, 9, 17],
    "moved": [4],
    "state": "receiving",
    "outcome": None,
    "step": 6,
    "steps": 8,
    "message": "ReceivePartitions",
    "progress": 0.55,
    "eta_s": 3.1,
    "can_be_cancelled": True,
    "story": [{"at_ms": 1_767_225_600_000, "wave": 0, "step": 1, "message": "ComputePartitionsToMove"}],
    "audit": {
        "lost": 0,
        "doubled": 0,
        "checked_rows": 120_331,
        "unchecked_batches": 0,
        "finished": True,
        "clean": True,
    },
}
_OUTCOME: Json = {"ratio_before": 1.52, "ratio_after": 1.04, "pause_ms": 25.0, "bytes": 3_145_728, "seconds": 6.3}
_REBALANCE: Json = {
    "id": "r-5f0c2a9d11e8",
    "query": "orders",
    "state": "running",
    "by": "ops (a1b2c3d4e5f6)",
    "reason": "evening peak",
    "created_ms": 1_767_225_600_000,
    "progress": 0.55,
    "eta_s": 3.1,
    "migrations": [_MIGRATION],
    "forecast": _OUTCOME,
    "measured": None,
}


@router.post(
    "/rebalances",
    status_code=202,
    summary="Move groups: a proposal, named groups, or whatever the balancer proposes",
    responses=answers(_REBALANCE, *MUTATION, status=202),
)
async def create(
    query: QueryName, body: RebalanceBody, use: Use, by: By, operation: Operation, response: Response
) -> Json:
    if known := await _made_before(use, query, operation, response):
        return known
    if body.proposal is not None:
        request = await carry_out(use, query, await named_proposal(use, query, body.proposal), body, operation, by)
    elif body.sender is not None and body.receiver is not None:
        request = _explicit(query, body, operation, by)
    else:
        wanted = ProposalBody(
            policy=body.policy,
            strategy=body.strategy,
            max_pause=body.max_pause,
            order=body.order,
            reason=body.reason,
            expected_epoch=body.expected_epoch,
        )
        proposal = await fresh_proposal(use, query, wanted, f"p-{operation}", by)
        request = await carry_out(use, query, proposal, body, operation, by)
    return await _submit(use, request, response, single=body.sender is not None)


@router.post(
    "/drain",
    status_code=202,
    summary="Move everything away from a worker, for scale-in",
    responses=answers(_REBALANCE, *MUTATION, status=202),
)
async def drain(
    query: QueryName, body: OneWorkerBody, use: Use, by: By, operation: Operation, response: Response
) -> Json:
    return await _one_worker("drain", query, body, use, by, operation, response)


@router.post(
    "/fill",
    status_code=202,
    summary="Give a worker its share, for scale-out",
    responses=answers(_REBALANCE, *MUTATION, status=202),
)
async def fill(
    query: QueryName, body: OneWorkerBody, use: Use, by: By, operation: Operation, response: Response
) -> Json:
    return await _one_worker("fill", query, body, use, by, operation, response)


async def _one_worker(
    policy: Any, query: str, body: OneWorkerBody, use: Backend, by: Caller, operation: str, response: Response
) -> Json:
    if known := await _made_before(use, query, operation, response):
        return known
    wanted = ProposalBody(
        policy=policy,
        worker=body.worker,
        strategy=body.strategy,
        max_pause=body.max_pause,
        order=body.order,
        reason=body.reason,
        expected_epoch=body.expected_epoch,
    )
    proposal = await fresh_proposal(use, query, wanted, f"p-{operation}", by)
    return await _submit(use, await carry_out(use, query, proposal, body, operation, by), response, single=False)


@router.get(
    "/rebalances",
    summary="Rebalances, newest first",
    responses=answers({"query": "orders", "rebalances": [_REBALANCE]}, 404),
)
async def list_rebalances(query: QueryName, use: Use, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Json:
    await use.check_known(query)
    records = sorted((await use.store.rebalances(query)).values(), key=lambda each: (-each.created_ms, each.id))
    shown = await _migrations(use, query)
    outcomes = await use.store.outcomes(query, [record.id for record in records[:limit]])
    return {"query": query, "rebalances": [_view(record, shown, outcomes) for record in records[:limit]]}


@router.get(
    "/rebalances/{rebalance}",
    summary="One rebalance: steps with times, progress, remaining time, audit",
    responses=answers(_REBALANCE, 404),
)
async def one_rebalance(query: QueryName, rebalance: Id, use: Use) -> Json:
    record = await _known(use, query, rebalance)
    outcomes = await use.store.outcomes(query, [record.id])
    return _view(record, await _migrations(use, query, record.migrations), outcomes)


@router.post(
    "/rebalances/{rebalance}/cancel",
    status_code=202,
    summary="Cancel: everything that is not past its point of no return is taken back",
    responses=answers(_REBALANCE, *MUTATION, status=202),
)
async def cancel_rebalance(
    query: QueryName, rebalance: Id, body: CancelBody, use: Use, by: By, operation: Operation
) -> Json:
    record = await _known(use, query, rebalance)
    shown = await _migrations(use, query, record.migrations)
    mine = [shown[name] for name in record.migrations if name in shown]
    if not await use.cancelled_before(operation):
        if not record.open:
            raise _too_late("rebalance", rebalance, record.state)
        if mine and not any(each["can_be_cancelled"] for each in mine):
            raise _too_late("rebalance", rebalance, "past its point of no return")
    request = CancelRequest(
        id=f"c-{operation}", query=query, rebalance=rebalance, reason=body.reason, by=str(by), at_ms=now_ms()
    )
    await use.cancel(request, operation)
    return rebalance_view(record, mine)


@router.get(
    "/migrations",
    summary="Migrations, newest first",
    responses=answers({"query": "orders", "migrations": [_MIGRATION]}, 404),
)
async def list_migrations(query: QueryName, use: Use, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Json:
    await use.check_known(query)
    shown = sorted((await _migrations(use, query)).values(), key=lambda each: (-each["created_ms"], each["id"]))
    return {"query": query, "migrations": shown[:limit]}


@router.get("/migrations/{migration}", summary="One migration", responses=answers(_MIGRATION, 404))
async def one_migration(query: QueryName, migration: Id, use: Use) -> Json:
    return await _known_migration(use, query, migration)


@router.post(
    "/migrations/{migration}/cancel",
    status_code=202,
    summary="Cancel one migration",
    responses=answers(_MIGRATION, *MUTATION, status=202),
)
async def cancel_migration(
    query: QueryName, migration: Id, body: CancelBody, use: Use, by: By, operation: Operation
) -> Json:
    shown = await _known_migration(use, query, migration)
    if not shown["can_be_cancelled"] and not await use.cancelled_before(operation):
        raise _too_late("migration", migration, shown["outcome"] or "past its point of no return")
    request = CancelRequest(
        id=f"c-{operation}", query=query, migration=migration, reason=body.reason, by=str(by), at_ms=now_ms()
    )
    await use.cancel(request, operation)
    return shown


@router.get(
    "/history",
    summary="What has ended (rebalances, migrations, replans), newest first; with `minutes`, loads and owners",
    responses=answers({"query": "orders", "history": [{"kind": "rebalance", "ended_ms": 0, **_REBALANCE}]}, 404, 422),
)
async def history(
    query: QueryName,
    use: Use,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    minutes: Annotated[int | None, Query(ge=1, le=MINUTES_MAX, description="The heat map of so many minutes.")] = None,
) -> Any:
    await use.check_known(query)
    if minutes is not None:
        return Response(await heat_map(use, query, minutes), media_type="application/json")
    shown = await _migrations(use, query)
    records, replans = await use.store.rebalances(query), await use.store.replans(query)
    members = await use.store.history(query, limit)
    outcomes = await use.store.outcomes(query, [name for member, _ in members if (name := _rebalance_in(member))])
    entries: list[Json] = []
    for member, ended_ms in members:
        kind, _, name = member.partition(":")
        if kind == "migration" and name in shown:
            entries.append({"kind": kind, **shown[name], "ended_ms": ended_ms})
        elif kind == "rebalance" and name in records:
            entries.append({"kind": kind, **_view(records[name], shown, outcomes), "ended_ms": ended_ms})
        elif kind == "replan" and name in replans:
            entries.append({"kind": kind, **replan_view(replans[name]), "ended_ms": ended_ms})
    return {"query": query, "history": entries}


def _rebalance_in(member: str) -> str:
    """The rebalance that an entry of the history names, if it is one."""
    kind, _, name = member.partition(":")
    return name if kind == "rebalance" else ""


def _explicit(query: str, body: RebalanceBody, operation: str, by: Caller) -> RebalanceRequest:
    assert body.sender is not None and body.receiver is not None
    move = MoveRequest(
        sender=body.sender,
        receiver=body.receiver,
        groups=tuple(body.groups or ()),
        share=body.amount,
        measure=body.measure,
    )
    return RebalanceRequest(
        id=f"r-{operation}",
        query=query,
        moves=(move,),
        strategy=body.strategy,
        max_pause_ms=body.max_pause,
        order=body.order,
        reason=body.reason,
        by=str(by),
        expected_epoch=body.expected_epoch,
        at_ms=now_ms(),
    )


async def _made_before(use: Backend, query: str, operation: str, response: Response) -> Json | None:
    """What this request made when it came first and its answer got lost.

    This is asked before anything is checked: by now the groups are moving, and the same request would be refused.
    """
    record = await use.store.rebalance(query, f"r-{operation}")
    if record is None:
        return None
    _locate(response, query, record.id)
    return _view(record, await _migrations(use, query, record.migrations))


async def _submit(use: Backend, request: RebalanceRequest, response: Response, *, single: bool) -> Json:
    await use.submit(request, single=single)
    _locate(response, request.query, request.id)
    return rebalance_view(requested(request), [])


def _locate(response: Response, query: str, rebalance: str) -> None:
    response.headers["Location"] = f"/v1/queries/{query}/rebalances/{rebalance}"


async def _migrations(use: Backend, query: str, names: Sequence[str] | None = None) -> dict[str, Json]:
    store = use.store
    migrations = await (store.migrations(query) if names is None else store.migrations_named(query, names))
    track_s, now = await use.track_s(query), now_ms()
    return {name: migration_view(each, now, track_s) for name, each in migrations.items()}


async def _known(use: Backend, query: str, rebalance: str) -> Rebalance:
    await use.check_known(query)
    record = await use.store.rebalance(query, rebalance)
    if record is None:
        raise not_found("rebalance", rebalance, "rebalance", f"See GET /v1/queries/{query}/rebalances.")
    return record


async def _known_migration(use: Backend, query: str, migration: str) -> Json:
    await use.check_known(query)
    shown = (await _migrations(use, query, [migration])).get(migration)
    if shown is None:
        raise not_found("migration", migration, "migration", f"See GET /v1/queries/{query}/migrations.")
    return shown


def _view(record: Rebalance, migrations: dict[str, Json], outcomes: dict[str, Json] | None = None) -> Json:
    parts = [migrations[name] for name in record.migrations if name in migrations]
    return rebalance_view(record, parts, (outcomes or {}).get(record.id))


def _too_late(field: str, value: str, state: str) -> Problem:
    return Problem(
        409,
        "too-late",
        f"{field} {value} cannot be cancelled: it is {state}.",
        field=field,
        value=value,
        remedy="To move the groups back, request a rebalance in the other direction.",
    )
