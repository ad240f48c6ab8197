"""Sums that only grow, by metric and labels: what a scrape reads as counters, summaries and histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from manager.metrics import Family


class Tally:
    """Counters. What was never counted is zero."""

    def __init__(self) -> None:
        self._sums: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def add(self, family: Family, amount: float = 1, *labels: str) -> None:
        self._sums[family.name, labels] += amount  # type: ignore[assignment]  # floats as well

    def value(self, family: Family, *labels: str) -> float:
        return float(self._sums[family.name, labels])


class Distribution:
    """A histogram of values that were seen one by one."""

    def __init__(self, limits: Sequence[float]) -> None:
        self._limits = tuple(limits)
        self._counts = [0] * (len(self._limits) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._limits, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """How many were at most as large as each limit; last, all of them."""
        total, numbers = 0, []
        for count in self._counts:
            total += count
            numbers.append(total)
        return numbers


class StepTimes:
    """How long migrations were in each step: seconds, and how often."""

    def __init__(self) -> None:
        self._seconds: Counter[tuple[str, ...]] = Counter()
        self._times: Counter[tuple[str, ...]] = Counter()

    def add(self, labels: tuple[str, ...], seconds: float, *, left: bool) -> None:
        """`left`: the step is over; else it goes on, and this was a part of it."""
        self._seconds[labels] += seconds  # type: ignore[assignment]
        self._times[labels] += left

    def value(self, labels: tuple[str, ...]) -> tuple[int, float]:
        return self._times[labels], float(self._seconds[labels])
