"""Which groups come nearest to an amount of load: PartitionsToMove, step 2 of both protocols (PTLB/MSLB section 3).

The paper leaves open how a worker picks its groups. This is a subset sum: solved exactly where a worker has few loaded
groups, and by greedy choice with single swaps where it has many, since among many groups some swap nearly always closes
the gap. The same loads give the same answer everywhere, so a replayed batch answers as the first attempt did.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

EXACT_GROUPS_MAX: Final = 16
"""Up to this many groups all subsets are compared (2^16 sums, a few milliseconds)."""
SWAPS_MAX: Final = 32
TOLERANCE: Final = 1e-12
"""Relative: sums that differ by less are the same sum, added up in another order."""

Floats = npt.NDArray[np.float64]


def nearest(loads: Mapping[int, float], amount: float, *, excluded: Collection[int] = ()) -> tuple[int, ...]:
    """The groups, in ascending order, whose summed load comes nearest to `amount`.

    Of equally near choices some groups are preferred to none, then few to many. Groups without load are never chosen:
    they would cost a move and bring nothing. Empty only where even the smallest group is further from `amount` than
    no group at all.
    """
    if not amount > 0:
        return ()
    barred = frozenset(excluded)
    usable = sorted(
        ((load, group) for group, load in loads.items() if load > 0 and math.isfinite(load) and group not in barred),
        key=lambda pair: (-pair[0], pair[1]),
    )
    if not usable:
        return ()
    sizes = np.array([load for load, _ in usable], np.float64)
    picked = _exact(sizes, amount) if sizes.size <= EXACT_GROUPS_MAX else _greedy(sizes, amount)
    return tuple(sorted(usable[index][1] for index in np.flatnonzero(picked)))


def _exact(sizes: Floats, amount: float) -> npt.NDArray[np.bool_]:
    """All subsets, as every subset of one half with every subset of the other."""
    half = sizes.size // 2
    left, right = _subset_sums(sizes[:half]), _subset_sums(sizes[half:])
    distance = np.abs(left[:, None] + right[None, :] - amount)
    bound = distance.min() + TOLERANCE * (amount + float(sizes.sum()))
    lefts, rights = np.nonzero(distance <= bound)
    subsets = lefts.astype(np.int64) | (rights.astype(np.int64) << half)
    member = (subsets[:, None] >> np.arange(sizes.size)) & 1 == 1
    count = member.sum(axis=1)
    best = np.lexsort((subsets, count, count == 0))[0]
    picked: npt.NDArray[np.bool_] = member[best]
    return picked


def _subset_sums(sizes: Floats) -> Floats:
    sums = np.zeros(1, np.float64)
    for size in sizes:
        sums = np.concatenate([sums, sums + size])
    return sums


def _greedy(sizes: Floats, amount: float) -> npt.NDArray[np.bool_]:
    """`sizes` descend: take what fits, then swap single groups while that brings the sum nearer."""
    picked = np.zeros(sizes.size, np.bool_)
    missing = amount
    for index, size in enumerate(sizes.tolist()):
        if size <= missing:
            picked[index] = True
            missing -= size
    slack = TOLERANCE * (amount + float(sizes.sum()))
    for _ in range(SWAPS_MAX):
        change = _best_change(sizes, picked, missing)
        if change is None:
            break
        leaving, entering = change
        delta = (sizes[entering] if entering >= 0 else 0.0) - (sizes[leaving] if leaving >= 0 else 0.0)
        if abs(missing - delta) >= abs(missing) - slack:
            break
        missing -= delta
        if leaving >= 0:
            picked[leaving] = False
        if entering >= 0:
            picked[entering] = True
    if not picked.any() and sizes[-1] <= 2 * amount:
        picked[-1] = True
    return picked


def _best_change(sizes: Floats, picked: npt.NDArray[np.bool_], missing: float) -> tuple[int, int] | None:
    """One group out (or none, -1), one group in (or none), so that the sum grows by nearly `missing`."""
    inside, outside = np.flatnonzero(picked), np.flatnonzero(~picked)
    out_index = np.concatenate([[-1], inside])
    out_size = np.concatenate([[0.0], sizes[inside]])
    # Candidates to come in, ascending by size, so that the wanted size can be searched for.
    in_index = np.concatenate([[-1], outside[::-1]])
    in_size = np.concatenate([[0.0], sizes[outside[::-1]]])
    wanted = out_size + missing
    above = np.searchsorted(in_size, wanted).clip(0, in_size.size - 1)
    below = (above - 1).clip(0)
    off_above, off_below = np.abs(in_size[above] - wanted), np.abs(in_size[below] - wanted)
    choice = np.where(off_below <= off_above, below, above)
    best = int(np.argmin(np.minimum(off_above, off_below)))
    leaving, entering = int(out_index[best]), int(in_index[choice[best]])
    return None if leaving < 0 and entering < 0 else (leaving, entering)
