"""A worker's half of plan orders, as far as the manager sees it: migrates for some batches, then has settled.

For planes whose workers do not run plans, or not yet: they only say where a worker would be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trimtab.epochs import Epoch
from trimtab.plan_orders import PlanReport, PlanState, PlanStrategy

MIGRATING_BATCHES = 2


@dataclass(frozen=True, kw_only=True)
class Follower:
    """A worker's durable record of its order. Immutable: a batch that is not committed leaves none behind."""

    plan: str
    order: str = ""
    former: str = ""
    strategy: str = ""
    left: int = 0
    """Batches until it has settled."""
    since_batch: int = 0
    stands: bool = False
    """HybMig waits for a stream that is idle, for good."""

    def report(self) -> PlanReport:
        waits = self.stands and self.left and self.strategy == PlanStrategy.HYBMIG
        return PlanReport(
            order=self.order,
            state=PlanState.MIGRATING if self.left else PlanState.SETTLED,
            plan=self.plan,
            former=self.former if self.left else "",
            strategy=self.strategy,
            since_batch=self.since_batch,
            done=MIGRATING_BATCHES - self.left,
            total=MIGRATING_BATCHES,
            waits_for="B" if waits else "",
        )

    def after(self, epoch: Epoch, worker: int, batch: int) -> Follower:
        """What the record says at the end of a batch that was bound to this epoch."""
        order = epoch.order(worker)
        if order is None:
            return self
        if order.id == self.order:
            stands = self.stands and order.strategy == PlanStrategy.HYBMIG
            return replace(self, strategy=order.strategy, left=self.left if stands else max(0, self.left - 1))
        # What it still has, or has had until now, need not be computed.
        back = order.plan == (self.former if self.left else self.plan)
        return replace(
            self,
            plan=order.plan,
            order=order.id,
            former=self.plan,
            strategy=order.strategy,
            left=0 if back else MIGRATING_BATCHES,
            since_batch=batch,
        )
