"""What steering tells the leader to do. Each instruction carries the Steering that holds once it has been done.

So nothing is believed before it is durable: a leader that dies between two instructions leaves a journal that any other
leader goes on from, and the steering that it had in mind dies with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from balancing.load import Snapshot
from balancing.proposal import Proposal
from balancing.protocols.migration import Migration
from balancing.replans.replan import Replan
from balancing.requests import Rebalance
from balancing.settings import Settings
from balancing.triggers import Decision
from trimtab.epochs import Epoch

if TYPE_CHECKING:
    from balancing.steering import Steering


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something that people are told."""

    kind: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Write:
    """One durable write: all of it or nothing."""

    then: Steering = field(repr=False)
    migrations: tuple[Migration, ...] = ()
    rebalances: tuple[Rebalance, ...] = ()
    replans: tuple[Replan, ...] = ()
    request: str | None = None
    """Text of the request that this write answers: it leaves the list of requests with it. None: there is none."""
    events: tuple[Notice, ...] = ()
    alarms: tuple[Notice, ...] = ()
    decision: Decision | None = None
    proposal: Proposal | None = None
    point: str = ""
    """ "mslb:3", "ptlb:5", "rebalance": names the write, for tests that stop a manager before or after it."""


@dataclass(frozen=True, kw_only=True)
class PublishEpoch:
    """Publish this epoch; the newest one before it is bound."""

    then: Steering = field(repr=False)
    epoch: Epoch


@dataclass(frozen=True, kw_only=True)
class Propose:
    """Let a policy work out a proposal (it may take a second) and hand it back as the event `Proposed`."""

    then: Steering = field(repr=False)
    decision: Decision
    snapshot: Snapshot
    settings: Settings


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Nothing is to be done; only what is known has changed."""

    then: Steering = field(repr=False)


Instruction = Write | PublishEpoch | Propose | Hold
