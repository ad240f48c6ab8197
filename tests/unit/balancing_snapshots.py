"""Snapshots made by hand, for tests of decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from balancing.load import Snapshot, WorkerLoad
from balancing.policies import SuggestedMove


def worker(number: int, executor: str, **changes: Any) -> WorkerLoad:
    given: dict[str, Any] = {
        "alive": True,
        "cpu_ns_per_s": 0.0,
        "rows_per_s": 0.0,
        "results_per_s": 0.0,
        "state_bytes": 0,
        "state_rows": 0,
        "combined_rows": 0,
        "batch": 9,
    }
    return WorkerLoad(worker=number, executor=executor, **{**given, **changes})


def snapshot(
    owners: Sequence[int], loads: Sequence[float], executors: Sequence[str], *, down: Sequence[int] = (), **changes: Any
) -> Snapshot:
    """Groups with these owners and CPU loads; `executors` names the executor of each worker."""
    given: dict[str, Any] = {
        "query": "q",
        "incarnation": "i",
        "epoch": 3,
        "batch": 9,
        "at_ms": 1000,
        "moving": {},
        "pinned": frozenset(),
        "excluded": frozenset(),
        "group_rows": tuple(float(load) / 1000 for load in loads),
        "group_bytes": (1000.0,) * len(loads),
        "group_state_rows": (10.0,) * len(loads),
        "fixed_cpu_ns_per_s": 0.0,
        "slots": {},
        "batches": 30,
        "window_s": 60.0,
        "lateness_s": 5.0,
    }
    return Snapshot(
        owners=tuple(owners),
        group_cpu=tuple(map(float, loads)),
        workers=tuple(worker(number, name, alive=number not in down) for number, name in enumerate(executors)),
        **{**given, **changes},
    )


def after(seen: Snapshot, moves: Sequence[SuggestedMove]) -> dict[str, float]:
    """Executor loads once the moves are made; each must start where its groups are, and be allowed."""
    owners = seen.placed()
    named = [group for move in moves for group in move.groups]
    assert len(named) == len(set(named))
    for move in moves:
        assert move.sender != move.receiver and move.groups
        assert np.all(owners[list(move.groups)] == move.sender)
        assert seen.takes_part(move.receiver)
        assert all(seen.movable(group) for group in move.groups)
        owners[list(move.groups)] = move.receiver
    return seen.executor_loads("cpu", owners)
