"""Reads requests, oldest first, and turns each into something that steering can answer.

A request leaves the list in the same durable write that records the answer, so it is answered once even if the manager
stops in between; one that comes twice finds its record and changes nothing. One that cannot be read, or that steering
fails over, is refused as well: left in the list it would stop all that come after it.
"""

from __future__ import annotations

import json
from typing import Any

from balancing.happenings import (
    CancelAsked,
    Happening,
    MovesAsked,
    ReplanAsked,
    ReplanCancelAsked,
    RequestFailed,
)
from balancing.load import Snapshot
from balancing.replans.requests import CancelReplan, ReplanRequest, parse_plan_request
from balancing.requests import CancelRequest, parse_request
from balancing.situation import Situation
from manager.store import ManagerStore, now_ms


async def happening_of(
    text: str, store: ManagerStore, query: str, situation: Situation, snapshot: Snapshot | None
) -> Happening:
    """What a request's text asks for."""
    try:
        body = json.loads(text)
        about_plans = parse_plan_request(body)
        request = about_plans or parse_request(body)
    except (ValueError, RecursionError) as error:
        return await failure_of(text, f"{type(error).__name__}: {error}", store, query)
    if isinstance(request, CancelReplan):
        return ReplanCancelAsked(now_ms=now_ms(), request=request, text=text)
    if isinstance(request, ReplanRequest):
        return ReplanAsked(
            now_ms=now_ms(),
            request=request,
            text=text,
            situation=situation,
            memory_max=(await store.auto(query)).plan_memory_bytes,
            known=await store.replan(query, request.id),
        )
    if isinstance(request, CancelRequest):
        return CancelAsked(now_ms=now_ms(), request=request, text=text)
    return MovesAsked(
        now_ms=now_ms(),
        request=request,
        text=text,
        situation=situation,
        snapshot=snapshot,
        proposal=None if request.proposal is None else await store.proposal(query, request.proposal),
        known=await store.rebalance(query, request.id),
    )


async def failure_of(text: str, problem: str, store: ManagerStore, query: str) -> RequestFailed:
    name = _id_of(text)
    known = await store.rebalance(query, name) if name else None
    replan = await store.replan(query, name) if name else None
    return RequestFailed(now_ms=now_ms(), name=name, text=text, problem=problem, known=known, replan=replan)


def _id_of(text: str) -> str:
    """As far as it can be read."""
    try:
        body: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    name = body.get("id") if isinstance(body, dict) else None
    return name if isinstance(name, str) else ""
