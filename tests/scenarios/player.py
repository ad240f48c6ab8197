"""Plays a scenario that is written as text: production steering and the workers' table, in a world that obeys.

Nothing happens by itself. A line says what happens next, and the trace says what follows from it:

    owners 0 0 1 1                         which worker has each group in the beginning; two workers if nothing is said
    ask m1 mslb 0 -> 1 groups 0,1          somebody asks for a move (or: share 0.5); its migration is called m1-1
    cancel m1-1                            somebody cancels
    plans ((A B) C)                        workers have this plan in the beginning, and take plan orders
    replan p1 0 ms ((A C) B)               somebody wants worker 0 to have that plan, by moving state (or: hybmig)
    take back p1                           somebody cancels it
    stream idle / stream flows             HybMig waits for a stream meanwhile
    batch [full|corrupt|differ|gone|unlistable|backwards] [mute 1] [without a task]
                                           a batch is bound, run and committed, then the manager takes a turn
    batches 3                              three of them
    batch alone ...                        the same without the manager's turn
    attempt [full|corrupt]                 the next batch is tried; the attempt reports, and is not committed
    store full|corrupt|gone|unlistable for good
                                           what befalls every attempt from now on
    turn                                   the manager takes a turn
    old batch 2                            the manager takes a turn and finds batch 2 to be the newest
    manager crashes [before|after mslb:4]  at once, or when it comes to that write
    manager loses its lease before mslb:4  it goes on later, not knowing it (`ghost goes on`)
    manager starts                         another one gets the lease
    redis forgets 2                        Redis goes back by two writes of managers
    redis forgets all
    redis away / redis back                nobody reaches Redis meanwhile
    query stops / query runs               the driver is silent meanwhile
    minutes 2                              so much time goes by (a batch takes a second)
    single waves                           the load allows one group at a time

Of each group one row comes with each batch, and joins with those of the two batches before. Once four of them wait
somewhere, batches bring no rows (tests/simulation/plane.py).
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from balancing.happenings import CancelAsked, Happening
from balancing.instructions import Instruction, PublishEpoch, Write
from balancing.replans.requests import CancelReplan, ReplanRequest
from balancing.requests import MoveRequest, RebalanceRequest
from balancing.steering import Steering
from balancing.turn import Part
from tests.scenarios.cluster import Cluster
from tests.scenarios.redis import Asked, Redis
from tests.scenarios.rendering import happening_text, instruction_lines
from tests.simulation import leading
from tests.simulation.leading import Look
from tests.simulation.plane import Wrong
from trimtab.errors import TrimtabError


class Stopped(Exception):
    """A manager goes no further."""


@dataclass
class Manager:
    name: str
    fence: int
    steering: Steering
    loaded: bool = False
    event: int = 0
    """The newest one, as of its last write."""
    left: list[Instruction] = field(default_factory=list)
    """What it was about to do when it lost its lease."""


@dataclass(frozen=True)
class Stop:
    """Where a manager is to stop."""

    when: str
    point: str
    ghost: bool = False


class Player:
    def __init__(self) -> None:
        self.cluster = Cluster((0, 0), 2)
        self.redis = Redis(newest=self.cluster.bound)
        self.names = itertools.count()
        self.ghost: Manager | None = None
        self.manager: Manager | None = None
        self.stop: Stop | None = None
        self.away = self.stopped = self.single_waves = False
        self.later_ms = 0
        self.lines: list[str] = []
        self._begin()

    def _begin(self) -> None:
        """A query whose first batch is committed, and a manager that has looked at it."""
        self.redis = Redis(newest=self.cluster.bound, batch=self.cluster.committed)
        self.names = itertools.count()
        self.manager = self._new_manager()
        self._look()
        self.lines = []

    def play(self, commands: Sequence[str]) -> list[str]:
        """The trace."""
        trace: list[str] = []
        for command in commands:
            trace.append(f"> {command}")
            self.lines = []
            try:
                self._do(command.split())
            except (Wrong, TrimtabError) as error:
                self._say(f"{type(error).__name__}: {error}")
            trace += [f"  {line}" for line in self.lines]
        return trace

    def _say(self, *lines: str, depth: int = 0) -> None:
        self.lines += ["  " * depth + part for line in lines for part in line.splitlines()]

    def _do(self, words: list[str]) -> None:
        match words:
            case ["owners", *owners]:
                owned = tuple(map(int, owners))
                self.cluster = Cluster(owned, max(2, *(owner + 1 for owner in owned)))
                self._begin()
            case ["plans", *plan]:
                self.cluster = Cluster(self.cluster.bound.owners, self.cluster.workers, " ".join(plan))
                self._begin()
            case ["replan", name, worker, strategy, *plan]:
                self.redis.requests.append(
                    ReplanRequest(
                        id=name, query="q", worker=int(worker), plan=" ".join(plan), strategy=strategy, by="ops"
                    )
                )
            case ["take", "back", name]:
                self.redis.requests.append(CancelReplan(id=f"back-{name}", query="q", replan=name, by="ops"))
            case ["stream", ("idle" | "flows") as how]:
                self.cluster.stand(stands=how == "idle")
            case ["minutes", minutes]:
                self.later_ms += int(minutes) * 60_000
            case ["single", "waves"]:
                self.single_waves = True
            case ["ask", name, strategy, sender, "->", receiver, *what]:
                self._ask(name, strategy, int(sender), int(receiver), what)
            case ["cancel", migration]:
                self.redis.requests.append(migration)
            case ["batches", times]:
                for _ in range(int(times)):
                    self._batch([])
            case ["batch", *how]:
                self._batch(how)
            case ["attempt", *how]:
                self._say(*self.cluster.attempt(self.redis, how))
            case ["store", fault, "for", "good"]:
                self.cluster.lasting = f"{fault} for good"
            case ["turn"]:
                self._look()
            case ["old", "batch", number]:
                self._turn(Look(self.cluster.past[int(number)], self.redis.newest, self.cluster.workers))
            case ["manager" | "ghost", *what]:
                self._manage(words[0], what)
            case ["redis", "forgets", "all"]:
                self.redis = Redis()
            case ["redis", "forgets", writes]:
                self.redis = self.redis.back(int(writes))
                self._say(*self.redis.lines())
            case ["redis", ("away" | "back") as where]:
                self.away = where == "away"
            case ["query", ("stops" | "runs") as how]:
                self.stopped = how == "stops"
                self._look()
            case _:
                raise ValueError(f"a scenario does not know: {' '.join(words)}")

    def _ask(self, name: str, strategy: str, sender: int, receiver: int, what: list[str]) -> None:
        groups, share = (tuple(map(int, what[1].split(","))), None) if what[0] == "groups" else ((), float(what[1]))
        move = MoveRequest(sender=sender, receiver=receiver, groups=groups, share=share)
        self.redis.requests.append(
            RebalanceRequest(id=name, query="q", moves=(move,), strategy=strategy, by="ops", reason="asked")  # type: ignore[arg-type]
        )

    def _batch(self, how: list[str]) -> None:
        self._say(*self.cluster.run(None if self.away else self.redis, [each for each in how if each != "alone"]))
        if "alone" not in how:
            self._look()

    def _look(self) -> None:
        """The manager takes a turn."""
        batch = None if self.stopped else self.redis.batch
        self._turn(Look(batch, self.redis.newest, self.cluster.workers))

    # -- managers

    def _manage(self, who: str, what: list[str]) -> None:
        match [who, *what]:
            case ["manager", "starts"]:
                self.manager = self._new_manager()
                self._look()
            case ["manager", "crashes"]:
                self.manager = None
            case ["manager", "crashes", when, point]:
                self.stop = Stop(when, point)
            case ["manager", "loses", "its", "lease", when, point]:
                self.stop = Stop(when, point, ghost=True)
            case ["ghost", "goes", "on"]:
                assert self.ghost is not None, "no manager has lost its lease"
                try:
                    self._execute_all(self.ghost, self.ghost.left)
                except Stopped as stopped:
                    self._say(f"manager {self.ghost.name} {stopped}")
            case _:
                raise ValueError(f"a scenario does not know: {who} {' '.join(what)}")

    def _new_manager(self) -> Manager:
        name = string.ascii_uppercase[next(self.names)]
        fence = max([self.redis.fence, *(epoch.fence for epoch in (self.redis.newest,) if epoch is not None)]) + 1
        self.redis.holder, self.redis.fence = name, fence
        return Manager(name, fence, Steering(query="q"))

    @property
    def _now_ms(self) -> int:
        return 1_000 * self.cluster.batch + self.later_ms

    def _turn(self, look: Look) -> None:
        manager = self.manager
        if manager is None:
            return
        if self.away:
            self._say(f"manager {manager.name}: Redis does not answer")
            return
        try:
            if not manager.loaded and look.batch is not None:
                self._load(manager, look)
            elif manager.event != self.redis.event and look.batch is not None:
                manager.event = self.redis.event
                lost = leading.records_lost(
                    [*self.redis.migrations.values()],
                    [*self.redis.rebalances.values()],
                    replans=[*self.redis.replans.values()],
                )
                self._handle(manager, replace(lost, now_ms=self._now_ms))
            for part in leading.turn_of(look):
                if part == Part.REQUESTS:
                    self._take_up(manager, look)
                else:
                    snapshot = leading.snapshot_of(
                        len(self.cluster.bound.owners), self.cluster.workers, single_waves=self.single_waves
                    )
                    self._handle(manager, leading.happening_at(part, manager.steering, look, snapshot, self._now_ms))
        except Stopped as stopped:
            self._say(f"manager {manager.name} {stopped}")

    def _load(self, manager: Manager, look: Look) -> None:
        manager.event = self.redis.event
        self._handle(manager, leading.led(manager.name, manager.fence, self._now_ms))
        records = ([*self.redis.migrations.values()], [*self.redis.rebalances.values()])
        replans = [*self.redis.replans.values()]
        self._handle(manager, leading.loaded(look, *records, now_ms=self._now_ms, replans=replans))
        manager.loaded = True

    def _take_up(self, manager: Manager, look: Look) -> None:
        while self.redis.requests:
            self._handle(manager, self._request(manager, look, self.redis.requests[0]))

    def _request(self, manager: Manager, look: Look, request: Asked) -> Happening | None:
        if isinstance(request, ReplanRequest):
            return leading.replan_asked(request, request.id, manager.steering, look, self.redis.replans, self._now_ms)
        if isinstance(request, CancelReplan):
            asked = leading.replan_cancel_asked("q", request.replan, request.id, self._now_ms)
            return replace(asked, request=request)
        if isinstance(request, str):
            cancel: CancelAsked = leading.cancel_asked("q", request, request, self._now_ms)
            return replace(cancel, request=replace(cancel.request, by="ops"))
        snapshot = leading.snapshot_of(len(self.cluster.bound.owners), self.cluster.workers)
        known = self.redis.rebalances
        return leading.moves_asked(request, request.id, manager.steering, look, snapshot, known, self._now_ms)

    def _handle(self, manager: Manager, happening: Happening | None) -> None:
        if happening is None:
            return
        instructions = manager.steering.handle(happening)
        lines = [line for each in instructions for line in instruction_lines(each)]
        if lines:
            self._say(f"manager {manager.name}: {happening_text(happening)}")
        self._execute_all(manager, instructions)

    def _execute_all(self, manager: Manager, instructions: list[Instruction]) -> None:
        for index, instruction in enumerate(instructions):
            manager.left = instructions[index:]
            self._execute(manager, instruction)

    def _execute(self, manager: Manager, instruction: Instruction) -> None:
        if not isinstance(instruction, Write | PublishEpoch):
            manager.steering = instruction.then
            return
        point = instruction.point if isinstance(instruction, Write) else "publish"
        self._stop_at("before", point, manager)
        problem = self._perform(manager, instruction)
        if problem:
            raise Stopped(problem)
        self._say(*instruction_lines(instruction), depth=1)
        manager.steering = instruction.then
        self._stop_at("after", point, manager)

    def _stop_at(self, when: str, point: str, manager: Manager) -> None:
        stop = self.stop
        if stop is None or (stop.when, stop.point) != (when, point):
            return
        self.stop, self.manager = None, None
        if stop.ghost:
            self.ghost = manager
            raise Stopped(f"is held up {when} {point}, and loses its lease")
        raise Stopped(f"crashes {when} {point}")

    def _perform(self, manager: Manager, instruction: Write | PublishEpoch) -> str:
        """As the scripts in Redis do it; returns why not."""
        if (self.redis.holder, self.redis.fence) != (manager.name, manager.fence):
            if manager is self.manager:
                self.manager = None
            return "is refused: another one leads, or Redis has forgotten the lease. It stands down"
        if isinstance(instruction, PublishEpoch):
            self.redis.publish(instruction.epoch)
            return ""
        if manager.event != self.redis.event:
            return "writes nothing: Redis went back"
        self.redis.write(instruction)
        manager.event = self.redis.event
        return ""
