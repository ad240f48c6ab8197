"""What steering does about plans in a turn: requests, what batches say, and when an order may be given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from balancing.bookkeeping import Bookkeeping
from balancing.committed import CommittedBatch
from balancing.happenings import Loaded, LoadWeighed, ReplanAsked, ReplanCancelAsked
from balancing.instructions import Notice
from balancing.replans.advice import Change
from balancing.replans.events import CancelRequested, Event, OrderAllowed
from balancing.replans.observe import observe
from balancing.replans.reconcile import adopt, reconcile
from balancing.replans.replan import Instruction, JournalStep, Replan, ReplanError, Tell, parse_order_id, replan_at
from balancing.replans.requests import ReplanRequest, accepted, asked_for, check_replan
from balancing.replans.table import YIELDED_TO, State
from balancing.replans.trigger import weigh
from balancing.replans.waits import look
from balancing.requests import Refused
from balancing.settings import Settings
from balancing.situation import Situation
from trimtab.epochs import Epoch
from trimtab.moves import Kind

OPTIMISER = "optimiser"
"""Who asks, where nobody did."""
KIND = "replan"
"""Of events about a change of plans."""


class ReplanTurn(Bookkeeping):
    """The part of a turn that is about plans."""

    # -- knowing

    def _load_replans(self, event: Loaded) -> tuple[tuple[Replan, ...], tuple[Replan, ...]]:
        """Those under way; and of those that ended whose order the epoch has, and the newest of each worker.

        The bound epoch that is known now may be an old one: the next batch may show an order of the newest.
        """
        names = {name[0] for order in event.bound.plans if (name := parse_order_id(order.id)) is not None}
        taken_up = [each for each in event.replans.values() if each.state not in (State.REQUESTED, State.REFUSED)]
        newest: dict[int, Replan] = {}
        for each in sorted((each for each in taken_up if each.done), key=lambda each: (each.created_ms, each.id)):
            newest[each.worker] = each
        names |= {each.id for each in newest.values()}
        under_way = tuple(each for each in taken_up if not each.done)
        return under_way, tuple(each for each in taken_up if each.done and each.id in names)

    def _lost_replans(self, left: Mapping[str, Replan]) -> tuple[Replan, ...]:
        """Those that Redis does not have as they are known here."""
        return tuple(each for each in (*self.now.ended_replans, *self.now.replans) if left.get(each.id) != each)

    # -- learning from committed batches

    def _tell_replans(self, batch: CommittedBatch) -> None:
        self._enact_plans(reconcile(self.now.replans, batch.bound, self.now_ms))
        adopted = adopt(batch, [*self.now.ended_replans, *self.now.replans], self.now_ms)
        if adopted:
            self._alarm("journal-lost", f"replans made again from epoch {batch.bound.number}")
            self._enact_plans(adopted)
        for replan in self.now.replans:
            for event in observe(replan, batch, self.now_ms):
                self._handle_plan(event)
        patience_ms = self.now.stalls.patience_ms
        waits, stood_still = look(self.now.waits, self.now.replans, batch, patience_ms, self.now_ms)
        self.now = self.now.waiting(waits)
        for event in stood_still:
            self._handle_plan(event)

    # -- doing what the machine says

    def _handle_plan(self, event: Event, request: str | None = None) -> None:
        """Tell a replan; `request` is answered by the same durable write."""
        replan = self.now.replan(event.replan)
        if replan is None:
            return
        try:
            self._enact_plans(replan.handle(event), request)
        except ReplanError as error:
            self._alarm("protocol", str(error))
            self._enact_plans([], request)

    def _enact_plans(self, steps: Sequence[Instruction], request: str | None = None) -> None:
        for number, step in enumerate(steps):
            if isinstance(step, Tell):
                # What ended is told with the write that ended it.
                if not (number and isinstance(steps[number - 1], JournalStep)):
                    notice = Notice(kind=step.kind, text=step.text, data={"replan": step.replan})
                    self._write(events=(notice,), request=request)
                    request = None
                continue
            self.now = self.now.holding_replans(step.replan)
            if step.replan.done:
                self.now = replace(self.now, planner=self.now.planner.ended(step.replan.worker, self.now_ms))
            following = steps[number + 1] if number + 1 < len(steps) else None
            told = [_notice(step.replan)]
            if isinstance(following, Tell):
                told.append(Notice(kind=following.kind, text=following.text, data={"replan": following.replan}))
            self._write(replans=(step.replan,), events=tuple(told), point=step.point, request=request)
            request = None
        if request is not None:
            self._write(request=request)

    # -- requests

    def replan_asked(self, event: ReplanAsked) -> None:
        """Grant or refuse, checked against the query as it is now."""
        if event.known is not None and event.known.state != State.REQUESTED:
            self._write(request=event.text)  # a duplicate
            return
        situation = replace(event.situation, replans=self.now.replans)
        try:
            check_replan(event.request, situation, event.memory_max)
        except Refused as refused:
            self._refuse_replan(asked_for(event.request), refused, event.text)
            return
        self._start_replan(event.request, situation, event.text)

    def _start_replan(self, request: ReplanRequest, situation: Situation, text: str | None) -> None:
        replan = accepted(request, situation)
        (step,) = replan.noted("Accept", self.now_ms, replan.reason)
        assert isinstance(step, JournalStep)
        self.now = self.now.holding_replans(step.replan)
        begins = f"{replan.id} begins: worker {replan.worker} from {replan.former} to {replan.plan} ({replan.strategy})"
        notice = Notice(kind=KIND, text=begins, data=_about(step.replan))
        self._write(replans=(step.replan,), request=text, events=(notice,), point=KIND)

    def _refuse_replan(self, record: Replan, refused: Refused, text: str | None) -> None:
        closed = replace(
            record, state=State.REFUSED, closed_ms=self.now_ms, refusal=refused.to_json(), problem=str(refused)
        )
        notice = Notice(kind="refused", text=f"{record.id}: {refused}", data={"replan": record.id})
        self._write(replans=(closed,), request=text, events=(notice,))

    def replan_cancel_asked(self, event: ReplanCancelAsked) -> None:
        request = event.request
        if self.now.replan(request.replan) is None:
            notice = Notice(kind="refused", text=f"{request.replan} is not under way", data={"cancel": request.replan})
            self._write(request=event.text, events=(notice,))
            return
        cancel = CancelRequested(replan=request.replan, now_ms=self.now_ms, cause=request.reason, by=request.by)
        self._handle_plan(cancel, event.text)

    # -- the optimiser's own decisions

    def _plans_first(self, event: LoadWeighed) -> tuple[Change, ...]:
        """Begin the changes that are due; those that are worth it, and have to wait for a while yet."""
        settings, situation = event.settings, event.situation
        if not settings.plans or situation is None or self.now.parked:
            self.now = replace(self.now, planner=self.now.planner.interrupted())
            return ()
        weighed = weigh(event.advice, settings, self.now.planner, situation, self.now_ms)
        self.now = replace(self.now, planner=weighed.trigger)
        for change in weighed.due:
            request = _request_of(change, settings, situation, f"{event.request_id}-w{change.worker}", self.now_ms)
            now = replace(situation, replans=self.now.replans)
            try:
                check_replan(request, now, settings.plan_memory_bytes)
            except Refused as refused:
                # It rests, and is looked at again: the same refusal over and over would help nobody.
                self.now = replace(self.now, planner=self.now.planner.ended(change.worker, self.now_ms))
                self._tell("refused", f"{request.id}: {refused}", worker=change.worker)
            else:
                self._start_replan(request, now, None)
        return weighed.waiting

    # -- beside moves

    def _allow_orders(self, bound: Epoch) -> None:
        """An order waits for a wave of MSLB that is open at its worker: then no state is packed by one plan and taken
        in by another. PTLB ships nothing, so it restricts nothing."""
        busy = {
            worker
            for migration in self.now.migrations
            if migration.table.ships and any(not wave.final for wave in migration.waves)
            for worker in (migration.sender, migration.receiver)
        }
        busy |= {
            worker for move in bound.moves if move.kind == Kind.TRANSFER for worker in (move.sender, move.receiver)
        }
        for replan in self.now.replans:
            first = replan_at(self.now.replans, replan.worker) == replan
            if replan.state == State.WAITING and replan.worker not in busy and first:
                self._handle_plan(
                    OrderAllowed(replan=replan.id, now_ms=self.now_ms, cause=f"after epoch {bound.number}")
                )

    @property
    def _yielded_to(self) -> frozenset[int]:
        """Workers at which the next wave of MSLB waits for a plan order."""
        return frozenset(each.worker for each in self.now.replans if each.state in YIELDED_TO)


def _request_of(change: Change, settings: Settings, situation: Situation, name: str, now_ms: int) -> ReplanRequest:
    auto = settings.plan_strategy == "auto"
    return ReplanRequest(
        id=name,
        query=situation.query,
        worker=change.worker,
        plan=change.plan,
        strategy=change.strategy if auto else settings.plan_strategy,
        budget_ms=settings.plan_budget_ms,
        needed_bytes=change.needed_bytes,
        reason=change.text,
        by=OPTIMISER,
        automatic=True,
        note=f"{change.strategy}: {change.why}" if auto else f"{settings.plan_strategy}: set",
        forecast=change.to_json(),
        at_ms=now_ms,
    )


def _about(replan: Replan) -> dict[str, object]:
    return {
        "replan": replan.id,
        "worker": replan.worker,
        "plan": replan.plan,
        "strategy": str(replan.strategy),
        "state": str(replan.state),
    }


def _notice(replan: Replan) -> Notice:
    return Notice(kind=KIND, text=f"{replan.id}: {replan.story[-1].render()}", data=_about(replan))
