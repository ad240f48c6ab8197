"""How a manager behaves: its own intervals. When to balance: balancing/settings.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEARTBEAT_MAX_MS: Final = 30_000
"""A query whose driver gave no sign of life for this long counts as stopped; its migrations wait."""
PROPOSAL_TTL_S: Final = 3600
EVENTS_KEPT: Final = 10_000
CLOSED_KEPT: Final = 1_000
"""Records of migrations and rebalances that have ended, together."""
REQUESTS_MAX: Final = 1_000
"""Requests that may wait. More are refused, so that Redis does not fill up while there is no manager."""


@dataclass(frozen=True, kw_only=True)
class ManagerSettings:
    """Intervals. Tests make them short."""

    poll_s: float = 0.1
    """Between two looks at a query."""
    discover_s: float = 1.0
    """Between two looks for new queries."""
    lease_ttl_s: float = 6.0
    lease_renew_s: float = 2.0
    backoff_first_s: float = 0.1
    backoff_max_s: float = 2.0
    """Between two attempts while Redis does not answer."""
    redis_timeout_s: float = 1.0
    heartbeat_max_ms: int = HEARTBEAT_MAX_MS
    snapshot_s: float = 1.0
    """Between two snapshots of the load that the leader writes for the API."""
    advise_s: float = 5.0
    """Between two looks of the optimiser at the workers' plans."""
    stalled_s: float = 30.0
    """A migration that waits for this long without progress is reported as stalled."""
    warm_up_batches: int = 20
    """Committed batches whose reports a new manager reads, so that it knows the load at once."""
