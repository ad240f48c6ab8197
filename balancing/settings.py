"""What the balancer may be told: when to act, on which load, how much it may move. Plain data, checked when read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from balancing.words import (
    BALANCERS,
    BUDGET_MS,
    MEASURES,
    PAUSE_MAX_MS,
    PLAN_STRATEGIES,
    STRATEGIES,
    Measure,
)
from trimtab.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Thresholds of one query. The defaults suit batches of a second or more."""

    auto: bool = False
    """Whether the balancer acts by itself."""
    measure: Measure = "cpu"
    policy: str = "level"
    strategy: str = "auto"
    start_ratio: float = 1.2
    """Begin to balance when the largest load is this many times the mean."""
    stop_ratio: float = 1.08
    """Once begun, go on until the ratio is below this: hysteresis, so that loads near the limit cause no flutter."""
    cool_down_s: float = 20.0
    """Rest after a rebalance ended, or after a look that found nothing worth doing."""
    min_gain: float = 0.05
    """A rebalance must lower the largest load by at least this share of it."""
    min_batches: int = 5
    """Batches with rows that must have been measured since the mapping last changed."""
    min_busy: float = 0.05
    """CPU only: leave a query alone whose busiest executor uses less than this share of one core."""
    max_moved_bytes: int | None = None
    """Budget of one rebalance; None for none."""
    max_pause_ms: float | None = None
    """How much longer a batch may take because of an MSLB move; None: the manager's default factor."""

    plans: bool = False
    """Whether the optimiser changes workers' plans by itself."""
    plan_min_gain: float = 0.1
    """Share of a worker's CPU that another plan must save ..."""
    plan_hold_s: float = 10.0
    """... for as long as this without a break, ..."""
    plan_horizon_s: float = 300.0
    """... and within which it must have paid for the change."""
    plan_rest_s: float = 60.0
    """Rest of a worker after a change of its plan: what has just been put right is measured first."""
    plan_strategy: str = "auto"
    plan_budget_ms: int = BUDGET_MS
    """What a batch may spend on a change of plans."""
    plan_memory_bytes: int | None = None
    """What the states of a worker may take, those of both plans during a change together; None: no limit."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_settings(body: Mapping[str, Any], base: Settings | None = None) -> Settings:
    """`base` with the fields that `body` names; refuses unknown names and values out of range."""
    merged = (base or Settings()).to_json()
    for name, value in body.items():
        if name not in merged:
            raise InvalidInput(name, value, "is not a setting", f"Use one of {', '.join(sorted(merged))}.")
        merged[name] = value
    for field in fields(Settings):
        _check_type(field.name, merged[field.name])
    _check_one_of("measure", merged["measure"], MEASURES)
    _check_one_of("policy", merged["policy"], BALANCERS)
    _check_one_of("strategy", merged["strategy"], STRATEGIES)
    _check_one_of("plan_strategy", merged["plan_strategy"], PLAN_STRATEGIES)
    for name, low, high in _RANGES:
        value = merged[name]
        if value is not None and not low <= value <= high:
            raise InvalidInput(name, value, "is out of range", f"Use a number from {low:g} to {high:g}.")
    if merged["stop_ratio"] > merged["start_ratio"]:
        raise InvalidInput(
            "stop_ratio",
            merged["stop_ratio"],
            f"is above start_ratio {merged['start_ratio']:g}",
            "Balancing must begin at a higher ratio than it ends at.",
        )
    return Settings(**merged)


_RANGES: Final[tuple[tuple[str, float, float], ...]] = (
    ("start_ratio", 1.0, 1000.0),
    ("stop_ratio", 1.0, 1000.0),
    ("cool_down_s", 0.0, 86_400.0),
    ("min_gain", 0.0, 1.0),
    ("min_batches", 1, 10_000),
    ("min_busy", 0.0, 1000.0),
    ("max_moved_bytes", 1, 2**63),
    ("max_pause_ms", 1.0, PAUSE_MAX_MS),
    ("plan_min_gain", 0.0, 1.0),
    ("plan_hold_s", 0.0, 86_400.0),
    ("plan_horizon_s", 1.0, 31_536_000.0),
    ("plan_rest_s", 0.0, 86_400.0),
    ("plan_budget_ms", 1, PAUSE_MAX_MS),
    ("plan_memory_bytes", 1, 2**63),
)
_MAY_BE_NONE: Final = ("max_moved_bytes", "max_pause_ms", "plan_memory_bytes")
_WHOLE: Final = ("min_batches", "max_moved_bytes", "plan_budget_ms", "plan_memory_bytes")
_TEXTS: Final = ("measure", "policy", "strategy", "plan_strategy")
_SWITCHES: Final = ("auto", "plans")


def _check_type(name: str, value: object) -> None:
    if value is None and name in _MAY_BE_NONE:
        return
    if name in _SWITCHES:
        fits, wanted = isinstance(value, bool), "true or false"
    elif name in _TEXTS:
        fits, wanted = isinstance(value, str), "a name"
    elif name in _WHOLE:
        fits, wanted = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    else:
        fits, wanted = isinstance(value, int | float) and not isinstance(value, bool), "a number"
    if not fits:
        raise InvalidInput(name, value, f"is not {wanted}", f"Give {wanted}.")


def _check_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInput(name, value, f"is not a {name}", f"Use one of {', '.join(allowed)}.")
