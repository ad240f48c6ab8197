"""The API as clients see it: a real uvicorn on a real port, a real Redis, a data plane without Spark."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import cast

import httpx
import redis

from api.embedded import EmbeddedServer
from api.gate import GateSettings
from api.keys import Scope
from api.limits import RequestRates
from manager.settings import ManagerSettings
from manager.snapshots import SNAPSHOT_TTL_S, snapshot_text
from manager.store import ManagerStore
from manager.watch import Watch
from tests.simulation.data_plane import DataPlane
from trimtab import redis_keys

RATES = RequestRates(mutations_per_s=10_000, questions_per_s=10_000, questions_at_once=10_000, failures_per_s=10_000)
FRESH = GateSettings(answers_kept_s=0.0, rates=RATES)
"""No answer is kept and no request is over the limit, in tests that are not about that."""
QUICK = ManagerSettings(poll_s=0.005, discover_s=0.01, backoff_max_s=0.05)


class Served(EmbeddedServer):
    """With `manager`, requests are carried out as well."""

    def __init__(
        self,
        redis_url: str,
        *,
        gate: GateSettings = FRESH,
        manager: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(redis_url, gate=gate, manager=QUICK, with_manager=manager, clock=clock)
        self._clients: list[httpx.Client] = []

    def key(self, scope: Scope, name: str = "test") -> str:
        return super().key(scope, name)

    def client(self, scope: Scope | None) -> httpx.Client:
        headers = {} if scope is None else {"Authorization": f"Bearer {self.key(scope)}"}
        client = httpx.Client(base_url=self.url, headers=headers, timeout=10.0)
        self._clients.append(client)
        return client

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
        super().__exit__(kind, error, trace)


def cleared(redis_url: str) -> None:
    """A Redis without queries; keys stay, so clients can be used again."""
    with redis.Redis.from_url(redis_url) as client:
        for name in client.scan_iter("trimtab:*"):
            if not bytes(name).startswith(b"trimtab:api:keys"):
                client.delete(name)


def until(condition: Callable[[], bool], plane: DataPlane | None = None, seconds: float = 30.0) -> None:
    """Run batches of the query until a condition holds, which another thread brings about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        if plane is not None:
            plane.step()
        time.sleep(0.01)


def measured(redis_url: str, query: str = "orders") -> None:
    """Write a load snapshot to Redis, as the leader does for readers."""

    async def look() -> None:
        store = ManagerStore(redis_url)
        watch = Watch(store, query, QUICK)
        await watch.look()
        snapshot = watch.snapshot({}, await store.rules(query))
        assert snapshot is not None
        await store.client.set(redis_keys.snapshot(query), snapshot_text(snapshot), ex=SNAPSHOT_TTL_S)
        await store.close()

    asyncio.run(look())


def contents(plane: DataPlane) -> dict[str, bytes | None]:
    """Everything that Redis has about the query, to see whether it changed."""
    names = sorted(str(name) for name in plane.store.client.keys(f"trimtab:{{{plane.query}}}:*"))
    with redis.Redis.from_url(plane.store.url) as raw:
        return {name: cast("bytes | None", raw.dump(name)) for name in names}
