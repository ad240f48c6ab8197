"""Works out a proposal beside the event loop: hundreds of milliseconds for thousands of groups."""

from __future__ import annotations

import asyncio
import secrets

from balancing.instructions import Propose
from balancing.policies import policy_named
from balancing.proposal import Proposal, make_proposal


async def propose_aside(propose: Propose) -> Proposal:
    """What the policy suggests for the load that the decision was made on."""
    settings, snapshot = propose.settings, propose.snapshot
    return await asyncio.to_thread(
        make_proposal,
        snapshot,
        policy_named(settings.policy),
        settings,
        id=f"p-{secrets.token_hex(6)}",
        wave_bytes=snapshot.wave_bytes(settings.max_pause_ms),
        reason=propose.decision.why,
    )
