"""A world to search: Redis, a manager, a driver and the data plane of plane.py, one durable write per step.

The manager is the production code: Migration.handle, observe, reconcile, adopt, compose. Only the loop around them is
the model's, and it is what manager/runner.py does. Things that may go wrong are actions like any other, with a budget.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

from balancing.committed import CommittedBatch
from balancing.compose import compose
from balancing.protocols import (
    Begin,
    CancelRequested,
    Event,
    Instruction,
    Journal,
    Migration,
    State,
    Tell,
    WaveAllowed,
    adopt,
    observe,
    reconcile,
    taken_groups,
)
from tests.checkers.epochs import wrong_between, wrong_with
from tests.simulation.plane import Plane, Told, Wrong, exporting, run_batch, settled, start, too_old
from trimtab.epochs import Epoch, first_epoch, parse_epoch
from trimtab.moves import MoveReport, commands_of, moves_of
from trimtab.reports import WorkerReport

QUERY: Final = "q"
LIFE: Final = "life"
CLOCK_MAX: Final = 7


class View(NamedTuple):
    """The newest committed batch, as Redis has it: the driver's heartbeat and the workers' reports."""

    bound: str
    clock: int
    told: frozenset[Told]
    missing: frozenset[int] = frozenset()
    """Workers whose report did not reach Redis."""


T = TypeVar("T")


class Box(Generic[T]):
    """A value that is kept once, so that worlds are compared and hashed without looking into it."""

    def __init__(self, value: T) -> None:
        self.value = value


_boxes: dict[object, Box[Any]] = {}


def boxed(value: T) -> Box[T]:
    found = _boxes.get(value)
    if found is None:
        found = _boxes[value] = Box(value)
    return found


class Kept(Migration):
    """A migration of which there is only one object, for the same reason."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


_kept: dict[Migration, Kept] = {}


def plain(migration: Migration) -> Migration:
    """Without what no decision depends on, so that worlds recur."""
    fields = {each.name: getattr(migration, each.name) for each in dataclasses.fields(Migration)}
    bare = Migration(**{**fields, "story": (), "problem": ""})
    if bare not in _kept:
        _kept[bare] = Kept(**{**fields, "story": (), "problem": ""})
    return _kept[bare]


class Redis(NamedTuple):
    journal: tuple[Migration, ...]
    newest: str
    view: Box[View] | None


class Ghost(NamedTuple):
    memory: tuple[Migration, ...]
    todo: tuple[Migration | str, ...]


class World(NamedTuple):
    redis: Redis
    earlier: tuple[Redis, ...]
    """What Redis had before its last writes: it may go back there."""
    up: bool
    memory: tuple[Migration, ...]
    """The manager's."""
    todo: tuple[Migration | str, ...]
    """Durable writes that the manager is about to make: journal entries, and an epoch's text."""
    ghost: Ghost | None
    """A manager that has lost the lease and does not know it."""
    bound: str
    before: int
    """Number of the epoch of the batch before."""
    running: bool
    clock: int
    plane: Box[Plane]
    waiting: tuple[Migration, ...]
    """Asked for, not begun."""
    budget: tuple[int, ...]
    """How often each of FAULTS may still happen, and how many of them at all."""


FAULTS: Final = (
    "crash",
    "back",
    "wipe",
    "mute",
    "full",
    "late",
    "corrupt",
    "differ",
    "cancel",
    "stale",
    "ghost",
    "hasty",
    "fall",
)


@dataclass(frozen=True)
class Scenario:
    """What is asked for, and what may go wrong on the way."""

    name: str
    migrations: tuple[Migration, ...]
    faults: dict[str, int]
    total: int
    one_by_one: bool = False
    """Each migration is asked for when the one before has ended."""
    groups: int = 2
    single_waves: bool = False
    back_writes: int = 3
    fenced: bool = True
    """Whether Redis refuses the writes of a manager that has lost its lease."""

    def first(self) -> World:
        epoch = first_epoch(QUERY, LIFE, (0,) * self.groups)
        text = intern(epoch.to_text())
        plane = boxed(start(self.groups, 0))
        budget = (*(self.faults.get(fault, 0) for fault in FAULTS), self.total)
        redis = Redis((), text, boxed(View(text, 0, frozenset())))
        waiting = tuple(plain(migration) for migration in self.migrations)
        return World(redis, (), True, (), (), None, text, epoch.number, False, 0, plane, waiting, budget)


_texts: dict[str, str] = {}


def intern(text: str) -> str:
    return _texts.setdefault(text, text)


@cache
def epoch_of(text: str) -> Epoch:
    return parse_epoch(text)


@cache
def digest_of(text: str) -> str:
    return epoch_of(text).digest


