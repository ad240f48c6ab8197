"""Events that a replan handles. Each names its replan, the epoch and number of the batch that told it, and the time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Event:
    replan: str
    epoch: int = 0
    """Number of the epoch that the telling batch was bound to; 0 where no batch told it."""
    batch: int = -1
    now_ms: int = 0
    cause: str = ""
    """Who or what brought it about, for the story."""


class OrderAllowed(Event):
    """No wave of MSLB is open at the worker: the order may go into the next epoch."""


class Migrating(Event):
    """The worker has the order and is on its way to the new plan, in a committed batch."""


@dataclass(frozen=True, kw_only=True)
class StoodStill(Event):
    """HybMig waits for a stream that has stood still for too long."""

    stream: str


class Settled(Event):
    """The worker runs the ordered plan and nothing else, in a committed batch."""


class Proceed(Event):
    """The manager's own turn: what it waited for is journaled."""


class RanAlone(Event):
    """One batch more is committed that began with the new plan alone: what it costs can be measured."""


class Returned(Event):
    """The worker has settled on its old plan again."""


@dataclass(frozen=True, kw_only=True)
class CancelRequested(Event):
    by: str = ""
