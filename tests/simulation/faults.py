"""Things that may go wrong in a world, each a step with a budget."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation import plane
from tests.simulation.canonical import NOTHING
from tests.simulation.driving import both
from tests.simulation.leading import END
from tests.simulation.managing import MindStep
from tests.simulation.model import Model, Step
from tests.simulation.plane import LASTING, LUCKY, Luck, Told
from tests.simulation.world import DOWN, FAULTS, WORKERS, Mind, Redis, Scenario, World
from trimtab.moves import Kind, Way

AT = {fault: index for index, fault in enumerate(FAULTS)}
PASSING = {"full": Luck(full=True), "corrupt": Luck(corrupt=True), "differ": Luck(differ=True)}
"""What may befall a single batch."""
FIRST_VIEW = 0
"""The number of what was to be seen in the beginning."""
RECORDS = 3
"""Migrations, rebalances and replans come first in what there is in Redis."""
ALONE = [frozenset({worker}) for worker in range(WORKERS)]


class FaultyModel(Model):
    """All steps from one world to the next."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._spent: dict[tuple[int, str], int] = {}
        self._cancels: dict[tuple[int, int], tuple[MindStep, ...]] = {}
        self._nothing = self.values.earlier.of(())

    def steps(self, world: World) -> Iterator[Step]:
        yield from self.good_steps(world)
        left = self.budget(world).left
        if not left:
            return
        mind = self.values.minds[world.mind]
        if mind is not None:
            yield from self._manager_faults(world, mind, left)
        if self.values.drivers[world.driver].running:
            yield from self._batch_faults(world, left)
        yield from self._redis_faults(world, mind, left)

    def spent(self, world: World, fault: str) -> World:
        """The same world, in which a fault has happened once more."""
        key = (world.rest, fault)
        number = self._spent.get(key)
        if number is None:
            rest, at = self.values.rests[world.rest], AT[fault]
            budget = tuple(each - 1 if index in (at, len(FAULTS)) else each for index, each in enumerate(rest.budget))
            number = self._spent[key] = self.values.rests.of(rest._replace(budget=budget))
        return World(world.redis, world.earlier, world.mind, world.ghost, world.driver, world.plane, number)

    # -- the manager

    def _manager_faults(self, world: World, mind: Mind, left: frozenset[str]) -> Iterator[Step]:
        if "crash" in left:
            yield "manager stops", self.spent(world, "crash")._replace(mind=DOWN)
        if "ghost" in left and mind.todo and world.ghost == DOWN:
            yield "manager loses its lease", self.spent(world, "ghost")._replace(mind=DOWN, ghost=world.mind)
        redis = self.values.redises[world.redis]
        if not mind.synced or self.managing.is_fenced(mind, redis):
            return
        if "cancel" in left:
            for step in self._cancel_steps(world, mind):
                earlier = self.remembered(world) if step.wrote else world.earlier
                after = world._replace(redis=step.redis, earlier=earlier, mind=step.mind)
                yield step.label, self.spent(after, "cancel")
        if mind.todo or redis.view == NOTHING:
            return
        if "hasty" in left:
            yield from self._with_path(world, mind, redis.view, END, "hasty")
        if "stale" in left:
            views = {self.values.redises[each].view for each in self.values.earlier[world.earlier]}
            for view in sorted({FIRST_VIEW, *views} - {redis.view, NOTHING}):
                yield from self._with_path(world, mind, view, 0, "stale")

    def _with_path(self, world: World, mind: Mind, view: int, position: int, fault: str) -> Iterator[Step]:
        """A turn that begins in the middle, or with an old batch."""
        redis = self.values.redises[world.redis]
        look = self.values.looks.of((view, redis.newest))
        after, _ = self.managing.path(mind.steering, look, position, redis)
        if after.todo:
            label = "end of a turn without a look" if fault == "hasty" else "look at an old batch"
            begun = self.values.mind(after._replace(holder=mind.holder))
            yield label, self.spent(world._replace(mind=begun), fault)

    def _cancel_steps(self, world: World, mind: Mind) -> tuple[MindStep, ...]:
        key = (world.redis, world.mind)
        steps = self._cancels.get(key)
        if steps is None:
            steps = self._cancels[key] = tuple(self._find_cancels(world.redis, mind))
        return steps

    def _find_cancels(self, number: int, mind: Mind) -> Iterator[MindStep]:
        """Somebody's cancel is there when the turn comes to the list of requests: before or after a batch."""
        redis = self.values.redises[number]
        steering, look, position, after = mind.steering, mind.look, mind.position, number
        if not mind.todo:
            look, position = self.values.looks.of((redis.view, redis.newest)), 0
        elif len(mind.todo) == 1:
            do = self.values.dos[mind.todo[0]]
            steering, after = do.then, self.managing.written(number, mind, do, strict=False)
        else:
            return
        _, places = self.managing.path(steering, look, position, self.values.redises[after])
        for held, place in places:
            for migration in self.values.steerings[held].migrations:
                todo = self.managing.cancel(held, migration.id)
                if todo:
                    cancelled = self.values.mind(Mind(held, look, place, todo, mind.holder))
                    yield MindStep(f"cancel {migration.id}", after, cancelled, wrote=bool(mind.todo))
            for replan in self.values.steerings[held].replans:
                todo = self.managing.cancel_replan(held, replan.id)
                if todo:
                    cancelled = self.values.mind(Mind(held, look, place, todo, mind.holder))
                    yield MindStep(f"cancel {replan.id}", after, cancelled, wrote=bool(mind.todo))

    # -- batches

    def _batch_faults(self, world: World, left: frozenset[str]) -> Iterator[Step]:
        driver, rest = self.values.drivers[world.driver], self.values.rests[world.rest]
        epoch = self.values.epochs[driver.bound]
        if "idle" in left and not driver.tried:
            told: frozenset[Told] = frozenset()
            missed = self.values.planes.of(plane.run_no_task(self.values.planes[world.plane]))
            after = self.driving.committed(world, missed, told, frozenset(range(WORKERS)))
            yield "batch without a task", self.spent(after, "idle")
        following = self.values.planes[world.plane].followers
        if not (epoch.moves or epoch.questions or (following and epoch.plans)):
            return
        usual = self.driving.commit(world, LUCKY)
        for fault, luck in PASSING.items():
            if fault in left:
                after = self.driving.commit(world, luck)
                if after != usual:
                    yield f"batch, packages {fault}", self.spent(after, fault)
        if "mute" in left:
            for worker, alone in enumerate(ALONE):
                after = self.driving.commit(world, LUCKY, alone)
                yield f"batch, worker {worker} mute", self.spent(after, "mute")
        if "replay" in left:
            yield from self._attempts(world)
        ships = any(move.kind == Kind.TRANSFER and move.way == Way.THERE for move in epoch.moves) or epoch.questions
        for fault in LASTING if ships and not rest.lasting else ():
            if fault in left:
                broken = self.values.rests.of(rest._replace(lasting=fault))
                yield f"packages {fault}", self.spent(world._replace(rest=broken), fault)

    def _attempts(self, world: World) -> Iterator[Step]:
        """An attempt reports, and is not committed: the batch is run again from the state before, bound as it was."""
        driver = self.values.drivers[world.driver]
        before = self.values.planes[world.plane]
        lasting = LASTING[self.values.rests[world.rest].lasting]
        for label, luck in (("", lasting), (", packages corrupt", both(lasting, PASSING["corrupt"]))):
            attempt, said = self.driving.batch(world.plane, driver.bound, driver.before, luck)
            after = self.values.planes.of(plane.with_traces(before, self.values.planes[attempt]))
            truth = plane.levels(before, self.values.epochs[driver.bound])
            if after != world.plane or said != truth:
                heard = self.values.drivers.of(driver._replace(tried=True, said=None if said == truth else said))
                lost = self.spent(world._replace(plane=after, driver=heard), "replay")
                yield f"an attempt reports and loses{label}", lost

    # -- Redis

    def _redis_faults(self, world: World, mind: Mind | None, left: frozenset[str]) -> Iterator[Step]:
        earlier = self.values.earlier[world.earlier]
        if "back" in left:
            for writes, redis in enumerate(reversed(earlier), 1):
                after = self.spent(world, "back")._replace(redis=redis, earlier=self._nothing)
                if mind is not None and not self._same_records(redis, world.redis):
                    after = after._replace(mind=self.values.mind(mind._replace(synced=False)))
                yield f"Redis forgets {writes} writes", after
        if "fall" in left:
            for writes, redis in enumerate(reversed(earlier), 1):
                fallen = self.spent(world, "fall")._replace(redis=redis, earlier=self._nothing, mind=DOWN)
                yield f"Redis forgets {writes} writes, the manager stops", fallen
        if "wipe" in left:
            empty = self.values.redises.of(Redis())
            yield "Redis forgets all", self.spent(world, "wipe")._replace(redis=empty, earlier=self._nothing)

    def _same_records(self, one: int, other: int) -> bool:
        """Then the newest event is the same, too, as far as anybody can tell."""
        first, second = self.values.redises[one], self.values.redises[other]
        return first[:RECORDS] == second[:RECORDS]
