"""Proposals: moves with their forecast, made for one mapping; approved by executing them, refused when stale."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from balancing.forecast import Forecast, forecast, parse_forecast
from balancing.load import Snapshot
from balancing.policies.policy import Finding, Policy, SuggestedMove, Suggestion, parse_suggested_move
from balancing.settings import Settings
from balancing.strategy import Choice, choose, parse_choice
from trimtab.epochs import Epoch
from trimtab.errors import CorruptState, InvalidInput

FORMAT: Final = 1
BY_HAND: Final = "by-hand"


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
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptState(f"proposal cannot be read: {error}") from error


@dataclass(frozen=True)
class ByHand:
    """Moves that a person named, as a policy: they get the same forecast, checks and explanation."""

    moves: tuple[SuggestedMove, ...]
    name: str = BY_HAND

    def suggest(self, snapshot: Snapshot, settings: Settings) -> Suggestion:
        check_moves(snapshot, self.moves)
        return Suggestion(moves=self.moves)


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
        forecast=forecast(snapshot, suggestion.moves, settings.measure, choice.cost),
        findings=suggestion.findings,
    )


def stale(proposal: Proposal, epoch: Epoch, moving: Collection[int] = ()) -> list[str]:
    """Why the proposal must not be executed under `epoch`; empty where it may be.

    Other groups may have moved since: only a group that this proposal touches makes it stale.
    """
    if proposal.query != epoch.query:
        return [f"It was made for query {proposal.query}, not for {epoch.query}."]
    if proposal.incarnation != epoch.incarnation:
        return ["The query was started anew, with another checkpoint, since it was made."]
    reasons = []
    for group, owner in sorted(proposal.owners.items()):
        now = epoch.owners[group] if group < len(epoch.owners) else None
        if now != owner:
            reasons.append(f"Group {group} belonged to worker {owner} and belongs to worker {now} now.")
        elif group in moving:
            reasons.append(f"Group {group} is in a migration.")
    return reasons


def check_moves(snapshot: Snapshot, moves: Sequence[SuggestedMove]) -> None:
    """Refuse moves that cannot be made: nothing unknown, nobody down, each group at its sender and named once."""
    seen: set[int] = set()
    last = len(snapshot.workers) - 1
    for move in moves:
        for role, worker in (("sender", move.sender), ("receiver", move.receiver)):
            if not 0 <= worker <= last:
                raise InvalidInput(role, worker, "is no worker of this query", f"Use a number from 0 to {last}.")
            if not snapshot.workers[worker].alive:
                raise InvalidInput(role, worker, "is down", "Wait until it reports again.")
        if move.sender == move.receiver:
            raise InvalidInput("receiver", move.receiver, "is the sender too", "Name another worker.")
        if not move.groups:
            raise InvalidInput("groups", [], "is empty", "Name at least one group.")
        for group in move.groups:
            _check_group(snapshot, move, group, seen)
            seen.add(group)


def _check_group(snapshot: Snapshot, move: SuggestedMove, group: int, seen: Collection[int]) -> None:
    if not 0 <= group < len(snapshot.owners):
        last = len(snapshot.owners) - 1
        raise InvalidInput("groups", group, "is no group of this query", f"Use numbers from 0 to {last}.")
    if group in seen:
        raise InvalidInput("groups", group, "is named twice", "Name each group once.")
    if group in snapshot.moving:
        raise InvalidInput("groups", group, "is in a migration", "Wait for its end, or cancel it.")
    if snapshot.owners[group] != move.sender:
        owner = snapshot.owners[group]
        raise InvalidInput(
            "groups", group, f"belongs to worker {owner}, not to {move.sender}", f"Move it from {owner}."
        )
    if group in snapshot.pinned:
        raise InvalidInput("groups", group, "is pinned", "Unpin it first.")
