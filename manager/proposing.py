"""Works out what the balancer wants, beside the event loop: hundreds of milliseconds for thousands of groups."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from balancing.happenings import Proposed
from balancing.instructions import Propose
from balancing.load import Snapshot
from balancing.policies import policy_named
from balancing.proposal import make_proposal
from balancing.situation import Situation
from manager.store import now_ms


async def propose_aside(
    propose: Propose, situation: Callable[[], Situation | None], snapshot: Callable[[], Snapshot | None]
) -> Proposed | None:
    """What the policy suggests for the load that the decision was made on, and the query as it is once that is known.

    None where Redis has lost its newest epoch meanwhile.
    """
    settings, decided_on = propose.settings, propose.snapshot
    proposal = await asyncio.to_thread(
        make_proposal,
        decided_on,
        policy_named(settings.policy),
        settings,
        id=f"p-{secrets.token_hex(6)}",
        wave_bytes=decided_on.wave_bytes(settings.max_pause_ms),
        reason=propose.decision.why,
    )
    now = situation()
    if now is None:
        return None
    return Proposed(
        now_ms=now_ms(),
        decision=propose.decision,
        proposal=proposal,
        settings=settings,
        situation=now,
        snapshot=snapshot(),
        request_id=request_name(),
    )


def request_name() -> str:
    """Of a request that nobody made."""
    return f"auto-{secrets.token_hex(6)}"
