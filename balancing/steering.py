"""Everything that a leader decides, as one object without I/O, clock or chance.

`Steering.handle(happening)` answers with instructions and changes nothing. Each instruction carries the steering that
holds once it has been executed (`then`), so what is held is what is durable: a manager that dies after any instruction
leaves a journal from which the next one goes on, and one that was refused (fenced) has believed nothing.

A turn of the leader, in this order:

    BatchCommitted  for each new batch: agree with the epoch that it was bound to (reconcile, adopt), audit, tell the
                    migrations what the batch shows, announce what stalls
    MovesAsked ...  between two batches, too: a cancel that came in time is not overtaken
    LoadWeighed     the balancer looks; where it acts, Propose leads to Proposed
    TurnEnds        begin what is new, allow waves, publish the epoch that all states together mean

The manager (manager/runner.py) only watches and executes. The exhaustive search, the simulator and the text scenarios
in tests/ drive this object, too: what is proven is what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from balancing.audit import MigrationAudit
from balancing.committed import CommittedBatch
from balancing.compose import NotComposable, compose
from balancing.happenings import (
    BatchCommitted,
    BatchesMissed,
    CancelAsked,
    Happening,
    Led,
    Loaded,
    LoadWeighed,
    MovesAsked,
    Proposed,
    QueryRuns,
    QueryStopped,
    RecordsLost,
    ReplanAsked,
    ReplanCancelAsked,
    RequestFailed,
    TurnEnds,
)
from balancing.instructions import Instruction, Notice, Propose, PublishEpoch
from balancing.load import Snapshot
from balancing.pacing import next_wave
from balancing.protocols.events import Begin, CancelRequested, Event, WaveAllowed
from balancing.protocols.migration import (
    Instruction as Step,
)
from balancing.protocols.migration import (
    JournalStep,
    Migration,
    ProtocolError,
    Tell,
    taken_groups,
)
from balancing.protocols.observe import observe
from balancing.protocols.reconcile import adopt, reconcile
from balancing.protocols.table import State
from balancing.replans.replan import Replan
from balancing.replans.trigger import PlanTrigger
from balancing.replans.turn import ReplanTurn
from balancing.replans.waits import Waits
from balancing.requests import MoveRequest, Rebalance, RebalanceRequest, Refused, check, requested
from balancing.situation import Situation
from balancing.stalls import Stalls
from balancing.takeup import accept, check_proposal, outcome_of
from balancing.triggers import TriggerState, decide, resting
from balancing.triggers import accept as worth_doing
from trimtab.epochs import Epoch
from trimtab.errors import TrimtabError

ENDED_KEPT: Final = 2_000
"""Of migrations and rebalances that ended lately: an epoch that still shows their moves is old news."""
PATIENCE_MS: Final = 30_000
"""A migration that waits for longer than this is announced as stalled."""
BALANCER: Final = "balancer"
"""Who asks, where nobody did."""


class NotSteered(TrimtabError):
    """A happening that steering does not know: a bug."""


@dataclass(frozen=True, kw_only=True)
class Steering:
    """What the leader of one query knows and believes durable."""

    query: str
    fence: int = 0
    migrations: tuple[Migration, ...] = ()
    """Those under way."""
    ended: tuple[Migration, ...] = ()
    """Those that ended lately."""
    rebalances: tuple[Rebalance, ...] = ()
    """Those under way."""
    ended_rebalances: tuple[Rebalance, ...] = ()
    """Those that ended lately: Redis may forget that they have."""
    replans: tuple[Replan, ...] = ()
    """Changes of plans under way."""
    ended_replans: tuple[Replan, ...] = ()
    """Those that ended lately."""
    waits: Waits = field(default_factory=dict)
    """What changes of plans have been waiting for, and since when."""
    planner: PlanTrigger = field(default_factory=PlanTrigger)
    """What the optimiser's trigger remembers from one look to the next."""
    parked: bool = False
    trigger: TriggerState = field(default_factory=TriggerState)
    """What the balancer remembers from one look to the next."""
    was_busy: bool = False
    """Something was under way when the balancer last looked."""
    stalls: Stalls = field(default_factory=lambda: Stalls(patience_ms=PATIENCE_MS))

    def handle(self, happening: Happening) -> list[Instruction]:
        handler = _HANDLERS.get(type(happening))
        if handler is None:
            raise NotSteered(f"steering does not know {happening}")
        turn = _Turn(self, happening.now_ms)
        handler(turn, happening)
        return turn.instructions()

    def migration(self, name: str) -> Migration | None:
        return next((each for each in self.migrations if each.id == name), None)

    def holding(self, *changed: Migration) -> Steering:
        """With these migrations as they are now, each among those under way or among those that ended."""
        names = {each.id for each in changed}
        under_way = [each for each in self.migrations if each.id not in names]
        ended = [each for each in self.ended if each.id not in names]
        order = {each.id: index for index, each in enumerate(self.migrations)}
        for each in changed:
            (ended if each.done else under_way).append(each)
        under_way.sort(key=lambda each: order.get(each.id, len(order)))
        return replace(self, migrations=tuple(under_way), ended=tuple(ended[-ENDED_KEPT:]))

    def replan(self, name: str) -> Replan | None:
        return next((each for each in self.replans if each.id == name), None)

    def holding_replans(self, *changed: Replan) -> Steering:
        """With these replans as they are now, each among those under way or among those that ended."""
        now = {each.id: each for each in (*self.replans, *changed)}
        ended = {each.id: each for each in self.ended_replans if each.id not in now}
        ended |= {name: each for name, each in now.items() if each.done}
        under_way = tuple(each for each in now.values() if not each.done)
        return replace(self, replans=under_way, ended_replans=tuple(ended.values())[-ENDED_KEPT:])

    def waiting(self, waits: Waits) -> Steering:
        return self if waits == self.waits else replace(self, waits=waits)

    def with_rebalance(self, rebalance: Rebalance) -> Steering:
        under_way = tuple(each for each in self.rebalances if each.id != rebalance.id)
        if rebalance.open:
            return replace(self, rebalances=(*under_way, rebalance))
        ended = (*self.ended_rebalances, rebalance)[-ENDED_KEPT:]
        return replace(self, rebalances=under_way, ended_rebalances=ended)


