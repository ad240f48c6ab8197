"""The global policy: the lowest largest load that a budget of moved bytes allows.

Executors first: an executor's workers share its cores, and the executor that finishes last sets the batch's time. Then,
inside executors that run several workers side by side, the workers: there one large worker keeps one core busy
while the others wait.

Finding the best placement is bin packing with moves counted, so the bound is searched for (halving) and each bound is
tried by a quick packing (`packing.py`) that moves as few bytes as it can. Only moves that lower the largest load are
suggested: what is level already, or cannot be levelled, stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from balancing.load import Ints, Snapshot
from balancing.policies.packing import Packed, Packing, bins, by_relief, lowest_packing, pack_below, refined
from balancing.policies.policy import (
    BUDGET_LIMITS,
    Finding,
    Suggestion,
    moves_between,
    oversized_groups,
    taking_part,
)
from balancing.policies.spreading import Spreading
from balancing.settings import Settings
from balancing.smoothing import Floats

PRECISION: Final = 0.005
"""Of the mean: differences below are noise, and not worth a byte."""


@dataclass(frozen=True)
class Level:
    name: str = "level"

    def suggest(self, snapshot: Snapshot, settings: Settings) -> Suggestion:
        budget = float("inf") if settings.max_moved_bytes is None else float(settings.max_moved_bytes)
        owners = snapshot.placed()
        packed, limited = _level_executors(snapshot, settings, owners, budget)
        findings = list(oversized_groups(snapshot, settings.measure))
        if packed is not None:
            owners = _onto_workers(snapshot, settings, owners, packed)
            budget -= packed.moved_bytes
        owners = _level_workers(snapshot, settings, owners, budget)
        if limited:
            findings.append(
                Finding(
                    kind=BUDGET_LIMITS,
                    text=f"A budget of more than {settings.max_moved_bytes:,} bytes would level the load further.",
                )
            )
        return Suggestion(moves=moves_between(snapshot, owners), findings=tuple(findings))


def _level_executors(snapshot: Snapshot, settings: Settings, owners: Ints, budget: float) -> tuple[Packed | None, bool]:
    """Groups to executors, and whether the budget stood in the way of a lower bound."""
    members = taking_part(snapshot)
    if len(members) < 2:
        return None, False
    executor_loads = snapshot.executor_loads(settings.measure, owners)
    names = list(members)
    loads = np.array([executor_loads[name] for name in names], np.float64)
    bin_of_worker = {worker: number for number, name in enumerate(names) for worker in members[name]}
    problem = _problem(snapshot, settings, bins(owners, bin_of_worker), loads)
    mean = float(loads.mean())
    found = _best(problem, mean, budget)
    if found is None or budget == float("inf"):
        return found, budget != float("inf") and _best(problem, mean, float("inf")) is not None
    lower = pack_below(problem, found.largest - 2 * PRECISION * mean, float("inf"))
    return found, lower is not None


def _best(problem: Packing, mean: float, budget: float) -> Packed | None:
    """The best packing, or None where it would not lower the largest load by more than noise."""
    if mean <= 0:
        return None
    largest = float(problem.bin_load.max())
    found = lowest_packing(problem, mean * (1 + PRECISION), mean * PRECISION, budget)
    found = refined(problem, found, mean * PRECISION, budget)
    return found if found.moved and found.largest < largest - mean * PRECISION else None


def _problem(snapshot: Snapshot, settings: Settings, bin_of: Ints, loads: Floats) -> Packing:
    group_load = snapshot.group_load(settings.measure)
    group_bytes = np.array(snapshot.group_bytes, np.float64)
    leaving: list[list[int]] = [[] for _ in range(loads.size)]
    for group, number in enumerate(bin_of.tolist()):
        if number >= 0 and snapshot.movable(group):
            leaving[number].append(group)
    return Packing(
        group_load=group_load,
        group_bytes=group_bytes,
        bin_of=bin_of,
        may_move=tuple(by_relief(groups, group_load, group_bytes) for groups in leaving),
        bin_load=loads,
    )


def _onto_workers(snapshot: Snapshot, settings: Settings, owners: Ints, packed: Packed) -> Ints:
    """Each group that changes its executor goes to the worker there that has least, largest groups first."""
    members = taking_part(snapshot)
    names = list(members)
    group_load = snapshot.group_load(settings.measure)
    loads = snapshot.worker_loads(settings.measure, owners)
    for group in packed.moved:
        loads[owners[group]] -= group_load[group]
    groups = np.bincount(owners, minlength=len(snapshot.workers))
    spreading = Spreading(members, dict.fromkeys(names, 0.0), loads, groups)
    after = owners.copy()
    for group in sorted(packed.moved, key=lambda each: (-group_load[each], each)):
        after[group] = spreading.give_to(names[packed.moved[group]], float(group_load[group]))
    return after


def _level_workers(snapshot: Snapshot, settings: Settings, owners: Ints, budget: float) -> Ints:
    """Inside each executor with several slots whose largest worker takes longer than its share of the slots."""
    after = owners.copy()
    for executor, members in taking_part(snapshot).items():
        slots = min(snapshot.slots.get(executor, 1), len(members))
        if slots < 2:
            continue
        worker_loads = snapshot.worker_loads(settings.measure, after)
        loads = worker_loads[members]
        if float(loads.max()) < settings.start_ratio * float(loads.sum()) / slots:
            continue
        bin_of_worker = {worker: number for number, worker in enumerate(members)}
        problem = _problem(snapshot, settings, bins(after, bin_of_worker), loads)
        found = _best(problem, float(loads.mean()), budget)
        if found is not None:
            budget -= found.moved_bytes
            for group, number in found.moved.items():
                after[group] = members[number]
    return after
