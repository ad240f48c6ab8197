"""Which row goes to which worker: the kernel of the split, and its naive twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit


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
