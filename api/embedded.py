"""Manager and API in a thread of this process: for the demo and for tests, which need their main thread."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from api.gate import GateSettings
from api.keys import KeyStore, Scope, new_key
from api.server import Server, ServeSettings, listen, prepared
from api.tickets import Tickets
from manager.settings import ManagerSettings
from manager.store import ManagerStore, now_ms
from trimtab.errors import TrimtabError

START_S = 30.0


class EmbeddedServer:
    """Serves inside `with`, on a free loopback port unless one is named."""

    def __init__(
        self,
        redis_url: str,
        *,
        port: int = 0,
        gate: GateSettings | None = None,
        manager: ManagerSettings | None = None,
        with_manager: bool = True,
        clock: Callable[[], float] = time.monotonic,
        keys: Path | None = None,
    ) -> None:
        self.redis_url = redis_url
        self.url = ""
        self._port = port
        self._gate = gate
        self._manager = manager
        self._with_manager = with_manager
        self._clock = clock
        self._keys = keys
        self._ready = threading.Event()
        self._server: Server | None = None
        self._thread = threading.Thread(target=self._in_thread, name="trimtab-serve", daemon=True)
        self._failure: BaseException | None = None

    def key(self, scope: Scope, name: str) -> str:
        """A new key, which is shown once."""

        async def make() -> str:
            store = ManagerStore(self.redis_url)
            text, record = new_key(name, scope, now_ms())
            await KeyStore(store.client).add(record)
            await store.close()
            return text

        return asyncio.run(make())

    def ticket(self, scope: Scope, name: str) -> str:
        """A one-time ticket that is worth a new key."""

        async def issue() -> str:
            store = ManagerStore(self.redis_url)
            try:
                return await Tickets(store.client).issue(scope, name, now_ms())
            finally:
                await store.close()

        return asyncio.run(issue())

    def __enter__(self) -> Self:
        listening = listen("127.0.0.1", self._port)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self._listening: socket.socket = listening
        self._thread.start()
        if not self._ready.wait(START_S) or self._failure is not None:
            raise TrimtabError(f"the server did not start: {self._failure}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.end()
        self._thread.join(START_S)
        if self._thread.is_alive():
            raise TrimtabError("the server did not end")

    def _in_thread(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._ready.set()

    async def _run(self) -> None:
        async with prepared(
            ServeSettings(redis=self.redis_url, gate=self._gate or GateSettings(), keys=self._keys),
            manager=self._manager,
            with_manager=self._with_manager,
            clock=self._clock,
            listens=self._ready.set,
        ) as (self._server, _):
            await self._server.serve(sockets=[self._listening])
