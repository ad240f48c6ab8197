"""Carries out what steering says: durable writes and publications, as the leader, one at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from balancing.instructions import Notice, Write
from manager.chronicle import Entries
from manager.journal import LeaderJournal, Overtaken
from manager.lease import Lease
from manager.store import ManagerStore, now_ms
from trimtab.epochs import Epoch

log = logging.getLogger("trimtab.manager")

SLOW_S: Final = 0.05
"""Publishing should take less."""


def go_on(point: str) -> None:
    """The default at crash points: nothing happens."""


class Pen:
    """Writes what a leader may write. Raises Fenced or WentBack where it may not (manager.journal)."""

    def __init__(
        self,
        store: ManagerStore,
        query: str,
        lease: Lease,
        journal: LeaderJournal,
        *,
        crash: Callable[[str], None] = go_on,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.journal = journal
        self.publish_s = 0.0
        """How long the last publication took."""
        self._store, self._query, self._lease = store, query, lease
        self._crash, self._clock = crash, clock
        self._alarmed: set[str] = set()

    async def write(self, write: Write) -> None:
        # An alarm is raised once for each text: what is wrong is wrong in every turn.
        fresh = tuple(alarm for alarm in write.alarms if alarm.text not in self._alarmed)
        stale = {alarm.text for alarm in write.alarms} - {alarm.text for alarm in fresh}
        events = tuple(event for event in write.events if not (event.kind == "alarm" and event.text in stale))
        for alarm in fresh:
            log.error("%s: %s", self._query, alarm.text)
        # A turn may take long (a new leader has much to catch up with), so the lease is seen to here as well.
        await self._lease.keep()
        if write.proposal is not None:
            await self._store.save_proposal(write.proposal)
        if write.point:
            self._crash(f"before:{write.point}")
        await self.journal.write(replace(write, alarms=fresh, events=events), now_ms())
        if write.point:
            self._crash(f"after:{write.point}")
        self._alarmed |= {alarm.text for alarm in fresh}

    async def publish(self, epoch: Epoch, after: Write) -> None:
        """Publish an epoch, and say so; one that another has overtaken is left alone."""
        self._crash("before:publish")
        started = self._clock()
        try:
            await self.journal.publish(epoch)
        except Overtaken as error:
            log.info("%s: epoch %d not published: %s", self._query, epoch.number, error)
            return
        self.publish_s = self._clock() - started
        if self.publish_s > SLOW_S:
            log.warning("%s: publishing epoch %d took %.0f ms", self._query, epoch.number, self.publish_s * 1000)
        self._crash("after:publish")
        notice = Notice(kind="epoch", text=f"epoch {epoch.number} published", data={"epoch": epoch.number})
        await self.write(replace(after, events=(notice,)))

    async def write_snapshot(self, text: str, history: Entries, planning: str | None) -> None:
        await self._lease.keep()
        await self.journal.write_snapshot(text, history, planning, now_ms())
