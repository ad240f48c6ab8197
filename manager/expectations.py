"""Forecast against outcome: what a rebalance was to cost and to bring, and what it did.

A rebalance that carries out a proposal has a forecast. Its outcome is complete only when the load under the new mapping
has been measured for as many batches as the balancer itself asks for; until then the one before it is shown.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from balancing.forecast import Forecast
from balancing.proposal import Proposal
from balancing.protocols.migration import Migration
from balancing.requests import Rebalance

BATCHES_KEPT: Final = 31
"""Batches without moves whose median is the usual duration."""
AWAITED_MAX: Final = 64
"""Rebalances whose end is awaited."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Of one rebalance; None where it cannot be said."""

    seconds: float | None
    pause_s: float | None
    bytes: float | None
    ratio: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    rebalance: str
    forecast: Measures
    outcome: Measures


class Pauses:
    """How much longer batches take while moves are open."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=BATCHES_KEPT)

    def add(self, seconds: float, *, moving: bool) -> float:
        """One more batch; returns by how much it was longer than usual because of moves."""
        if not moving:
            self._usual.append(seconds)
            return 0.0
        return max(0.0, seconds - statistics.median(self._usual)) if self._usual else 0.0


class Expectations:
    def __init__(self) -> None:
        self.newest: Comparison | None = None
        self._forecasts: dict[str, Measures] = {}
        self._pauses: dict[str, float] = {}
        """Longest so far, of rebalances under way."""
        self._ended: list[tuple[str, Measures, Measures]] = []
        """Rebalances that have ended, forecast and outcome; the load after them is not measured yet."""

    def expect(self, rebalance: str, proposal: Proposal) -> None:
        while len(self._forecasts) >= AWAITED_MAX:
            del self._forecasts[next(iter(self._forecasts))]
        self._forecasts[rebalance] = expected(proposal.forecast, ships=proposal.strategy == "mslb")

    def paused(self, seconds: float) -> None:
        """A batch took so much longer than usual."""
        for name in self._forecasts:
            self._pauses[name] = max(self._pauses.get(name, 0.0), seconds)

    def ended(self, rebalance: Rebalance, migrations: Mapping[str, Migration]) -> None:
        """Only one that moved what it was to move can be compared."""
        forecast, pause_s = self._forecasts.pop(rebalance.id, None), self._pauses.pop(rebalance.id, 0.0)
        if forecast is None or rebalance.state != "committed" or rebalance.closed_ms is None:
            return
        outcome = Measures(
            seconds=max(0.0, (rebalance.closed_ms - rebalance.created_ms) / 1000),
            pause_s=pause_s,
            bytes=_shipped(migrations[name] for name in rebalance.migrations if name in migrations),
            ratio=None,
        )
        self._ended.append((rebalance.id, forecast, outcome))

    def levelled(self, ratio: float) -> None:
        """The load under the present mapping is measured."""
        if self._ended:
            name, forecast, outcome = self._ended[-1]
            self._ended.clear()
            measured = Measures(seconds=outcome.seconds, pause_s=outcome.pause_s, bytes=outcome.bytes, ratio=ratio)
            self.newest = Comparison(rebalance=name, forecast=forecast, outcome=measured)


def expected(forecast: Forecast, *, ships: bool) -> Measures:
    """PTLB ships nothing, whatever the size of the groups' state."""
    return Measures(
        seconds=forecast.seconds,
        pause_s=forecast.pause_ms / 1000,
        bytes=forecast.bytes if ships else 0,
        ratio=forecast.ratio_after,
    )


def _shipped(migrations: Iterable[Migration]) -> int:
    return sum(wave.bytes for migration in migrations for wave in migration.waves if migration.table.ships)
