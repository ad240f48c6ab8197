"""Runs one query's migrations: watches Redis, tells steering what happened, executes what it answers.

All decisions are in balancing/steering.py. Here is what must be done about the world: the lease, reading, writing
and publications, one at a time; what an instruction leads to is held only once it has been executed. A manager that
does not lead watches, and takes over when the lease ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from balancing.committed import CommittedBatch
from balancing.happenings import (
    BatchCommitted,
    Happening,
    Led,
    LoadWeighed,
    QueryRuns,
    QueryStopped,
    TurnEnds,
)
from balancing.instructions import Instruction, Propose, PublishEpoch, Write
from balancing.load import Snapshot
from balancing.rules import Rules
from balancing.settings import Settings
from balancing.situation import Situation
from balancing.stalls import Stalls
from balancing.steering import Steering
from balancing.turn import Part, parts_of_turn
from manager import inbox, loading
from manager.advising import Advising
from manager.journal import LeaderJournal
from manager.lease import Fenced, Lease
from manager.observing import Observed
from manager.pen import Pen, go_on
from manager.proposing import propose_aside, request_name
from manager.settings import ManagerSettings
from manager.showing import Showing
from manager.store import ManagerStore, now_ms
from manager.watch import Watch
from trimtab.epochs import Epoch

log = logging.getLogger("trimtab.manager")

REQUESTS_AT_ONCE: Final = 20
"""Per turn: the query's batches are not kept waiting."""


