"""What the balancer is told of the load, and what it wants.

That is worked out beside the event loop: hundreds of milliseconds for thousands of groups.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from balancing.happenings import LoadWeighed, Proposed
from balancing.instructions import Propose
from balancing.load import Snapshot
from balancing.policies import policy_named
from balancing.proposal import make_proposal
from balancing.settings import Settings
from balancing.situation import Situation
from manager.advising import Planning
from manager.store import now_ms


def load_weighed(
    settings: Settings, snapshot: Snapshot | None, advised: Planning | None, situation: Situation | None
) -> LoadWeighed:
    """The load with the newest batches in it, and what the optimiser found last; `situation` where it may act."""
    return LoadWeighed(
        now_ms=now_ms(),
        settings=settings,
        snapshot=snapshot,
        advice=() if advised is None else advised.advice,
        situation=situation,
        request_id="" if situation is None else _request_id(),
    )


def _request_id() -> str:
    return f"auto-{secrets.token_hex(6)}"


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
        request_id=_request_id(),
    )
