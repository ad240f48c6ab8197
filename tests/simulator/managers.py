"""Production managers, one Redis call at a time: each is the coroutine of `manager.keeping`, advanced by hand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

import redis
import redis.asyncio

from manager.journal import LeaderJournal
from manager.keeping import keep_turning
from manager.lease import Lease
from manager.runner import QueryRunner
from manager.settings import ManagerSettings
from tests.simulator.clients import AsyncClient, Network, SimManagerStore
from tests.simulator.clock import Nap, VirtualClock

SETTINGS: Final = ManagerSettings(poll_s=0.1, snapshot_s=0.0, stalled_s=20.0)
TURN_STEPS_MAX: Final = 20_000
T = TypeVar("T")


class SimManager:
    """A manager's process: it can stall (nobody advances it), be cut off, or be killed between any two steps."""

    def __init__(self, name: str, query: str, network: Network, clock: VirtualClock) -> None:
        self.name = name
        self.client = AsyncClient(network)
        self._clock = clock
        self._nap = Nap(clock)
        client = cast(redis.asyncio.Redis, self.client)
        ttl_s, renew_s = SETTINGS.lease_ttl_s, SETTINGS.lease_renew_s
        lease = Lease(client, query, name, ttl_s=ttl_s, renew_s=renew_s, clock=clock.monotonic)
        journal = LeaderJournal(client, query, lease)
        store = SimManagerStore(self.client)
        self.runner = QueryRunner(store, query, lease, journal, SETTINGS, clock=clock.monotonic)
        self._life = keep_turning(self.runner, cast(asyncio.Event, self._nap))

    @property
    def naps(self) -> bool:
        return self._nap.until is not None

    def step(self) -> None:
        """One half of a Redis call, or the end of a nap."""
        if self._nap.until is not None:
            self._clock.advance(max(0.0, self._nap.until - self._clock.monotonic()) * 1000 + 0.001)
        self._life.send(None)

    def turn(self) -> None:
        """Up to its next nap."""
        self.step()
        for _ in range(TURN_STEPS_MAX):
            if self.naps:
                return
            self.step()
        raise AssertionError(f"{self.name}: a turn does not end")

    def kill(self) -> None:
        self._life.close()


def driven(coroutine: Coroutine[Any, Any, T]) -> T | None:
    """Run a coroutine without anybody acting in between; None where Redis does not answer."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    except redis.RedisError:
        return None


class _Bugs(logging.Handler):
    """Exceptions that a manager has caught and logged: bugs, each of them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            formatter = logging.Formatter()
            self.found.append(f"{record.getMessage()}\n{formatter.formatException(record.exc_info)}")


@contextmanager
def watched_logs() -> Iterator[list[str]]:
    """The log says nothing, but for exceptions, which are kept here."""
    handler = _Bugs()
    loggers = [logging.getLogger(name) for name in ("trimtab.manager", "trimtab.control")]
    before = [(each.propagate, each.level) for each in loggers]
    for each in loggers:
        each.propagate = False
        each.setLevel(logging.ERROR)
        each.addHandler(handler)
    try:
        yield handler.found
    finally:
        for each, (propagate, level) in zip(loggers, before, strict=True):
            each.removeHandler(handler)
            each.propagate, each.level = propagate, level
