"""The manager as a service: finds the queries in Redis and runs each of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Callable

from redis.exceptions import RedisError

from manager.keeping import keep_turning
from manager.runner import QueryRunner, make_runner
from manager.settings import ManagerSettings
from manager.store import ManagerStore

log = logging.getLogger("trimtab.manager")


def holder_name() -> str:
    """Names the holder of a lease. It is unique: a restarted manager must not be mistaken for the one before."""
    host = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in socket.gethostname())
    return f"{host}:{os.getpid()}:{secrets.token_hex(4)}"


class ManagerService:
    """One manager: leads the queries that have no other leader, and is a standby for the others."""

    def __init__(
        self,
        store: ManagerStore,
        settings: ManagerSettings | None = None,
        *,
        holder: str | None = None,
        runner_for: Callable[[str], QueryRunner] | None = None,
    ) -> None:
        self.store = store
        self.settings = settings or ManagerSettings()
        self.holder = holder or holder_name()
        self.runners: dict[str, QueryRunner] = {}
        self._runner_for = runner_for or (lambda query: make_runner(store, query, self.holder, self.settings))
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._problem = "not started yet"
        self._told: type[Exception] | None = None
        """What is wrong with Redis, as the log knows it: each kind of trouble is told once."""

    def not_ready(self) -> str:
        """Why this manager cannot work at the moment; empty if it can. For readiness probes."""
        return self._problem

    async def start(self) -> None:
        """Begin. This does not wait for Redis: a manager may be started before it."""
        self._main = asyncio.create_task(self.run(), name="trimtab-manager")

    async def stop(self) -> None:
        """End every runner after its turn, release the leases, and return when everything is done."""
        self._stop.set()
        if self._main is not None:
            await self._main

    async def run(self) -> None:
        """Look for queries until stopped."""
        try:
            while not self._stop.is_set():
                try:
                    for query in await self.store.queries():
                        self._watch_over(query)
                    await self._count_alarms()
                    self._problem, self._told = "", None
                except (RedisError, OSError, TimeoutError) as error:
                    if type(error) is not self._told:
                        log.warning("Redis does not answer: %s", error)
                    self._told = type(error)
                    self._problem = f"Redis does not answer: {error}"
                except Exception as error:
                    # Whatever is wrong with one entry: queries that are led already are led on.
                    log.exception("the list of queries cannot be read")
                    self._problem = f"the list of queries cannot be read: {type(error).__name__}: {error}"
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.settings.discover_s):
                        await self._stop.wait()
        finally:
            self._stop.set()
            self._problem = "stopped"
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _count_alarms(self) -> None:
        """Whoever raised them; driver and executors write theirs straight into Redis."""
        for query, runner in self.runners.items():
            if runner.leading:
                runner.observed.alarmed(await self.store.alarms(query))

    def _watch_over(self, query: str) -> None:
        task = self._tasks.get(query)
        if task is not None and not task.done():
            return
        if task is not None:
            log.error("%s: its runner ended (%s); starting another", query, task.exception())
        runner = self.runners[query] = self._runner_for(query)
        self._tasks[query] = asyncio.create_task(keep_turning(runner, self._stop), name=f"trimtab-{query}")
