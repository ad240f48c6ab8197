"""Which fault comes when: a function of the seed and the length, and of nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PAUSES_S: Final[dict[str, tuple[float, float]]] = {
    "python-worker-killed": (0.0, 0.0),
    "python-worker-stopped": (7.0, 11.0),
    "executor-killed": (0.0, 0.0),
    "executor-machine-lost": (0.0, 0.0),
    "zombie": (7.0, 11.0),
    "driver-killed": (0.5, 5.0),
    "driver-machine-lost": (0.5, 5.0),
    "manager-killed": (0.5, 10.0),
    "managers-killed": (0.5, 10.0),
    "redis-killed": (0.2, 8.0),
    "redis-emptied": (0.0, 0.0),
    "redis-set-back": (2.0, 6.0),
    "store-full": (8.0, 30.0),
    "store-gone": (1.0, 8.0),
}
"""Kind of fault -> shortest and longest time until it is mended. A stop outlasts the manager's lease of 6 seconds."""
KINDS: Final = tuple(PAUSES_S)
GAP_S: Final = (4.0, 14.0)
FIRST_S: Final = 8.0
"""Some batches pass before the first fault, so that there is state to lose."""


@dataclass(frozen=True)
class Fault:
    at_s: float
    kind: str
    pause_s: float


def make_schedule(seed: int, seconds: float, kinds: Sequence[str] = KINDS) -> list[Fault]:
    """Faults overlap where a pause is longer than a gap. Every kind comes once before any comes again."""
    rng = random.Random(seed)
    faults: list[Fault] = []
    at_s = FIRST_S
    deck: list[str] = []
    while at_s < seconds and kinds:
        if not deck:
            deck = list(kinds)
            rng.shuffle(deck)
        kind = deck.pop()
        faults.append(Fault(at_s, kind, rng.uniform(*PAUSES_S[kind])))
        at_s += rng.uniform(*GAP_S)
    return faults
