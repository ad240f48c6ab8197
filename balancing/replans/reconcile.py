"""Journal and bound epoch disagree about plans: the bound epoch is right (as balancing/protocols/reconcile.py).

An order is a level and stays in the epoch long after its replan has ended. So only one that its worker has not settled
on needs somebody to follow it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from balancing.committed import CommittedBatch
from balancing.replans.ordering import is_overtaken
from balancing.replans.replan import Instruction, Replan, order_id, parse_order_id
from balancing.replans.table import State
from trimtab.epochs import Epoch
from trimtab.plan_orders import PlanOrder, PlanState, PlanStrategy


def reconcile(replans: Iterable[Replan], bound: Epoch, now_ms: int) -> list[Instruction]:
    """What to journal so that every replan agrees with the bound epoch."""
    instructions: list[Instruction] = []
    for replan in replans:
        if replan.done:
            continue
        if replan.incarnation != bound.incarnation:
            problem = "the query was started again with another checkpoint"
            ended = replace(replan, state=State.SUPERSEDED, problem=problem)
            instructions += ended.noted("Reconciled", now_ms, problem)
            continue
        if bound.number < max(replan.since, replan.seen):
            continue
        changed, note = _as_ordered(replan, bound.order(replan.worker), bound.number)
        if note:
            instructions += changed.noted("Reconciled", now_ms, f"epoch {bound.number}: {note}")
    return instructions


def _as_ordered(replan: Replan, order: PlanOrder | None, epoch: int) -> tuple[Replan, str]:
    """The replan as the bound order shows it, and what was wrong; "" where nothing is."""
    if order is None:
        return replan, ""
    if is_overtaken(replan, order):
        note = f"worker {replan.worker} was ordered {order.plan} by {order.id} meanwhile"
        return replace(replan, state=State.SUPERSEDED, problem=note), note
    seen = replace(replan, seen=epoch)
    if order.id == order_id(replan.id, back=True) and not replan.goes_back:
        problem = replan.problem or f"epoch {epoch} orders the old plan; the reason was lost with the journal"
        return replace(seen, state=State.RETURNING, problem=problem, former=order.plan), "it is on its way back"
    if order.id != order_id(replan.id, back=False):
        return replan, ""
    if replan.state == State.WAITING:
        return replace(seen, state=State.ORDERED, strategy=order.strategy), "it is ordered already"
    if replan.strategy == PlanStrategy.HYBMIG and order.strategy == PlanStrategy.MS:
        return replace(seen, strategy=PlanStrategy.MS), "it goes on by moving state already"
    return replan, ""


def adopt(committed: CommittedBatch, known: Iterable[Replan], now_ms: int) -> list[Instruction]:
    """Replans for orders that their workers have not settled on, and that nobody is responsible for."""
    bound = committed.bound
    by_id = {each.id: each for each in known}
    instructions: list[Instruction] = []
    for order in bound.plans:
        name = parse_order_id(order.id)
        if name is None:
            continue
        before = by_id.get(name[0])
        if before is not None and (not before.done or _is_old_news(before, bound.number, back=name[1])):
            continue
        adopted = _adopted(before, order, committed, now_ms)
        if adopted is not None:
            note = f"the journal was gone or behind; made again from the order in epoch {bound.number}"
            instructions += adopted.noted("Adopted", now_ms, note)
    return instructions


def _is_old_news(ended: Replan, epoch: int, *, back: bool) -> bool:
    """Whether the order is what the ended replan left behind, or its end was in a younger epoch."""
    return ended.state == (State.CANCELLED if back else State.COMMITTED) or ended.seen >= epoch


def _adopted(before: Replan | None, order: PlanOrder, committed: CommittedBatch, now_ms: int) -> Replan | None:
    """None where the worker has settled on the order, or does not say: then there is nothing to be done (yet).

    One whose record contradicts the order goes back, wherever the worker is: it was cancelled while the journal had
    forgotten its order, or committed when the journal had forgotten that it was cancelled.
    """
    name, report = parse_order_id(order.id), committed.report(order.worker)
    if name is None or report is None or report.order is None:
        return None
    said, (replan, back) = report.order, name
    knows = said.order == order.id
    contradicts = before is not None and before.state == (State.COMMITTED if back else State.CANCELLED)
    if knows and said.state == PlanState.SETTLED and not contradicts:
        return None
    other = (said.former if knows else said.plan) or report.plan
    begun = before or Replan(
        id=replan,
        query=committed.bound.query,
        worker=order.worker,
        plan=other if back else order.plan,
        reason="adopted",
        by="manager",
        created_ms=now_ms,
    )
    goes_back = back or contradicts
    lost = f"epoch {committed.bound.number} orders the old plan; the reason was lost" if back else ""
    return replace(
        begun,
        state=State.RETURNING if goes_back else State.MIGRATING if knows else State.ORDERED,
        former=order.plan if back else begun.former or other,
        strategy=begun.strategy if back else order.strategy,
        budget_ms=order.budget_ms,
        incarnation=committed.bound.incarnation,
        since=max(begun.since, order.epoch),
        seen=committed.bound.number,
        problem=(begun.problem or lost) if goes_back else "",
        closed_ms=None,
        adopted=True,
    )
