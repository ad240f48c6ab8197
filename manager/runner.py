"""Runs one query's migrations: a thin shell around the pure machines of balancing/ (architecture, section 6).

Each turn looks at what the query has committed, tells the machines, does what they answer (the durable write first, see
journal.py) and publishes the epoch that their states mean, once the last one published is bound. Whatever goes wrong,
the next turn begins with what Redis and the bound epoch say: losing the lease, an answer or all of Redis leads there.
A manager that does not lead watches, and takes over when the lease ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from redis.exceptions import RedisError

from balancing.audit import Audit
from balancing.committed import CommittedBatch
from balancing.compose import NotComposable, compose
from balancing.load import Snapshot
from balancing.pacing import next_wave
from balancing.protocols.events import Begin, CancelRequested, Event, WaveAllowed
from balancing.protocols.migration import (
    ROLLED_BACK,
    Instruction,
    Journal,
    Migration,
    ProtocolError,
    Tell,
    parse_migration,
    taken_groups,
)
from balancing.protocols.observe import observe
from balancing.protocols.reconcile import adopt, reconcile
from balancing.protocols.table import State
from manager import journal
from manager.automatic import Automatic
from manager.inbox import Inbox
from manager.lease import Fenced, Lease
from manager.requests import Rebalance, View, parse_rebalance
from manager.settings import ManagerSettings, Rules
from manager.snapshots import snapshot_text
from manager.stalls import Stalls
from manager.store import Heartbeat, Json, ManagerStore, now_ms
from manager.takeup import outcome_of
from manager.watch import Watch
from trimtab.moves import moves_of

log = logging.getLogger("trimtab.manager")

CLOSED_REMEMBERED: Final = 2_000
SLOW_S: Final = 0.05
"""Publishing should take less."""


def _go_on(point: str) -> None:
    """The default at crash points: nothing happens."""


class QueryRunner:
    """One query, as one manager sees it. `run()` until stopped, or `turn()` by hand."""

    def __init__(
        self,
        store: ManagerStore,
        query: str,
        holder: str,
        settings: ManagerSettings | None = None,
        *,
        crash: Callable[[str], None] = _go_on,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings or ManagerSettings()
        self.query = query
        self.store = store
        self.watch = Watch(store, query, self.settings, clock)
        self.lease = Lease(
            store.client,
            query,
            holder,
            ttl_s=self.settings.lease_ttl_s,
            renew_s=self.settings.lease_renew_s,
            clock=clock,
        )
        self.migrations: dict[str, Migration] = {}
        """Those under way."""
        self.closed: dict[str, Migration] = {}
        """Those that ended lately: an epoch that still shows their moves is old news."""
        self.rebalances: dict[str, Rebalance] = {}
        """Those under way."""
        self.ended: dict[str, Rebalance] = {}
        """Those that ended lately: Redis may forget that they have."""
        self.rules = Rules()
        self.problem = ""
        """Why this query cannot be managed at the moment, or nothing."""
        self.publish_s = 0.0
        """How long the last publication took."""
        self._journal = journal.Journal(store.client, query, self.lease)
        self._inbox = Inbox(self)
        self._automatic = Automatic(self)
        self._stalls = Stalls(self.settings.stalled_s, clock)
        self._crash = crash
        self._clock = clock
        self._loaded = False
        self._parked = False
        self._snapshot_at = -float("inf")
        self._snapshot_of: Heartbeat | None = None
        self._alarmed: set[str] = set()

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
            except journal.WentBack as error:
                # The next turn begins with putting it right.
                log.warning("%s: Redis went back: %s", self.query, error)
            except (RedisError, OSError, TimeoutError) as error:
                self._note_problem(f"Redis does not answer: {error}")
                delay_s = self._longer(delay_s)
            except Exception as error:
                # A bug must not take the other queries' manager down with it.
                log.exception("%s: a turn failed", self.query)
                problem = f"{type(error).__name__}: {error}"
                await self._tell_problem(problem)
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
        if not self.watch.running or self.watch.bound is None:
            await self._park()
            return
        if not self._loaded or await self._journal.went_back():
            await (self._write_again() if self._loaded else self._load())
            await self._catch_up()
            # What a batch says is a level: the newest one says it all. Older ones show moves that have ended since.
            batches = [self.watch.latest] if self.watch.latest else []
        await self._resume()
        self.rules = await self.store.rules(self.query)
        for batch in batches:
            # Between two batches too: a cancel that came in time is not overtaken.
            await self._inbox.take_up()
            await self._learn(batch)
        await self._inbox.take_up()
        if batches:
            await self._automatic.consider()
        await self._begin()
        await self._allow_waves()
        await self._publish()
        await self._save_snapshot()

    # Leading

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
        await self.tell("leader", f"{self.lease.value.split()[0]} leads with token {self.lease.fence}")
        return True

    def _forget(self) -> None:
        """What a leader knows comes from the journal; whoever does not lead knows nothing."""
        self.lease.forget()
        self._loaded = False
        self.migrations, self.closed, self.rebalances, self.ended = {}, {}, {}, {}
        self._journal.forget()
        self._automatic.forget()

    def _note_problem(self, problem: str) -> None:
        if not self.problem:
            log.warning("%s: %s", self.query, problem)
        self.problem = problem
        # A write may have happened although its answer was lost: read again what the journal says.
        self._loaded = False

    async def _tell_problem(self, problem: str) -> None:
        """Said to people, once: the query is not managed until a turn succeeds, whoever leads."""
        if self.problem or problem in self._alarmed:
            return
        with contextlib.suppress(RedisError, OSError):
            await self.store.alarm(self.query, "manager", f"the manager fails: {problem}")
            self._alarmed.add(problem)

    def _longer(self, delay_s: float) -> float:
        return min(max(delay_s * 2, self.settings.backoff_first_s), self.settings.backoff_max_s)

    async def _load(self) -> None:
        """The journal, as the last leader (or this one) left it. What disagrees with the bound epoch is put right."""
        assert self.watch.bound is not None
        await self._journal.begin()
        self.migrations, self.closed, self.rebalances = {}, {}, {}
        for name, body in (await self.store.rebalances(self.query)).items():
            try:
                rebalance = parse_rebalance(body)
            except (KeyError, TypeError, ValueError) as error:
                await self.alarm("journal", f"rebalance {name} cannot be read and is left alone: {error}")
                continue
            if rebalance.state == "running":
                self.rebalances[name] = rebalance
        # Those that have ended count where a rebalance is judged by them, or where the epoch still shows them.
        wanted = {move.id.rpartition(".w")[0] for move in moves_of(self.watch.bound)}
        wanted |= {name for rebalance in self.rebalances.values() for name in rebalance.migrations}
        records = await self.store.migrations(self.query)
        for name, body in records.items():
            if body.get("outcome") and name not in wanted:
                continue
            try:
                migration = parse_migration(body)
            except (KeyError, TypeError, ValueError) as error:
                await self.alarm("journal", f"migration {name} cannot be read and is left alone: {error}")
                continue
            (self.closed if migration.done else self.migrations)[name] = migration
        self._loaded = True
        await self._close_rebalances(records)

    async def _write_again(self) -> None:
        """Redis has lost writes, and this leader has made them all: what it knows is right."""
        await self._journal.begin()
        migrations = _lost({**self.closed, **self.migrations}, await self.store.migrations(self.query))
        rebalances = _lost({**self.ended, **self.rebalances}, await self.store.rebalances(self.query))
        closed = [f"migration:{name}" for name in migrations if name in self.closed]
        closed += [f"rebalance:{name}" for name in rebalances if name in self.ended]
        await self.write(journal.Entry(migrations=migrations, rebalances=rebalances, closed=tuple(closed)))
        names = ", ".join([*migrations, *rebalances]) or "none"
        await self.alarm("journal-lost", f"Redis went back; records written again: {names}")

    async def _catch_up(self) -> None:
        """Audits count every batch: those that were committed while nobody led are read now."""
        newest = [each.audit.newest_batch for each in self.migrations.values() if each.audit.newest_batch >= 0]
        if newest:
            await self._audit(await self.watch.past(min(newest) + 1))

    async def _close_rebalances(self, records: dict[str, Json]) -> None:
        """A rebalance whose migrations have all ended, or whose journal is gone in part, is not under way."""
        for rebalance in list(self.rebalances.values()):
            mine = [self.migrations.get(name) or records.get(name) for name in rebalance.migrations]
            state = outcome_of([each for each in mine if each is not None])
            if state is not None or not any(mine):
                ended = replace(rebalance, state=state or "rolled-back", closed_ms=now_ms())
                await self.write(
                    journal.Entry(rebalances={ended.id: ended.to_json()}, closed=(f"rebalance:{ended.id}",))
                )
                self._end(ended)

    async def _park(self) -> None:
        """The query has stopped: its migrations stay as they are until it runs again."""
        if not self._parked:
            self._parked = True
            await self.tell("parked", "the query does not run: its migrations wait")

    async def _resume(self) -> None:
        if self._parked:
            self._parked = False
            await self.tell("resumed", "the query runs: its migrations go on")

    # Learning from committed batches

    async def _learn(self, batch: CommittedBatch) -> None:
        await self._agree_with(batch)
        await self._audit([batch])
        for name in list(self.migrations):
            taken = taken_groups(self.migrations.values(), name)
            # An event may follow from what another one changed (steps 4, 5 and 6 are told together).
            for event in observe(self.migrations[name], batch, taken):
                if name in self.migrations:
                    await self.handle(event)
        for notice in self._stalls.look(batch, self.migrations.values()):
            await self.tell(notice.kind, notice.text, {"migration": notice.migration})

    async def _agree_with(self, batch: CommittedBatch) -> None:
        """Redis may have lost writes, or all of them: the bound epoch is right."""
        now = now_ms()
        await self._enact(reconcile(self.migrations.values(), batch.bound, now))
        adopted = adopt(batch.bound, [*self.closed.values(), *self.migrations.values()], now)
        if adopted:
            await self.alarm("journal-lost", f"migrations made again from epoch {batch.bound.number}")
            await self._enact(adopted)

    async def _audit(self, batches: Sequence[CommittedBatch]) -> None:
        changed = {}
        for migration in self.migrations.values():
            audit = migration.audit
            for batch in batches:
                audit = audit.add(migration.id, batch, self.watch.workers)
            if audit is migration.audit:
                continue
            changed[migration.id] = replace(migration, audit=audit)
            for problem in audit.problems[len(migration.audit.problems) :]:
                await self.alarm("audit", f"migration {migration.id}: {problem}")
        if changed:
            await self.write(journal.Entry(migrations={name: each.to_json() for name, each in changed.items()}))
            self.migrations.update(changed)

    # Doing what the machines say

    async def handle(self, event: Event, request: str = "") -> None:
        """Tell a migration; `request` is answered by the same durable write."""
        migration = self.migrations[event.migration]
        try:
            instructions = migration.handle(event)
        except ProtocolError as error:
            log.exception("%s: migration %s", self.query, migration.id)
            await self.alarm("protocol", str(error))
            instructions = []
        await self._enact(instructions, request)

    async def cancel(self, migration: Migration, by: str, reason: str, request: str = "") -> None:
        """Back, where that is possible still; one that has not begun just ends."""
        if migration.state == State.NEW:
            ended = replace(migration, outcome=ROLLED_BACK, problem=f"cancelled by {by or 'somebody'} before it began")
            await self._enact(ended.noted("Cancel", now_ms(), reason), request)
        else:
            event = CancelRequested(migration=migration.id, now_ms=now_ms(), cause=reason, by=by)
            await self.handle(event, request)

    async def _enact(self, instructions: Sequence[Instruction], request: str = "") -> None:
        """Each Journal instruction with what is to be told about it: one durable write, then it holds."""
        tells = [each for each in instructions if isinstance(each, Tell)]
        writes = [each for each in instructions if isinstance(each, Journal)]
        for index, write in enumerate(writes):
            last = index == len(writes) - 1
            await self._journal_step(write, tells if last else [], request if last else "")
        if not writes:
            events = tuple(_event(tell.kind, tell.text) for tell in tells)
            await self.write(journal.Entry(events=events, alarms=_alarms(tells), request=request))

    async def _journal_step(self, write: Journal, tells: Sequence[Tell], request: str) -> None:
        migration = write.migration
        newest = migration.story[-1]
        data: Json = {
            "migration": migration.id,
            "rebalance": migration.rebalance,
            "strategy": migration.strategy,
            "wave": newest.wave,
            "step": newest.step,
            "message": newest.message,
            "state": newest.state,
        }
        events = [_event("step", f"{migration.id}: {newest.render().partition(' ')[2]}", data)]
        events += [_event(tell.kind, tell.text, {"migration": migration.id}) for tell in tells]
        rebalance = self._ended_with(migration)
        entry = journal.Entry(
            migrations={migration.id: migration.to_json()},
            rebalances={rebalance.id: rebalance.to_json()} if rebalance else {},
            closed=(
                *((f"migration:{migration.id}",) if migration.done else ()),
                *((f"rebalance:{rebalance.id}",) if rebalance else ()),
            ),
            request=request,
            events=tuple(events),
            alarms=_alarms(tells),
        )
        self._crash(f"before:{write.point}")
        await self.write(entry)
        self._crash(f"after:{write.point}")
        self._hold(migration)
        if rebalance:
            self._end(rebalance)

    def _end(self, rebalance: Rebalance) -> None:
        self.rebalances.pop(rebalance.id, None)
        self.ended[rebalance.id] = rebalance
        while len(self.ended) > CLOSED_REMEMBERED:
            self.ended.pop(next(iter(self.ended)))

    def _hold(self, migration: Migration) -> None:
        self.migrations.pop(migration.id, None)
        self.closed.pop(migration.id, None)
        (self.closed if migration.done else self.migrations)[migration.id] = migration
        while len(self.closed) > CLOSED_REMEMBERED:
            self.closed.pop(next(iter(self.closed)))

    def _ended_with(self, migration: Migration) -> Rebalance | None:
        """The rebalance that ends with this migration, if it is the last one of it."""
        rebalance = self.rebalances.get(migration.rebalance)
        if rebalance is None or not migration.done:
            return None
        others = [name for name in rebalance.migrations if name != migration.id]
        known = {**self.closed, **self.migrations}
        state = outcome_of([migration, *(known[name] for name in others if name in known)])
        return None if state is None else replace(rebalance, state=state, closed_ms=now_ms())

    async def start(self, rebalance: Rebalance, migrations: Sequence[Migration], request: str) -> None:
        """Journal a rebalance that was granted. Its migrations begin in this turn, their audits with the next batch."""
        begins = Audit(newest_batch=self.watch.committed)
        migrations = [replace(each, audit=begins) for each in migrations]
        entry = journal.Entry(
            migrations={each.id: each.to_json() for each in migrations},
            rebalances={rebalance.id: rebalance.to_json()},
            request=request,
            events=(_event("rebalance", f"{rebalance.id} begins: {rebalance.reason}", {"rebalance": rebalance.id}),),
        )
        self._crash("before:rebalance")
        await self.write(entry)
        self._crash("after:rebalance")
        self.rebalances[rebalance.id] = rebalance
        self.migrations.update({each.id: each for each in migrations})

    async def _begin(self) -> None:
        for migration in list(self.migrations.values()):
            if migration.state == State.NEW:
                await self.handle(Begin(migration=migration.id, now_ms=now_ms(), cause=migration.reason))

    async def _allow_waves(self) -> None:
        """Pacing: the next groups of each migration go as soon as those before are where they belong, and its executors
        have room for them. In turn: who has had the fewest waves comes first."""
        wanting = [each for each in self.migrations.values() if each.wants_wave]
        snapshot = self.watch.snapshot(self.receivers(), self.rules) if wanting else None
        for migration in sorted(wanting, key=lambda each: (len(each.waves), each.created_ms, each.id)):
            groups = migration.remaining
            if migration.strategy == "mslb":
                groups = self._next_wave(migration, snapshot) if snapshot else ()
            if groups:
                cause = f"{len(groups)} of {len(migration.remaining)} groups"
                await self.handle(WaveAllowed(migration=migration.id, groups=groups, now_ms=now_ms(), cause=cause))

    def _next_wave(self, migration: Migration, snapshot: Snapshot) -> tuple[int, ...]:
        """As much as the fuller of its two executors has room for, beside all that is under way there."""
        used: dict[str, float] = {}
        for each in self.migrations.values():
            shipping = [wave for wave in each.waves if wave.shipping and each.strategy == "mslb"]
            size = sum(snapshot.group_bytes[group] for wave in shipping for group in wave.groups)
            for worker in (each.sender, each.receiver):
                executor = snapshot.executor_of(worker)
                used[executor] = used.get(executor, 0.0) + size
        return next_wave(
            migration.remaining,
            {group: snapshot.group_bytes[group] for group in migration.remaining},
            snapshot.wave_bytes(migration.pace.max_pause_ms),
            migration.pace.order,
            max(used[snapshot.executor_of(worker)] for worker in (migration.sender, migration.receiver)),
        )

    async def _publish(self) -> None:
        """The epoch that all states together mean; only when the last one published is bound, so none is skipped."""
        if not self.watch.settled:
            return
        assert self.watch.current is not None
        try:
            epoch = compose(self.watch.current, self.migrations.values(), self.lease.fence)
        except NotComposable as error:
            await self.alarm("protocol", str(error))
            return
        if epoch is None:
            return
        self._crash("before:publish")
        started = self._clock()
        try:
            await self._journal.publish(epoch)
        except journal.Overtaken as error:
            log.info("%s: epoch %d not published: %s", self.query, epoch.number, error)
            return
        self.publish_s = self._clock() - started
        if self.publish_s > SLOW_S:
            log.warning("%s: publishing epoch %d took %.0f ms", self.query, epoch.number, self.publish_s * 1000)
        self._crash("after:publish")
        await self.tell("epoch", f"epoch {epoch.number} published", {"epoch": epoch.number})

    # Writing

    async def write(self, entry: journal.Entry) -> None:
        # A turn may take long (a new leader has much to catch up with), so the lease is seen to here as well.
        await self.lease.keep()
        await self._journal.write(entry, now_ms())

    async def tell(self, kind: str, text: str, data: Json | None = None) -> None:
        await self.write(journal.Entry(events=(_event(kind, text, data),)))

    async def alarm(self, kind: str, text: str) -> None:
        """An alarm, once for each text: what is wrong is wrong in every turn."""
        if text in self._alarmed:
            return
        log.error("%s: %s", self.query, text)
        await self.write(
            journal.Entry(alarms=(_alarm(kind, text),), events=(_event("alarm", text, {"kind": kind}),)),
        )
        self._alarmed.add(text)

    async def _save_snapshot(self) -> None:
        """After each sign of life of the driver, whose age tells others that the query runs (requests.view)."""
        heard = self.watch.heartbeat
        if heard == self._snapshot_of or self._clock() - self._snapshot_at < self.settings.snapshot_s:
            return
        snapshot = self.watch.snapshot(self.receivers(), self.rules)
        if snapshot is not None:
            await self.write(journal.Entry(snapshot=snapshot_text(snapshot)))
            self._snapshot_at, self._snapshot_of = self._clock(), heard

    # What others here ask

    def receivers(self) -> dict[int, int]:
        """Group -> worker that it is on its way to, in migrations under way."""
        return {group: each.receiver for each in self.migrations.values() for group in each.busy_groups}

    def view(self) -> View:
        """The query as requests are checked against it."""
        assert self.watch.current is not None
        moving = {group: move.id for move in moves_of(self.watch.current) for group in move.groups}
        moving |= {group: each.id for each in self.migrations.values() for group in each.busy_groups}
        return View(
            query=self.query,
            workers=self.watch.workers,
            epoch=self.watch.current,
            moving=moving,
            up=self.watch.up,
            stopped=not self.watch.running,
            rules=self.rules,
        )


def _lost(known: Mapping[str, Migration | Rebalance], kept: Mapping[str, Json]) -> dict[str, Json]:
    """Records that Redis does not have as they are."""
    bodies = {name: each.to_json() for name, each in known.items()}
    return {name: body for name, body in bodies.items() if json.loads(json.dumps(body)) != kept.get(name)}


def _alarms(tells: Iterable[Tell]) -> tuple[Json, ...]:
    return tuple(_alarm("migration", tell.text) for tell in tells if tell.kind == "alarm")


def _alarm(kind: str, text: str) -> Json:
    return {"at_ms": now_ms(), "kind": kind, "text": text}


def _event(kind: str, text: str, data: Json | None = None) -> Json:
    return {"at_ms": now_ms(), "kind": kind, "text": text, "data": data or {}}
