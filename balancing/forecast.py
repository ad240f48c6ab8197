"""What a set of moves would bring and cost, said before anything is moved."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from balancing.load import Snapshot
from balancing.policies.policy import SuggestedMove, executors_taking_part
from balancing.strategy import Cost
from balancing.words import Measure


@dataclass(frozen=True, kw_only=True)
class WorkerForecast:
    worker: int
    executor: str
    before: float
    after: float


@dataclass(frozen=True, kw_only=True)
class ExecutorForecast:
    executor: str
    before: float
    after: float


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Loads are in the measure's unit: CPU ns/s, bytes, rows/s."""

    measure: Measure
    workers: tuple[WorkerForecast, ...]
    executors: tuple[ExecutorForecast, ...]
    ratio_before: float
    """Largest executor load over the mean, of executors that take part."""
    ratio_after: float
    gain: float
    """Share by which the largest load falls of the executors that the policy wants to level; of the largest worker load
    where only that falls."""
    groups: int
    bytes: int
    state_rows: int
    rows_duplicated: int | None
    """PTLB; None: without end."""
    pause_ms: float
    """How much longer the longest batch takes."""
    seconds: float | None
    """None: would not end, since a stream is idle."""
    waves: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "workers": [asdict(each) for each in self.workers],
            "executors": [asdict(each) for each in self.executors],
        }


def parse_forecast(body: dict[str, Any]) -> Forecast:
    return Forecast(
        **{
            **body,
            "workers": tuple(WorkerForecast(**each) for each in body["workers"]),
            "executors": tuple(ExecutorForecast(**each) for each in body["executors"]),
        }
    )


def forecast(
    snapshot: Snapshot,
    moves: Sequence[SuggestedMove],
    measure: Measure,
    cost: Cost,
    among: Collection[str] = (),
) -> Forecast:
    """`among`: the executors whose largest load counts; all that take part where none is named."""
    placed = snapshot.placed()
    owners = placed.copy()
    for move in moves:
        owners[list(move.groups)] = move.receiver
    before = snapshot.worker_loads(measure, placed).tolist()
    after = snapshot.worker_loads(measure, owners).tolist()
    executors_before = snapshot.executor_loads(measure, placed)
    executors_after = snapshot.executor_loads(measure, owners)
    groups = [group for move in moves for group in move.groups]
    # Who takes no part cannot be relieved: what it has must not hide what the others gain.
    levelled_before = executors_taking_part(snapshot, measure, placed)
    levelled_after = executors_taking_part(snapshot, measure, owners)
    judged = among or levelled_before
    executor_gain = _gain([levelled_before[each] for each in judged], [levelled_after[each] for each in judged])
    members = [worker for worker in range(len(before)) if snapshot.takes_part(worker)]
    worker_gain = _gain([before[worker] for worker in members], [after[worker] for worker in members])
    return Forecast(
        measure=measure,
        workers=tuple(
            WorkerForecast(
                worker=worker, executor=snapshot.executor_of(worker), before=before[worker], after=after[worker]
            )
            for worker in range(len(before))
        ),
        executors=tuple(
            ExecutorForecast(executor=name, before=executors_before[name], after=executors_after[name])
            for name in sorted(executors_before)
        ),
        ratio_before=load_ratio(levelled_before),
        ratio_after=load_ratio(levelled_after),
        # Moves inside executors leave their loads as they are, but for rounding.
        gain=executor_gain if abs(executor_gain) > 1e-9 else worker_gain,
        groups=len(groups),
        bytes=round(sum(snapshot.group_bytes[group] for group in groups)),
        state_rows=round(sum(snapshot.group_state_rows[group] for group in groups)),
        rows_duplicated=round(cost.rows_duplicated) if math.isfinite(cost.rows_duplicated) else None,
        pause_ms=cost.pause_ms,
        seconds=cost.seconds if math.isfinite(cost.seconds) else None,
        waves=cost.waves,
    )


def load_ratio(loads: dict[str, float]) -> float:
    """Largest over mean; 1 where there is nothing to compare."""
    mean = sum(loads.values()) / len(loads) if loads else 0.0
    return max(loads.values()) / mean if mean > 0 else 1.0


def _gain(before: list[float], after: list[float]) -> float:
    largest = max(before, default=0.0)
    return (largest - max(after, default=0.0)) / largest if largest > 0 else 0.0
