"""The balancer's own decisions: looks at the load after each committed batch and, where it is told to, acts.

Triggers, policies and forecasts are balancing's; here they are fed and their result is carried out. What the balancer
remembers (that it is balancing, how long it rests) is kept in Redis with its last decision, for the next leader and for
people who ask why nothing moves.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final

from balancing.policies import Level, Pairwise, Policy
from balancing.proposal import Proposal, make_proposal
from balancing.settings import Settings
from balancing.triggers import Decision, TriggerState, accept, decide, parse_trigger_state, resting
from manager import takeup
from manager.journal import Entry
from manager.requests import MoveRequest, RebalanceRequest, Refused, check
from manager.store import now_ms

if TYPE_CHECKING:
    from manager.runner import QueryRunner

BALANCER: Final = "balancer"
"""Who asks, where nobody did."""
POLICIES: Final[dict[str, Policy]] = {"level": Level(), "pairwise": Pairwise()}
"""Those that may act on their own (balancing.settings.BALANCERS)."""


class Automatic:
    """Automatic balancing of one query, for the leader."""

    def __init__(self, runner: QueryRunner) -> None:
        self._runner = runner
        self._state: TriggerState | None = None
        self._busy = False

    def forget(self) -> None:
        """Another manager may decide meanwhile: what is remembered is read again."""
        self._state = None
        self._busy = False

    async def consider(self) -> None:
        """Act if it is time to. Never while a rebalance is under way: its end is another load."""
        runner = self._runner
        settings = await runner.store.auto(runner.query)
        if self._state is None:
            self._state = await self._remembered()
        if runner.rebalances or runner.migrations:
            self._busy = True
            return
        if self._busy:
            # Whatever ended, by hand or not, the load has to be measured anew before anything follows from it.
            self._busy = False
            self._state = resting(settings, now_ms(), balancing=self._state.balancing)
        snapshot = runner.watch.snapshot({}, runner.rules)
        if snapshot is None:
            return
        decision = decide(snapshot, settings, self._state, now_ms())
        proposal: Proposal | None = None
        if decision.act:
            # Hundreds of milliseconds for thousands of groups: not in the event loop.
            proposal = await asyncio.to_thread(
                make_proposal,
                snapshot,
                POLICIES[settings.policy],
                settings,
                id=f"p-{secrets.token_hex(6)}",
                wave_bytes=snapshot.wave_bytes(settings.max_pause_ms),
                reason=decision.why,
            )
            decision = accept(decision, proposal, settings, now_ms())
        self._state = decision.state
        await runner.write(Entry(decision={**decision.to_json(), "at_ms": now_ms()}))
        if decision.act and proposal is not None:
            await self._carry_out(decision, proposal, settings)

    async def _carry_out(self, decision: Decision, proposal: Proposal, settings: Settings) -> None:
        runner = self._runner
        await runner.store.save_proposal(runner.query, proposal.id, proposal.to_json())
        request = RebalanceRequest(
            id=f"auto-{secrets.token_hex(6)}",
            query=runner.query,
            moves=tuple(
                MoveRequest(sender=move.sender, receiver=move.receiver, groups=move.groups) for move in proposal.moves
            ),
            strategy=proposal.choice.strategy,
            max_pause_ms=settings.max_pause_ms,
            reason=decision.why,
            by=BALANCER,
            proposal=proposal.id,
            automatic=True,
        )
        seen = runner.view()
        try:
            check(request, seen)
            takeup.check_proposal(request, proposal.to_json(), seen)
        except Refused as refused:
            await runner.tell("refused", f"{request.id}: {refused}", {"proposal": proposal.id})
            self._state = resting(settings, now_ms())
            return
        snapshot = runner.watch.snapshot({}, runner.rules)
        accepted = takeup.accept(request, seen, snapshot, now_ms())
        await runner.start(accepted.rebalance, accepted.migrations, "")

    async def _remembered(self) -> TriggerState:
        body = await self._runner.store.decision(self._runner.query)
        try:
            return TriggerState() if body is None else parse_trigger_state(body["state"])
        except (KeyError, TypeError, ValueError):
            return TriggerState()
