"""Names and limits that requests, settings, the API and the command line share, each spelled once."""

from __future__ import annotations

from typing import Final, Literal, get_args

Strategy = Literal["ptlb", "mslb"]
PROTOCOLS: Final[tuple[Strategy, ...]] = get_args(Strategy)
AskedStrategy = Literal["auto", "ptlb", "mslb"]
"""`auto`: the papers' cost models choose."""
STRATEGIES: Final[tuple[str, ...]] = get_args(AskedStrategy)

Measure = Literal["cpu", "bytes", "rows"]
"""A load: CPU nanoseconds per second, bytes of state, or rows per second."""
MEASURES: Final[tuple[str, ...]] = get_args(Measure)
ShareMeasure = Literal["cpu", "bytes"]
"""What the amount of a move is a share of."""
SHARE_MEASURES: Final[tuple[str, ...]] = get_args(ShareMeasure)

Order = Literal["hot-first", "hot-last"]
"""Which groups of a paced move go first."""
ORDERS: Final[tuple[str, ...]] = get_args(Order)

Balancer = Literal["level", "pairwise"]
"""Policies that may act on their own."""
BALANCERS: Final[tuple[str, ...]] = get_args(Balancer)
PolicyName = Literal["level", "pairwise", "drain", "fill"]
"""Drain and fill need a worker, and a person who names it."""
POLICY_NAMES: Final[tuple[str, ...]] = get_args(PolicyName)

MOVES_MAX: Final = 1_000
"""Of one request."""
GROUPS_MAX: Final = 10_000
"""Of one list of groups or workers."""
PAUSE_MAX_MS: Final = 3_600_000
"""The longest addition to a batch that may be asked for."""

PlanStrategyAsked = Literal["auto", "ms", "hybmig"]
"""How a worker is to come to another plan; `auto`: the forecasts choose."""
PLAN_STRATEGIES: Final[tuple[str, ...]] = get_args(PlanStrategyAsked)
BUDGET_MS: Final = 100
"""What a batch may spend on a change of plans where nobody says otherwise."""
