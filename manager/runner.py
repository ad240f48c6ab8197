"""Runs one query's migrations: watches Redis, tells steering what happened, executes what it answers.

All decisions are in balancing/steering.py. Here is what must be done about the world: the lease, reading, writing
and publications, one at a time; what an instruction leads to is held only once it has been executed. Whatever goes
wrong, the next turn begins with what Redis and the bound epoch say: losing the lease, an answer or all of Redis leads
there. A manager that does not lead watches, and takes over when the lease ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from typing import Final

from balancing.stalls import Stalls
from redis.exceptions import RedisError

from balancing.happenings import (
    BatchCommitted,
    BatchesMissed,
    Happening,
    Led,
    Loaded,
    LoadWeighed,
    Proposed,
    QueryRuns,
    QueryStopped,
    RecordsLost,
    TurnEnds,
)
from balancing.instructions import Instruction, Propose, PublishEpoch, Write
from balancing.load import Snapshot
from balancing.policies import policy_named
from balancing.proposal import make_proposal
from balancing.rules import Rules
from balancing.situation import Situation
from balancing.steering import Steering
from balancing.triggers import TriggerState, parse_trigger_state
from manager import inbox
from manager.journal import WentBack
from manager.lease import Fenced, Lease
from manager.pen import Pen, go_on
from manager.settings import ManagerSettings
from manager.snapshots import snapshot_text
from manager.store import Heartbeat, ManagerStore, now_ms
from manager.watch import Watch
from trimtab.epochs import Epoch

log = logging.getLogger("trimtab.manager")

REQUESTS_AT_ONCE: Final = 20
"""Per turn: the query's batches are not kept waiting."""