class _Turn(ReplanTurn):
    """Everything but plans, which are in balancing/replans/turn.py."""

    # -- leading

    def led(self, event: Led) -> None:
        """Whoever did not lead knows nothing: the journal says it all."""
        stalls = Stalls(patience_ms=self.now.stalls.patience_ms)
        self.now = Steering(query=self.now.query, fence=event.fence, stalls=stalls)
        self._tell("leader", f"{event.holder} leads with token {event.fence}")

    def stopped(self, _: QueryStopped) -> None:
        if not self.now.parked:
            self.now = replace(self.now, parked=True)
            self._tell("parked", "the query does not run: its migrations wait")

    def runs(self, _: QueryRuns) -> None:
        if self.now.parked:
            self.now = replace(self.now, parked=False)
            self._tell("resumed", "the query runs: its migrations go on")

    def loaded(self, event: Loaded) -> None:
        rebalances = tuple(each for each in event.rebalances.values() if each.state == "running")
        # Of those that have ended, the ones count that a rebalance is judged by, or that the epoch still shows.
        wanted = {move.migration for move in event.bound.moves}
        wanted |= {name for rebalance in rebalances for name in rebalance.migrations}
        records = event.migrations.values()
        replans, ended_replans = self._load_replans(event)
        self.now = replace(
            self.now,
            migrations=tuple(each for each in records if not each.done),
            ended=tuple(each for each in records if each.done and (each.id in wanted or not each.audit.finished)),
            rebalances=rebalances,
            ended_rebalances=(),
            replans=replans,
            ended_replans=ended_replans,
            waits={},
            trigger=event.trigger,
            was_busy=False,
            stalls=replace(self.now.stalls, window_us=event.window_us, lateness_us=event.lateness_us),
        )
        for kind, name, problem in event.unreadable:
            self._alarm("journal", f"{kind} {name} cannot be read and is left alone: {problem}")
        for rebalance in rebalances:
            self._close_if_over(rebalance)

    def _close_if_over(self, rebalance: Rebalance) -> None:
        """A rebalance whose migrations have all ended, or whose journal is gone, is not under way."""
        state = outcome_of(self._parts(rebalance))
        if state is None:
            return
        ended = replace(rebalance, state=state, closed_ms=self.now_ms)
        self.now = self.now.with_rebalance(ended)
        self._write(rebalances=(ended,))

    def _parts(self, rebalance: Rebalance) -> list[Migration]:
        known = {each.id: each for each in (*self.now.ended, *self.now.migrations)}
        return [known[name] for name in rebalance.migrations if name in known]

    def records_lost(self, event: RecordsLost) -> None:
        migrations = tuple(
            each for each in (*self.now.ended, *self.now.migrations) if event.migrations.get(each.id) != each
        )
        rebalances = tuple(
            each for each in (*self.now.ended_rebalances, *self.now.rebalances) if event.rebalances.get(each.id) != each
        )
        replans = self._lost_replans(event.replans)
        names = [each.id for each in migrations] + [each.id for each in rebalances] + [each.id for each in replans]
        if migrations or rebalances or replans:
            self._write(migrations=migrations, rebalances=rebalances, replans=replans)
        self._alarm("journal-lost", f"Redis went back; records written again: {', '.join(names) or 'none'}")

    # -- learning from committed batches

    def batch_committed(self, event: BatchCommitted) -> None:
        batch = event.batch
        self._agree_with(batch.bound)
        self._audit([batch], event.workers)
        for migration in self.now.migrations:
            self._tell_migration(migration, batch)
        self._tell_replans(batch)
        stalls, notices = self.now.stalls.look(batch, self.now.migrations, self.now_ms)
        self.now = replace(self.now, stalls=stalls)
        if notices:
            self._write(events=tuple(notices))

    def batches_missed(self, event: BatchesMissed) -> None:
        self._audit(event.batches, event.workers)

    def _tell_migration(self, migration: Migration, batch: CommittedBatch) -> None:
        # An event may follow from what another one changed (steps 4, 5 and 6 are learnt together).
        for event in observe(migration, batch, taken_groups(self.now.migrations, migration.id)):
            if self.now.migration(migration.id) is not None:
                self._handle(event)

    def _agree_with(self, bound: Epoch) -> None:
        """Redis may have lost writes, or all of them: the bound epoch is right."""
        self._enact(reconcile(self.now.migrations, bound, self.now_ms))
        adopted = adopt(bound, [*self.now.ended, *self.now.migrations], self.now_ms)
        if adopted:
            self._alarm("journal-lost", f"migrations made again from epoch {bound.number}")
            self._enact(adopted)

    def _audit(self, batches: Sequence[CommittedBatch], workers: int) -> None:
        changed: list[Migration] = []
        alarms: list[Notice] = []
        # One that has ended is looked at for some batches more.
        ended = (each for each in self.now.ended if not each.audit.finished)
        for migration in (*ended, *self.now.migrations):
            audit = migration.audit
            for batch in batches:
                audit = audit.add(migration.id, batch, workers)
            if audit != migration.audit:
                changed.append(replace(migration, audit=audit))
                known = len(migration.audit.problems)
                alarms += [
                    Notice(kind="audit", text=f"migration {migration.id}: {problem}")
                    for problem in audit.problems[known:]
                ]
        if changed:
            self.now = self.now.holding(*changed)
            events = tuple(Notice(kind="alarm", text=alarm.text, data={"kind": "audit"}) for alarm in alarms)
            self._write(migrations=tuple(changed), alarms=tuple(alarms), events=events)

    # -- doing what the protocols say

    def _handle(self, event: Event, request: str | None = None) -> None:
        """Tell a migration; `request` is answered by the same durable write."""
        migration = self.now.migration(event.migration)
        assert migration is not None
        try:
            self._enact(migration.handle(event), request)
        except ProtocolError as error:
            self._alarm("protocol", str(error))
            self._enact([], request)

    def _enact(self, steps: Sequence[Step], request: str | None = None) -> None:
        """Each journaled step with what is to be told about it: one durable write, then it holds."""
        for step, tells, is_last in _grouped(steps):
            answered = request if is_last else None
            if step is None:
                events = tuple(Notice(kind=t.kind, text=t.text, data={"migration": t.migration}) for t in tells)
                self._write(events=events, request=answered)
            else:
                self._journal(step, tells, answered)
        if request is not None and not steps:
            self._write(request=request)

    def _journal(self, step: JournalStep, tells: Sequence[Tell], request: str | None) -> None:
        migration = step.migration
        line = migration.story[-1]
        data = {
            "migration": migration.id,
            "rebalance": migration.rebalance,
            "strategy": migration.strategy,
            "wave": line.wave,
            "step": line.step,
            "message": line.message,
            "state": line.state,
        }
        text = f"{migration.id}: {line.render().partition(' ')[2]}"
        events = [Notice(kind="step", text=text, data=data)]
        events += [Notice(kind=tell.kind, text=tell.text, data={"migration": tell.migration}) for tell in tells]
        rebalance = self._ended_with(migration)
        self.now = self.now.holding(migration)
        if rebalance is not None:
            self.now = self.now.with_rebalance(rebalance)
        self._write(
            migrations=(migration,),
            rebalances=() if rebalance is None else (rebalance,),
            request=request,
            events=tuple(events),
            point=step.point,
        )

    def _ended_with(self, migration: Migration) -> Rebalance | None:
        """The rebalance that ends with this migration, if it is the last one of it."""
        rebalance = next((each for each in self.now.rebalances if each.id == migration.rebalance), None)
        if rebalance is None:
            return None
        others = [each for each in self._parts(rebalance) if each.id != migration.id]
        state = outcome_of([migration, *others])
        return None if state is None else replace(rebalance, state=state, closed_ms=self.now_ms)

    # -- requests

    def moves_asked(self, event: MovesAsked) -> None:
        """Grant or refuse, checked against the query as it is now."""
        if event.known is not None and event.known.state != "requested":
            self._write(request=event.text)  # a duplicate
            return
        situation = replace(event.situation, migrations=self.now.migrations)
        try:
            check(event.request, situation)
            check_proposal(event.request, event.proposal, situation)
        except Refused as refused:
            self._refuse(requested(event.request), refused, event.text)
            return
        self._start(event.request, situation, event.snapshot, event.text)

    def _start(
        self, request: RebalanceRequest, situation: Situation, snapshot: Snapshot | None, text: str | None, **more: Any
    ) -> None:
        """Journal a rebalance that was granted. Its migrations begin in this turn, their audits with the next batch."""
        accepted = accept(request, situation, snapshot, self.now_ms)
        audit = MigrationAudit(newest_batch=situation.committed)
        migrations = tuple(replace(each, audit=audit) for each in accepted.migrations)
        rebalance = accepted.rebalance
        self.now = self.now.holding(*migrations).with_rebalance(rebalance)
        begins = f"{rebalance.id} begins: {rebalance.reason}"
        self._write(
            migrations=migrations,
            rebalances=(rebalance,),
            request=text,
            events=(Notice(kind="rebalance", text=begins, data={"rebalance": rebalance.id}),),
            point="rebalance",
            **more,
        )

    def _refuse(self, record: Rebalance, refused: Refused, text: str) -> None:
        closed = replace(record, state="refused", closed_ms=self.now_ms, refusal=refused.to_json())
        data = {"rebalance": record.id}
        self._write(
            rebalances=(closed,),
            request=text,
            events=(Notice(kind="refused", text=f"{record.id}: {refused}", data=data),),
        )

    def cancel_asked(self, event: CancelAsked) -> None:
        request = event.request
        wanted = [
            each.id
            for each in self.now.migrations
            if request.migration == each.id or (request.rebalance and request.rebalance == each.rebalance)
        ]
        for name in wanted:
            cancel = CancelRequested(migration=name, now_ms=self.now_ms, cause=request.reason, by=request.by)
            self._handle(cancel, event.text if name == wanted[-1] else None)
        if not wanted:
            name = request.migration or request.rebalance or ""
            notice = Notice(kind="refused", text=f"{name} is not under way", data={"cancel": name})
            self._write(request=event.text, events=(notice,))

    def request_failed(self, event: RequestFailed) -> None:
        """Whoever asked is told, if there is a record to tell it in."""
        if event.replan is not None and event.replan.state == "requested":
            remedy = "Look at the request; the manager's log says where it went wrong."
            problem = f"cannot be carried out: {event.problem}"
            self._refuse_replan(event.replan, Refused("request", event.name, problem, remedy), event.text)
        elif event.known is not None and event.known.state == "requested":
            remedy = "Look at the request; the manager's log says where it went wrong."
            problem = f"cannot be carried out: {event.problem}"
            self._refuse(event.known, Refused("request", event.name, problem, remedy), event.text)
        else:
            notice = Notice(kind="refused", text=f"{event.name or 'request'}: {event.problem}")
            self._write(request=event.text, events=(notice,))
        name = event.name or event.text[:80]
        self._alarm("request", f"request {name} was refused, since it cannot be read or done: {event.problem}")

    # -- the balancer's own decisions

    def load_weighed(self, event: LoadWeighed) -> None:
        """Act if it is time to. Never while anything is under way: its end is another load."""
        if self.now.rebalances or self.now.migrations or self.now.replans:
            self.now = replace(self.now, was_busy=True, planner=self.now.planner.interrupted())
            return
        if self.now.was_busy:
            # Whatever ended, by hand or not, the load has to be measured anew before anything follows from it.
            rest = resting(event.settings, self.now_ms, balancing=self.now.trigger.balancing)
            self.now = replace(self.now, was_busy=False, trigger=rest)
        # Plans before moves in the same round: a better plan changes the load that moves would be made for.
        waiting = self._plans_first(event)
        if self.now.replans:
            return
        if event.snapshot is None:
            return
        decision = decide(event.snapshot, event.settings, self.now.trigger, self.now_ms)
        if decision.act and waiting:
            why = (
                f"{decision.why} But first worker {waiting[0].worker} is about to get a better plan: {waiting[0].text}."
            )
            decision = replace(decision, act=False, code="plans-first", why=why)
        if decision.act:
            self._add(
                Propose(then=self.now, decision=decision, snapshot=event.snapshot, settings=event.settings),
            )
            return
        self.now = replace(self.now, trigger=decision.state)
        self._write(decision=decision)

    def proposed(self, event: Proposed) -> None:
        settings, proposal = event.settings, event.proposal
        decision = worth_doing(event.decision, proposal, settings, self.now_ms)
        self.now = replace(self.now, trigger=decision.state)
        if not decision.act:
            self._write(decision=decision)
            return
        request = RebalanceRequest(
            id=event.request_id,
            query=self.now.query,
            moves=tuple(
                MoveRequest(sender=move.sender, receiver=move.receiver, groups=move.groups) for move in proposal.moves
            ),
            strategy=proposal.choice.strategy,
            max_pause_ms=settings.max_pause_ms,
            reason=decision.why,
            by=BALANCER,
            proposal=proposal.id,
            automatic=True,
            at_ms=self.now_ms,
        )
        situation = replace(event.situation, migrations=self.now.migrations)
        try:
            check(request, situation)
            check_proposal(request, proposal, situation)
        except Refused as refused:
            self.now = replace(self.now, trigger=resting(settings, self.now_ms))
            notice = Notice(kind="refused", text=f"{request.id}: {refused}", data={"proposal": proposal.id})
            self._write(decision=decision, proposal=proposal, events=(notice,))
            return
        self._start(request, situation, event.snapshot, None, decision=decision, proposal=proposal)

    # -- the end of a turn

    def turn_ends(self, event: TurnEnds) -> None:
        for migration in self.now.migrations:
            if migration.state == State.NEW:
                self._handle(Begin(migration=migration.id, now_ms=self.now_ms, cause=migration.reason))
        self._allow_orders(event.bound)
        self._allow_waves(event)
        self._publish(event)

    def _allow_waves(self, event: TurnEnds) -> None:
        """The next groups of each migration go as soon as those before are where they belong, and its executors have
        room for them. In turn: who has had the fewest waves comes first."""
        yielded_to = self._yielded_to
        wanting = [
            each
            for each in self.now.migrations
            if each.wants_wave and not (each.table.ships and {each.sender, each.receiver} & yielded_to)
        ]
        for migration in sorted(wanting, key=lambda each: (len(each.waves), each.created_ms, each.id)):
            groups = migration.remaining
            if migration.table.paced:
                groups = self._next_wave(migration, event.snapshot) if event.snapshot is not None else ()
            if groups:
                allowed = WaveAllowed(
                    migration=migration.id,
                    groups=groups,
                    epoch=event.bound.number,
                    now_ms=self.now_ms,
                    cause=f"{len(groups)} of {len(migration.remaining)} groups",
                )
                self._handle(allowed)

    def _next_wave(self, migration: Migration, snapshot: Snapshot) -> tuple[int, ...]:
        """As much as the fuller of its two executors has room for, beside all that is under way there."""
        used: dict[str, float] = {}
        for each in self.now.migrations:
            shipping = [wave for wave in each.waves if wave.state in each.table.shipping]
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

    def _publish(self, event: TurnEnds) -> None:
        """The epoch that all states together mean; only when the newest one is bound, so that none is skipped."""
        current = event.situation.epoch
        if current != event.bound:
            return
        try:
            epoch = compose(current, self.now.migrations, self.now.fence, self.now.replans)
        except NotComposable as error:
            self._alarm("protocol", str(error))
            return
        if epoch is not None:
            self._add(PublishEpoch(then=self.now, epoch=epoch))


