"""Redis, as far as a scenario needs it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from balancing.committed import CommittedBatch
from balancing.instructions import Write
from balancing.protocols.migration import Migration
from balancing.replans.replan import Replan
from balancing.replans.requests import CancelReplan, ReplanRequest
from balancing.requests import Rebalance, RebalanceRequest
from trimtab.epochs import Epoch

_EVENTS: Final = itertools.count(1)


Asked = RebalanceRequest | ReplanRequest | CancelReplan | str


@dataclass
class Redis:
    newest: Epoch | None = None
    batch: CommittedBatch | None = None
    """The newest committed one, by the driver's heartbeat and the workers' reports."""
    migrations: dict[str, Migration] = field(default_factory=dict)
    rebalances: dict[str, Rebalance] = field(default_factory=dict)
    replans: dict[str, Replan] = field(default_factory=dict)
    requests: list[Asked] = field(default_factory=list)
    """Moves and plans that are asked for, and what is to be cancelled: migrations by their names."""
    holder: str = ""
    fence: int = 0
    event: int = 0
    """The newest one."""
    earlier: list[Redis] = field(default_factory=list)
    """Before each write of a manager."""

    def write(self, write: Write) -> None:
        self._remember()
        self.event = next(_EVENTS)
        self.migrations |= {each.id: each for each in write.migrations}
        self.rebalances |= {each.id: each for each in write.rebalances}
        self.replans |= {each.id: each for each in write.replans}
        if write.request is not None:
            self.requests = [each for each in self.requests if _text(each) != write.request]

    def publish(self, epoch: Epoch) -> None:
        """Another epoch under a number that is taken, or a gap, is refused."""
        if self.newest is None or epoch.number == self.newest.number + 1:
            self._remember()
            self.newest = epoch

    def _remember(self) -> None:
        earlier = replace(
            self,
            migrations={**self.migrations},
            rebalances={**self.rebalances},
            replans={**self.replans},
            requests=[*self.requests],
            earlier=[],
        )
        self.earlier.append(earlier)

    def back(self, writes: int) -> Redis:
        return replace(self.earlier[-writes], earlier=self.earlier[:-writes])

    def lines(self) -> Iterator[str]:
        """What is there."""
        records = [f"{each.id} {each.outcome or each.state}" for each in self.migrations.values()]
        records += [f"{each.id} {each.state}" for each in self.replans.values()]
        newest = "no epoch" if self.newest is None else f"epoch {self.newest.number}"
        batch = "no batch" if self.batch is None else f"batch {self.batch.batch}"
        yield "Redis has " + ", ".join([newest, batch, *records])


def _text(request: Asked) -> str:
    return request if isinstance(request, str) else request.id
