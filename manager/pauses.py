"""How much longer batches take while moves are open."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

BATCHES_KEPT: Final = 31
"""Batches without moves whose median is the usual duration."""


class Pauses:
    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=BATCHES_KEPT)

    def add(self, seconds: float, *, moving: bool) -> float:
        """One more batch; returns by how much it was longer than usual because of moves."""
        if not moving:
            self._usual.append(seconds)
            return 0.0
        return max(0.0, seconds - statistics.median(self._usual)) if self._usual else 0.0
