"""What a world of the search is made of: Redis, a manager, perhaps its ghost, a driver, the data plane, budgets.

All parts of a world are numbers of interned values, so that millions of worlds can be kept, and compared at once.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from balancing.replans.requests import ReplanRequest
from balancing.requests import RebalanceRequest
from tests.simulation.canonical import NOTHING, Canon, Do, Interned
from tests.simulation.plane import Plane, Told
from trimtab.plan_orders import PlanReport

QUERY: Final = "q"
LIFE: Final = "life"
WORKERS: Final = 2
DOWN: Final = 0
"""The number of the mind of a manager that does not run."""


class View(NamedTuple):
    """The newest committed batch, as Redis has it: the driver's heartbeat and the workers' reports."""

    bound: int
    clock: int
    """Stands for the number of the batch: it advances only while somebody counts batches."""
    told: frozenset[Told]
    missing: frozenset[int] = frozenset()
    """Workers whose report did not reach Redis."""
    refused: bool = False
    """The transfer store was tried for a question, and failed."""
    plans: tuple[PlanReport, ...] = ()
    """By worker, as its record said when the batch began."""


class Redis(NamedTuple):
    migrations: tuple[int, ...] = ()
    """In the order of their ids."""
    rebalances: tuple[int, ...] = ()
    replans: tuple[int, ...] = ()
    requests: tuple[int, ...] = ()
    newest: int = NOTHING
    """The newest epoch."""
    view: int = NOTHING
    holder: int = 0
    """Who leads."""
    fence: int = 0
    """The newest token."""


class Mind(NamedTuple):
    """A manager that leads, or believes so."""

    steering: int
    look: int = NOTHING
    """What it read when its turn began; between turns nothing."""
    position: int = 0
    """Where its turn goes on once `todo` is done."""
    todo: tuple[int, ...] = ()
    holder: int = 0
    """The name under which it got the lease: that of no other manager that is alive."""
    synced: bool = True
    """Redis has what this manager wrote, as far as anybody can tell (manager.journal.LeaderJournal.went_back)."""


class Driver(NamedTuple):
    bound: int
    before: int
    """Number of the epoch of the batch before."""
    running: bool = False
    tried: bool = False
    """An attempt was not committed: the batch has rows, and so tasks."""
    said: frozenset[Told] | None = None
    """What that attempt reported, where it differs from the truth."""


class Rest(NamedTuple):
    clock: int
    waiting: tuple[int, ...]
    """Requests that are not made yet."""
    lasting: str
    """What is wrong with the transfer store for good."""
    budget: tuple[int, ...]
    """How often each fault may still happen, and how many of them at all."""


class World(NamedTuple):
    redis: int
    earlier: int
    """What Redis had before its last writes: it may go back there."""
    mind: int
    ghost: int
    """A manager that has lost the lease and does not know it."""
    driver: int
    plane: int
    rest: int

    def packed(self) -> bytes:
        return _PACK(*self)


_FORMAT: Final = struct.Struct("<7I")
_PACK: Final = _FORMAT.pack


def unpacked(key: bytes) -> World:
    return World(*_FORMAT.unpack(key))


FAULTS: Final = (
    "crash",
    "ghost",
    "hasty",
    "stale",
    "cancel",
    "back",
    "fall",
    "wipe",
    "mute",
    "idle",
    "replay",
    "full",
    "corrupt",
    "differ",
    "full for good",
    "corrupt for good",
    "gone for good",
    "unlistable for good",
)
"""What may go wrong (faults.py)."""


@dataclass(frozen=True)
class Scenario:
    """What is asked for, and what may go wrong on the way."""

    name: str
    requests: tuple[RebalanceRequest | ReplanRequest, ...]
    faults: dict[str, int]
    """How often each may happen."""
    total: int
    """How many of them in one way."""
    one_by_one: bool = False
    """Each request is made when the one before has ended."""
    groups: int = 2
    single_waves: bool = False
    back_writes: int = 3
    fenced: bool = True
    """Whether Redis refuses the writes of a manager that has lost its lease."""
    broken: str = ""
    """What is wrong with the transfer store from the beginning, for good."""
    plan: str = ""
    """That workers start with, where plans are changed."""
    outcome: str = ""
    """How every migration has to end, where that is certain."""


class Values(Canon):
    """All interned values of one search."""

    def __init__(self) -> None:
        super().__init__()
        self.views: Interned[View] = Interned()
        self.redises: Interned[Redis] = Interned()
        self.earlier: Interned[tuple[int, ...]] = Interned()
        self.minds: Interned[Mind | None] = Interned()
        self.minds.of(None, "down")
        self.drivers: Interned[Driver] = Interned()
        self.planes: Interned[Plane] = Interned()
        self.rests: Interned[Rest] = Interned()
        self.looks: Interned[tuple[int, int]] = Interned()
        """View and newest epoch."""
        self.dos: Interned[Do] = Interned()

    def mind(self, mind: Mind | None) -> int:
        return DOWN if mind is None else self.minds.of(mind)
