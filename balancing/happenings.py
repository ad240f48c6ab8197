"""What happens to a leader: the events that steering handles. All are frozen, and each carries the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from balancing.committed import CommittedBatch
from balancing.load import Snapshot
from balancing.proposal import Proposal
from balancing.protocols.migration import Migration
from balancing.replans.advice import Advice
from balancing.replans.replan import Replan
from balancing.replans.requests import CancelReplan, ReplanRequest
from balancing.requests import CancelRequest, Rebalance, RebalanceRequest
from balancing.settings import Settings
from balancing.situation import Situation
from balancing.triggers import Decision, TriggerState
from trimtab.epochs import Epoch


@dataclass(frozen=True, kw_only=True)
class Happening:
    now_ms: int


@dataclass(frozen=True, kw_only=True)
class Led(Happening):
    """The lease is ours."""

    holder: str
    fence: int


@dataclass(frozen=True, kw_only=True)
class Loaded(Happening):
    """The journal, as the last leader (or this one) left it."""

    bound: Epoch
    migrations: Mapping[str, Migration]
    rebalances: Mapping[str, Rebalance]
    replans: Mapping[str, Replan] = field(default_factory=dict)
    unreadable: tuple[tuple[str, str, str], ...] = ()
    """Kind, name and problem of records that this version cannot read."""
    trigger: TriggerState = field(default_factory=TriggerState)
    window_us: int = 0
    """Of the query; 0 where it is not known."""
    lateness_us: int = 0


@dataclass(frozen=True, kw_only=True)
class RecordsLost(Happening):
    """Redis went back under a leader that has made all writes: what it knows is right."""

    migrations: Mapping[str, Migration]
    """What Redis has now."""
    rebalances: Mapping[str, Rebalance]
    replans: Mapping[str, Replan] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class QueryStopped(Happening):
    """The driver has been silent for too long."""


@dataclass(frozen=True, kw_only=True)
class QueryRuns(Happening):
    """The driver is heard."""


@dataclass(frozen=True, kw_only=True)
class BatchCommitted(Happening):
    """A batch that Spark has committed. Level-triggered: the newest one says it all."""

    batch: CommittedBatch
    workers: int


@dataclass(frozen=True, kw_only=True)
class BatchesMissed(Happening):
    """Batches that were committed while nobody led: only audits want them, each of them once."""

    batches: tuple[CommittedBatch, ...]
    workers: int


@dataclass(frozen=True, kw_only=True)
class MovesAsked(Happening):
    """Somebody asks for moves."""

    request: RebalanceRequest
    text: str
    """As the list of requests has it."""
    situation: Situation
    snapshot: Snapshot | None
    proposal: Proposal | None = None
    """The one that the request names, if there is one under that name."""
    known: Rebalance | None = None
    """The record under the request's id, if there is one."""


@dataclass(frozen=True, kw_only=True)
class CancelAsked(Happening):
    """Somebody wants a migration, or all of a rebalance, undone."""

    request: CancelRequest
    text: str


@dataclass(frozen=True, kw_only=True)
class ReplanAsked(Happening):
    """Somebody wants a worker to have another plan."""

    request: ReplanRequest
    text: str
    situation: Situation
    memory_max: int | None = None
    """What the states of both plans may take at a worker (setting plan_memory_bytes)."""
    known: Replan | None = None
    """The record under the request's id, if there is one."""


@dataclass(frozen=True, kw_only=True)
class ReplanCancelAsked(Happening):
    """Somebody wants a change of plans undone."""

    request: CancelReplan
    text: str


@dataclass(frozen=True, kw_only=True)
class RequestFailed(Happening):
    """A request that cannot be read, or that the manager fails over. Left in the list it would stop those after it."""

    name: str
    """Its id, as far as it can be read."""
    text: str
    problem: str
    known: Rebalance | None = None
    replan: Replan | None = None
    """The record under its id, where it is about plans."""


@dataclass(frozen=True, kw_only=True)
class LoadWeighed(Happening):
    """The load was measured anew: is it time to act?"""

    settings: Settings
    snapshot: Snapshot | None
    advice: tuple[Advice, ...] = ()
    """What the optimiser said last of the workers' plans."""
    situation: Situation | None = None
    """For plans; None where the query is not known well enough."""
    request_id: str = ""
    """Names changes of plans that follow from it."""


@dataclass(frozen=True, kw_only=True)
class Proposed(Happening):
    """The proposal that a decision to act led to."""

    decision: Decision
    proposal: Proposal
    settings: Settings
    situation: Situation
    snapshot: Snapshot | None
    request_id: str


@dataclass(frozen=True, kw_only=True)
class TurnEnds(Happening):
    """All that has happened is known: begin what is new, allow waves, say what the next epoch is."""

    situation: Situation
    bound: Epoch
    snapshot: Snapshot | None
    """None where nothing is measured yet: paced waves wait for it."""
