"""Events that a migration handles: the paper's messages to the manager, what is asked of it, and what it finds.

Each names its migration, the wave it is about (0: the migration as a whole), the epoch of the batch that told it, the
time (machines have no clock) and its cause.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Event:
    migration: str
    wave: int = 0
    epoch: int = 0
    """Number of the epoch that the telling batch was bound to; 0 where no batch told it."""
    now_ms: int = 0
    cause: str = ""
    """Who or what brought it about, for the story: "batch 17", "ops: too slow"."""


class Begin(Event):
    """The migration is asked for; its steps start."""


@dataclass(frozen=True, kw_only=True)
class PartitionsToMove(Event):
    """Step 2 of both protocols: the sender names the groups."""

    groups: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class NothingToMove(Event):
    """Step 2 of both protocols, where the answer leaves nothing to do."""

    problem: str


@dataclass(frozen=True, kw_only=True)
class WaveAllowed(Event):
    """Pacing lets the next groups go. `wave` is 0: the migration numbers its waves itself."""

    groups: tuple[int, ...]


class Deactivated(Event):
    """MSLB step 4: the batch that opened the move is committed; the sender has joined all that came before."""


class Proceed(Event):
    """The manager's own turn: what it waited for is journaled, so it sends its next message (steps 5 and 8; PTLB 5)."""


@dataclass(frozen=True, kw_only=True)
class PackageReady(Event):
    """MSLB step 6, ReceivePartitions: the sender's package is in the transfer store."""

    rows: int
    bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Received(Event):
    """MSLB step 7: the receiver has taken the package in, in a committed batch."""

    rows: int
    digest: str


class AllOldPurged(Event):
    """PTLB step 4: no old row is live at the sender."""


class Applied(Event):
    """A committed batch was bound to an epoch that closes the wave as this migration wants it closed."""


@dataclass(frozen=True, kw_only=True)
class ExportFailed(Event):
    """The sender could not write its package (transfer store full ...)."""

    problem: str


@dataclass(frozen=True, kw_only=True)
class Holding(Event):
    """The package that is to be taken in cannot be, so far; rows wait for it."""

    batch: int
    problem: str
    digest: str = ""
    """What the packing worker says its package has: publishing it settles which of several is the one."""


@dataclass(frozen=True, kw_only=True)
class HeldTooLong(Event):
    """Rows have waited for longer than is reasonable."""

    problem: str


@dataclass(frozen=True, kw_only=True)
class StoreRefused(Event):
    """Step 2 of MSLB: the sender tried the transfer store, and it does not work. Nothing is opened."""

    problem: str


@dataclass(frozen=True, kw_only=True)
class RecallAnswered(Event):
    """MSLB, way back: the receiver says what it had done with the rows when it was recalled; nothing changes that."""

    joined: bool
    """It had the package, so it joined them and made their results; else it held them."""


class Returned(Event):
    """The sender has everything again (MSLB), or had it all the time and the move was seen open (PTLB)."""


@dataclass(frozen=True, kw_only=True)
class CancelRequested(Event):
    """Somebody wants the migration undone. `wave` is 0."""

    by: str = ""
