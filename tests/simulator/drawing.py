"""Draws a story from a seed: a query's shape, its rows, and what goes wrong. All of it up front, as data.

Each seed has a weather of its own: some parts of the world are calm, some are bad. So a failure shows with little noise
around it, and every mixture comes up sooner or later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from tests.simulator.files import StoreFault
from tests.simulator.shape import Shape
from tests.simulator.spark import Fate
from tests.simulator.story import Action, Story
from trimtab.plan_orders import PlanStrategy

SECOND_US: Final = 1_000_000
MANAGERS: Final = ("m0", "m1", "m2")
GARBAGE: Final = ("{", "[]", '{"id":"g1","kind":"song"}', '{"id":"g2","kind":"rebalance"}', '{"id":7}', "")
TINY_PAUSE_MS: Final = 0.0001
"""So little that every group goes by itself."""


@dataclass(frozen=True, kw_only=True)
class Weather:
    """How often things go wrong: 0 to 1 for each part of the world."""

    spark: float
    redis: float
    managers: float
    store: float
    operator: float
    rows: float


def draw_story(seed: int) -> Story:
    return _Draft(seed).story()


def draw_shape(random: Random) -> Shape:
    streams = random.choice((2, 2, 3, 3, 4))
    names = "ABCD"[:streams]
    workers = random.randint(2, 4)
    partitions = random.randint(max(4, workers), 12)
    owners = [group % workers for group in range(partitions)]
    if random.random() < 0.3:
        owners = [random.randrange(workers) for _ in range(partitions)]
    return Shape(
        names=names,
        partitions=partitions,
        plans=tuple(draw_plan(random, names) for _ in range(workers)),
        owners=tuple(owners),
        window_us=random.choice((1, 2, 3, 5)) * SECOND_US + random.choice((0, 0, 777)),
        lateness_us=random.choice((0, 0, 500_000, 2 * SECOND_US)),
        executors=random.randint(2, workers) if random.random() < 0.8 else 1,
        text_keys=random.random() < 0.25,
        attempts=random.choice((1, 4, 4)),
    )


def draw_plan(random: Random, names: str) -> str:
    """Left-deep, mjoin, or any tree."""
    choice = random.random()
    if choice < 0.3:
        return "mjoin"
    if choice < 0.5:
        return "left-deep"
    return draw_tree(random, names)


def draw_tree(random: Random, names: str) -> str:
    """Any tree."""
    nodes = list(names)
    random.shuffle(nodes)
    while len(nodes) > 1:
        size = min(len(nodes), random.choice((2, 2, 3)))
        place = random.randrange(len(nodes) - size + 1)
        nodes[place : place + size] = [f"({' '.join(nodes[place : place + size])})"]
    return nodes[0]


class _Draft:
    """A story in the making."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(f"story {seed}")
        self.shape = draw_shape(self.random)
        self.weather = Weather(
            **{name: self.random.choice((0.0, 0.0, 0.3, 1.0)) for name in Weather.__dataclass_fields__}
        )
        self.batches = self.random.randint(20, 42)
        self.amnesia = self.random.random() < 0.2
        """Redis forgets often, and the managers with it: only the bound epoch knows where things stand."""
        if self.amnesia:
            self.weather = replace(self.weather, redis=0.0, managers=0.0, store=self.weather.store / 2)
        self.balances_itself = self.random.random() < 0.2
        self.actions: list[Action] = []
        self.now_us = 10 * SECOND_US
        self.idle: dict[str, int] = {}
        """Streams that send nothing, and for how many batches more."""
        self.row_id = 0
        self.requests = 0
        self.cancels: dict[int, int] = {}
        """Requests that are to be cancelled, and in how many batches."""
        self.alive = {MANAGERS[0]}
        self.passing: set[str] = set()
        """What is out of order at the moment."""
        keys = self.random.randint(3, 14)
        skew = self.random.choice((0.0, 0.5, 1.5))
        self.keys = list(range(keys))
        self.key_weights = [1 / (key + 1) ** skew for key in self.keys]
        self.rows_max = {2: 5, 3: 4, 4: 3}[len(self.shape.names)]
        self.planner = Random(f"plans {seed}")
        self.replans = self.planner.choice((0.0, 0.1, 0.4))
        """How often a worker is ordered another plan."""
        self.fault_left = self.thefts_left = 0
        """For how many batches more the store has its fault, or loses what is in it."""

    def story(self) -> Story:
        self._add("manager_starts", manager=MANAGERS[0])
        for number in range(self.batches):
            for draw in (self._of_redis, self._of_managers, self._of_store, self._of_spark):
                draw()
            if number >= 2:
                self._of_operator()
                self._of_planner()
            self._batch_and_turns()
        return Story(self.seed, self.shape, tuple(self.actions))

    def _add(self, name: str, **values: Any) -> None:
        self.actions.append(Action(name, values))

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability

    # -- rows

    def _rows(self) -> dict[str, list[list[int]]]:
        random, shape, weather = self.random, self.shape, self.weather
        self.now_us += random.randint(200_000, 1_300_000)
        if self._chance(0.03 + 0.05 * weather.rows):
            self.now_us += random.randint(3, 20) * SECOND_US
        for name in shape.names:
            if self._chance(0.04 * weather.rows):
                self.idle[name] = random.randint(2, 8)
        if self._chance(0.06):
            return {}
        rows: dict[str, list[list[int]]] = {}
        for name in shape.names:
            if self.idle.get(name, 0):
                self.idle[name] -= 1
                continue
            rows[name] = [self._row() for _ in range(random.randint(0, self.rows_max))]
        return {name: each for name, each in rows.items() if each}

    def _row(self) -> list[int]:
        random, weather = self.random, self.weather
        self.row_id += 1
        (key,) = random.choices(self.keys, self.key_weights)
        at = self.now_us - 250 * random.randrange(4_000 if self._chance(0.8) else 16_000)
        if self._chance(0.01 * weather.rows):
            at = self.now_us + random.choice((5, 60, 100_000)) * SECOND_US
        return [key, max(at, 1), self.row_id]

    # -- faults

    def _of_spark(self) -> None:
        bad = self.weather.spark
        if self._chance(0.06 * bad):
            self._add("driver_stops")
        if self._chance(0.04 * bad):
            self._add("executor_dies", executor=self.random.randrange(self.shape.executors))
        if self._chance(0.2 * bad):
            self._add("zombie_goes_on", number=self.random.randrange(5))

    def _faults(self) -> dict[str, Any]:
        random, bad, workers = self.random, self.weather.spark, range(self.shape.workers)
        faults: dict[str, Any] = {}
        if self._chance(0.5 * bad):
            losers = [[worker, str(random.choice(list(Fate)))] for worker in workers if self._chance(0.4)]
            faults["losers"] = [*losers, losers[0]] if losers and self._chance(0.2) else losers
        for name in ("unreported", "rebuilt", "elsewhere"):
            if self._chance(0.2 * bad):
                faults[name] = [worker for worker in workers if self._chance(0.5)]
        if self._chance(0.15 * bad):
            faults["no_task"] = True
        if self._chance(0.5):
            faults["order"] = random.randrange(self.shape.workers)
        return {name: value for name, value in faults.items() if value}

    def _of_redis(self) -> None:
        random, bad = self.random, self.weather.redis
        if self._chance(0.15 if self.amnesia else 0.07 * bad):
            forgets = Action("redis_forgets", {"writes": random.choice((1, 2, 5, 10, 10, 15, 15, 20, 30, 60, 200))})
            self.actions.append(forgets if self._chance(0.9) else Action("redis_flushed"))
            if self._chance(0.9 if self.amnesia else 0.5):
                # Nobody is left who remembers.
                for manager in sorted(self.alive):
                    self._add("manager_dies", manager=manager)
                self.alive = {random.choice(MANAGERS)}
                for manager in self.alive:
                    self._add("manager_starts", manager=manager)
                if self._chance(0.8):
                    self._add("wait", ms=7_000)  # the lease of the last leader ends
        if self._chance(0.1 * bad):
            self._add("redis_loses", questions=random.choice((0, 1, 3)), answers=random.choice((0, 1, 1, 2)))
        self._passing("redis_down", 0.06 * bad, "down", True, False)
        self._passing("redis_slow", 0.05 * bad, "ms", random.choice((20, 300, 1500)), 0)
        self._passing("plane_cut", 0.04 * bad, "cut", True, False)

    def _passing(self, name: str, chance: float, field: str, on: Any, off: Any, **more: Any) -> None:
        """Something that begins by chance, and ends soon."""
        which = " ".join([name, *more.values()])
        if which in self.passing and self._chance(0.4):
            self.passing.discard(which)
            self._add(name, **more, **{field: off})
        elif which not in self.passing and self._chance(chance):
            self.passing.add(which)
            self._add(name, **more, **{field: on})

    def _of_managers(self) -> None:
        random, bad = self.random, self.weather.managers
        name = random.choice(MANAGERS)
        if name in self.alive and self._chance(0.12 * bad):
            self.alive.discard(name)
            self._add("manager_dies", manager=name)
        elif name not in self.alive and (self._chance(0.2 * bad) or not self.alive):
            self.alive.add(name)
            self._add("manager_starts", manager=name)
        for each in MANAGERS:
            self._passing("manager_cut", 0.03 * bad, "cut", True, False, manager=each)
        if self._chance(0.08 * bad):
            # Long enough for a lease to end, or for a driver to count as stopped.
            self._add("wait", ms=random.choice((1_000, 7_000, 35_000)))

    def _of_store(self) -> None:
        random, bad = self.random, self.weather.store
        faults = [str(fault) for fault in StoreFault if fault != StoreFault.NONE]
        if self.fault_left:
            self.fault_left -= 1
            if not self.fault_left:
                self._add("store_fault", fault=str(StoreFault.NONE))
        elif self._chance(0.15 * bad):
            self.fault_left = random.choice((1, 2, 6, 15))
            self._add("store_fault", fault=random.choice(faults))
        if self._chance(0.02 * bad):
            self._add("store_fault", fault=random.choice(faults), lasts=True)
        if self._chance(0.15 * bad):
            self._add("store_unlistable", times=random.choice((1, 1, 2, 5)))
        if self._chance(0.1 * bad):
            self._add("store_unreadable", times=random.choice((1, 1, 2, 5)))
        if self._chance(0.3 * bad):
            self._add("package_corrupted", number=random.randrange(100))
        if self._chance(0.08 * bad):
            self.thefts_left = random.randint(2, 7)
        if self.thefts_left or self._chance(0.2 * bad):
            self.thefts_left = max(0, self.thefts_left - 1)
            for _ in range(random.choice((1, 1, 3))):
                self._add("package_lost", number=random.randrange(100))

    # -- the operator

    def _of_operator(self) -> None:
        random, bad = self.random, self.weather.operator
        for number in [number for number, left in self.cancels.items() if not left]:
            which = {"rebalance": f"r{number}"} if self._chance(0.5) else {"migration": f"r{number}-1"}
            self._add("cancel", id=f"c{len(self.actions)}", **which)
        self.cancels = {number: left - 1 for number, left in self.cancels.items() if left}
        if self._chance(0.1 if self.balances_itself else 0.35):
            self._ask()
            if self._chance(0.15 + 0.3 * bad):
                self.cancels[self.requests] = random.randint(0, 7)
        if self._chance(0.05 * bad):
            self._add("repeat", number=random.randrange(100))
        if self._chance(0.04 * bad):
            self._add("garbage", text=random.choice(GARBAGE))
        if self._chance(0.04 * bad):
            self._add("pin", groups=random.sample(range(self.shape.partitions), random.randint(0, 2)))
        if self._chance(0.15 if self.balances_itself else 0.04 * bad):
            settings = {"auto": True, "start_ratio": 1.05, "stop_ratio": 1.01, "cool_down_s": 1.0, "min_busy": 0.0}
            more = {"min_batches": 2, "measure": random.choice(("cpu", "bytes", "rows")), "min_gain": 0.0}
            self._add("automatic", **settings, **more, policy=random.choice(("level", "pairwise")))
        elif self._chance(0.05):
            self._add("automatic", auto=False)

    def _ask(self) -> None:
        random, shape = self.random, self.shape
        self.requests += 1
        moves: list[dict[str, Any]] = []
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            move: dict[str, Any] = {"receiver": random.randrange(shape.workers)}
            if self._chance(0.3):
                move |= {"sender": random.randrange(shape.workers), "share": random.choice((0.2, 0.5, 1.0))}
                move["measure"] = random.choice(("cpu", "bytes"))
            else:
                move["groups"] = random.sample(range(shape.partitions), random.randint(1, min(4, shape.partitions)))
            if self._chance(0.2):
                move["strategy"] = random.choice(("ptlb", "mslb"))
            moves.append(move)
        more: dict[str, Any] = {"strategy": random.choice(("mslb", "mslb", "ptlb", "auto"))}
        if self._chance(0.3):
            more["max_pause_ms"] = TINY_PAUSE_MS
        if self._chance(0.3):
            more["order"] = "hot-last"
        self._add("ask", id=f"r{self.requests}", moves=moves, **more)

    # -- plans

    def _of_planner(self) -> None:
        """Has a luck of its own, so that the rest of a seed's story is what it was before there were orders."""
        luck = self.planner
        if luck.random() < self.replans:
            self._add(
                "replan",
                worker=luck.randrange(self.shape.workers),
                plan=draw_tree(luck, self.shape.names),
                strategy=str(luck.choice(list(PlanStrategy))),
                budget_ms=luck.choice((0, 1, 5)),
            )

    # -- who goes when

    def _batch_and_turns(self) -> None:
        """A batch, in some pieces, with pieces of the managers' turns in between."""
        random = self.random
        pieces: list[Action] = []
        for manager in MANAGERS:
            if manager in self.alive:
                if self._chance(0.9 if self.amnesia else 0.4):
                    pieces.append(Action("turn", {"manager": manager}))
                for _ in range(random.choice((0, 0, 1, 2))):
                    pieces.append(Action("go", {"manager": manager, "steps": random.choice((1, 7, 30, 60))}))
        whole = self._chance(0.5)
        values: dict[str, Any] = {"rows": self._rows()}
        if faults := self._faults():
            values["faults"] = faults
            if "no_task" in faults:
                values["rows"] = {}
        if not whole:
            values["steps"] = random.randint(0, 3)
            if self._chance(0.2 * self.weather.store) and not self.fault_left:
                # In mid-batch: attempts of one batch meet with different luck.
                self.fault_left = 1
                pieces.append(Action("store_fault", {"fault": str(StoreFault.NEARLY_FULL)}))
            pieces += [Action("go_spark", {"steps": random.randint(1, 4)}) for _ in range(random.randint(0, 2))]
        random.shuffle(pieces)
        self.actions += [Action("batch", values), *pieces]
