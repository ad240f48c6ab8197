"""Does what the schedule says to the processes, and mends it when its time has come."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

from tests.checkers.harness import kill_tree
from tests.soak.cluster import Driver
from tests.soak.layout import Layout
from tests.soak.ledger import Ledger
from tests.soak.managers import Manager
from tests.soak.progress import Progress
from tests.soak.redis_process import RedisProcess
from tests.soak.schedule import Fault
from tests.soak.transfer_store import StoreBlock

RETRY_S: Final = 1.0
RETRIES_MAX: Final = 120
"""A fault that finds no victim (a driver that is just starting) waits for one for so long."""
SETTLED_BATCHES: Final = 5
"""A fault that hurts the query's own processes waits until so many batches were committed since the last one, however
long that takes. By the clock alone a busy machine would spend the soak starting drivers, and nothing would be moved."""
HASTE: Final = 0.25
"""The share of faults that may hit a query that is still recovering: one in each recovery, and never the driver again,
so that recovery itself is tested and yet comes to an end."""
DRIVER_FAULTS: Final = frozenset({"driver-killed", "driver-machine-lost"})
QUERY_FAULTS: Final = frozenset(
    {
        "python-worker-killed",
        "python-worker-stopped",
        "executor-killed",
        "executor-machine-lost",
        "zombie",
        "driver-killed",
        "driver-machine-lost",
    }
)
COPE_BATCHES: Final = 60
COPE_S: Final = 120.0
"""A move that a full store has hit must end, one way or the other, without the store's being mended: in so many batches
and seconds at the latest."""
Mend = Callable[[], None]


@dataclass(frozen=True)
class World:
    """All that can be hurt."""

    layout: Layout
    driver: Driver
    managers: tuple[Manager, ...]
    redis: RedisProcess
    store: StoreBlock
    progress: Progress


class Chaos:
    """For the main thread: whoever starts and kills processes is one thread alone."""

    def __init__(self, world: World, schedule: list[Fault], ledger: Ledger, seed: int) -> None:
        self._world = world
        self._schedule = schedule
        self._ledger = ledger
        self._rng = random.Random(seed)
        self._number = 0
        self._due: list[tuple[float, int, Fault, int]] = []
        self._mends: list[tuple[float, int, Mend]] = []
        self._hurt_at_batch = -SETTLED_BATCHES
        self._hurried = False
        self.news = "none yet"

    def begin(self) -> None:
        for fault in self._schedule:
            self._push(time.monotonic() + fault.at_s, fault, 0)

    def step(self) -> None:
        """What is due by now."""
        now = time.monotonic()
        while self._mends and self._mends[0][0] <= now:
            heapq.heappop(self._mends)[2]()
        while self._due and self._due[0][0] <= now:
            _, _, fault, tries = heapq.heappop(self._due)
            self._inflict(fault, tries)

    def mend_all(self) -> None:
        """No further fault. What mends itself only when the system has coped with it goes on in `step`."""
        for _, _, fault, _ in self._due:
            self._ledger.miss(fault.kind)
        self._due.clear()
        mends, self._mends = self._mends, []
        for _, _, mend in mends:
            mend()

    def _push(self, at: float, fault: Fault, tries: int) -> None:
        self._number += 1
        heapq.heappush(self._due, (at, self._number, fault, tries))

    def _inflict(self, fault: Fault, tries: int) -> None:
        settled = self._settled()
        if fault.kind in QUERY_FAULTS and not settled and not self._in_haste(fault, tries):
            # Waiting for the query does not count as a search for a victim; but the dice are thrown once.
            self._push(time.monotonic() + RETRY_S, fault, max(1, tries))
            return
        act: Callable[[Fault], bool] = getattr(self, "_" + fault.kind.replace("-", "_"))
        done = False
        with suppress(psutil.NoSuchProcess):
            done = act(fault)
        if done:
            self._ledger.fault(fault.kind)
            if fault.kind in QUERY_FAULTS:
                self._hurt_at_batch = self._world.progress.committed()
                self._hurried = not settled
            self.news = fault.kind
        elif tries < RETRIES_MAX:
            self._push(time.monotonic() + RETRY_S, fault, tries + 1)
        else:
            self._ledger.miss(fault.kind)

    def _settled(self) -> bool:
        return self._world.progress.committed() >= self._hurt_at_batch + SETTLED_BATCHES

    def _in_haste(self, fault: Fault, tries: int) -> bool:
        if tries > 0 or self._hurried or fault.kind in DRIVER_FAULTS:
            return False
        return self._rng.random() < HASTE

    def _later(self, seconds: float, mend: Mend) -> bool:
        self._number += 1
        heapq.heappush(self._mends, (time.monotonic() + seconds, self._number, mend))
        return True

    # One method for each kind of fault; False where it found no victim.

    def _python_worker_killed(self, fault: Fault) -> bool:
        victim = self._world.driver.busy_python_worker(self._rng)
        if victim is None:
            return False
        victim.kill()
        return True

    def _python_worker_stopped(self, fault: Fault) -> bool:
        """Nobody sees that it stands still: the batch waits, and then goes on."""
        victim = self._world.driver.busy_python_worker(self._rng)
        if victim is None:
            return False
        victim.suspend()
        return self._later(fault.pause_s, lambda: _resume(victim))

    def _executor_killed(self, fault: Fault) -> bool:
        victims = self._world.driver.executors()
        if not victims:
            return False
        self._rng.choice(victims).kill()
        return True

    def _executor_machine_lost(self, fault: Fault) -> bool:
        victims = self._world.driver.executors()
        if not victims:
            return False
        kill_tree(self._rng.choice(victims))
        return True

    def _zombie(self, fault: Fault) -> bool:
        """A Python worker sleeps, its executor dies, and the worker wakes up when others have long done its work."""
        victim = self._world.driver.busy_python_worker(self._rng)
        if victim is None:
            return False
        victim.suspend()
        # The daemon first: it would take its workers along when its executor is gone.
        for parent in victim.parents()[:2]:
            with suppress(psutil.NoSuchProcess):
                parent.kill()
        return self._later(fault.pause_s, lambda: _resume(victim))

    def _driver_killed(self, fault: Fault) -> bool:
        """Executors are left behind, and notice in their own time."""
        return self._end_driver(fault, tree=False)

    def _driver_machine_lost(self, fault: Fault) -> bool:
        return self._end_driver(fault, tree=True)

    def _end_driver(self, fault: Fault, *, tree: bool) -> bool:
        driver = self._world.driver
        if not driver.executors():
            return False
        driver.kill(fault.pause_s, tree=tree)
        return True

    def _manager_killed(self, fault: Fault) -> bool:
        running = [manager for manager in self._world.managers if manager.running]
        if not running:
            return False
        self._rng.choice(running).kill(fault.pause_s, tree=True)
        return True

    def _managers_killed(self, fault: Fault) -> bool:
        running = [manager for manager in self._world.managers if manager.running]
        for manager in running:
            manager.kill(fault.pause_s, tree=True)
        return bool(running)

    def _redis_killed(self, fault: Fault) -> bool:
        redis = self._world.redis
        if redis.away_since is not None:
            return False
        redis.kill()
        return self._later(fault.pause_s, redis.bring_back)

    def _redis_emptied(self, fault: Fault) -> bool:
        redis = self._world.redis
        if redis.away_since is not None:
            return False
        redis.flush()
        return True

    def _redis_set_back(self, fault: Fault) -> bool:
        redis = self._world.redis
        if redis.away_since is not None:
            return False
        copy = self._world.layout.base / "redis-before"
        redis.copy_files(copy)

        def go_back() -> None:
            # Killed meanwhile: then the other fault brings it back.
            if redis.away_since is None:
                redis.go_back_to(copy)

        return self._later(fault.pause_s, go_back)

    def _store_gone(self, fault: Fault) -> bool:
        store = self._world.store
        if store.blocked:
            return False
        store.block(readable=False)
        return self._later(fault.pause_s, store.free)

    def _store_full(self, fault: Fault) -> bool:
        store = self._world.store
        if store.blocked:
            return False
        store.block(readable=True)
        return self._later(fault.pause_s, self._free_store)

    def _free_store(self) -> None:
        """Not before all moves that are open now have ended: mending the fault must not be what ends them."""
        hit = frozenset(self._world.progress.open_moves())
        since_batch, since = self._world.progress.committed(), time.monotonic()

        def look() -> None:
            left = hit & set(self._world.progress.open_moves())
            batches, seconds = self._world.progress.committed() - since_batch, time.monotonic() - since
            if left and (batches < COPE_BATCHES or seconds < COPE_S):
                self._later(RETRY_S, look)
                return
            if left:
                self._ledger.fail(f"a full store kept {sorted(left)} open for {batches} batches and {seconds:.0f} s")
            self._world.store.free()

        look()


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