@cache
def committed_batch(box: Box[View]) -> CommittedBatch:
    """What the manager reads from Redis."""
    view = box.value
    epoch = epoch_of(view.bound)
    reports = {worker: _report(worker, view, epoch) for worker in (0, 1) if worker not in view.missing}
    return CommittedBatch(batch=view.clock, bound=epoch, at_ms=0, reports=reports)


def _report(worker: int, view: View, epoch: Epoch) -> WorkerReport:
    moves = [
        MoveReport(move=told.move, role=told.role, state=told.state, problem=told.problem, digest=f"of {told.move}")  # type: ignore[arg-type]
        for told in sorted(view.told)
        if told.worker == worker
    ]
    moving = {group for move in moves_of(epoch) for group in move.groups}
    mine = [group for group, owner in enumerate(epoch.owners) if owner == worker and group not in moving]
    chosen = {}
    for question in commands_of(epoch):
        if question.worker == worker:
            free = [group for group in mine if group not in question.excluded]
            chosen[question.migration] = [g for g in question.groups if g in mine] if question.groups else free[:1]
    nothing: dict[str, int] = {}
    return WorkerReport(
        query=QUERY, batch=view.clock, epoch=epoch.number, worker=worker, attempt=0, executor="", process=0, at_ms=0,
        rows=nothing, late_rows=nothing, bad_rows=nothing, results=0, state_rows=0, combined_rows=0, state_bytes=0,
        index_bytes=0, watermark_us=0, cpu_ns=0, resident="hit", moves=moves, chosen=chosen,
    )  # fmt: skip


