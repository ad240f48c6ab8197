"""A manager in a thread of its own, for programs that are not asynchronous: demo, benchmarks, tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from balancing.protocols.migration import Migration
from balancing.replans.replan import Replan
from balancing.replans.requests import CancelReplan, ReplanRequest, check_replan
from balancing.requests import CancelRequest, Rebalance, RebalanceRequest, check
from balancing.settings import parse_settings
from manager.requests import enqueue, situation
from manager.service import ManagerService
from manager.settings import ManagerSettings
from manager.store import ManagerStore

T = TypeVar("T")


class EmbeddedManager:
    """Runs inside `with`. Its methods may be called from any thread."""

    def __init__(self, redis_url: str, settings: ManagerSettings | None = None) -> None:
        self._url = redis_url
        self._settings = settings or ManagerSettings()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="trimtab-manager", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._done: asyncio.Event
        self.service: ManagerService
        self.store: ManagerStore

    def __enter__(self) -> EmbeddedManager:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it in good order. It may be called twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._done.set)
            self._thread.join()

    def call(self, make: Callable[[ManagerStore], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the manager's own loop, with its own connection to Redis."""
        return asyncio.run_coroutine_threadsafe(make(self.store), self._loop).result(timeout=30)

    def rebalance(self, request: RebalanceRequest) -> None:
        """Check the request and hand it to the leader, as the API does."""

        async def ask(store: ManagerStore) -> None:
            check(request, await situation(store, request.query, self._settings.heartbeat_max_ms))
            await enqueue(store.client, request)

        self.call(ask)

    def replan(self, request: ReplanRequest) -> None:
        """The same for another plan of a worker."""

        async def ask(store: ManagerStore) -> None:
            check_replan(request, await situation(store, request.query, self._settings.heartbeat_max_ms))
            await enqueue(store.client, request)

        self.call(ask)

    def replanned(self, query: str, replan: str) -> Replan | None:
        return self.call(lambda store: store.replan(query, replan))

    def cancel(self, request: CancelRequest | CancelReplan) -> None:
        self.call(lambda store: enqueue(store.client, request))

    def outcome(self, query: str, rebalance: str) -> Rebalance | None:
        return self.call(lambda store: store.rebalance(query, rebalance))

    def migrations(self, query: str) -> dict[str, Migration]:
        return self.call(lambda store: store.migrations(query))

    def set_auto(self, query: str, **changes: Any) -> None:
        """Change the balancer's settings."""

        async def change(store: ManagerStore) -> None:
            await store.set_auto(query, parse_settings(changes, await store.auto(query)))

        self.call(change)

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        self.store = ManagerStore(self._url, self._settings.redis_timeout_s)
        self.service = ManagerService(self.store, self._settings)
        await self.service.start()
        self._ready.set()
        await self._done.wait()
        await self.service.stop()
        await self.store.close()
