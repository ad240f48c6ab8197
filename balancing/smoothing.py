"""Smoothed figures: rates and ratios of decayed sums, and the line that tells fixed cost from cost of work."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class DecayedRates:
    """Decayed sums of amounts and of seconds, for each of a row of things."""

    def __init__(self, names: tuple[str, ...], size: int) -> None:
        self._sums = {name: np.zeros(size, np.float64) for name in names}
        self._seconds = np.zeros(size, np.float64)

    def add(self, amounts: Mapping[str, Floats], covered: npt.NDArray[np.bool_], span_s: float, decay: float) -> None:
        for name, sums in self._sums.items():
            sums[covered] = sums[covered] * decay + amounts[name][covered]
        self._seconds[covered] = self._seconds[covered] * decay + span_s

    def rates(self, name: str) -> Floats:
        return np.divide(self._sums[name], self._seconds, out=np.zeros_like(self._seconds), where=self._seconds > 0)

    def rate(self, name: str, index: int) -> float:
        seconds = float(self._seconds[index])
        return float(self._sums[name][index]) / seconds if seconds > 0 else 0.0


class Ratio:
    """Of two decayed sums."""

    def __init__(self) -> None:
        self._above = 0.0
        self._below = 0.0

    def add(self, above: float, below: float, decay: float) -> None:
        self._above = self._above * decay + above
        self._below = self._below * decay + below

    @property
    def known(self) -> bool:
        return self._below > 0

    def value(self, assumed: float) -> float:
        return self._above / self._below if self.known else assumed


class FixedCost:
    """Decayed least squares of cpu = fixed + cost x work, over all workers: one line, since they run the same code."""

    SPREAD_MIN: Final = 1e-3
    """Variance of work over its mean square: below, all workers did the same and no line can be drawn."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self._seconds = self._weight = 0.0
        self._least: deque[float] = deque(maxlen=8)
        self.fixed_ns = 0.0
        """Per batch and worker."""
        self.ns_per_work = 0.0
        """Zero: unknown."""

    @property
    def fixed_ns_per_s(self) -> float:
        return self.fixed_ns * self._weight / self._seconds if self._seconds > 0 else 0.0

    def add(self, work: Sequence[int], cpu_ns: Sequence[int], span_s: float, decay: float) -> None:
        if not work:
            return
        x, y = np.array(work, np.float64), np.array(cpu_ns, np.float64)
        self._n = self._n * decay + x.size
        self._x = self._x * decay + float(x.sum())
        self._y = self._y * decay + float(y.sum())
        self._xx = self._xx * decay + float(x @ x)
        self._xy = self._xy * decay + float(x @ y)
        self._seconds = self._seconds * decay + span_s
        self._weight = self._weight * decay + 1.0
        self._least.append(float(y.min()))
        spread = self._n * self._xx - self._x * self._x
        if spread <= self.SPREAD_MIN * self._n * self._xx:
            return
        slope = (self._n * self._xy - self._x * self._y) / spread
        if slope <= 0:
            return
        self.ns_per_work = slope
        # Never more than a worker was seen to get by on: where cost is not linear the line may cut too high.
        self.fixed_ns = min(max(0.0, (self._y - slope * self._x) / self._n), min(self._least))
