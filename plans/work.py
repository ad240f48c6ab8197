"""Work in units that can be counted, and what a unit costs on a machine.

The cost of a plan is linear in seven kinds of work. JTree's Table 1 has three of them (C_i, C_d, C_j); the others are
what our join does besides: it hashes, looks at candidates whose times may not fit, evaluates conditions, and pays a
fixed price for every step of every batch. What one unit costs is a property of the machine: `calibrated` finds it from
runs whose work was counted and whose CPU time was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Final

import numpy as np

from plans.statistics import Floats

APPEND, EXPIRE, PROBE, CANDIDATE, PAIR, CONDITION, STEP = range(7)
ACTIVITIES: Final = ("append", "expire", "probe", "candidate", "pair", "condition", "step")
"""In this order stands work in arrays, always in the last axis."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """CPU seconds per unit of work."""

    append_s: float
    """A tuple enters a state and its index (JTree's C_i)."""
    expire_s: float
    """A tuple leaves a state (JTree's C_d)."""
    probe_s: float
    """A tuple looks its key up in a state, whether or not it finds anything."""
    candidate_s: float
    """A stored tuple of the same key is looked at (MS/PT's T_j, where nothing is hashed)."""
    pair_s: float
    """Two tuples within the window become one (JTree's C_j)."""
    condition_s: float
    """A condition is evaluated on a pair."""
    step_s: float
    """One step of a plan in one batch, however few tuples there are."""

    def vector(self) -> Floats:
        return np.array(astuple(self))

    def seconds(self, work: Floats) -> Floats:
        """CPU seconds of work in arrays (..., activities)."""
        cost: Floats = work @ self.vector()
        return cost


DEFAULT_CONSTANTS: Final = Constants(
    append_s=30e-9,
    expire_s=3e-9,
    probe_s=30e-9,
    candidate_s=4e-9,
    pair_s=40e-9,
    condition_s=60e-9,
    step_s=60e-6,
)
"""Orders of magnitude for a current core; a worker's own are calibrated."""


def calibrated(work: Sequence[Floats] | Floats, cpu_s: Sequence[float] | Floats) -> Constants:
    """Constants, none below zero, that explain the measured CPU seconds of some runs best.

    Least squares of relative errors: a run of a second and one of a minute count alike. An activity that no run shows
    costs nothing.
    """
    counted = np.asarray(work, np.float64)
    measured = np.asarray(cpu_s, np.float64)
    if counted.shape != (measured.size, len(ACTIVITIES)) or not measured.size or not (measured > 0).all():
        raise ValueError("each run needs its work and a positive CPU time")
    relative = counted / measured[:, None]
    # Columns differ by many orders of magnitude: a step is rare and dear, a candidate frequent and cheap.
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1.0
    found = _nonnegative_least_squares(relative / scale, np.ones(measured.size)) / scale
    return Constants(**{each.name: float(value) for each, value in zip(fields(Constants), found, strict=True)})


def _nonnegative_least_squares(matrix: Floats, wanted: Floats) -> Floats:
    """Lawson and Hanson's active set: free the most useful variable, take those that turn negative back to zero."""
    count = matrix.shape[1]
    free = np.zeros(count, bool)
    solution = np.zeros(count)
    for _ in range(10 * count):
        gradient = matrix.T @ (wanted - matrix @ solution)
        gradient[free] = 0.0
        if gradient.max() <= 1e-12:
            break
        free[int(gradient.argmax())] = True
        while True:
            trial = np.zeros(count)
            trial[free] = np.linalg.lstsq(matrix[:, free], wanted, rcond=None)[0]
            if (trial[free] >= 0).all():
                break
            falling = free & (trial < 0)
            share = (solution[falling] / (solution[falling] - trial[falling])).min()
            solution += share * (trial - solution)
            free &= solution > 1e-15
            solution[~free] = 0.0
        solution = trial
    return solution
