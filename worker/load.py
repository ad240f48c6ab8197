"""What each partition group cost in one batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from worker.buffers import Int64s


@dataclass
class GroupLoad:
    """By partition group."""

    rows: Int64s
    probes: Int64s
    results: Int64s
    suppressed: Int64s
    """All-new combinations that the root left out, because the receiver of a duplicated group has them."""

    @classmethod
    def zero(cls, partitions: int) -> GroupLoad:
        return cls(*(np.zeros(partitions, np.int64) for _ in range(4)))
