"""Proposals: moves with their forecast, made for one mapping; approved by executing them, refused when stale."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from balancing.forecast import Forecast, forecast, parse_forecast
from balancing.load import Snapshot
from balancing.policies.drain import Drain
from balancing.policies.policy import Finding, Policy, SuggestedMove, parse_suggested_move
from balancing.settings import Settings
from balancing.strategy import Choice, choose, parse_choice
from balancing.words import Order
from trimtab.epochs import Epoch
from trimtab.errors import CorruptState

FORMAT: Final = 2


@dataclass(frozen=True, kw_only=True)
class Proposal:
    id: str
    query: str
    incarnation: str
    epoch: int
    """It was made for; a later one makes it stale only where a group that it touches has changed."""
    made_at_ms: int
    policy: str
    reason: str
    moves: tuple[SuggestedMove, ...]
    owners: Mapping[int, int]
    """Owner, then, of each group that it touches."""
    choice: Choice
    forecast: Forecast
    findings: tuple[Finding, ...]
    by: str = ""
    """Who asked for it."""
    order: Order = "hot-first"
    max_pause_ms: float | None = None
    """Both as they were asked for: how the moves are carried out, unless whoever carries them out says otherwise."""

    @property
    def strategy(self) -> str:
        return self.choice.strategy

    @property
    def groups(self) -> frozenset[int]:
        return frozenset(self.owners)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "id": self.id,
            "query": self.query,
            "incarnation": self.incarnation,
            "epoch": self.epoch,
            "made_at_ms": self.made_at_ms,
            "policy": self.policy,
            "reason": self.reason,
            "strategy": self.strategy,
            "explanation": self.choice.explanation,
            "moves": [move.to_json() for move in self.moves],
            "owners": {str(group): owner for group, owner in self.owners.items()},
            "choice": self.choice.to_json(),
            "forecast": self.forecast.to_json(),
            "findings": [finding.to_json() for finding in self.findings],
            "by": self.by,
            "order": self.order,
            "max_pause_ms": self.max_pause_ms,
        }


def parse_proposal(body: dict[str, Any]) -> Proposal:
    try:
        if body["format"] != FORMAT:
            raise CorruptState(
                f"proposal format {body['format']} is not {FORMAT}: written by another version of Trimtab"
            )
        return Proposal(
            id=body["id"],
            query=body["query"],
            incarnation=body["incarnation"],
            epoch=int(body["epoch"]),
            made_at_ms=int(body["made_at_ms"]),
            policy=body["policy"],
            reason=body["reason"],
            moves=tuple(map(parse_suggested_move, body["moves"])),
            owners={int(group): int(owner) for group, owner in body["owners"].items()},
            choice=parse_choice(body["choice"]),
            forecast=parse_forecast(body["forecast"]),
            findings=tuple(Finding(**each) for each in body["findings"]),
            by=body["by"],
            order=body["order"],
            max_pause_ms=body["max_pause_ms"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptState(f"proposal cannot be read: {error}") from error


def make_proposal(
    snapshot: Snapshot,
    policy: Policy,
    settings: Settings,
    *,
    id: str,
    strategy: str | None = None,
    wave_bytes: float | None = None,
    reason: str = "",
) -> Proposal:
    """What `policy` suggests for `snapshot`, with strategy and forecast. Without moves where there is nothing to do."""
    suggestion = policy.suggest(snapshot, settings)
    choice = choose(
        snapshot,
        suggestion.moves,
        strategy=settings.strategy if strategy is None else strategy,
        wave_bytes=wave_bytes,
        max_pause_ms=settings.max_pause_ms,
    )
    return Proposal(
        id=id,
        query=snapshot.query,
        incarnation=snapshot.incarnation,
        epoch=snapshot.epoch,
        made_at_ms=snapshot.at_ms,
        policy=policy.name,
        reason=reason,
        moves=suggestion.moves,
        owners={group: snapshot.owners[group] for move in suggestion.moves for group in move.groups},
        choice=choice,
        forecast=forecast(snapshot, suggestion.moves, settings.measure, choice.cost, suggestion.among),
        findings=suggestion.findings,
    )


def stale(
    proposal: Proposal,
    epoch: Epoch,
    moving: Collection[int] = (),
    *,
    pinned: Collection[int] = (),
    excluded: Collection[int] = (),
) -> list[str]:
    """Why the proposal must not be executed under `epoch`; empty where it may be.

    Other groups may have moved since: only a group that this proposal touches makes it stale. `pinned` groups and
    `excluded` workers are those of this moment: who made the proposal may not have known them.
    """
    if proposal.query != epoch.query:
        return [f"It was made for query {proposal.query}, not for {epoch.query}."]
    if proposal.incarnation != epoch.incarnation:
        return ["The query has been started again with another checkpoint since the proposal was made."]
    reasons = []
    for group, owner in sorted(proposal.owners.items()):
        now = epoch.owners[group] if group < len(epoch.owners) else None
        if now != owner:
            reasons.append(f"Group {group} belonged to worker {owner} and belongs to worker {now} now.")
        elif group in moving:
            reasons.append(f"Group {group} is in a migration.")
        elif group in pinned:
            reasons.append(f"Group {group} is pinned to its worker now.")
    # An excluded worker may be drained, by name, and gets nothing.
    concerned = {move.receiver for move in proposal.moves}
    if proposal.policy != Drain.name:
        concerned |= {move.sender for move in proposal.moves}
    reasons += [f"Worker {worker} is excluded from balancing now." for worker in sorted(concerned & set(excluded))]
    return reasons
