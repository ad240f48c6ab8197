"""The manager of the search: the production `Steering`, and a queue of its instructions.

A turn tells steering of what happened, in the order of balancing/turn.py. Every instruction that leaves a
trace is a step of the world, so that a manager may die, be fenced or meet another Redis before each of them. What the
scripts in Redis refuse is refused here: writes of a manager without the lease, writes on top of a Redis that went back,
epochs that leave a gap.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from balancing.committed import CommittedBatch
from balancing.happenings import Happening
from balancing.protocols.migration import Migration
from balancing.protocols.table import State
from balancing.replans.replan import Replan
from balancing.replans.requests import ReplanRequest
from balancing.replans.table import YIELDED_TO
from balancing.replans.table import State as ReplanState
from balancing.requests import Rebalance
from balancing.steering import Steering
from balancing.turn import Part
from tests.checkers.epochs import wrong_between, wrong_with
from tests.simulation import leading
from tests.simulation.canonical import NOTHING, Do, Interned
from tests.simulation.leading import Look
from tests.simulation.plane import Wrong
from tests.simulation.world import DOWN, QUERY, WORKERS, Mind, Redis, Scenario, Values, View
from trimtab.epochs import Epoch, breaks_between, check_epoch
from trimtab.moves import Kind

Answer = tuple[tuple[int, ...], int]
"""Instructions that leave a trace, and the steering that holds in the end."""
R = TypeVar("R", Migration, Rebalance, Replan)


class MindStep(NamedTuple):
    """What a manager does next."""

    label: str
    redis: int
    mind: int
    wrote: bool = False


class Managing:
    """What managers do. All of it is pure, so all of it is worked out once."""

    def __init__(self, scenario: Scenario, values: Values) -> None:
        self.scenario, self.values = scenario, values
        self.snapshot = leading.snapshot_of(scenario.groups, WORKERS, single_waves=scenario.single_waves)
        self.asked = {each.id: each for each in scenario.requests}
        self.points: set[str] = set()
        """Durable writes that were made, by name."""
        self.cancelled: set[tuple[str, State]] = set()
        """Protocols and states in which somebody cancelled."""
        self.plans_cancelled: set[ReplanState] = set()
        """States of changes of plans in which somebody cancelled."""
        self._handled: dict[tuple[int, int, int], Answer] = {}
        self._asked: dict[tuple[object, ...], Answer] = {}
        self._cancelled: dict[tuple[int, str], tuple[int, ...]] = {}
        self._paths: dict[tuple[object, ...], tuple[Mind, tuple[tuple[int, int], ...]]] = {}
        self._steps: dict[tuple[int, int, bool, int], MindStep | None] = {}
        self._follows: set[tuple[int, int]] = set()

    # -- what steering says

    def look(self, number: int) -> Look:
        view, newest = self.values.looks[number]
        epoch = None if newest == NOTHING else self.values.epochs[newest]
        return Look(None if view == NOTHING else self._batch_of(self.values.views[view]), epoch, WORKERS)

    def _batch_of(self, view: View) -> CommittedBatch:
        """What the manager reads from Redis."""
        epoch = self.values.epochs[view.bound]
        problem = "the store is full" if view.refused else ""
        told = sorted(view.told)
        reports = {
            worker: leading.report_of(
                worker, view.clock, epoch, told, store_problem=problem, order=view.plans[worker] if view.plans else None
            )
            for worker in range(WORKERS)
            if worker not in view.missing
        }
        return CommittedBatch(batch=view.clock, bound=epoch, at_ms=0, reports=reports)

    def handled(self, steering: int, look: int, position: int) -> Answer:
        key = (steering, look, position)
        answer = self._handled.get(key)
        if answer is None:
            answer = self._handled[key] = self._handle(steering, look, position)
            if answer[0] and leading.turn_of(self.look(look))[position] == Part.BATCH:
                # A batch says what is, not what has changed: handled again, it changes nothing.
                again, _ = self._handle(answer[1], look, position)
                if again:
                    raise Wrong(f"a batch that is handled again changes {[self.values.dos[each] for each in again]}")
        return answer

    def _handle(self, steering: int, look: int, position: int) -> Answer:
        before, seen = self.values.steerings[steering], self.look(look)
        part = leading.turn_of(seen)[position]
        return self._answer(steering, leading.happening_at(part, before, seen, self.snapshot))

    def _answer(self, steering: int, happening: Happening | None) -> Answer:
        if happening is None:
            return (), steering
        instructions = self.values.steerings[steering].handle(happening)
        durable, held = self.values.instructions(steering, instructions)
        return tuple(map(self.values.dos.of, durable)), held

    def ask(
        self, steering: int, look: int, request: int, rebalances: tuple[int, ...], replans: tuple[int, ...]
    ) -> Answer:
        """The first request of the list is taken up."""
        key = (steering, look, request, rebalances, replans)
        if key not in self._asked:
            text = self.values.requests[request]
            known = {each.id: each for each in map(self.values.rebalances.__getitem__, rebalances)}
            at, seen, asked = self.values.steerings[steering], self.look(look), self.asked[text]
            happening: Happening | None
            if isinstance(asked, ReplanRequest):
                records = {each.id: each for each in map(self.values.replans.__getitem__, replans)}
                happening = leading.replan_asked(asked, text, at, seen, records)
            else:
                happening = leading.moves_asked(asked, text, at, seen, self.snapshot, known)
            self._asked[key] = self._answer(steering, happening)
        return self._asked[key]

    def cancel(self, steering: int, migration: str) -> tuple[int, ...]:
        key = (steering, migration)
        if key not in self._cancelled:
            at = self.values.steerings[steering]
            self.cancelled |= {(each.strategy, each.state) for each in at.migrations if each.id == migration}
            self._cancelled[key] = self._answer(steering, leading.cancel_asked(QUERY, migration, ""))[0]
        return self._cancelled[key]

    def cancel_replan(self, steering: int, replan: str) -> tuple[int, ...]:
        key = (steering, replan)
        if key not in self._cancelled:
            at = self.values.steerings[steering]
            self.plans_cancelled |= {each.state for each in at.replans if each.id == replan}
            self._cancelled[key] = self._answer(steering, leading.replan_cancel_asked(QUERY, replan, ""))[0]
        return self._cancelled[key]

    def path(self, steering: int, look: int, position: int, redis: Redis) -> tuple[Mind, tuple[tuple[int, int], ...]]:
        """The turn, up to the next instruction that leaves a trace; and where on the way a cancel might come in."""
        requests, rebalances = redis.requests, redis.rebalances if redis.requests else ()
        replans = redis.replans if redis.requests else ()
        key = (steering, look, position, requests, rebalances, replans)
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = self._path(steering, look, position, requests, rebalances, replans)
        return path

    def _path(
        self,
        steering: int,
        look: int,
        position: int,
        requests: tuple[int, ...],
        rebalances: tuple[int, ...],
        replans: tuple[int, ...],
    ) -> tuple[Mind, tuple[tuple[int, int], ...]]:
        cancels: list[tuple[int, int]] = []
        turn = leading.turn_of(self.look(look))
        while position < len(turn):
            if turn[position] == Part.REQUESTS:
                todo, _ = self.ask(steering, look, requests[0], rebalances, replans) if requests else ((), steering)
                if todo:
                    return Mind(steering, look, position, todo), tuple(cancels)
                cancels.append((steering, position + 1))
            else:
                todo, held = self.handled(steering, look, position)
                if todo:
                    return Mind(steering, look, position + 1, todo), tuple(cancels)
                steering = held
            position += 1
        return Mind(steering), tuple(cancels)

    # -- steps

    def step(self, redis: int, mind: int, *, strict: bool, ghost: int = DOWN) -> MindStep | None:
        """What a manager does next in a world with this Redis; None: nothing.

        `strict`: Redis has forgotten nothing, so what people were told must stay true. `ghost`: another manager, which
        has its name already.
        """
        key = (redis, mind, strict, ghost if mind == DOWN else DOWN)
        if key not in self._steps:
            self._steps[key] = self._step(*key)
        return self._steps[key]

    def _step(self, redis: int, number: int, strict: bool, ghost: int) -> MindStep | None:
        mind = self.values.minds[number]
        if mind is None:
            other = self.values.minds[ghost]
            return self._start(redis, 0 if other is None else 1 - other.holder)
        if self.is_fenced(mind, self.values.redises[redis]):
            return MindStep("fenced: the manager stands down", redis, DOWN)
        return self._execute(redis, mind, strict) if mind.todo else self._turn(redis, mind)

    def is_fenced(self, mind: Mind, redis: Redis) -> bool:
        """Another manager leads; or, as far as is seen when a turn begins, has led: no batch would be bound to ours."""
        fence = self.values.steerings[mind.steering].fence
        leads = (mind.holder, fence) == (redis.holder, redis.fence)
        return self.scenario.fenced and not (leads and (mind.todo or fence >= self._newest_fence(redis)))

    def _newest_fence(self, redis: Redis) -> int:
        bound = NOTHING if redis.view == NOTHING else self.values.views[redis.view].bound
        return max((self.values.epochs[each].fence for each in (redis.newest, bound) if each != NOTHING), default=0)

    def _start(self, number: int, holder: int) -> MindStep | None:
        """A manager gets the lease and reads the journal; it needs to know what is bound."""
        redis = self.values.redises[number]
        if redis.view == NOTHING or redis.newest == NOTHING:
            return None
        fence = max(redis.fence, self._newest_fence(redis)) + 1
        look = self.values.looks.of((redis.view, redis.newest))
        ignorant = self.values.steering(Steering(query=QUERY))
        _, knowing = self._answer(ignorant, leading.led("manager", fence))
        migrations, rebalances = self._records(redis)
        replans = [self.values.replans[each] for each in redis.replans]
        todo, held = self._answer(knowing, leading.loaded(self.look(look), migrations, rebalances, replans=replans))
        mind = Mind(knowing, look, 0, todo) if todo else Mind(held)
        mind = mind._replace(holder=holder)
        led = self.values.redises.of(redis._replace(holder=holder, fence=fence))
        return MindStep("manager starts", led, self.values.mind(mind))

    def _records(self, redis: Redis) -> tuple[list[Migration], list[Rebalance]]:
        migrations = [self.values.migrations[each] for each in redis.migrations]
        return migrations, [self.values.rebalances[each] for each in redis.rebalances]

    def _execute(self, redis: int, mind: Mind, strict: bool) -> MindStep:
        """The manager's next durable write; it holds what follows from it only from then on."""
        do = self.values.dos[mind.todo[0]]
        if do.epoch == NOTHING and not mind.synced:
            stopped = self.values.mind(Mind(mind.steering, holder=mind.holder, synced=False))
            return MindStep("Redis went back: nothing is written", redis, stopped)
        after = self.written(redis, mind, do, strict=strict)
        if len(mind.todo) > 1:
            following = mind._replace(steering=do.then, todo=mind.todo[1:])
        else:
            # The turn goes on: to the next instruction, or to its end.
            following, _ = self.path(do.then, mind.look, mind.position, self.values.redises[after])
            following = following._replace(holder=mind.holder, synced=mind.synced)
        epoch = f"publish {self.values.epochs[do.epoch].number}" if do.epoch != NOTHING else ""
        return MindStep(epoch or f"write {do.point or 'records'}", after, self.values.mind(following), wrote=True)

    def _turn(self, number: int, mind: Mind) -> MindStep | None:
        """The manager looks."""
        redis = self.values.redises[number]
        look = self.values.looks.of((redis.view, redis.newest))
        if not mind.synced and redis.view != NOTHING:
            replans = [self.values.replans[each] for each in redis.replans]
            todo, held = self._answer(mind.steering, leading.records_lost(*self._records(redis), replans=replans))
            after = Mind(mind.steering, look, 0, todo) if todo else Mind(held)
            return MindStep("manager puts Redis right", number, self.values.mind(after._replace(holder=mind.holder)))
        after, _ = self.path(mind.steering, look, 0, redis)
        after = after._replace(holder=mind.holder, synced=mind.synced)
        return MindStep("look", number, self.values.mind(after)) if after != mind else None

    def written(self, redis: int, mind: Mind, do: Do, *, strict: bool) -> int:
        """Redis after a fixed script's effect. Another epoch under a number that is taken, or a gap, is refused."""
        before = self.values.redises[redis]
        if do.epoch != NOTHING:
            return self.values.redises.of(self._published(before, do.epoch, strict))
        self.points.add(do.point)
        if strict:
            self._check_outcomes(mind, do)
        requests = before.requests
        if do.request in requests:
            requests = tuple(each for each in requests if each != do.request)
        return self.values.redises.of(
            before._replace(
                migrations=_updated(before.migrations, do.migrations, self.values.migrations),
                rebalances=_updated(before.rebalances, do.rebalances, self.values.rebalances),
                replans=_updated(before.replans, do.replans, self.values.replans),
                requests=requests,
            )
        )

    def _published(self, redis: Redis, number: int, strict: bool) -> Redis:
        epoch = self.values.epochs[number]
        if redis.newest != NOTHING:
            newest = self.values.epochs[redis.newest]
            if epoch.number != newest.number + 1:
                return redis
            if strict:
                self._check_plans(newest, epoch, [self.values.replans[each] for each in redis.replans])
            if (redis.newest, number) not in self._follows:
                # Redis may have gone back to another epoch of this number since the manager looked; the script does not
                # see that, the driver does.
                if strict or epoch.predecessor == newest.digest:
                    self._check_follows(newest, epoch)
                self._follows.add((redis.newest, number))
        return redis._replace(newest=number)

    def _check_follows(self, newest: Epoch, epoch: Epoch) -> None:
        for problem in (*breaks_between(newest, epoch), *wrong_with(epoch), *wrong_between(newest, epoch)):
            raise Wrong(f"published: {problem}")
        check_epoch(epoch, self.scenario.groups, WORKERS)

    def _check_plans(self, newest: Epoch, epoch: Epoch, replans: list[Replan]) -> None:
        """No plan is ordered while a wave of MSLB is open at its worker; and the next wave yields to an order."""
        for order in epoch.plans:
            before = newest.order(order.worker)
            waves = [move for move in newest.moves if move.kind == Kind.TRANSFER and move.side_of(order.worker)]
            if order.id.endswith(".p1") and (before is None or before.id != order.id) and waves:
                raise Wrong(f"{order.id} is given while {waves[0].id} is open")
        yielded_to = {each.worker for each in replans if each.state in YIELDED_TO and newest.order(each.worker) is None}
        for move in epoch.moves:
            if (
                move.kind == Kind.TRANSFER
                and newest.move(move.id) is None
                and {move.sender, move.receiver} & yielded_to
            ):
                raise Wrong(f"{move.id} begins although a plan order waits")

    def _check_outcomes(self, mind: Mind, do: Do) -> None:
        """The end that people were told of stays, and beyond the point of no return the way is forward."""
        steering = self.values.steerings[mind.steering]
        known = {each.id: each for each in (*steering.ended, *steering.migrations)}
        for changed in map(self.values.migrations.__getitem__, do.migrations):
            before = known.get(changed.id, changed)
            if before.done and not changed.done:
                raise Wrong(f"{changed.id} had ended, and goes on")
            for old, new in zip(before.waves, changed.waves, strict=False):
                if old.state == changed.table.closing and new.state not in (old.state, State.COMMITTED):
                    raise Wrong(f"{changed.id} was beyond the point of no return, and is {new.state}")


def _updated(known: tuple[int, ...], changed: tuple[int, ...], values: Interned[R]) -> tuple[int, ...]:
    """Records with others of the same ids in their places."""
    if not changed:
        return known
    by_id = {values[each].id: each for each in (*known, *changed)}
    return tuple(by_id[name] for name in sorted(by_id))
