"""HybMig that waits for a stream which stands still: nobody else would end it.

It waits for rows of the old plan to expire, and they expire as event time goes on. Where event time stands for longer
than the patience and no state is being computed either, the order goes on by moving state. What is remembered here is
not durable: a leader that takes over begins to wait anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from balancing.committed import CommittedBatch
from balancing.replans.events import StoodStill
from balancing.replans.observe import report_on
from balancing.replans.replan import Replan
from balancing.replans.table import State
from trimtab.plan_orders import PlanStrategy


@dataclass(frozen=True)
class Wait:
    """Since when nothing has changed, and what had been reached by then."""

    since_ms: int
    watermark_us: int
    done: int


Waits = Mapping[str, Wait]
"""By replan."""


def look(
    waits: Waits, replans: Iterable[Replan], committed: CommittedBatch, patience_ms: int, now_ms: int
) -> tuple[Waits, list[StoodStill]]:
    """With one more batch, and which replans have waited for too long."""
    now: dict[str, Wait] = {}
    events: list[StoodStill] = []
    for replan in replans:
        if replan.state != State.MIGRATING or replan.strategy != PlanStrategy.HYBMIG:
            continue
        said, report = report_on(replan, committed), committed.report(replan.worker)
        if said is None or report is None:
            if replan.id in waits:
                now[replan.id] = waits[replan.id]
            continue
        if not said.waits_for:
            continue
        before = waits.get(replan.id)
        stands = before is not None and (before.watermark_us, before.done) == (report.watermark_us, said.done)
        wait = before if before is not None and stands else Wait(now_ms, report.watermark_us, said.done)
        now[replan.id] = wait
        if now_ms - wait.since_ms >= patience_ms and stands:
            events.append(
                StoodStill(
                    replan=replan.id,
                    epoch=committed.bound.number,
                    batch=committed.batch,
                    now_ms=now_ms,
                    stream=said.waits_for,
                )
            )
    return now, events