def _grouped(steps: Sequence[Step]) -> list[tuple[JournalStep | None, list[Tell], bool]]:
    """Each journaled step with the tells that follow it; tells without a step come first, by themselves."""
    groups: list[tuple[JournalStep | None, list[Tell]]] = []
    for step in steps:
        if isinstance(step, JournalStep):
            groups.append((step, []))
        elif groups:
            groups[-1][1].append(step)
        else:
            groups.append((None, [step]))
    return [(step, tells, index == len(groups) - 1) for index, (step, tells) in enumerate(groups)]


_HANDLERS: Final[dict[type[Happening], Callable[[_Turn, Any], None]]] = {
    Led: _Turn.led,
    Loaded: _Turn.loaded,
    RecordsLost: _Turn.records_lost,
    QueryStopped: _Turn.stopped,
    QueryRuns: _Turn.runs,
    BatchCommitted: _Turn.batch_committed,
    BatchesMissed: _Turn.batches_missed,
    MovesAsked: _Turn.moves_asked,
    CancelAsked: _Turn.cancel_asked,
    ReplanAsked: _Turn.replan_asked,
    ReplanCancelAsked: _Turn.replan_cancel_asked,
    RequestFailed: _Turn.request_failed,
    LoadWeighed: _Turn.load_weighed,
    Proposed: _Turn.proposed,
    TurnEnds: _Turn.turn_ends,
}
