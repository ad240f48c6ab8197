"""From a wish to moves: asks a policy, keeps its proposal, and refuses to carry out one that has become stale."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Literal, cast

from api.access import Caller
from api.backend import Backend, not_found
from api.problems import Problem, unavailable
from api.schemas import Manner, ProposalBody
from balancing.policies import Drain, Fill, Level, Pairwise, Policy
from balancing.proposal import Proposal, make_proposal, parse_proposal
from balancing.settings import Settings
from manager import takeup
from manager.requests import MoveRequest, RebalanceRequest, Refused, View
from manager.store import Json
from trimtab.errors import InvalidInput


async def fresh_proposal(use: Backend, query: str, body: ProposalBody, name: str, by: Caller) -> Proposal:
    """Made from the load as it is now, and kept for an hour."""
    seen = await use.seen(query)
    _check(seen, body)
    load = await use.load_now(seen)
    if load is None:
        raise unavailable("The load is not known yet: the manager has seen no batch of the query lately")
    settings = _settings(await use.store.auto(query), body)
    try:
        # Up to a second for 10,000 groups on 500 workers: not on the loop that keeps the manager's lease.
        proposal = await asyncio.to_thread(
            make_proposal,
            load,
            _policy(body),
            settings,
            id=name,
            strategy=body.strategy,
            wave_bytes=load.wave_bytes(settings.max_pause_ms),
            reason=body.reason,
        )
    except InvalidInput as error:
        # The request was right as such; it is the state of the query that is against it.
        raise Refused(error.field, error.value, error.problem, error.remedy, 409) from None
    kept = proposal.to_json() | {"by": str(by), "order": body.order, "max_pause_ms": body.max_pause}
    await use.store.save_proposal(query, name, kept)
    return proposal


async def named_proposal(use: Backend, query: str, name: str) -> Proposal:
    return parse_proposal(await kept_proposal(use, query, name, field="proposal"))


async def kept_proposal(use: Backend, query: str, name: str, field: str) -> Json:
    await use.seen(query)
    body = await use.store.proposal(query, name)
    if body is None:
        raise not_found(
            field,
            name,
            "proposal",
            f"Proposals are kept for an hour: make one with POST /v1/queries/{query}/proposals.",
        )
    return body


async def reasons_stale(use: Backend, proposal: Proposal) -> list[str]:
    return takeup.reasons_stale(proposal, await use.seen(proposal.query))


async def carry_out(
    use: Backend, query: str, proposal: Proposal, body: Manner, operation: str, by: Caller
) -> RebalanceRequest:
    """The request that does what was proposed; 409 where it is stale, or there is nothing to do."""
    if reasons := await reasons_stale(use, proposal):
        raise Problem(
            409,
            "stale",
            f"The proposal is stale: {' '.join(reasons[:3])}",
            field="proposal",
            value=proposal.id,
            remedy="Make a new proposal and look at it again.",
        )
    if not proposal.moves:
        found = " ".join(finding.text for finding in proposal.findings)
        raise Problem(
            409,
            "nothing-to-do",
            f"The policy {proposal.policy} finds nothing to move. {found}".strip(),
            field="policy",
            value=proposal.policy,
            remedy=f"See GET /v1/queries/{query}/explain for why, or name the groups to move.",
        )
    strategy = body.strategy if "strategy" in body.model_fields_set else proposal.strategy
    kept = await use.store.proposal(query, proposal.id) or {}
    return RebalanceRequest(
        id=f"r-{operation}",
        query=query,
        moves=tuple(
            MoveRequest(sender=move.sender, receiver=move.receiver, groups=move.groups) for move in proposal.moves
        ),
        strategy=cast(Literal["auto", "ptlb", "mslb"], strategy),
        max_pause_ms=body.max_pause if body.max_pause is not None else kept.get("max_pause_ms"),
        order=body.order if "order" in body.model_fields_set else kept.get("order", "hot-first"),
        reason=body.reason or proposal.reason,
        by=str(by),
        proposal=proposal.id,
        expected_epoch=body.expected_epoch,
    )


def balancer(name: str) -> Policy:
    return Pairwise() if name == "pairwise" else Level()


def _policy(body: ProposalBody) -> Policy:
    if body.policy == "drain" and body.worker is not None:
        return Drain(body.worker)
    if body.policy == "fill" and body.worker is not None:
        return Fill(body.worker)
    return balancer(body.policy)


def _settings(kept: Settings, body: ProposalBody) -> Settings:
    return kept if body.max_pause is None else replace(kept, max_pause_ms=body.max_pause)


def _check(seen: View, body: ProposalBody) -> None:
    if seen.stopped:
        raise Refused("query", seen.query, "is not running: no batch for 30 s", "Start the query, then ask again.", 409)
    if body.expected_epoch is not None and body.expected_epoch != seen.epoch.number:
        raise Refused(
            "expected_epoch",
            body.expected_epoch,
            f"is not the query's epoch, which is {seen.epoch.number}",
            "Look at the mapping again, then repeat the request with the new epoch.",
            409,
        )
    if body.worker is not None and not 0 <= body.worker < seen.workers:
        raise Refused(
            "worker", body.worker, "is no worker of this query", f"Use a number from 0 to {seen.workers - 1}."
        )
    if body.worker is not None and body.worker not in seen.up:
        raise Refused("worker", body.worker, "is down: it does not report", "Wait until it reports again.", 409)
