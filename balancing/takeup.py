"""From a request to a rebalance and its migrations: which strategy, at which pace, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from balancing.load import Snapshot
from balancing.policies.policy import SuggestedMove
from balancing.proposal import Proposal, stale
from balancing.protocols.migration import COMMITTED, IN_PART, Migration, Pace, Request
from balancing.requests import (
    MoveRequest,
    Rebalance,
    RebalanceRequest,
    RebalanceState,
    Refused,
    requested,
)
from balancing.selection import nearest
from balancing.situation import Situation
from balancing.strategy import Choice, choose
from balancing.words import Strategy


@dataclass(frozen=True)
class Accepted:
    rebalance: Rebalance
    migrations: tuple[Migration, ...]


def reasons_stale(proposal: Proposal, situation: Situation) -> list[str]:
    """Why a proposal must not be carried out as things are now; for API and leader alike."""
    rules = situation.rules
    return stale(proposal, situation.epoch, situation.moving, pinned=rules.pinned, excluded=rules.excluded)


def check_proposal(request: RebalanceRequest, proposal: Proposal | None, situation: Situation) -> None:
    """Refuse a proposal that has expired, or that was overtaken since it was made."""
    if request.proposal is None:
        return
    remedy = "Ask for a new proposal."
    if proposal is None:
        raise Refused("proposal", request.proposal, "is not known, or has expired", remedy, 409)
    if reasons := reasons_stale(proposal, situation):
        raise Refused("proposal", request.proposal, "is stale: " + " ".join(reasons).rstrip("."), remedy, 409)


def accept(request: RebalanceRequest, situation: Situation, snapshot: Snapshot | None, now_ms: int) -> Accepted:
    """The rebalance, under way, and one migration for each of its moves: disjoint, so they run side by side."""
    migrations = []
    notes = []
    for index, move in enumerate(request.moves):
        strategy, note = choose_strategy(request, move, situation, snapshot)
        if note and note not in notes:
            notes.append(note)
        migrations.append(
            Migration(
                id=f"{request.id}-{index + 1}",
                query=request.query,
                incarnation=situation.epoch.incarnation,
                strategy=strategy,
                sender=move.sender,
                receiver=move.receiver,
                request=Request(share=move.share or 0.0, measure=move.measure, groups=tuple(sorted(move.groups))),
                excluded=tuple(sorted(situation.rules.pinned)),
                reason=request.reason,
                requested_by=request.by,
                rebalance=request.id,
                created_ms=now_ms,
                pace=Pace(max_pause_ms=request.max_pause_ms, order=request.order),
            )
        )
    names = tuple(each.id for each in migrations)
    rebalance = replace(requested(request), state="running", migrations=names, note=" ".join(notes))
    return Accepted(rebalance, tuple(migrations))


def choose_strategy(
    request: RebalanceRequest, move: MoveRequest, situation: Situation, snapshot: Snapshot | None
) -> tuple[Strategy, str]:
    """The strategy asked for, or the cheaper one and why."""
    asked = move.strategy or request.strategy
    if asked != "auto":
        return asked, ""
    if snapshot is None:
        return "mslb", "MSLB: nothing is measured yet, and it needs no window to pass."
    choice = explain_choice(request, likely(move, situation, snapshot), snapshot)
    return choice.strategy, choice.explanation


def explain_choice(request: RebalanceRequest, moves: Sequence[SuggestedMove], snapshot: Snapshot) -> Choice:
    return choose(
        snapshot, moves, wave_bytes=snapshot.wave_bytes(request.max_pause_ms), max_pause_ms=request.max_pause_ms
    )


def likely(move: MoveRequest, situation: Situation, snapshot: Snapshot) -> tuple[SuggestedMove, ...]:
    """The groups that are asked for, or those that the sender will probably choose."""
    groups = move.groups
    if not groups:
        loads = snapshot.group_load(move.measure)
        owned = {
            group: float(loads[group])
            for group in situation.movable(move.sender)
            if group not in situation.rules.pinned
        }
        groups = nearest(owned, (move.share or 0.0) * sum(owned.values()))
    return (SuggestedMove(sender=move.sender, receiver=move.receiver, groups=groups),)


def outcome_of(migrations: Sequence[Migration]) -> RebalanceState | None:
    """What became of a rebalance; None while one of its migrations is under way. Of none, nothing came."""
    outcomes = {each.outcome for each in migrations}
    if "" in outcomes:
        return None
    if outcomes == {COMMITTED}:
        return "committed"
    return "partly-committed" if outcomes & {COMMITTED, IN_PART} else "rolled-back"
