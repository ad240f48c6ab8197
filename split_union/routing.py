"""Which row goes to which worker: routes of an epoch, the kernel of the split, and its naive twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import njit

from trimtab.epochs import Epoch
from trimtab.moves import Kind, is_switched

NOBODY: Final = -1
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Routes:
    """Where the rows of each group go in one batch."""

    owner: Int32s
    also: Int32s
    """A second worker that gets a copy, or NOBODY."""


def routes_of(epoch: Epoch, epoch_before: int) -> Routes:
    """By the epoch that the batch is bound to, and the number of the previous batch's epoch."""
    owner = np.array(epoch.owners, np.int32)
    also = np.full(owner.size, NOBODY, np.int32)
    for move in epoch.moves:
        groups = np.array(move.groups, np.int64)
        if move.kind == Kind.DUPLICATE:
            also[groups] = move.receiver  # PTLB step 3
        elif is_switched(move, epoch_before) and not move.way.back:
            owner[groups] = move.receiver
            also[groups] = move.sender  # to put aside: the way back
    return Routes(owner, also)


@njit(cache=True, nogil=True)
def route(partition: Any, owners: Any, also: Any, workers: int) -> Any:
    """Row order that brings the rows of each worker together, and where each worker's rows end (counting sort).

    A row goes to its group's owner, and a copy of it to the worker in `also`, unless that is negative.
    """
    ends = np.zeros(workers + 1, np.int64)
    for i in range(partition.size):
        ends[owners[partition[i]] + 1] += 1
        second = also[partition[i]]
        if second >= 0:
            ends[second + 1] += 1
    for worker in range(workers):
        ends[worker + 1] += ends[worker]
    cursor = ends[:workers].copy()
    order = np.empty(ends[workers], np.int64)
    for i in range(partition.size):
        worker = owners[partition[i]]
        order[cursor[worker]] = i
        cursor[worker] += 1
        second = also[partition[i]]
        if second >= 0:
            order[cursor[second]] = i
            cursor[second] += 1
    return order, ends


def route_naively(
    partition: Sequence[int], owners: Sequence[int], also: Sequence[int], workers: int
) -> list[list[int]]:
    """Rows of each worker in input order."""
    return [[i for i, p in enumerate(partition) if worker in (owners[p], also[p])] for worker in range(workers)]
