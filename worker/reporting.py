"""What a worker says about a batch, put together from what went in and what came out. No Spark, no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.reports import WorkerReport
from worker.arriving import SplitCounts
from worker.batch import BatchInput, BatchOutcome
from worker.buffers import Int64s


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Who ran the batch."""

    query: str
    attempt: int
    executor: str
    process: int
    run: str
    at_ms: int
    cpu_ns: int


def worker_report(
    attempt: Attempt, batch: BatchInput, outcome: BatchOutcome, counts: SplitCounts, emitted: int
) -> WorkerReport:
    """`emitted`: rows that were handed to Spark, counted there."""
    load = outcome.load
    assert load is not None and outcome.group_state_rows is not None and outcome.group_bytes is not None
    share = load.rows + load.probes + load.results
    groups = np.flatnonzero(share + outcome.group_state_rows)
    return WorkerReport(
        query=attempt.query,
        batch=batch.batch,
        epoch=batch.epoch.number,
        worker=batch.worker,
        attempt=attempt.attempt,
        executor=attempt.executor,
        process=attempt.process,
        at_ms=attempt.at_ms,
        stamp=outcome.stamp,
        stamp_before=outcome.stamp_before,
        rows=outcome.rows,
        late_rows=outcome.late,
        bad_rows=counts.bad_rows,
        results=outcome.results,
        emitted=emitted,
        state_rows=outcome.state_rows,
        combined_rows=outcome.combined_rows,
        state_bytes=outcome.index_bytes + outcome.payload_bytes,
        index_bytes=outcome.index_bytes,
        watermark_us=batch.watermark_us,
        cpu_ns=attempt.cpu_ns,
        resident="hit" if outcome.hit else "rebuild",
        plan=outcome.plan,
        plan_states=outcome.plan_states,
        run=attempt.run,
        phase_ns=outcome.phase_ns,
        groups=groups.tolist(),
        group_rows=load.rows[groups].tolist(),
        group_probes=load.probes[groups].tolist(),
        group_results=load.results[groups].tolist(),
        group_state_rows=outcome.group_state_rows[groups].tolist(),
        group_bytes=outcome.group_bytes[groups].tolist(),
        group_cpu_ns=_apportioned(attempt.cpu_ns, share[groups]),
        moves=outcome.moves,
        chosen=outcome.chosen,
        seen=counts.seen,
        order=outcome.order,
        steps=outcome.steps,
        keys=outcome.keys,
    )


def _apportioned(total: int, weights: Int64s) -> list[int]:
    whole = int(weights.sum())
    return [0] * weights.size if whole == 0 else [int(w) * total // whole for w in weights.tolist()]
