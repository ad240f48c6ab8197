"""Why is this group here, and why is nothing moved now?"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from api.backend import Backend, QueryName, Use, check_group
from api.planning import explained
from api.problems import unavailable
from api.routes.documents import answers
from balancing.explain import Arrival, why_here, why_no_move
from balancing.load import Snapshot
from balancing.policies import policy_named
from balancing.proposal import make_proposal
from balancing.situation import Situation
from balancing.triggers import accept, decide
from manager.store import Json, now_ms

router = APIRouter(prefix="/v1/queries/{query}", tags=["explain"])
_NOW: Json = {
    "query": "orders",
    "text": "The largest executor load is 1.04 times the mean, below 1.20.",
    "data": {"act": False, "code": "level", "ratio": 1.04, "start_ratio": 1.2},
}
_HERE: Json = {
    "query": "orders",
    "text": "Group 4 belongs to worker 0 on executor 1. It came from worker 3 by MSLB with migration r-5f0c-1.",
    "data": {"group": 4, "owner": 0, "pinned": False},
}


@router.get("/explain", summary="Why nothing is moved now, or what is about to be moved", responses=answers(_NOW, 404))
async def explain(query: QueryName, use: Use) -> Json:
    """Decided anew from the load and the settings as they are now, with what the balancer remembers."""
    load, settings = await _load(use, await use.situation(query)), await use.store.auto(query)
    last = await use.store.decision(query)
    decision = decide(load, settings, await use.store.trigger_state(query), now_ms())
    if decision.act:
        proposal = await asyncio.to_thread(make_proposal, load, policy_named(settings.policy), settings, id="explain")
        decision = accept(decision, proposal, settings, now_ms())
    situation = await use.situation(query)
    plans = explained(await use.planning(query), situation)
    return {"query": query, **why_no_move(load, settings, decision).to_json(), "plans": plans, "last_decision": last}


@router.get("/partitions/{group}/explain", summary="Why this group is where it is", responses=answers(_HERE, 404, 422))
async def explain_group(query: QueryName, group: int, use: Use) -> Json:
    situation = await use.situation(query)
    check_group(group, situation)
    load, settings = await _load(use, situation), await use.store.auto(query)
    explanation = why_here(load, settings, group, await _arrival(use, query, group))
    return {"query": query, **explanation.to_json()}


async def _load(use: Backend, situation: Situation) -> Snapshot:
    load = await use.load_now(situation)
    if load is None:
        raise unavailable("The load is not known yet: the manager has seen no batch of the query recently")
    return load


async def _arrival(use: Backend, query: str, group: int) -> Arrival | None:
    """The newest migration on record that brought the group."""
    migrations = (await use.store.migrations(query)).values()
    carriers = [each for each in migrations if group in each.moved_groups and each.story]
    if not carriers:
        return None
    newest = max(carriers, key=lambda each: each.story[-1].at_ms)
    return Arrival(
        migration=newest.id,
        sender=newest.sender,
        at_ms=newest.story[-1].at_ms,
        strategy=newest.strategy,
        reason=newest.reason,
        requested_by=newest.requested_by or "an unknown user",
    )