class QueryRunner:
    """One query, as one manager sees it: `turn()` after `turn()` (manager.keeping)."""

    def __init__(
        self,
        store: ManagerStore,
        query: str,
        lease: Lease,
        journal: LeaderJournal,
        settings: ManagerSettings,
        *,
        crash: Callable[[str], None] = go_on,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.query, self.store, self.lease = settings, query, store, lease
        self.watch = Watch(store, query, settings, clock)
        self.pen = Pen(store, query, lease, journal, crash=crash, clock=clock)
        self.steering = self._ignorant()
        self.observed = Observed()
        """For metrics; nothing is decided from it."""
        self.rules = Rules()
        self.advising = Advising(settings.advise_s, clock)
        self._showing = Showing(self.pen, self.observed, settings.snapshot_s, clock)
        self.problem = ""
        """Why this query cannot be managed at the moment, or nothing."""
        self._loaded = False

    def _ignorant(self) -> Steering:
        return Steering(query=self.query, stalls=Stalls(patience_ms=round(self.settings.stalled_s * 1000)))

    @property
    def leading(self) -> bool:
        return self.lease.held

    async def turn(self) -> None:
        """One look at the query, and all that follows from it."""
        batches = await self.watch.look()
        if not await self._lead():
            return
        bound = self.watch.bound if self.watch.running else None
        if bound is not None:
            self.observed.saw(batches)
            self.observed.told(self.watch.heartbeat, moving=bool(bound.moves))
            self._showing.told(self.watch.heartbeat)
        if bound is not None and (not self._loaded or await self.pen.journal.went_back()):
            await self._load(bound)
            # What a batch says is a level: the newest one says it all. Older ones show moves that have ended since.
            batches = [self.watch.latest] if self.watch.latest else []
        left = iter(batches)
        for part in parts_of_turn(running=bound is not None, batches=len(batches)):
            await self._do(part, left, batches)
        if bound is not None and self._showing.is_due(self.watch.heartbeat):
            snapshot = self._snapshot()
            if snapshot is not None:
                await self._showing.save(snapshot, self.watch.heartbeat, self.advising.unsaved())

    async def _do(self, part: Part, left: Iterator[CommittedBatch], batches: Sequence[CommittedBatch]) -> None:
        match part:
            case Part.STOPPED:
                await self.handle(QueryStopped(now_ms=now_ms()))
            case Part.RUNS:
                await self.handle(QueryRuns(now_ms=now_ms()))
                self.rules = await self.store.rules(self.query)
            case Part.REQUESTS:
                await self._take_up()
            case Part.BATCH:
                await self.handle(BatchCommitted(now_ms=now_ms(), batch=next(left), workers=self.watch.workers))
            case Part.WEIGH:
                settings = await self.store.auto(self.query)
                weighed = self._snapshot()
                self.observed.weighed(weighed, settings)
                self._advise(settings, weighed)
                await self.handle(self._weighed(settings, weighed))
                self._showing.weighed(batches, weighed, settings, self.steering)
            case Part.END:
                situation, bound = self.situation(), self.watch.bound
                if situation is None or bound is None:
                    return
                # Only waves look at the load: a turn comes ten times a second, and there may be thousands of groups.
                snapshot = self._snapshot() if any(each.wants_wave for each in self.steering.migrations) else None
                await self.handle(TurnEnds(now_ms=now_ms(), situation=situation, bound=bound, snapshot=snapshot))

    # -- leading

    async def _lead(self) -> bool:
        epochs = [epoch for epoch in (self.watch.current, self.watch.bound) if epoch is not None]
        newest = max((epoch.fence for epoch in epochs), default=0)
        if self.lease.held:
            if self.lease.fence < newest:
                # Redis had forgotten the epochs when it was given: no batch would ever be bound to ours.
                await self.lease.release()
                raise Fenced(f"token {self.lease.fence} is older than the epoch's, {newest}")
            await self.lease.keep()
            return True
        self.stand_down()
        # Without an epoch nobody knows which token would be large enough: the driver will put it back.
        if not epochs or not await self.lease.acquire(newest):
            return False
        log.info("%s: leading with token %d", self.query, self.lease.fence)
        self.observed.leads(self.watch.committed)
        await self.handle(Led(now_ms=now_ms(), holder=self.lease.value.split()[0], fence=self.lease.fence))
        return True

    def stand_down(self) -> None:
        """What a leader knows comes from the journal; whoever does not lead knows nothing."""
        self.lease.forget()
        self._loaded = False
        self.steering = self._ignorant()
        self._showing.forget()
        self.advising.forget()
        self.pen.journal.forget()

    def doubt(self, problem: str) -> None:
        """Something failed: a write may have happened although its answer was lost, so the journal is read again."""
        if not self.problem:
            log.warning("%s: %s", self.query, problem)
        self.problem = problem
        self._loaded = False

    async def _load(self, bound: Epoch) -> None:
        """What the journal says, or, where Redis lost it under this leader, what this leader says to the journal."""
        await self.pen.journal.begin()
        if self._loaded:
            await self.handle(await loading.records_left(self.store, self.query))
        else:
            await self.handle(await loading.loaded(self.store, self.watch, self.query, bound))
        self._loaded = True
        self.observed.knows(self.steering)
        self._showing.loaded(self.steering)
        missed = await loading.batches_missed(self.watch, self.steering)
        if missed is not None:
            await self.handle(missed)

    # -- what steering is told

    def situation(self) -> Situation | None:
        """The query as it is now; None while Redis does not have its newest epoch."""
        return self.watch.situation(self.steering.migrations, self.rules, self.steering.replans)

    def _snapshot(self) -> Snapshot | None:
        situation = self.situation()
        return self.watch.snapshot({} if situation is None else situation.receivers, self.rules)

    def _weighed(self, settings: Settings, snapshot: Snapshot | None) -> LoadWeighed:
        newest = self.advising.newest
        return LoadWeighed(
            now_ms=now_ms(),
            settings=settings,
            snapshot=snapshot,
            advice=() if newest is None else newest.advice,
            situation=self.situation() if settings.plans else None,
            request_id=request_name() if settings.plans else "",
        )

    def _advise(self, settings: Settings, snapshot: Snapshot | None) -> None:
        """The optimiser looks at the plans beside this turn; what it found last is there for the next one."""
        self.advising.harvest()
        if self.advising.is_due:
            batch_ms = snapshot.batch_ms if snapshot is not None else 0.0
            self.advising.begin(self.watch.plan_picture(batch_ms), settings)

    async def _take_up(self) -> None:
        for _ in range(REQUESTS_AT_ONCE):
            situation = self.situation()
            text = await self.store.next_request(self.query)
            if situation is None or text is None:
                return
            happening = await inbox.happening_of(text, self.store, self.query, situation, self._snapshot())
            try:
                instructions = self.steering.handle(happening)
            except Exception as error:
                log.exception("%s: request %.200s", self.query, text)
                problem = f"{type(error).__name__}: {error}"
                instructions = self.steering.handle(await inbox.failure_of(text, problem, self.store, self.query))
            await self._execute_all(instructions)

    # -- doing what steering says

    async def handle(self, happening: Happening) -> None:
        await self._execute_all(self.steering.handle(happening))

    async def _execute_all(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            await self._execute(instruction)

    async def _execute(self, instruction: Instruction) -> None:
        if isinstance(instruction, Write):
            await self.pen.write(instruction)
        elif isinstance(instruction, PublishEpoch):
            await self.pen.publish(instruction.epoch, Write(then=instruction.then))
        # Held only now: what it leads to is durable.
        self.steering = instruction.then
        self.observed.did(instruction)
        if isinstance(instruction, Propose):
            proposed = await propose_aside(instruction, self.situation, self._snapshot)
            if proposed is not None:
                await self.handle(proposed)


def make_runner(
    store: ManagerStore,
    query: str,
    holder: str,
    settings: ManagerSettings | None = None,
    *,
    crash: Callable[[str], None] = go_on,
    clock: Callable[[], float] = time.monotonic,
) -> QueryRunner:
    """A runner with a lease and a journal in the store's Redis."""
    chosen = settings or ManagerSettings()
    lease = Lease(store.client, query, holder, ttl_s=chosen.lease_ttl_s, renew_s=chosen.lease_renew_s, clock=clock)
    journal = LeaderJournal(store.client, query, lease)
    return QueryRunner(store, query, lease, journal, chosen, crash=crash, clock=clock)
