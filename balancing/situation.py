"""One frozen picture of a query: who owns what, what is moving where, who is up, what is forbidden.

Built once per turn of a leader, or once per request by the API; everything that is decided or answered in that turn
looks at the same picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from balancing.protocols.migration import Migration
from balancing.replans.replan import Replan
from balancing.rules import Rules
from trimtab.epochs import Epoch
from trimtab.reports import WorkerReport

SILENT_BATCHES: Final = 3
"""A worker that did not report in this many committed batches is down: every worker runs in every batch."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A query at one moment."""

    query: str
    workers: int
    epoch: Epoch
    """The newest one that is published."""
    migrations: tuple[Migration, ...] = ()
    """Those under way, as the journal has them."""
    replans: tuple[Replan, ...] = ()
    """Those under way."""
    streams: tuple[str, ...] = ()
    """Of the query, in its order; nothing where Redis has lost its definition."""
    plans: Mapping[int, str] = field(default_factory=dict)
    """Worker -> the tree that it has, or is ordered to have."""
    follow: frozenset[int] = frozenset()
    """Workers that take plan orders: those of earlier versions do not."""
    up: frozenset[int] = frozenset()
    """Workers that report."""
    stopped: bool = False
    """No batch was committed for long: nothing can move."""
    rules: Rules = field(default_factory=Rules)
    committed: int = -1
    """The newest committed batch that was looked at."""

    @property
    def partitions(self) -> int:
        return len(self.epoch.owners)

    @cached_property
    def moving(self) -> dict[int, str]:
        """Group -> the migration under way (or the move in the epoch) that it belongs to."""
        moving = {group: move.id for group, move in self.epoch.moving.items()}
        return moving | {group: each.id for each in self.migrations for group in each.busy_groups}

    @cached_property
    def receivers(self) -> dict[int, int]:
        """Group -> the worker that it will be with once what is under way has ended."""
        receivers = {group: each.receiver for each in self.migrations for group in each.busy_groups}
        for group, move in self.epoch.moving.items():
            receivers[group] = move.destination
        return receivers

    def movable(self, worker: int) -> list[int]:
        """Groups of a worker that are not moving."""
        return [group for group, owner in enumerate(self.epoch.owners) if owner == worker and group not in self.moving]


def count_workers(definition: Mapping[str, Any] | None, epoch: Epoch, reports: Mapping[int, WorkerReport]) -> int:
    if definition is not None and "workers" in definition:
        return int(definition["workers"])
    # Redis has lost the definition: as many as can be seen.
    return max([*epoch.owners, *reports], default=0) + 1


def stream_names(definition: Mapping[str, Any] | None) -> tuple[str, ...]:
    return tuple(str(stream["name"]) for stream in (definition or {}).get("streams", ()))


def plans_of(epoch: Epoch, reports: Mapping[int, WorkerReport]) -> dict[int, str]:
    """By worker the plan that the newest epoch orders, else the one that it reports."""
    plans = {worker: report.plan for worker, report in reports.items() if report.plan}
    return plans | {order.worker: order.plan for order in epoch.plans}


def followers(reports: Mapping[int, WorkerReport]) -> frozenset[int]:
    return frozenset(worker for worker, report in reports.items() if report.order is not None)


def workers_up(reports: Mapping[int, WorkerReport], committed: int | None) -> frozenset[int]:
    if committed is None:
        return frozenset()
    return frozenset(worker for worker, report in reports.items() if report.batch > committed - SILENT_BATCHES)