class Model:
    """The steps from one world to the next."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.observe = lru_cache(maxsize=None)(self._observe)
        self.handle = lru_cache(maxsize=None)(self._handle)
        self.compose = lru_cache(maxsize=None)(self._compose)
        self.reconcile = lru_cache(maxsize=None)(self._reconcile)
        self.batch = lru_cache(maxsize=None)(run_batch_of)
        self.points: set[str] = set()

    # -- production code, remembered

    def _observe(self, migration: Migration, view: Box[View], taken: frozenset[int]) -> tuple[Event, ...]:
        return tuple(observe(migration, committed_batch(view), taken))

    def _handle(self, migration: Migration, event: Event) -> tuple[Migration, ...]:
        """Migrations to journal, one after the other. Told again, an event must change nothing."""
        journals = self._journals(migration.handle(event))
        if journals and not isinstance(event, WaveAllowed | Begin):
            again = journals[-1].handle(event)
            if any(not isinstance(each, Tell) for each in again):
                raise Wrong(f"{event} told twice: {again}")
        return journals

    def _journals(self, instructions: list[Instruction]) -> tuple[Migration, ...]:
        self.points |= {each.point for each in instructions if isinstance(each, Journal)}
        return tuple(plain(each.migration) for each in instructions if isinstance(each, Journal))

    def _compose(self, previous: str, migrations: tuple[Migration, ...]) -> str | None:
        before = epoch_of(previous)
        epoch = compose(before, migrations, before.fence)
        if epoch is None:
            return None
        for problem in (*wrong_with(epoch), *wrong_between(before, epoch)):
            raise Wrong(problem)
        return intern(epoch.to_text())

    def _reconcile(self, migrations: tuple[Migration, ...], bound: str) -> tuple[Migration, ...]:
        epoch = epoch_of(bound)
        changes = self._journals(reconcile(migrations, epoch, 0))
        return changes or self._journals(adopt(epoch, migrations, 0))

    # -- steps

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """All that can happen next."""
        yield from self.good_steps(world)
        yield from self.bad_steps(world)

    def good_steps(self, world: World) -> Iterator[tuple[str, World]]:
        """What happens where nothing goes wrong; from any world, it must lead to the end."""
        if world.ghost:
            yield from self._ghost(world)
        if not world.up:
            yield "manager starts", world._replace(up=True, memory=world.redis.journal)
        elif world.todo:
            yield self._write(world)
        else:
            yield from self._turn(world)
        yield from self._driver(world)

    def _write(self, world: World) -> tuple[str, World]:
        """The manager's next durable write; it holds what it wrote only from then on."""
        what, *rest = world.todo
        if isinstance(what, Migration):
            self._check_outcome(world, what)
        written = written_to(world.redis, what)
        after = world._replace(todo=tuple(rest), earlier=remembered(world, self.scenario.back_writes))
        if isinstance(what, str):
            return f"publish {epoch_of(what).number}", after._replace(redis=written)
        # A request leaves the queue in the same script that journals what became of it.
        waiting = tuple(each for each in world.waiting if each.id != what.id)
        after = after._replace(redis=written, memory=updated(world.memory, what), waiting=waiting)
        return f"journal {what.id} {what.state}", after

    def _check_outcome(self, world: World, changed: Migration) -> None:
        """The end that people were told of stays, and beyond the point of no return the way is forward.

        Unless Redis has forgotten something.
        """
        before = next((each for each in world.memory if each.id == changed.id), changed)
        left = dict(zip(FAULTS, world.budget, strict=False))
        forgotten = any(left[fault] < self.scenario.faults.get(fault, 0) for fault in ("back", "wipe", "ghost", "fall"))
        if forgotten:
            return
        if before.done and not changed.done:
            raise Wrong(f"{changed.id} had ended, and goes on")
        for old, new in zip(before.waves, changed.waves, strict=False):
            if old.state == changed.table.closing and new.state not in (old.state, State.COMMITTED):
                raise Wrong(f"{changed.id} was beyond the point of no return, and is {new.state}")

    def _turn(self, world: World) -> Iterator[tuple[str, World]]:
        """What the manager finds to do, in the order of manager/runner.py."""
        begun = {migration.id for migration in world.memory}
        ended = all(migration.done for migration in world.memory)
        if world.waiting and (ended or not self.scenario.one_by_one):
            first = world.waiting[0]
            if first.id not in begun:
                yield f"begin {first.id}", world._replace(todo=self.handle(first, Begin(migration=first.id)))
                return
        if world.redis.view is None:
            return
        todo = self._next(world.memory, world.redis.view)
        if todo:
            yield "look", world._replace(todo=todo)
            return
        bound = world.redis.view.value.bound
        if world.redis.newest == bound:
            epoch = self.compose(bound, world.memory)
            if epoch is not None:
                yield "compose", world._replace(todo=(epoch,))

    def _next(self, memory: tuple[Migration, ...], view: Box[View]) -> tuple[Migration, ...]:
        todo = self.reconcile(memory, view.value.bound)
        if todo:
            return todo
        for migration in memory:
            for event in self.observe(migration, view, taken_groups(memory, migration.id)):
                todo = self.handle(migration, event)
                if todo:
                    return todo
            if migration.wants_wave:
                groups = migration.remaining[:1] if self.scenario.single_waves else migration.remaining
                number = epoch_of(view.value.bound).number
                return self.handle(migration, WaveAllowed(migration=migration.id, groups=groups, epoch=number))
        return ()

    def _driver(self, world: World) -> Iterator[tuple[str, World]]:
        if world.running:
            yield "batch", self._commit(world, "", frozenset())
        elif not too_old(world.plane.value) and world.clock < CLOCK_MAX:
            yield self._bind(world)

    def _bind(self, world: World) -> tuple[str, World]:
        """Bind the next batch: to the successor of the bound epoch, or again to that one, which Redis must have."""
        bound, redis = epoch_of(world.bound), world.redis
        newest = epoch_of(redis.newest) if redis.newest else None
        after = world._replace(running=True, before=bound.number)
        if newest is not None and newest.number == bound.number + 1 and newest.predecessor == digest_of(world.bound):
            return f"bind {newest.number}", after._replace(bound=redis.newest)
        if redis.newest != world.bound:
            return "restore", after._replace(redis=redis._replace(newest=world.bound))
        return "bind", after

    def _commit(self, world: World, fault: str, missing: frozenset[int]) -> World:
        plane, told = self.batch(world.plane, world.bound, world.before, fault)
        holding = any(each.state in ("holding", "export-failed") for each in told)
        clock = world.clock + 1 if holding else world.clock
        if not moves_of(epoch_of(world.bound)):
            settled(plane.value, epoch_of(world.bound))
            clock = 0
        view = boxed(View(world.bound, clock, told, missing))
        return world._replace(plane=plane, running=False, clock=clock, redis=world.redis._replace(view=view))

    def bad_steps(self, world: World) -> Iterator[tuple[str, World]]:
        if world.budget[-1] == 0:
            return
        if world.up:
            yield from self._manager_faults(world)
        if world.running:
            for fault in ("full", "late", "corrupt", "differ"):
                if can(world, fault) and exporting(world.plane.value, epoch_of(world.bound)):
                    yield fault, self._commit(spent(world, fault), fault, frozenset())
            for worker in (0, 1) if can(world, "mute") else ():
                yield f"worker {worker} mute", self._commit(spent(world, "mute"), "", frozenset({worker}))
        if can(world, "back"):
            for writes, redis in enumerate(reversed(world.earlier), 1):
                yield f"Redis forgets {writes}", spent(world, "back")._replace(redis=redis, earlier=())
        if can(world, "fall"):
            for writes, redis in enumerate(reversed(world.earlier), 1):
                fallen = spent(world, "fall")._replace(redis=redis, earlier=(), up=False, memory=(), todo=())
                yield f"Redis forgets {writes}, the manager stops", fallen
        if can(world, "wipe"):
            yield "Redis forgets all", spent(world, "wipe")._replace(redis=Redis((), "", None), earlier=())

    def _manager_faults(self, world: World) -> Iterator[tuple[str, World]]:
        if can(world, "crash"):
            yield "manager stops", spent(world, "crash")._replace(up=False, memory=(), todo=())
        if can(world, "ghost") and world.todo:
            ghost = Ghost(world.memory, world.todo)
            yield "manager loses its lease", spent(world, "ghost")._replace(up=False, memory=(), todo=(), ghost=ghost)
        if world.todo:
            return
        if can(world, "hasty") and world.redis.view and world.redis.newest == world.redis.view.value.bound:
            epoch = self.compose(world.redis.newest, world.memory)
            if epoch is not None:
                yield "compose without a look", spent(world, "hasty")._replace(todo=(epoch,))
        for migration in world.memory if can(world, "cancel") else ():
            todo = self.handle(migration, CancelRequested(migration=migration.id))
            if todo:
                yield f"cancel {migration.id}", spent(world, "cancel")._replace(todo=todo)
        if can(world, "stale"):
            first = self.scenario.first().redis
            for old in (first, *world.earlier):
                todo = self._next(world.memory, old.view) if old.view else ()
                if todo and old.view != world.redis.view:
                    yield "look at an old batch", spent(world, "stale")._replace(todo=todo)

    def _ghost(self, world: World) -> Iterator[tuple[str, World]]:
        """A manager without the lease goes on writing: refused, if Redis looks at the fence."""
        if world.ghost is None:
            return
        if self.scenario.fenced:
            yield "ghost is refused", world._replace(ghost=None)
            return
        alone = world._replace(up=True, memory=world.ghost.memory, todo=world.ghost.todo, ghost=None)
        for label, after in (self._write(alone),) if alone.todo else self._turn(alone):
            ghost = Ghost(after.memory, after.todo)
            mine = after._replace(up=world.up, memory=world.memory, todo=world.todo, ghost=ghost)
            yield f"ghost: {label}", mine

    def at_the_end(self, world: World) -> bool:
        """Nothing is left to be done: the manager is idle, everything is bound and committed."""
        view = world.redis.view
        if not world.up or world.todo or world.waiting or world.running or view is None:
            return False
        if not world.redis.newest == world.bound == view.value.bound or view.value.missing:
            return False
        return next(self._turn(world), None) is None and all(each.done for each in world.memory)

    def check_end(self, world: World) -> None:
        """Outcome and owners agree, and no move is open."""
        epoch = epoch_of(world.bound)
        if moves_of(epoch):
            raise Wrong(f"all migrations have ended, and epoch {epoch.number} has open moves")
        settled(world.plane.value, epoch)
        for migration in world.memory:
            others = {group for each in world.memory if each.id != migration.id for group in each.chosen}
            for group in set(migration.chosen) - others:
                wanted = migration.receiver if group in migration.moved_groups else migration.sender
                if epoch.owners[group] != wanted:
                    raise Wrong(f"{migration.id} {migration.outcome}, and group {group} is {epoch.owners[group]}'s")


