"""A world to search: Redis, a manager (managing.py), a driver (driving.py) and the data plane of plane.py.

One durable write per step. Things that may go wrong are steps like any other, with a budget (faults.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from balancing.replans.replan import parse_order_id
from balancing.replans.table import State
from balancing.steering import Steering
from tests.simulation import plane
from tests.simulation.canonical import NOTHING
from tests.simulation.driving import Driving
from tests.simulation.managing import Managing
from tests.simulation.plane import LUCKY, Luck, Wrong
from tests.simulation.world import (
    DOWN,
    FAULTS,
    LIFE,
    QUERY,
    WORKERS,
    Driver,
    Mind,
    Redis,
    Rest,
    Scenario,
    Values,
    View,
    World,
)
from trimtab.epochs import Epoch, first_epoch

Step = tuple[str, World]
BACKWARDS = Luck(backwards=True)
FORGETTING = ("back", "wipe", "ghost", "fall")


class Budget(NamedTuple):
    """What the budget of a world says."""

    left: frozenset[str]
    """Faults that may still happen."""
    strict: bool
    """Redis has forgotten nothing."""
    keeps: bool
    """Redis may still go back."""


class Model:
    """The steps from one world to the next, as far as nothing goes wrong."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.values = Values()
        self.managing = Managing(scenario, self.values)
        self.driving = Driving(scenario, self.values)
        self._budgets: list[Budget] = []
        self._earlier: dict[tuple[int, int], int] = {}
        self._quiet: dict[tuple[int, int, int, bool], bool] = {}

    def first(self) -> World:
        scenario, values = self.scenario, self.values
        epoch = first_epoch(QUERY, LIFE, (0,) * scenario.groups)
        bound = values.epoch(epoch)
        texts = tuple(values.requests.of(each.id) for each in scenario.requests)
        asked, waiting = ((), texts) if scenario.one_by_one else (texts, ())
        view = values.views.of(View(bound, 0, frozenset()))
        budget = (*(scenario.faults.get(fault, 0) for fault in FAULTS), scenario.total)
        return World(
            redis=values.redises.of(Redis(requests=asked, newest=bound, view=view, fence=1)),
            earlier=values.earlier.of(()),
            mind=values.mind(Mind(values.steering(Steering(query=QUERY, fence=1)))),
            ghost=DOWN,
            driver=values.drivers.of(Driver(bound, epoch.number)),
            plane=values.planes.of(plane.start(epoch.owners, WORKERS, scenario.plan)),
            rest=values.rests.of(Rest(0, waiting, scenario.broken, budget)),
        )

    def budget(self, world: World) -> Budget:
        while len(self._budgets) <= world.rest:
            budget = self.values.rests[len(self._budgets)].budget
            times = dict(zip(FAULTS, budget, strict=False))
            left = frozenset(fault for fault in FAULTS if times[fault] and budget[-1])
            strict = all(times[fault] == self.scenario.faults.get(fault, 0) for fault in FORGETTING)
            self._budgets.append(Budget(left, strict, bool(left & {"back", "stale", "fall"})))
        return self._budgets[world.rest]

    def good_step(self, world: World) -> Step | None:
        """What happens next where nothing goes wrong; from any world, it must lead to the end."""
        return next(self.good_steps(world), None)

    def good_steps(self, world: World) -> Iterator[Step]:
        strict = self.budget(world).strict
        if world.ghost:
            step = self.managing.step(world.redis, world.ghost, strict=strict)
            if step is not None:
                earlier = self.remembered(world) if step.wrote else world.earlier
                yield f"ghost: {step.label}", world._replace(redis=step.redis, earlier=earlier, ghost=step.mind)
        step = self.managing.step(world.redis, world.mind, strict=strict, ghost=world.ghost)
        if step is not None:
            earlier = self.remembered(world) if step.wrote else world.earlier
            yield (
                step.label,
                World(step.redis, earlier, step.mind, world.ghost, world.driver, world.plane, world.rest),
            )
        elif self.values.rests[world.rest].waiting and self.is_quiet(world):
            yield self._ask(world)
        if not self.values.drivers[world.driver].running:
            yield self.driving.bind(world)
            return
        usual = self.driving.commit(world, LUCKY)
        yield "batch", usual
        other = self.driving.commit(world, BACKWARDS)
        if other != usual:
            yield "batch, workers in the opposite order", other

    def remembered(self, world: World) -> int:
        """What Redis may go back to, now that it is written to."""
        if not self.budget(world).keeps:
            return self.values.earlier.of(())
        key = (world.earlier, world.redis)
        number = self._earlier.get(key)
        if number is None:
            earlier = (*self.values.earlier[world.earlier], world.redis)[-self.scenario.back_writes :]
            number = self._earlier[key] = self.values.earlier.of(earlier)
        return number

    def _ask(self, world: World) -> Step:
        """Somebody makes the next request, once all is quiet."""
        rest, redis = self.values.rests[world.rest], self.values.redises[world.redis]
        asked = self.values.redises.of(redis._replace(requests=(*redis.requests, rest.waiting[0])))
        after = self.values.rests.of(rest._replace(waiting=rest.waiting[1:]))
        return "somebody asks", world._replace(redis=asked, rest=after)

    # -- the end

    def is_quiet(self, world: World) -> bool:
        """Nothing is left to be done but to make requests: the manager is idle, everything is bound and committed."""
        strict = self.budget(world).strict
        if world.ghost and self.managing.step(world.redis, world.ghost, strict=strict) is not None:
            return False
        key = (world.redis, world.mind, world.driver, strict)
        quiet = self._quiet.get(key)
        if quiet is None:
            quiet = self._quiet[key] = self._is_quiet(*key)
        return quiet

    def _is_quiet(self, redis_number: int, mind_number: int, driver_number: int, strict: bool) -> bool:
        mind, driver = self.values.minds[mind_number], self.values.drivers[driver_number]
        redis = self.values.redises[redis_number]
        if mind is None or mind.todo or driver.running or redis.view == NOTHING or redis.requests:
            return False
        view = self.values.views[redis.view]
        if not redis.newest == driver.bound == view.bound or view.missing:
            return False
        if self.values.steerings[mind.steering].migrations or self.values.steerings[mind.steering].replans:
            return False
        return self.managing.step(redis_number, mind_number, strict=strict) is None

    def at_the_end(self, world: World) -> bool:
        return not self.values.rests[world.rest].waiting and self.is_quiet(world)

    def _check_plans(self, world: World, epoch: Epoch) -> None:
        """Every worker has settled on the plan that the epoch orders, and every record says how it ended."""
        for worker, follower in enumerate(self.values.planes[world.plane].followers):
            order = epoch.order(worker)
            wanted = (order.id, order.plan) if order is not None else ("", self.scenario.plan)
            if (follower.order, follower.plan) != wanted or follower.left:
                raise Wrong(f"worker {worker} shall have {wanted}, and is at {follower}")
        for record in map(self.values.replans.__getitem__, self.values.redises[world.redis].replans):
            order = epoch.order(record.worker)
            if not record.done:
                raise Wrong(f"all has ended, and the record of {record.id} says that it is {record.state}")
            mine = order is not None and (parse_order_id(order.id) or ("", False))[0] == record.id
            if record.state in (State.COMMITTED, State.CANCELLED) and mine:
                assert order is not None
                if order.plan != record.wanted_plan:
                    raise Wrong(f"{record.id} is {record.state}, and worker {record.worker} shall have {order.plan}")

    def check_end(self, world: World) -> None:
        """Outcome and owners agree, no move is open, and no record says that something is under way."""
        epoch = self.values.epochs[self.values.drivers[world.driver].bound]
        redis = self.values.redises[world.redis]
        if epoch.moves or epoch.questions:
            raise Wrong(f"all migrations have ended, and epoch {epoch.number} has open moves or questions")
        plane.settled(self.values.planes[world.plane], epoch)
        self._check_plans(world, epoch)
        records = [self.values.migrations[each] for each in redis.migrations]
        for record in records:
            if not record.done:
                raise Wrong(f"all migrations have ended, and the record of {record.id} says that it is {record.state}")
            if self.scenario.outcome not in ("", record.outcome):
                raise Wrong(f"{record.id} {record.outcome}")
            others = {group for each in records if each.id != record.id for group in each.chosen}
            for group in set(record.chosen) - others:
                wanted = record.receiver if group in record.moved_groups else record.sender
                if epoch.owners[group] != wanted:
                    raise Wrong(f"{record.id} {record.outcome}, and group {group} is {epoch.owners[group]}'s")
        for rebalance in map(self.values.rebalances.__getitem__, redis.rebalances):
            if rebalance.open:
                raise Wrong(f"all migrations have ended, and rebalance {rebalance.id} is {rebalance.state}")
