"""How a manager behaves: intervals of its own, and what an operator may set for each query."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal

from trimtab.errors import InvalidInput

HEARTBEAT_MAX_MS: Final = 30_000
"""A query whose driver said nothing for this long counts as stopped; its migrations park."""
PROPOSAL_TTL_S: Final = 3600
EVENTS_KEPT: Final = 10_000
CLOSED_KEPT: Final = 1_000
"""Records of migrations and rebalances that have ended, together."""
REQUESTS_MAX: Final = 1_000
"""Requests that may wait; more are refused, so that a manager that is away does not fill Redis."""


@dataclass(frozen=True, kw_only=True)
class ManagerSettings:
    """Intervals. Tests make them short."""

    poll_s: float = 0.1
    """Between two looks at a query."""
    discover_s: float = 1.0
    """Between two looks for queries that have come or gone."""
    lease_ttl_s: float = 6.0
    lease_renew_s: float = 2.0
    backoff_first_s: float = 0.1
    backoff_max_s: float = 2.0
    """Between two attempts while Redis does not answer."""
    redis_timeout_s: float = 1.0
    heartbeat_max_ms: int = HEARTBEAT_MAX_MS
    warm_up_batches: int = 20
    """Committed batches that a manager that starts reads again, so that it knows the load at once."""


@dataclass(frozen=True, kw_only=True)
class AutoSettings:
    """Automatic balancing of one query. Off until somebody says so: default deny holds for machines too."""

    enabled: bool = False
    strategy: Literal["auto", "ptlb", "mslb"] = "auto"
    policy: Literal["level", "pairwise"] = "level"
    ratio: float = 1.2
    """Acts where the largest load is more than this many times the mean."""
    calm_ratio: float = 1.1
    """Having acted, it acts again only after the ratio was below this, or once the cool-down is over."""
    cooldown_s: float = 60.0
    minimum_gain: float = 0.05
    """Of the largest load: what a rebalance must win at least."""
    max_pause_ms: float | None = None
    """Longest addition to a batch; None: the mover's default factor of the median batch."""
    order: Literal["hot-first", "hot-last"] = "hot-first"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_auto(body: dict[str, Any]) -> AutoSettings:
    """Settings from JSON; refuses unknown names and values out of range."""
    known = {field.name for field in fields(AutoSettings)}
    for name in body:
        if name not in known:
            raise InvalidInput(
                name, body[name], "is no setting of the balancer", f"It has: {', '.join(sorted(known))}."
            )
    settings = AutoSettings(**body)
    _one_of("strategy", settings.strategy, ("auto", "ptlb", "mslb"))
    _one_of("policy", settings.policy, ("level", "pairwise"))
    _one_of("order", settings.order, ("hot-first", "hot-last"))
    if not isinstance(settings.enabled, bool):
        raise InvalidInput("enabled", settings.enabled, "is neither true nor false", "Write true or false.")
    for name, low in (("ratio", 1.0), ("calm_ratio", 1.0), ("cooldown_s", 0.0), ("minimum_gain", 0.0)):
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < float("inf"):
            raise InvalidInput(name, value, "is out of range", f"Give a number of at least {low:g}.")
    if settings.calm_ratio > settings.ratio:
        raise InvalidInput("calm_ratio", settings.calm_ratio, "is above ratio", f"Give at most {settings.ratio:g}.")
    pause = settings.max_pause_ms
    if pause is not None and (isinstance(pause, bool) or not isinstance(pause, int | float) or not pause > 0):
        raise InvalidInput("max_pause_ms", pause, "is no duration", "Give milliseconds above 0, or null.")
    return settings


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What an operator forbids."""

    pinned: frozenset[int] = frozenset()
    """Groups that stay where they are."""
    excluded: frozenset[int] = frozenset()
    """Workers that take no part: nothing is moved to or from them unless it is asked for by name."""

    def to_text(self) -> str:
        return json.dumps({"pinned": sorted(self.pinned), "excluded": sorted(self.excluded)})


def parse_rules(text: str) -> Rules:
    body = json.loads(text)
    return Rules(pinned=frozenset(body["pinned"]), excluded=frozenset(body["excluded"]))


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidInput(name, value, "is not known", f"Choose one of {', '.join(choices)}.")
