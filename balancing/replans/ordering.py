"""The plan orders of the next epoch: those that stand stay, and each replan adds or changes its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from balancing.replans.replan import Replan, order_id
from balancing.replans.table import State
from trimtab.epochs import Epoch
from trimtab.plan_orders import PlanOrder, PlanStrategy

_SILENT = frozenset({State.REQUESTED, State.WAITING})


def orders_after(previous: Epoch, replans: Iterable[Replan]) -> tuple[PlanOrder, ...]:
    """What the epoch that follows `previous` orders. An order that no replan here changes stays as it is."""
    orders = {order.worker: order for order in previous.plans}
    active = (each for each in replans if not each.done and each.incarnation == previous.incarnation)
    for replan in sorted(active, key=lambda each: (each.created_ms, each.id)):
        if replan.state in _SILENT:
            continue
        order = _order(replan, orders.get(replan.worker), previous.number + 1)
        if order is not None:
            orders[replan.worker] = order
    return tuple(orders[worker] for worker in sorted(orders))


def is_overtaken(replan: Replan, order: PlanOrder | None) -> bool:
    """Whether the worker's order is another's, and younger than this replan: the journal is behind."""
    mine = {order_id(replan.id, back=False), order_id(replan.id, back=True)}
    return order is not None and order.id not in mine and order.epoch > max(replan.since, replan.seen)


def _order(replan: Replan, standing: PlanOrder | None, number: int) -> PlanOrder | None:
    """The replan's order; None where the one that stands is ahead of the journal, which `reconcile` puts right."""
    if is_overtaken(replan, standing):
        return None
    if standing is not None and standing.id == order_id(replan.id, back=True) and not replan.goes_back:
        return None
    if standing is not None and standing.id == replan.order_id:
        falls_back = replan.strategy == PlanStrategy.MS and standing.strategy != PlanStrategy.MS
        return replace(standing, strategy=PlanStrategy.MS) if falls_back else standing
    return PlanOrder(
        id=replan.order_id,
        worker=replan.worker,
        plan=replan.former if replan.goes_back else replan.plan,
        # The old plan's states are all there while the worker migrates: to go back is to drop the others.
        strategy=PlanStrategy.MS if replan.goes_back else replan.strategy,
        budget_ms=replan.budget_ms,
        epoch=number,
    )
