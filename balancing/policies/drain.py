"""Leave a worker empty, for scale-in: every group of it goes elsewhere, the largest first to who has least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from balancing.load import Snapshot
from balancing.policies.policy import (
    MOVING_ALREADY,
    PINNED_STAY,
    Finding,
    Suggestion,
    check_worker,
    movable_groups,
    moves_between,
    taking_part,
)
from balancing.policies.spreading import Spreading
from balancing.settings import Settings
from trimtab.errors import InvalidInput


@dataclass(frozen=True)
class Drain:
    """An excluded worker may be drained: to exclude it is how it stays empty afterwards. No budget applies."""

    worker: int
    name: str = "drain"

    def suggest(self, snapshot: Snapshot, settings: Settings) -> Suggestion:
        check_worker(snapshot, self.worker)
        receivers = {
            executor: others
            for executor, workers in taking_part(snapshot).items()
            if (others := [worker for worker in workers if worker != self.worker])
        }
        placed = snapshot.placed()
        leaving = movable_groups(snapshot, placed, [self.worker])
        if leaving and not receivers:
            raise InvalidInput(
                "worker", self.worker, "has nowhere to drain to", "Another worker must be up and not excluded."
            )
        group_load = snapshot.group_load(settings.measure)
        executors = snapshot.executor_loads(settings.measure)
        executors[snapshot.executor_of(self.worker)] -= float(group_load[leaving].sum())
        groups = np.bincount(placed, minlength=len(snapshot.workers))
        spreading = Spreading(receivers, executors, snapshot.worker_loads(settings.measure), groups)
        wanted = placed.copy()
        for group in sorted(leaving, key=lambda each: (-group_load[each], each)):
            wanted[group] = spreading.give(float(group_load[group]))
        return Suggestion(moves=moves_between(snapshot, wanted), findings=_staying(snapshot, self.worker))


def _staying(snapshot: Snapshot, worker: int) -> tuple[Finding, ...]:
    findings: list[Finding] = []
    owned = [group for group, owner in enumerate(snapshot.placed().tolist()) if owner == worker]
    pinned = [group for group in owned if group in snapshot.pinned]
    arriving = [group for group in owned if group in snapshot.moving]
    if pinned:
        text = f"Worker {worker} will not be empty: groups {_list(pinned)} are pinned to it. Unpin them to drain it."
        findings.append(Finding(kind=PINNED_STAY, worker=worker, text=text))
    if arriving:
        text = f"Groups {_list(arriving)} are on their way to worker {worker}: drain it again when they have arrived."
        findings.append(Finding(kind=MOVING_ALREADY, worker=worker, text=text))
    return tuple(findings)


def _list(groups: list[int]) -> str:
    shown = ", ".join(map(str, groups[:10]))
    return shown if len(groups) <= 10 else f"{shown} and {len(groups) - 10} more"
