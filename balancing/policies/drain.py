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
)
from balancing.settings import Settings
from trimtab.errors import InvalidInput


@dataclass(frozen=True)
class Drain:
    """An excluded worker may be drained: to exclude it is how it stays empty afterwards. No budget applies."""

    worker: int
    name: str = "drain"

    def suggest(self, snapshot: Snapshot, settings: Settings) -> Suggestion:
        check_worker(snapshot, self.worker)
        receivers = [w for w in range(len(snapshot.workers)) if w != self.worker and snapshot.takes_part(w)]
        placed = snapshot.placed()
        leaving = movable_groups(snapshot, placed, [self.worker])
        if leaving and not receivers:
            raise InvalidInput(
                "worker",
                self.worker,
                "has nowhere to drain to",
                "At least one other worker must be up and not excluded.",
            )
        group_load = snapshot.group_load(settings.measure)
        loads = snapshot.worker_loads(settings.measure)
        executors = snapshot.executor_loads(settings.measure)
        for group in leaving:
            loads[self.worker] -= group_load[group]
            executors[snapshot.executor_of(self.worker)] -= float(group_load[group])
        wanted = placed.copy()
        groups_of = np.bincount(placed, minlength=len(snapshot.workers))
        for group in sorted(leaving, key=lambda each: (-group_load[each], each)):
            # Groups without load still take turns: by number of groups where loads are equal.
            receiver = min(
                receivers, key=lambda w: (executors[snapshot.executor_of(w)], loads[w], int(groups_of[w]), w)
            )
            wanted[group] = receiver
            groups_of[receiver] += 1
            loads[receiver] += group_load[group]
            executors[snapshot.executor_of(receiver)] += float(group_load[group])
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
