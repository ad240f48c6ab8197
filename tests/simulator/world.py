"""Tells a story: one query, its Spark, its managers, its Redis, its transfer store, and all that happens to them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import redis.asyncio

from balancing.requests import CancelRequest, MoveRequest, RebalanceRequest
from balancing.rules import Rules
from balancing.settings import parse_settings
from manager.requests import QueueFull, enqueue
from tests.simulator.clients import AsyncClient, BlockingClient, Network, SimManagerStore, SimStore
from tests.simulator.clock import VirtualClock, virtual_world
from tests.simulator.files import MemoryFiles, StoreFault
from tests.simulator.managers import SimManager, driven, watched_logs
from tests.simulator.redis_server import SimRedis
from tests.simulator.shape import Row
from tests.simulator.spark import QUERY, BatchFaults, FakeSpark, Fate
from tests.simulator.story import Action, Story
from trimtab import redis_keys
from trimtab.plan_orders import PlanOrder, PlanStrategy

BATCH_MS: Final = 200.0
"""Between two batches."""
STEP_MS: Final = 20.0
"""Of a batch."""
SCRATCH: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
_CALM: Final = frozenset({"batch", "go_spark", "go", "turn", "manager_starts", "wait", "ask", "cancel", "replan"})


class World:
    """Methods without an underscore are actions of a story."""

    def __init__(self, story: Story, directory: Path, clock: VirtualClock, bugs: list[str]) -> None:
        self.story = story
        self.clock = clock
        self.bugs = bugs
        self.server = SimRedis(clock)
        self.network = Network(self.server)
        self.files = MemoryFiles()
        self.client = AsyncClient(self.network)
        self.store = SimManagerStore(self.client)
        self.plane = BlockingClient(self.network)
        self.spark = FakeSpark(directory, story.shape, SimStore(self.plane), self.files, clock.now_ms)
        self._batch: Iterator[str] | None = None
        self.managers: dict[str, SimManager] = {}
        self._asked: list[str] = []
        """Texts of the requests so far."""
        self.fault_lasts = False
        self.garbage_count = self.replans = 0
        self.is_calm = all(
            each.name in _CALM and not (each.values.get("faults") or {}).keys() - {"order"} for each in story.actions
        )
        """Whether nothing goes wrong in this story."""
        self.strangers: list[str] = []
        """Rows that were found with workers that should not have them."""
        self.spark.start()

    def do(self, action: Action) -> None:
        getattr(self, action.name)(**action.values)
        if self.bugs:
            raise AssertionError(f"a manager failed: {self.bugs[0]}")

    # -- Spark

    def batch(
        self, rows: Mapping[str, Sequence[Sequence[int]]], faults: Mapping[str, Any] | None = None, steps: int = -1
    ) -> None:
        """Rows arrive and a batch begins; one that is under way is ended first."""
        self.finish_batch()
        self.clock.advance(BATCH_MS)
        self.spark.arrive({name: [cast(Row, tuple(row)) for row in each] for name, each in rows.items()})
        body: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in (faults or {}).items()
        }
        losers = tuple((worker, Fate(fate)) for worker, fate in body.pop("losers", ()))
        self._batch = self.spark.batch(BatchFaults(losers=losers, **body))
        self.go_spark(steps)

    def go_spark(self, steps: int) -> None:
        while self._batch is not None and steps:
            steps -= 1
            self.clock.advance(STEP_MS)
            reached = next(self._batch, None)
            if reached is None:
                self._batch = None
            elif reached == "committed":
                self.strangers += self.spark.strangers()

    def finish_batch(self) -> None:
        self.go_spark(-1)

    def replan(self, worker: int, plan: str, strategy: str, budget_ms: int) -> None:
        """The worker is ordered another plan, or the one before once more. Workers see it in the epochs of batches that
        are bound from now on; managers know nothing of it."""
        self.replans += 1
        number = self.spark.bound.number if self.spark.epochs else 0
        self.spark.orders[worker] = PlanOrder(
            id=f"p{self.replans}.1",
            worker=worker,
            plan=plan,
            strategy=PlanStrategy(strategy),
            budget_ms=budget_ms,
            epoch=number,
        )

    def driver_stops(self) -> None:
        self._batch = None
        self.spark.stop()

    def executor_dies(self, executor: int) -> None:
        self.spark.workers.kill_executor(executor)

    def zombie_goes_on(self, number: int) -> None:
        self.spark.linger(number)

    # -- managers

    def manager_starts(self, manager: str) -> None:
        self._kill(manager)
        self.managers[manager] = SimManager(manager, QUERY, self.network, self.clock)

    def manager_dies(self, manager: str) -> None:
        self._kill(manager)

    def _kill(self, manager: str) -> None:
        alive = self.managers.pop(manager, None)
        if alive is not None:
            alive.kill()

    def go(self, manager: str, steps: int) -> None:
        alive = self.managers.get(manager)
        if alive is not None:
            for _ in range(steps):
                alive.step()

    def turn(self, manager: str) -> None:
        """Up to its next nap."""
        alive = self.managers.get(manager)
        if alive is not None:
            alive.turn()

    def manager_cut(self, manager: str, cut: bool) -> None:
        if manager in self.managers:
            self.managers[manager].client.is_cut = cut

    # -- Redis

    def redis_forgets(self, writes: int) -> None:
        self.server.forget(writes)

    def redis_flushed(self) -> None:
        self.server.flushall()

    def redis_down(self, down: bool) -> None:
        self.network.down = down

    def redis_loses(self, questions: int = 0, answers: int = 0) -> None:
        self.network.lost_questions, self.network.lost_answers = questions, answers

    def redis_slow(self, ms: float) -> None:
        self.network.slow_ms = ms

    def plane_cut(self, cut: bool) -> None:
        self.plane.is_cut = cut

    def wait(self, ms: float) -> None:
        self.clock.advance(ms)

    # -- the transfer store

    def store_fault(self, fault: str, lasts: bool = False) -> None:
        if not self.fault_lasts:
            self.files.fault, self.fault_lasts = StoreFault(fault), lasts

    def store_unlistable(self, times: int) -> None:
        self.files.unlistable = times

    def store_unreadable(self, times: int) -> None:
        self.files.unreadable = times

    def package_corrupted(self, number: int) -> None:
        self.files.corrupt(number)

    def package_lost(self, number: int) -> None:
        self.files.lose(number)

    # -- the operator

    def ask(self, id: str, moves: Sequence[Mapping[str, Any]], **more: Any) -> None:
        """Moves are said by what to pick from the query as it is: see `_move`."""
        wanted = [move for each in moves if (move := self._move(**each)) is not None]
        if wanted:
            request = RebalanceRequest(
                id=id, query=QUERY, moves=tuple(wanted), reason="story", at_ms=self.clock.now_ms(), **more
            )
            self._enqueue(request)

    def _move(
        self, receiver: int, groups: Sequence[int] = (), sender: int = 0, share: float | None = None, **more: Any
    ) -> MoveRequest | None:
        """Groups of one owner, or a share of a worker's load, to another worker."""
        shape = self.story.shape
        owners = self.spark.bound.owners if self.spark.epochs else shape.owners
        names: tuple[int, ...] = ()
        if share is None:
            picked = [group % shape.partitions for group in groups]
            sender = owners[picked[0]]
            names = tuple(sorted({group for group in picked if owners[group] == sender}))
        sender %= shape.workers
        receiver = (sender + 1 + receiver % (shape.workers - 1)) % shape.workers
        return MoveRequest(sender=sender, receiver=receiver, groups=names, share=share, **more)

    def cancel(self, id: str, **which: Any) -> None:
        self._enqueue(CancelRequest(id=id, query=QUERY, reason="story", by="operator", **which))

    def _enqueue(self, request: RebalanceRequest | CancelRequest) -> None:
        self._asked.append(json.dumps(request.to_json(), separators=(",", ":")))
        try:
            driven(enqueue(cast(redis.asyncio.Redis, self.client), request))
        except QueueFull:
            return

    def repeat(self, number: int) -> None:
        """An old request comes again, past all that would notice at the door."""
        if self._asked:
            driven(self.client.rpush(redis_keys.requests(QUERY), self._asked[number % len(self._asked)]))

    def garbage(self, text: str) -> None:
        self.garbage_count += 1
        driven(self.client.rpush(redis_keys.requests(QUERY), text))

    def pin(self, groups: Sequence[int]) -> None:
        driven(self.store.set_rules(QUERY, Rules(pinned=frozenset(groups))))

    def automatic(self, **settings: Any) -> None:
        driven(self.store.set_auto(QUERY, parse_settings(settings)))


@contextmanager
def world_of(story: Story) -> Iterator[World]:
    clock = VirtualClock()
    with (
        tempfile.TemporaryDirectory(dir=SCRATCH, prefix="trimtab-simulator-") as directory,
        virtual_world(clock, story.seed),
        watched_logs() as bugs,
    ):
        yield World(story, Path(directory), clock, bugs)