def run_batch_of(plane: Box[Plane], bound: str, before: int, fault: str) -> tuple[Box[Plane], frozenset[Told]]:
    after, told = run_batch(plane.value, epoch_of(bound), before, fault)
    return boxed(after), told


def written_to(redis: Redis, what: Migration | str) -> Redis:
    """A fixed script's effect. Another text under a number that is taken, or a gap, is refused."""
    if not isinstance(what, str):
        return redis._replace(journal=updated(redis.journal, what))
    current = epoch_of(redis.newest).number if redis.newest else 0
    if current and epoch_of(what).number != current + 1:
        return redis
    return redis._replace(newest=what)


def updated(migrations: tuple[Migration, ...], changed: Migration) -> tuple[Migration, ...]:
    others = [each for each in migrations if each.id != changed.id]
    return tuple(sorted([*others, changed], key=lambda each: each.id))


def remembered(world: World, writes: int) -> tuple[Redis, ...]:
    if not any(can(world, fault) for fault in ("back", "stale", "fall")):
        return ()
    return (*world.earlier, world.redis)[-writes:]


def can(world: World, fault: str) -> bool:
    return world.budget[-1] > 0 and world.budget[FAULTS.index(fault)] > 0


def spent(world: World, fault: str) -> World:
    at = FAULTS.index(fault)
    budget = tuple(left - 1 if index in (at, len(FAULTS)) else left for index, left in enumerate(world.budget))
    return world._replace(budget=budget)
