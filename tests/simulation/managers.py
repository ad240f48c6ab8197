"""Managers, a data plane and a Redis that can be hurt: what tests of the manager are made of.

Tests wait for conditions. Batches run, and managers take their turns, as often as the loop allows; nothing depends on
how long anything takes: the lease of a manager that is killed ends at once here, instead of after some seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from balancing.protocols.migration import Migration
from balancing.requests import CancelRequest, MoveRequest, Rebalance, RebalanceRequest
from manager.keeping import keep_turning
from manager.requests import enqueue
from manager.runner import QueryRunner, make_runner
from manager.settings import ManagerSettings
from manager.store import ManagerStore
from tests.simulation.data_plane import DataPlane
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis

QUICK = ManagerSettings(
    poll_s=0.002,
    discover_s=0.02,
    lease_ttl_s=6.0,
    lease_renew_s=2.0,
    backoff_first_s=0.005,
    backoff_max_s=0.02,
    redis_timeout_s=0.5,
    snapshot_s=0.0,
)
PATIENCE_S = 60.0
"""A test that waits longer has failed."""


class Killed(BaseException):
    """A manager's process ends here: nothing is tidied up."""


class Killer:
    """Ends a manager at the n-th passing of a crash point."""

    def __init__(self, point: str, times: int = 1) -> None:
        self.point, self.left = point, times
        self.passed: list[str] = []

    def __call__(self, point: str) -> None:
        self.passed.append(point)
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                raise Killed(point)


class World:
    """One query that runs by itself, and the managers that are started for it."""

    def __init__(self, server: EmbeddedRedis, **shape: Any) -> None:
        self.server = server
        self.store = ManagerStore(server.url, QUICK.redis_timeout_s)
        self.plane = DataPlane(server.url, **shape)
        self.query = self.plane.query
        self.running = True
        """Whether batches run."""
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.runners: dict[str, QueryRunner] = {}
        self._stop = asyncio.Event()
        self._stops: dict[str, asyncio.Event] = {}
        self._stores: list[ManagerStore] = [self.store]
        self._batches: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        for _ in range(3):
            self.plane.step()
        self._batches = asyncio.create_task(self._run_batches())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        for stop in self._stops.values():
            stop.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert self._batches is not None
        await self._batches
        for store in self._stores:
            await store.close()

    async def _run_batches(self) -> None:
        while not self._stop.is_set():
            if self.running:
                # Beside the event loop: managers take their turns while a batch runs, as they do in earnest.
                await asyncio.to_thread(self.plane.step)
            await asyncio.sleep(0.004)

    def begin_anew(self) -> None:
        """The query is started again under its name, with an empty checkpoint."""
        old = self.plane
        old.end()
        self.plane = DataPlane(self.server.url, query=old.query, window=old.window, incarnation=old.incarnation + "x")
        self.plane.step()

    def manager(
        self, name: str, crash: Callable[[str], None] | None = None, *, url: str = "", **changes: Any
    ) -> QueryRunner:
        """Start a manager; `crash` is called at each of its crash points."""
        settings = replace(QUICK, **changes)
        store = ManagerStore(url or self.server.url, settings.redis_timeout_s)
        self._stores.append(store)
        runner = make_runner(store, self.query, name, settings, crash=crash or (lambda point: None))
        self.runners[name] = runner
        self._stops[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._until_killed(runner, self._stops[name]))
        return runner

    async def _until_killed(self, runner: QueryRunner, stop: asyncio.Event) -> None:
        try:
            await keep_turning(runner, stop)
        except Killed:
            self.end_lease(runner)

    def end_lease(self, runner: QueryRunner) -> None:
        """As if its time were over."""
        key = redis_keys.lease(self.query)
        if self.plane.store.client.get(key) == runner.lease.value:
            self.plane.store.client.delete(key)

    async def stop(self, name: str) -> None:
        """End a manager the proper way: it hands its lease back."""
        self._stops[name].set()
        await self.tasks[name]

    async def until(self, condition: Callable[[], Any], what: str = "") -> None:
        """Wait until `condition()` (or what it awaits) is true; tell the story if it never is."""
        try:
            await reached(condition)
        except TimeoutError:
            told = [f"waited in vain for {what or condition}", self.plane.bound.render()]
            told += [str(move) for move in self.plane.bound.moves]
            told += [f"{name}: leading={each.leading} {each.problem}" for name, each in self.runners.items()]
            for runner in self.runners.values():
                told += [each.render_story() for each in runner.steering.migrations]
            raise AssertionError("\n".join(told)) from None

    # Asking

    async def ask(self, *moves: MoveRequest, id: str = "r1", **changes: Any) -> str:
        given = {"strategy": "mslb", "reason": "test", "by": "tester", **changes}
        await enqueue(self.store.client, RebalanceRequest(id=id, query=self.query, moves=moves, **given))
        return id

    async def cancel(self, **which: Any) -> None:
        await enqueue(self.store.client, CancelRequest(id="c1", query=self.query, reason="test", by="tester", **which))

    # Looking

    async def rebalance(self, id: str = "r1") -> Rebalance:
        record = await self.store.rebalance(self.query, id)
        assert record is not None
        return record

    async def migration(self, id: str = "r1-1") -> Migration:
        record = await self.store.migration(self.query, id)
        assert record is not None
        return record

    async def was_begun(self, id: str) -> bool:
        record = await self.store.migration(self.query, id)
        return record is not None and record.step >= 1

    async def is_audited(self, id: str = "r1-1") -> bool:
        """Its audit goes on for some batches after the close."""
        return (await self.migration(id)).audit.finished

    async def is_closed(self, id: str = "r1") -> bool:
        record = await self.store.rebalance(self.query, id)
        return record is not None and not record.open

    async def ended(self, id: str = "r1") -> Rebalance:
        """Wait for the end of a rebalance, and for the epoch that it ends with to be bound."""
        await self.until(lambda: self.is_closed(id), f"the end of {id}")
        await self.until(lambda: not self.plane.bound.moves and not self.plane.bound.questions, "no open moves")
        committed = self.plane.committed
        await self.until(lambda: self.plane.committed > committed + 2, "two more batches")
        return await self.rebalance(id)

    def check(self) -> None:
        """Nothing lost, nothing doubled, and no group held anywhere but at its owner."""
        assert self.plane.verdict() == (0, 0)
        assert self.plane.leftovers() == []


class Proxy:
    """Stands between a manager and Redis; can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._is_cut = False
        self.url = ""

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        assert self._server is not None
        self._server.close()

    def cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def heal(self) -> None:
        self._is_cut = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.close()
            return
        there, onward = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, onward]
        await asyncio.gather(_pump(reader, onward), _pump(there, writer))


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()


async def reached(condition: Callable[[], Any]) -> None:
    """Wait until `condition()`, or what it awaits, is true; TimeoutError where it never is."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.002)


def move(sender: int = 0, receiver: int = 1, groups: tuple[int, ...] = (0, 3), **changes: Any) -> MoveRequest:
    return MoveRequest(sender=sender, receiver=receiver, groups=groups, **changes)
