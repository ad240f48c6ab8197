"""Proposals: what would be moved, and what it would cost. They are carried out with POST rebalances."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Response

from api.backend import Backend, By, Id, Operation, QueryName, Use
from api.proposing import fresh_proposal, named_proposal, reasons_stale, worker_shares
from api.routes.documents import MUTATION, answers
from api.schemas import ProposalBody
from balancing.proposal import Proposal
from manager.store import Json

router = APIRouter(prefix="/v1/queries/{query}/proposals", tags=["proposals"])

LISTED_MAX: Final = 50
"""A policy may list thousands of groups, and a key may make twenty proposals a second."""

_PROPOSAL: Json = {
    "id": "p-5f0c2a9d11e8",
    "query": "orders",
    "epoch": 12,
    "made_at_ms": 1_767_225_600_000,
    "policy": "level",
    "strategy": "mslb",
    "explanation": "MSLB costs less. ...",
    "moves": [{"sender": 0, "receiver": 3, "groups": [4, 9, 17]}],
    "forecast": {
        "measure": "cpu",
        "ratio_before": 1.52,
        "ratio_after": 1.04,
        "gain": 0.31,
        "groups": 3,
        "bytes": 3_145_728,
        "state_rows": 37_443,
        "rows_duplicated": 0,
        "pause_ms": 25.0,
        "seconds": 6.3,
        "waves": 1,
    },
    "findings": [],
    "workers": [{"worker": 0, "before": 0.61, "after": 0.27}],
    "stale": [],
}


@router.post(
    "",
    status_code=201,
    summary="Propose moves, with their forecast; nothing is moved",
    responses=answers(_PROPOSAL, *MUTATION, status=201),
)
async def create(
    query: QueryName, body: ProposalBody, use: Use, by: By, operation: Operation, response: Response
) -> Json:
    name = f"p-{operation}"
    proposal = await use.store.proposal(query, name)  # it is there if the answer to the first request got lost
    if proposal is None:
        async with use.asking.turn():
            proposal = await fresh_proposal(use, query, body, name, by)
    response.headers["Location"] = f"/v1/queries/{query}/proposals/{name}"
    return await _view(use, proposal)


@router.get(
    "",
    summary=f"Proposals of the last hour, newest first: {LISTED_MAX} at most",
    responses=answers({"query": "orders", "proposals": [_PROPOSAL]}, 404),
)
async def list_proposals(query: QueryName, use: Use) -> Json:
    await use.check_known(query)
    return {"query": query, "proposals": [each.to_json() for each in await use.store.proposals(query, LISTED_MAX)]}


@router.get("/{proposal}", summary="One proposal, and whether it is stale", responses=answers(_PROPOSAL, 404))
async def one(query: QueryName, proposal: Id, use: Use) -> Json:
    return await _view(use, await named_proposal(use, query, proposal))


async def _view(use: Backend, proposal: Proposal) -> Json:
    return proposal.to_json() | {"workers": worker_shares(proposal), "stale": await reasons_stale(use, proposal)}
