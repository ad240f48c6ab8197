"""Waits that would otherwise go unannounced: a migration that is right, and cannot go on.

    event time   PTLB waits for old rows to expire (PTLB/MSLB section 3.2, step 4), and a stream that is idle holds the
                 watermark back: nothing expires.
    far row      The same, but event time goes on. One old row has a timestamp ahead of it (a wrong clock, a wrong unit,
                 a stream that runs ahead of the others), and until event time has come there it does not expire. A
                 parallel track usually takes window and lateness, in event time; told is what makes it longer than
                 that by more than the patience, once it has lasted for as long as the patience.
    silence      A worker of the migration has not reported for a while, and what the migration waits for is in its
                 reports.
    room         The groups are named, and the next of them may not go yet: the executors have no room for them beside
                 what is under way there, or the load is not known.

Nothing is wrong with query or manager in any of them, so nobody else will say it. Each is announced once, with the
reason and what to do about it, and once more when it goes on. The time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from balancing.committed import CommittedBatch
from balancing.instructions import Notice
from balancing.protocols.migration import Migration
from balancing.protocols.table import State
from trimtab.moves import RoleState

STALLED: Final = "stalled"
GOES_ON: Final = "goes-on"

_WAITS_FOR: Final[Mapping[State, str]] = {
    State.CHOOSING: "the sender to name the groups",
    State.DEACTIVATING: "the sender to freeze and pack the groups",
    State.DEACTIVATED: "the sender to pack the groups",
    State.SENDING: "the sender to pack the groups",
    State.RECEIVING: "the receiver to take the package in",
    State.DUPLICATING: "the sender to say that no old row is live",
    State.RETURNING: "the receiver to say whether it has joined the rows",
    State.RESTORING: "the sender to take its groups back",
}
"""By the state of a wave, or of a migration that has none. In other states it waits for an epoch or for room, not for a
worker."""


class Reason(StrEnum):
    EVENT_TIME = "event time"
    FAR_ROW = "far row"
    SILENCE = "silence"
    ROOM = "room"


@dataclass(frozen=True)
class Stall:
    """Why a migration does not go on. What has been announced is known by it."""

    migration: str
    reason: Reason
    worker: int = -1
    """The one that does not report."""


@dataclass(frozen=True)
class Since:
    """When a wait was first seen."""

    ms: int
    watermark_us: int


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """What is known about waits, and what has been announced. Looks at every committed batch."""

    patience_ms: int
    window_us: int = 0
    """Of the query; 0 where it is not known."""
    lateness_us: int = 0
    watermark_us: int | None = None
    advanced_ms: int = 0
    """When event time was last seen to advance."""
    heard_ms: Mapping[int, int] = field(default_factory=dict)
    """When each worker was last heard, or first awaited."""
    tracks: Mapping[str, Since] = field(default_factory=dict)
    """By migration: since when it waits for old rows to expire."""
    wanting: Mapping[str, int] = field(default_factory=dict)
    """By migration: since when its next groups wait for room."""
    announced: frozenset[Stall] = frozenset()

    def look(
        self, committed: CommittedBatch, migrations: Iterable[Migration], now_ms: int
    ) -> tuple[Stalls, list[Notice]]:
        """With one more batch, and what people are to be told."""
        under_way = [migration for migration in migrations if not migration.done]
        seen = self._with_reports(committed, under_way, now_ms)
        stalls = dict(seen._stalls(committed, under_way, now_ms))
        waiting = {migration.id for migration in under_way}
        notices = [
            Notice(kind=STALLED, text=f"{stall.migration}: {text}", data={"migration": stall.migration})
            for stall, text in stalls.items()
            if stall not in self.announced
        ]
        over = sorted(self.announced - set(stalls), key=lambda stall: (stall.migration, stall.reason, stall.worker))
        for stall in over:
            text = seen._goes_on(stall, committed, now_ms)
            if stall.migration in waiting and text:
                notices.append(
                    Notice(kind=GOES_ON, text=f"{stall.migration}: {text}", data={"migration": stall.migration})
                )
        return replace(seen, announced=frozenset(stalls)), notices

    def _with_reports(self, committed: CommittedBatch, migrations: Iterable[Migration], now_ms: int) -> Stalls:
        reports = [report for worker in committed.reports if (report := committed.report(worker)) is not None]
        watermark_us = max((report.watermark_us for report in reports), default=self.watermark_us)
        awaited = {worker for migration in migrations for worker in (migration.sender, migration.receiver)}
        heard = {worker: ms for worker, ms in self.heard_ms.items() if worker in awaited}
        heard |= dict.fromkeys(awaited - set(heard), now_ms)
        heard |= {report.worker: now_ms for report in reports if report.worker in awaited}
        advanced = watermark_us != self.watermark_us
        # A watermark of zero is none yet, and any row is far ahead of it.
        expecting = [each.id for each in migrations if _waits_for_expiry(each)] if watermark_us else []
        begun = Since(now_ms, watermark_us or 0)
        wanting = [each.id for each in migrations if each.wants_wave]
        return replace(
            self,
            watermark_us=watermark_us,
            advanced_ms=now_ms if advanced else self.advanced_ms,
            heard_ms=heard,
            tracks={name: self.tracks.get(name, begun) for name in expecting},
            wanting={name: self.wanting.get(name, now_ms) for name in wanting},
        )

    def _stalls(
        self, committed: CommittedBatch, migrations: Iterable[Migration], now_ms: int
    ) -> Iterator[tuple[Stall, str]]:
        for migration in sorted(migrations, key=lambda each: each.id):
            if _waits_for_expiry(migration):
                yield from self._event_time(migration, committed, now_ms)
                yield from self._far_row(migration, committed, now_ms)
            yield from self._silence(migration, now_ms)
            yield from self._room(migration, now_ms)

    def _event_time(self, migration: Migration, committed: CommittedBatch, now_ms: int) -> Iterator[tuple[Stall, str]]:
        stall = Stall(migration.id, Reason.EVENT_TIME)
        if not committed.reports:
            yield from self._unknown(stall)
            return
        stood_ms = now_ms - self.advanced_ms
        if self.watermark_us is None or stood_ms < self.patience_ms:
            return
        text = (
            f"event time has stood still for {stood_ms / 1000:.0f} s, so its old rows do not expire. "
            f"Is a stream idle? Let it go on, or take the move back: trimtab cancel {migration.id}"
        )
        yield stall, text

    def _unknown(self, stall: Stall) -> Iterator[tuple[Stall, str]]:
        """Where a batch says nothing about a stall, it is what it was."""
        if stall in self.announced:
            yield stall, ""

    def _far_row(self, migration: Migration, committed: CommittedBatch, now_ms: int) -> Iterator[tuple[Stall, str]]:
        since = self.tracks.get(migration.id)
        if since is None or self.watermark_us is None or now_ms - since.ms < self.patience_ms:
            return
        move = committed.bound.move(migration.move_id(len(migration.waves)))
        report = committed.about(move, move.sender) if move else None
        stall = Stall(migration.id, Reason.FAR_ROW)
        if report is None:
            yield from self._unknown(stall)
            return
        if report.newest_old_us is None or report.state == RoleState.ALL_OLD_PURGED:
            return
        ahead_us = report.newest_old_us - self.watermark_us
        longer_us = report.newest_old_us - self.lateness_us - since.watermark_us
        if longer_us <= 1000 * self.patience_ms or ahead_us <= self.lateness_us:
            return
        text = (
            f"waits for a row of stream {report.newest_old_stream} with timestamp {_timestamp(report.newest_old_us)}, "
            f"{_duration(ahead_us)} ahead of event time: "
            f"it is an old row, and expires only when event time is beyond it by the window. "
            f"Take the move back (trimtab cancel {migration.id}), or move the groups by MSLB."
        )
        yield stall, text

    def _silence(self, migration: Migration, now_ms: int) -> Iterator[tuple[Stall, str]]:
        waits_for = _WAITS_FOR.get(migration.state)
        if waits_for is None:
            return
        # A transfer needs both its workers; the groups are named, and a parallel track is ended, by the sender alone.
        both = migration.table.ships and migration.waves
        workers = (migration.sender, migration.receiver) if both else (migration.sender,)
        for worker in workers:
            silent_ms = now_ms - self.heard_ms[worker]
            if silent_ms < self.patience_ms:
                continue
            text = (
                f"waits for {waits_for}, and worker {worker} has not reported for {silent_ms / 1000:.0f} s. "
                f"Does its executor run, and can it reach Redis? The move goes on, or back, once it reports again."
            )
            yield Stall(migration.id, Reason.SILENCE, worker), text

    def _room(self, migration: Migration, now_ms: int) -> Iterator[tuple[Stall, str]]:
        waited_ms = now_ms - self.wanting.get(migration.id, now_ms)
        if waited_ms < self.patience_ms:
            return
        text = (
            f"its next groups have waited for {waited_ms / 1000:.0f} s: there is no room for them beside the moves "
            f"that are under way on its executors, or their load is not known. It goes on when those have ended; "
            f"or cancel one of them, or take this one back: trimtab cancel {migration.id}"
        )
        yield Stall(migration.id, Reason.ROOM), text

    def _goes_on(self, stall: Stall, committed: CommittedBatch, now_ms: int) -> str:
        """That a stall is over; "" where it is not, and just does not matter any more."""
        if stall.reason == Reason.EVENT_TIME:
            return "event time advances again" if self.advanced_ms == now_ms else ""
        if stall.reason == Reason.FAR_ROW:
            return "the row that it waited for is not ahead of event time any more"
        if stall.reason == Reason.ROOM:
            return "there is room for its next groups"
        return f"worker {stall.worker} reports again" if committed.report(stall.worker) is not None else ""


def _waits_for_expiry(migration: Migration) -> bool:
    return migration.table.waits_for_expiry and migration.state == migration.table.opening


def _timestamp(us: int) -> str:
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{us} us"


def _duration(us: int) -> str:
    seconds = us // 1_000_000
    units = ((2 * 86_400, 86_400, "days"), (2 * 3_600, 3_600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))
    size, name = next((size, name) for least, size, name in units if seconds >= least)
    return f"{seconds // size} {name}"
