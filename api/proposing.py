"""From a request to moves: asks a policy, keeps its proposal, and refuses to carry out one that has become stale."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from api.access import Caller
from api.backend import Backend, not_found
from api.problems import Problem, unavailable
from api.schemas import Manner, ProposalBody
from balancing import takeup
from balancing.policies import policy_named
from balancing.proposal import Proposal, make_proposal
from balancing.requests import (
    MoveRequest,
    RebalanceRequest,
    Refused,
    check_expected_epoch,
    check_running,
    check_worker,
)
from balancing.settings import Settings
from balancing.situation import Situation
from manager.store import Json, now_ms
from trimtab.errors import InvalidInput


async def fresh_proposal(use: Backend, query: str, body: ProposalBody, name: str, by: Caller) -> Proposal:
    """Made from the load as it is now, and kept for an hour."""
    situation = await use.situation(query)
    _check(situation, body)
    load = await use.load_now(situation)
    if load is None:
        raise unavailable("The load is not known yet: the manager has seen no batch of the query recently")
    load = replace(load, excluded=load.excluded | frozenset(body.excluded))
    settings = _settings(await use.store.auto(query), body)
    try:
        # Up to a second for 10,000 groups on 500 workers: not on the loop that keeps the manager's lease.
        proposal = await asyncio.to_thread(
            make_proposal,
            load,
            policy_named(body.policy, body.worker),
            settings,
            id=name,
            strategy=body.strategy,
            wave_bytes=load.wave_bytes(settings.max_pause_ms),
            reason=body.reason,
        )
    except InvalidInput as error:
        # The request is well-formed; the state of the query does not allow it.
        raise Refused(error.field, error.value, error.problem, error.remedy, 409) from None
    proposal = replace(proposal, by=str(by), order=body.order, max_pause_ms=body.max_pause)
    await use.store.save_proposal(proposal)
    return proposal


async def named_proposal(use: Backend, query: str, name: str) -> Proposal:
    """404 where it has expired, or was never made."""
    await use.check_known(query)
    proposal = await use.store.proposal(query, name)
    if proposal is None:
        raise not_found(
            "proposal",
            name,
            "proposal",
            f"Proposals are kept for an hour: make one with POST /v1/queries/{query}/proposals.",
        )
    return proposal


async def reasons_stale(use: Backend, proposal: Proposal) -> list[str]:
    return takeup.reasons_stale(proposal, await use.situation(proposal.query))


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
        findings = " ".join(finding.text for finding in proposal.findings)
        raise Problem(
            409,
            "nothing-to-do",
            f"The policy {proposal.policy} finds nothing to move. {findings}".strip(),
            field="policy",
            value=proposal.policy,
            remedy=f"See GET /v1/queries/{query}/explain for why, or name the groups to move.",
        )
    return RebalanceRequest(
        id=f"r-{operation}",
        query=query,
        moves=tuple(
            MoveRequest(sender=move.sender, receiver=move.receiver, groups=move.groups) for move in proposal.moves
        ),
        strategy=body.strategy if "strategy" in body.model_fields_set else proposal.choice.strategy,
        max_pause_ms=body.max_pause if body.max_pause is not None else proposal.max_pause_ms,
        order=body.order if "order" in body.model_fields_set else proposal.order,
        reason=body.reason or proposal.reason,
        by=str(by),
        proposal=proposal.id,
        expected_epoch=body.expected_epoch,
        at_ms=now_ms(),
    )


def _settings(settings: Settings, body: ProposalBody) -> Settings:
    if body.max_pause is not None:
        settings = replace(settings, max_pause_ms=body.max_pause)
    if body.max_moved_bytes is not None:
        settings = replace(settings, max_moved_bytes=body.max_moved_bytes)
    return settings


def worker_shares(proposal: Proposal) -> list[Json]:
    """Each worker's share of the whole load, before and after."""
    workers = proposal.forecast.workers
    before = sum(each.before for each in workers) or 1.0
    after = sum(each.after for each in workers) or 1.0
    return [
        {"worker": each.worker, "before": round(each.before / before, 4), "after": round(each.after / after, 4)}
        for each in workers
    ]


def _check(situation: Situation, body: ProposalBody) -> None:
    check_running(situation)
    check_expected_epoch(body.expected_epoch, situation)
    if body.worker is not None:
        check_worker("worker", body.worker, situation)
    for worker in body.excluded:
        if worker >= situation.workers:
            remedy = f"Use numbers from 0 to {situation.workers - 1}."
            raise Refused("excluded", worker, "is not a worker of this query", remedy)
