"""The driver of the search: binds batches to epochs as split_union/control_source.py does, runs and commits them."""

from __future__ import annotations

import operator

from balancing.protocols.migration import Migration
from balancing.protocols.observe import PATIENCE_BATCHES
from balancing.replans.replan import Replan
from tests.checkers.epochs import wrong_between, wrong_with
from tests.simulation import plane, plane_batch
from tests.simulation.canonical import NOTHING
from tests.simulation.plane import LASTING, Luck, Told, Wrong
from tests.simulation.world import WORKERS, Driver, Scenario, Values, View, World
from trimtab.epochs import breaks_between, check_epoch
from trimtab.errors import TrimtabError
from trimtab.plan_orders import PlanReport
from worker.roles import Row

NOBODY: frozenset[int] = frozenset()


def both(one: Luck, other: Luck) -> Luck:
    return Luck(*map(operator.or_, one, other))


class Driving:
    """What the driver does. All of it is pure, so all of it is worked out once."""

    def __init__(self, scenario: Scenario, values: Values) -> None:
        self.scenario, self.values = scenario, values
        self.rows: set[Row] = set()
        """Rows of the workers' table that were taken."""
        self._bound: dict[tuple[int, int], tuple[str, int, int]] = {}
        self._batches: dict[tuple[int, int, int, Luck], tuple[int, frozenset[Told]]] = {}
        self._views: dict[tuple[object, ...], tuple[int, int]] = {}
        self._counting: dict[tuple[int, int, int], int] = {}

    def bind(self, world: World) -> tuple[str, World]:
        key = (world.redis, world.driver)
        step = self._bound.get(key)
        if step is None:
            step = self._bound[key] = self._bind(*key)
        label, redis, driver = step
        return label, world._replace(redis=redis, driver=driver)

    def _bind(self, redis_number: int, driver_number: int) -> tuple[str, int, int]:
        """Bind the next batch: to the successor of the bound epoch, or again to that one, which Redis must have."""
        driver, redis = self.values.drivers[driver_number], self.values.redises[redis_number]
        bound = self.values.epochs[driver.bound]
        again = self.values.drivers.of(Driver(driver.bound, bound.number, running=True))
        if redis.newest == driver.bound:
            return "bind", redis_number, again
        if redis.newest != NOTHING and self._can_follow(driver.bound, redis.newest):
            following = self.values.drivers.of(Driver(redis.newest, bound.number, running=True))
            return f"bind {bound.number + 1}", redis_number, following
        restored = self.values.redises.of(redis._replace(newest=driver.bound))
        return f"bind {bound.number} again, restored", restored, again

    def _can_follow(self, bound: int, newest: int) -> bool:
        """As trimtab.store.successor judges."""
        before, after = self.values.epochs[bound], self.values.epochs[newest]
        if any(breaks_between(before, after)):
            return False
        try:
            check_epoch(after, self.scenario.groups, WORKERS)
        except TrimtabError:
            return False
        for problem in (*wrong_with(after), *wrong_between(before, after)):
            raise Wrong(f"bound: {problem}")
        return True

    def commit(self, world: World, luck: Luck, missing: frozenset[int] = NOBODY) -> World:
        """The batch runs and is committed; workers report."""
        driver, rest = self.values.drivers[world.driver], self.values.rests[world.rest]
        luck = both(luck, LASTING[rest.lasting]) if rest.lasting else luck
        after, told = self.batch(world.plane, driver.bound, driver.before, luck)
        said = told if driver.said is None else driver.said
        return self.committed(world, after, said, missing, full=luck.full)

    def committed(
        self, world: World, after: int, told: frozenset[Told], missing: frozenset[int], *, full: bool = False
    ) -> World:
        """The world once a batch is committed that leaves the plane `after`."""
        rest = self.values.rests[world.rest]
        clock = self._clock(world, rest.clock)
        plans = tuple(each.report() for each in self.values.planes[world.plane].followers)
        key = (world.redis, world.driver, told, missing, full, clock, plans)
        heard = self._views.get(key)
        if heard is None:
            heard = self._views[key] = self._heard(world, told, missing, full, clock, plans)
        number = world.rest if clock == rest.clock else self.values.rests.of(rest._replace(clock=clock))
        return World(heard[0], world.earlier, world.mind, world.ghost, heard[1], after, number)

    def _heard(
        self,
        world: World,
        told: frozenset[Told],
        missing: frozenset[int],
        full: bool,
        clock: int,
        plans: tuple[PlanReport, ...],
    ) -> tuple[int, int]:
        """Redis and driver once a batch is committed."""
        driver, redis = self.values.drivers[world.driver], self.values.redises[world.redis]
        refused = full and any(question.ships for question in self.values.epochs[driver.bound].questions)
        view = self.values.views.of(View(driver.bound, clock, told, missing, refused, plans))
        idle = self.values.drivers.of(Driver(driver.bound, driver.before))
        return self.values.redises.of(redis._replace(view=view)), idle

    def batch(self, before: int, bound: int, epoch_before: int, luck: Luck) -> tuple[int, frozenset[Told]]:
        """The plane after an attempt, and what its workers report."""
        key = (before, bound, epoch_before, luck)
        found = self._batches.get(key)
        if found is None:
            epoch = self.values.epochs[bound]
            after = plane_batch.run_batch(self.values.planes[before], epoch, epoch_before, luck, self.rows)
            after = after._replace(followers=plane.followed(self.values.planes[before], epoch))
            if not epoch.moves:
                plane.settled(after, epoch)
            told = plane.reported(self.values.planes[before], after, epoch)
            found = self._batches[key] = self.values.planes.of(after), told
        return found

    def _clock(self, world: World, clock: int) -> int:
        """Batches are counted while a migration counts them, from the first one that it noted."""
        key = (world.redis, world.mind, world.ghost)
        since = self._counting.get(key)
        if since is None:
            since = self._counting[key] = self._newest_count(world)
        return 0 if since == NOTHING else min(clock + 1, since + PATIENCE_BATCHES)

    def _newest_count(self, world: World) -> int:
        numbers = set(self.values.redises[world.redis].migrations)
        migrations: list[Migration] = []
        for mind in (self.values.minds[world.mind], self.values.minds[world.ghost]):
            if mind is not None:
                migrations += self.values.steerings[mind.steering].migrations
                numbers |= {each for do in mind.todo for each in self.values.dos[do].migrations}
        migrations += map(self.values.migrations.__getitem__, numbers)
        counts = [wave.held_since for each in migrations for wave in each.waves]
        return max([*counts, *self._settled(world)], default=NOTHING)

    def _settled(self, world: World) -> list[int]:
        """Batches in which workers were seen to have settled: one more is awaited."""
        numbers = set(self.values.redises[world.redis].replans)
        replans: list[Replan] = []
        for mind in (self.values.minds[world.mind], self.values.minds[world.ghost]):
            if mind is not None:
                replans += self.values.steerings[mind.steering].replans
                numbers |= {each for do in mind.todo for each in self.values.dos[do].replans}
        replans += map(self.values.replans.__getitem__, numbers)
        return [each.settled_batch for each in replans if each.settled_batch >= 0]
