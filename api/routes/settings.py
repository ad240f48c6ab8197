"""What operators set for a query: when the balancer acts by itself, and what no policy may move."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter

from api.backend import Backend, QueryName, Use
from api.routes.documents import answers
from api.schemas import AutoBody, RulesBody
from balancing.requests import Refused, check_expected_epoch
from balancing.rules import Rules
from balancing.settings import Settings, parse_settings
from balancing.situation import Situation
from manager.store import Json
from trimtab.errors import InvalidInput

router = APIRouter(prefix="/v1/queries/{query}", tags=["settings"])
_AUTO: Json = {"query": "orders", "enabled": True, **{k: v for k, v in Settings().to_json().items() if k != "auto"}}
_DECISION: Json = {"act": False, "code": "level", "why": "The largest executor load is 1.04 times ...", "at_ms": 0}
_RULES: Json = {"query": "orders", "pinned": [7], "excluded": [], "plans": [3]}
_SHOWN = {"auto": "enabled", "max_pause_ms": "max_pause", "plan_budget_ms": "plan_budget"}


@router.get(
    "/auto",
    summary="The balancer's settings, and what it last decided",
    responses=answers(_AUTO | {"last_decision": _DECISION}, 404),
)
async def auto(query: QueryName, use: Use) -> Json:
    await use.check_known(query)
    return _shown(query, await use.store.auto(query)) | {"last_decision": await use.store.decision(query)}


@router.put(
    "/auto", summary="Switch the balancer on or off, set its thresholds", responses=answers(_AUTO, 404, 409, 415, 422)
)
async def set_auto(query: QueryName, body: AutoBody, use: Use) -> Json:
    await _expect(use, query, body.expected_epoch)
    try:
        settings = parse_settings(body.changes(), await use.store.auto(query))
    except InvalidInput as error:
        raise Refused(_SHOWN.get(error.field, error.field), error.value, error.problem, error.remedy) from None
    await use.store.set_auto(query, settings)
    return _shown(query, settings)


@router.get(
    "/rules", summary="Pinned groups, excluded workers, workers whose plan is pinned", responses=answers(_RULES, 404)
)
async def rules(query: QueryName, use: Use) -> Json:
    await use.check_known(query)
    return _rules(query, await use.store.rules(query))


@router.put("/rules", summary="Pin groups and plans, exclude workers", responses=answers(_RULES, 404, 409, 415, 422))
async def set_rules(query: QueryName, body: RulesBody, use: Use) -> Json:
    situation = await _expect(use, query, body.expected_epoch)
    pinned = situation.rules.pinned if body.pinned is None else frozenset(body.pinned)
    excluded = situation.rules.excluded if body.excluded is None else frozenset(body.excluded)
    plans = situation.rules.plans if body.plans is None else frozenset(body.plans)
    _check_numbers("pinned", pinned, situation.partitions, "group")
    _check_numbers("plans", plans, situation.workers, "worker")
    _check_numbers("excluded", excluded, situation.workers, "worker")
    changed = Rules(pinned=pinned, excluded=excluded, plans=plans)
    await use.store.set_rules(query, changed)
    return _rules(query, changed)


async def _expect(use: Backend, query: str, epoch: int | None) -> Situation:
    situation = await use.situation(query)
    check_expected_epoch(epoch, situation)
    return situation


def _check_numbers(field: str, numbers: Iterable[int], count: int, what: str) -> None:
    for number in sorted(numbers):
        if not 0 <= number < count:
            raise Refused(field, number, f"is not a {what} of this query", f"Use numbers from 0 to {count - 1}.")


def _shown(query: str, settings: Settings) -> Json:
    return {"query": query, **{_SHOWN.get(name, name): value for name, value in settings.to_json().items()}}


def _rules(query: str, rules: Rules) -> Json:
    return {"query": query, **rules.to_json()}
