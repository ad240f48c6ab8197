"""Bring an idle worker up to the mean, for scale-out: groups come from those who have most.

What a worker takes must not overload its executor: where that already has its share, groups come only from workers of
the same executor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from balancing.load import Ints, Snapshot
from balancing.policies.policy import (
    NO_RECEIVER,
    Finding,
    Suggestion,
    check_worker,
    executors_taking_part,
    movable_groups,
    moves_between,
    taking_part,
)
from balancing.selection import nearest
from balancing.settings import Settings
from trimtab.errors import InvalidInput

NEAR: Final = 0.02
"""Of the mean: near enough."""


@dataclass(frozen=True)
class Fill:
    worker: int
    name: str = "fill"

    def suggest(self, snapshot: Snapshot, settings: Settings) -> Suggestion:
        check_worker(snapshot, self.worker)
        if self.worker in snapshot.excluded:
            raise InvalidInput("worker", self.worker, "is excluded from balancing", "Include it again, then fill it.")
        loads = snapshot.worker_loads(settings.measure)
        members = [worker for workers in taking_part(snapshot).values() for worker in workers]
        mean = float(loads[members].mean())
        wanted = snapshot.placed()
        missing = mean - float(loads[self.worker])
        budget = float("inf") if settings.max_moved_bytes is None else float(settings.max_moved_bytes)
        for sender in self._senders(snapshot, settings):
            if missing <= NEAR * mean:
                break
            surplus = float(loads[sender]) - mean
            if surplus <= 0:
                continue
            groups = self._taken(snapshot, settings, wanted, sender, min(missing, surplus), budget)
            budget -= sum(snapshot.group_bytes[group] for group in groups)
            missing -= sum(float(snapshot.group_load(settings.measure)[group]) for group in groups)
            wanted[list(groups)] = self.worker
        moves = moves_between(snapshot, wanted)
        if moves:
            return Suggestion(moves=moves)
        text = (
            f"Worker {self.worker} has {float(loads[self.worker]) / mean:.2f} of the mean load, "
            "and nobody has groups to spare that would bring it nearer."
            if mean > 0
            else "No load was measured yet: there is nothing to share out."
        )
        return Suggestion(findings=(Finding(kind=NO_RECEIVER, worker=self.worker, text=text),))

    def _senders(self, snapshot: Snapshot, settings: Settings) -> list[int]:
        """Workers that may give, the most loaded executor's first, and of that the most loaded worker."""
        executors = executors_taking_part(snapshot, settings.measure)
        loads = snapshot.worker_loads(settings.measure)
        own = snapshot.executor_of(self.worker)
        own_is_full = executors[own] >= sum(executors.values()) / len(executors)
        members = [
            worker
            for executor, workers in taking_part(snapshot).items()
            for worker in workers
            if worker != self.worker and (executor == own or not own_is_full)
        ]
        return sorted(members, key=lambda w: (-executors[snapshot.executor_of(w)], -loads[w], w))

    def _taken(
        self, snapshot: Snapshot, settings: Settings, placed: Ints, sender: int, amount: float, budget: float
    ) -> tuple[int, ...]:
        group_load = snapshot.group_load(settings.measure)
        affordable = {
            group: float(group_load[group])
            for group in movable_groups(snapshot, placed, [sender])
            if snapshot.group_bytes[group] <= budget
        }
        groups = nearest(affordable, amount)
        # Too many bytes together: the ones that bring most load for a byte, as far as the budget goes.
        kept: list[int] = []
        for group in sorted(groups, key=lambda g: (-group_load[g] / (snapshot.group_bytes[g] + 1.0), g)):
            if snapshot.group_bytes[group] <= budget:
                kept.append(group)
                budget -= snapshot.group_bytes[group]
        return tuple(sorted(kept))
