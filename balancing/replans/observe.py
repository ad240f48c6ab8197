"""From a committed batch to a replan's events: pure, and level-triggered, as for migrations.

A worker says in every batch what its durable record said of its order when the batch began. That is committed by
definition, whichever attempt said it.
"""

from __future__ import annotations

from typing import Any

from balancing.committed import CommittedBatch
from balancing.replans.events import Event, Migrating, Proceed, RanAlone, Returned, Settled
from balancing.replans.replan import Replan
from balancing.replans.table import State
from trimtab.plan_orders import PlanReport, PlanState

UNORDERED = frozenset({State.REQUESTED, State.WAITING})


def report_on(replan: Replan, committed: CommittedBatch) -> PlanReport | None:
    """What the worker says of this replan's order, where the batch was bound to it and the worker knows it."""
    if replan.done or replan.state in UNORDERED or committed.bound.incarnation != replan.incarnation:
        return None
    order = committed.bound.order(replan.worker)
    report = committed.report(replan.worker)
    if order is None or order.id != replan.order_id or report is None or report.order is None:
        return None
    return report.order if report.order.order == order.id else None


def observe(replan: Replan, committed: CommittedBatch, now_ms: int) -> list[Event]:
    said = report_on(replan, committed)
    if said is None:
        return []
    about: dict[str, Any] = {
        "replan": replan.id,
        "epoch": committed.bound.number,
        "batch": committed.batch,
        "now_ms": now_ms,
        "cause": f"batch {committed.batch}",
    }
    if said.state == PlanState.MIGRATING:
        return [] if replan.goes_back else [Migrating(**about)]
    if replan.goes_back:
        return [Returned(**about)]
    events: list[Event] = [Settled(**about), Proceed(**about)]
    if replan.state in (State.SETTLED, State.CLOSING) and committed.batch > replan.settled_batch:
        events.append(RanAlone(**about))
    return events
