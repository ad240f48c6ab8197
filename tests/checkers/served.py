"""The API as clients see it: a real uvicorn on a real port, a real Redis, a data plane without Spark."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, cast

import httpx
import redis

from api.app import create_app
from api.backend import Backend
from api.events import EventStreams
from api.gate import GateSettings
from api.keys import KeyStore, Scope, new_key
from api.limits import Rates
from api.server import Server, ServeSettings, listen
from manager.service import ManagerService
from manager.settings import ManagerSettings
from manager.snapshots import save_snapshot
from manager.store import ManagerStore
from manager.watch import Watch
from tests.simulation.data_plane import DataPlane

FRESH = GateSettings(answers_kept_s=0.0, rates=Rates(mutations_per_s=10_000, failures_per_s=10_000))
"""No answer is kept and nobody is told to wait, where a test is not about that."""
QUICK = ManagerSettings(poll_s=0.005, discover_s=0.01, backoff_max_s=0.05)


class Served:
    """Runs in a thread of its own; `client` speaks HTTP to it. With `manager` requests are carried out, too."""

    def __init__(
        self,
        redis_url: str,
        *,
        gate: GateSettings | None = None,
        manager: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.redis_url = redis_url
        self._gate = gate or FRESH
        self._with_manager = manager
        self._clock = clock
        self._ready = threading.Event()
        self._server: Server | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._clients: list[httpx.Client] = []
        self.url = ""

    def key(self, scope: Scope, name: str = "test") -> str:
        async def make() -> str:
            store = ManagerStore(self.redis_url)
            text, record = new_key(name, scope, 0)
            await KeyStore(store.client).add(record)
            await store.close()
            return text

        return asyncio.run(make())

    def client(self, scope: Scope | None) -> httpx.Client:
        headers = {} if scope is None else {"Authorization": f"Bearer {self.key(scope)}"}
        made = httpx.Client(base_url=self.url, headers=headers, timeout=10.0)
        self._clients.append(made)
        return made

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise AssertionError("the server did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
        if self._server is not None:
            self._server.end()
        self._thread.join(10)
        assert not self._thread.is_alive(), "the server did not end"

    async def _run(self) -> None:
        managed, asked = ManagerStore(self.redis_url), ManagerStore(self.redis_url)
        service = ManagerService(managed, QUICK)
        streams = EventStreams(asked, self._clock)
        backend = Backend(asked, streams, not_ready=service.not_ready if self._with_manager else str)
        app = create_app(backend, self._gate, self._clock)
        listening = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self._server = _Told(app, streams, ServeSettings(), self._ready)
        if self._with_manager:
            await service.start()
        await self._server.serve(sockets=[listening])
        if self._with_manager:
            await service.stop()
        await managed.close()
        await asked.close()


def cleared(redis_url: str) -> None:
    """A Redis without queries; keys stay, so clients can be used again."""
    with redis.Redis.from_url(redis_url) as client:
        for name in client.scan_iter("trimtab:*"):
            if not bytes(name).startswith(b"trimtab:api:keys"):
                client.delete(name)


class _Told(Server):
    """Says when it listens."""

    def __init__(self, app: object, streams: EventStreams, settings: ServeSettings, ready: threading.Event) -> None:
        super().__init__(app, streams, settings)  # type: ignore[arg-type]
        self._ready = ready

    async def startup(self, sockets: object = None) -> None:
        await super().startup(sockets)  # type: ignore[arg-type]
        self._ready.set()


def until(condition: Callable[[], bool], plane: DataPlane | None = None, seconds: float = 10.0) -> None:
    """Go on with the query until something is so; what is waited for happens in another thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        if plane is not None:
            plane.step()
        time.sleep(0.01)


def measured(redis_url: str, query: str = "orders") -> None:
    """Does what the leader does for readers: leaves a load snapshot in Redis."""

    async def look() -> None:
        store = ManagerStore(redis_url)
        watch = Watch(store, query, QUICK)
        await watch.look()
        snapshot = watch.snapshot({}, await store.rules(query))
        assert snapshot is not None
        await save_snapshot(store.client, snapshot)
        await store.close()

    asyncio.run(look())


def contents(plane: DataPlane) -> dict[str, bytes | None]:
    """All that Redis holds of the query, to be compared: did anything change?"""
    found = sorted(str(name) for name in plane.store.client.keys(f"trimtab:{{{plane.query}}}:*"))
    with redis.Redis.from_url(plane.store.url) as raw:
        return {name: cast("bytes | None", raw.dump(name)) for name in found}
