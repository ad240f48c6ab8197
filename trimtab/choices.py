"""Names that a user may choose from, and the limits of what he may ask for: spelled here and nowhere else."""

from __future__ import annotations

from typing import Final, Literal, get_args

Protocol = Literal["ptlb", "mslb"]
"""How groups are moved (docs/protocols/)."""
Strategy = Literal["auto", "ptlb", "mslb"]
"""A protocol, or `auto`: the cheaper one."""
Order = Literal["hot-first", "hot-last"]
"""Which groups of a paced move go first."""
MoveMeasure = Literal["cpu", "bytes"]
"""What an amount to be moved is a share of."""
Measure = Literal["cpu", "bytes", "rows"]
"""What a load is: CPU nanoseconds per second, bytes of state, or rows per second."""
Balancer = Literal["level", "pairwise"]
"""Policies that may act on their own."""
PolicyName = Literal["level", "pairwise", "drain", "fill"]
"""All policies; `drain` and `fill` concern one worker, which somebody names."""

STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)
ORDERS: Final[tuple[Order, ...]] = get_args(Order)
MOVE_MEASURES: Final[tuple[MoveMeasure, ...]] = get_args(MoveMeasure)
MEASURES: Final[tuple[Measure, ...]] = get_args(Measure)
BALANCERS: Final[tuple[Balancer, ...]] = get_args(Balancer)
POLICIES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)

MOVES_MAX: Final = 1_000
"""In one request."""
GROUPS_MAX: Final = 10_000
"""In one list of groups or workers."""
PAUSE_MAX_MS: Final = 3_600_000
