"""Groups dealt out one by one, each to the executor that has least and there to the worker that has least."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from balancing.load import Ints
from balancing.smoothing import Floats


class Spreading:
    """Loads of possible receivers while groups are given to them. Where loads are equal, numbers of groups decide."""

    def __init__(
        self,
        members: Mapping[str, Sequence[int]],
        executor_loads: Mapping[str, float],
        worker_loads: Floats,
        groups: Ints,
    ) -> None:
        self._workers: dict[str, list[tuple[float, int, int]]] = {}
        self._executors: list[tuple[float, int, str]] = []
        for executor, workers in members.items():
            heap = [(float(worker_loads[worker]), int(groups[worker]), worker) for worker in workers]
            heapq.heapify(heap)
            self._workers[executor] = heap
            self._executors.append((executor_loads[executor], sum(count for _, count, _ in heap), executor))
        heapq.heapify(self._executors)

    def give(self, load: float) -> int:
        """The worker that gets a group of this load."""
        total, count, executor = self._executors[0]
        heapq.heapreplace(self._executors, (total + load, count + 1, executor))
        return self.give_to(executor, load)

    def give_to(self, executor: str, load: float) -> int:
        """The worker of `executor` that gets it."""
        heap = self._workers[executor]
        total, count, worker = heap[0]
        heapq.heapreplace(heap, (total + load, count + 1, worker))
        return worker
