"""What a worker does about the plan that its epoch orders. Pure: orders and records in, decisions and words out.

As with moves, nothing is told once: in every batch the worker compares the order, which is a level, with its durable
record. What it reports is the record as the batch found it: that is committed, so an attempt that dies says the same.

How much of a change one batch does depends on the clock, so two attempts at a batch may record different amounts of it.
That harms nothing: results do not depend on it, what is resident belongs to the attempt whose record counts, and a
rebuild needs the name of the plan only.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from trimtab.plan_orders import PlanOrder, PlanReport, PlanState, PlanStrategy


@dataclass
class PlanRecord:
    """What the durable record remembers of the order that the worker knows."""

    id: str
    plan: str
    """The tree that was ordered."""
    former: str
    """The tree that the worker had before."""
    strategy: PlanStrategy
    since_batch: int
    settled: bool = False
    done: int = 0
    total: int = 0
    waits_for: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_plan_record(body: Mapping[str, Any]) -> PlanRecord:
    return PlanRecord(**{**body, "strategy": PlanStrategy(body["strategy"])})


class Deed(StrEnum):
    """What an order asks of a worker in one batch."""

    NOTHING = "nothing"
    BEGIN = "begin"
    """Another order than the one that is known: drop what was being built, and begin."""
    GO_ON = "go-on"


def deed(known: PlanRecord | None, order: PlanOrder | None) -> Deed:
    if order is None:
        # An order never goes away (`trimtab.epochs.breaks_between`), so there was none.
        return Deed.NOTHING
    if known is None or known.id != order.id:
        return Deed.BEGIN
    return Deed.NOTHING if known.settled else Deed.GO_ON


def is_paced(order: PlanOrder) -> bool:
    """Whether anything is computed in the background. Moving state does at least a little in every batch, however small
    its budget. HybMig without one waits until what is old has expired."""
    return order.strategy == PlanStrategy.MS or order.budget_ms > 0


def plan_to_build(known: PlanRecord | None, order: PlanOrder | None, running: str, *, first: bool) -> str:
    """The plan of states that are made from leaves: that of the order that is known, also in the middle of its change,
    since a rebuild has nothing to resume. A worker's first batch finds no state, and begins with what is ordered."""
    if first and order is not None:
        return order.plan
    return known.plan if known is not None and not known.settled else running


def report_of(known: PlanRecord | None, running: str) -> PlanReport:
    """`known` and the plan that runs, as the record had them when the batch began."""
    if known is None:
        return PlanReport(order="", state=PlanState.SETTLED, plan=running)
    return PlanReport(
        order=known.id,
        state=PlanState.SETTLED if known.settled else PlanState.MIGRATING,
        plan=known.plan,
        former="" if known.settled else known.former,
        strategy=known.strategy,
        since_batch=known.since_batch,
        done=known.done,
        total=known.total,
        waits_for=known.waits_for,
    )


def waits_for(newest_us: Mapping[str, int], arrived: Set[str]) -> str:
    """The stream that old rows wait for, if any: the one that is furthest behind, where it brought nothing now.

    The watermark is the least of all streams', and nothing expires before it goes on.
    """
    behind = min(newest_us, key=lambda stream: (newest_us[stream], stream))
    return "" if behind in arrived else behind
