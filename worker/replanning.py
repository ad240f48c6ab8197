"""Follows the plan that the epoch orders, at the end of each batch: `worker.planning` decides, the engine does it."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace

from plans.tree import Join, parse_plan
from trimtab.errors import CorruptState, InvalidInput
from trimtab.plan_orders import PlanOrder, PlanStrategy
from worker.background import Pace
from worker.buffers import NEVER
from worker.engine import Engine
from worker.planning import Deed, PlanRecord, deed, is_paced, waits_for


def follow(
    engine: Engine,
    known: PlanRecord | None,
    order: PlanOrder | None,
    batch: int,
    arrived: Set[str],
    clock: Callable[[], int],
) -> PlanRecord | None:
    """Do what the order asks for; returns what to remember. `arrived`: streams that brought rows in this batch."""
    what = deed(known, order)
    if what == Deed.NOTHING or order is None:
        return known
    if what == Deed.BEGIN or known is None:
        target = ordered_plan(order, engine.spec.names)
        known = PlanRecord(order.id, str(target), str(engine.plan), order.strategy, batch)
        engine.start_change(target, both_emit=order.strategy == PlanStrategy.HYBMIG)
    pace = Pace(order.budget_ms * 1_000_000, clock) if is_paced(order) else None
    engine.go_on(pace)
    if engine.migration is None:
        return replace(known, strategy=order.strategy, settled=True, done=0, total=0, waits_for="")
    done = engine.migration.done
    stream = ""
    if order.strategy == PlanStrategy.HYBMIG:
        newest = {name: max((c.newest_us for c in s.chunks), default=NEVER) for name, s in engine.payload.items()}
        stream = waits_for(newest, arrived)
    total = max(done, sum(engine.migration.sizes.values()))
    return replace(known, strategy=order.strategy, done=done, total=total, waits_for=stream)


def ordered_plan(order: PlanOrder, streams: tuple[str, ...]) -> Join:
    """The tree of an order. Whoever publishes one has checked it: a worker cannot refuse what is bound."""
    try:
        return parse_plan(order.plan, streams)
    except InvalidInput as error:
        raise CorruptState(f"plan order {order.id} is for another query: {error}") from error