class QueryRunner:
    """One query, as one manager sees it. `run()` until stopped, or `turn()` by hand."""

    def __init__(
        self,
        store: ManagerStore,
        query: str,
        holder: str,
        settings: ManagerSettings | None = None,
        *,
        crash: Callable[[str], None] = go_on,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings or ManagerSettings()
        self.query, self.store = query, store
        self.watch = Watch(store, query, self.settings, clock)
        ttl_s, renew_s = self.settings.lease_ttl_s, self.settings.lease_renew_s
        self.lease = Lease(store.client, query, holder, ttl_s=ttl_s, renew_s=renew_s, clock=clock)
        self.steering = self._ignorant()
        self.rules = Rules()
        self.problem = ""
        """Why this query cannot be managed at the moment, or nothing."""
        self.pen = Pen(store, query, self.lease, crash=crash, clock=clock)
        self._clock = clock
        self._loaded = False
        self._snapshot_at = -float("inf")
        self._snapshot_of: Heartbeat | None = None
        self._announced: set[str] = set()

    def _ignorant(self) -> Steering:
        return Steering(query=self.query, stalls=Stalls(patience_s=self.settings.stalled_s))

    @property
    def leading(self) -> bool:
        return self.lease.held

    async def run(self, stop: asyncio.Event) -> None:
        """Turns until told to stop. Nothing that Redis or a query does ends it; the lease is handed back at the end."""
        delay_s = self.settings.poll_s
        while not stop.is_set():
            if (task := asyncio.current_task()) is not None and task.cancelling():
                # The Redis client (8.1) swallows a cancellation that meets it while it reads.
                raise asyncio.CancelledError
            try:
                await self.turn()
                self.problem = ""
                delay_s = self.settings.poll_s
            except Fenced as error:
                log.warning("%s: %s; standing down", self.query, error)
                self._forget()
            except WentBack as error:
                # The next turn begins with putting it right.
                log.warning("%s: Redis went back: %s", self.query, error)
            except (RedisError, OSError, TimeoutError) as error:
                self._note_problem(f"Redis does not answer: {error}")
                delay_s = self._longer(delay_s)
            except Exception as error:
                # A bug must not take the other queries' manager down with it.
                log.exception("%s: a turn failed", self.query)
                problem = f"{type(error).__name__}: {error}"
                await self._announce(problem)
                self._note_problem(problem)
                delay_s = self._longer(delay_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await stop.wait()
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            await self.lease.release()

    async def turn(self) -> None:
        """One look at the query, and all that follows from it."""
        batches = await self.watch.look()
        if not await self._lead():
            return
        bound = self.watch.bound
        if not self.watch.running or bound is None:
            await self.handle(QueryStopped(now_ms=now_ms()))
            return
        if not self._loaded or await self.pen.journal.went_back():
            await self._load(bound)
            # What a batch says is a level: the newest one says it all. Older ones show moves that have ended since.
            batches = [self.watch.latest] if self.watch.latest else []
        await self.handle(QueryRuns(now_ms=now_ms()))
        self.rules = await self.store.rules(self.query)
        for batch in batches:
            # Between two batches too: a cancel that came in time is not overtaken.
            await self._take_up()
            await self.handle(BatchCommitted(now_ms=now_ms(), batch=batch, workers=self.watch.workers))
        await self._take_up()
        if batches:
            settings = await self.store.auto(self.query)
            await self.handle(LoadWeighed(now_ms=now_ms(), settings=settings, snapshot=self._snapshot()))
        situation = self.situation()
        if situation is not None:
            await self.handle(TurnEnds(now_ms=now_ms(), situation=situation, bound=bound, snapshot=self._snapshot()))
        await self._save_snapshot()

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
        self._forget()
        # Without an epoch nobody knows which token would be large enough: the driver will put it back.
        if not epochs or not await self.lease.acquire(newest):
            return False
        log.info("%s: leading with token %d", self.query, self.lease.fence)
        await self.handle(Led(now_ms=now_ms(), holder=self.lease.value.split()[0], fence=self.lease.fence))
        return True

    def _forget(self) -> None:
        """What a leader knows comes from the journal; whoever does not lead knows nothing."""
        self.lease.forget()
        self._loaded = False
        self.steering = self._ignorant()
        self.pen.journal.forget()

    def _note_problem(self, problem: str) -> None:
        if not self.problem:
            log.warning("%s: %s", self.query, problem)
        self.problem = problem
        # A write may have happened although its answer was lost: read again what the journal says.
        self._loaded = False

    async def _announce(self, problem: str) -> None:
        """To people, once: the query is not managed until a turn succeeds, whoever leads."""
        if self.problem or problem in self._announced:
            return
        with contextlib.suppress(RedisError, OSError):
            await self.store.alarm(self.query, "manager", f"the manager fails: {problem}")
            self._announced.add(problem)

    def _longer(self, delay_s: float) -> float:
        return min(max(delay_s * 2, self.settings.backoff_first_s), self.settings.backoff_max_s)

    async def _load(self, bound: Epoch) -> None:
        """What the journal says, or, where Redis lost it under this leader, what this leader says to the journal."""
        await self.pen.journal.begin()
        records = await self.store.records(self.query)
        if self._loaded:
            lost = RecordsLost(now_ms=now_ms(), migrations=records.migrations, rebalances=records.rebalances)
            await self.handle(lost)
        else:
            await self.handle(
                Loaded(
                    now_ms=now_ms(),
                    bound=bound,
                    migrations=records.migrations,
                    rebalances=records.rebalances,
                    unreadable=tuple((each.kind, each.name, each.problem) for each in records.unreadable),
                    trigger=await self._remembered(),
                )
            )
        self._loaded = True
        # Audits count every batch: those that were committed while nobody led are read now.
        newest = [each.audit.newest_batch for each in self.steering.migrations if each.audit.newest_batch >= 0]
        if newest:
            missed = tuple(await self.watch.past(min(newest) + 1))
            await self.handle(BatchesMissed(now_ms=now_ms(), batches=missed, workers=self.watch.workers))

    async def _remembered(self) -> TriggerState:
        body = await self.store.decision(self.query)
        try:
            return TriggerState() if body is None else parse_trigger_state(body["state"])
        except (KeyError, TypeError, ValueError):
            return TriggerState()

    # -- what steering is told

    def situation(self) -> Situation | None:
        """The query as it is now; None while Redis does not have its newest epoch."""
        return self.watch.situation(self.steering.migrations, self.rules)

    def _snapshot(self) -> Snapshot | None:
        situation = self.situation()
        return self.watch.snapshot({} if situation is None else situation.receivers, self.rules)

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
        if isinstance(instruction, Propose):
            await self._propose(instruction)

    async def _propose(self, propose: Propose) -> None:
        # Hundreds of milliseconds for thousands of groups: not in the event loop.
        settings, snapshot = propose.settings, propose.snapshot
        proposal = await asyncio.to_thread(
            make_proposal,
            snapshot,
            policy_named(settings.policy),
            settings,
            id=f"p-{secrets.token_hex(6)}",
            wave_bytes=snapshot.wave_bytes(settings.max_pause_ms),
            reason=propose.decision.why,
        )
        situation = self.situation()
        if situation is not None:
            await self.handle(
                Proposed(
                    now_ms=now_ms(),
                    decision=propose.decision,
                    proposal=proposal,
                    settings=settings,
                    situation=situation,
                    snapshot=self._snapshot(),
                    request_id=f"auto-{secrets.token_hex(6)}",
                )
            )

    async def _save_snapshot(self) -> None:
        """After each sign of life of the driver, whose age tells others that the query runs (manager.requests)."""
        heard = self.watch.heartbeat
        if heard == self._snapshot_of or self._clock() - self._snapshot_at < self.settings.snapshot_s:
            return
        snapshot = self._snapshot()
        if snapshot is not None:
            await self.pen.write_snapshot(snapshot_text(snapshot))
            self._snapshot_at, self._snapshot_of = self._clock(), heard
