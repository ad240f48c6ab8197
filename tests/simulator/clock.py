"""Virtual time, and everything else in production code that would differ from run to run, made to follow a seed.

Production code asks the clock, draws random names and sleeps. Inside `virtual_world` it asks this clock, draws from
this generator, and a sleeping manager waits for virtual time: a seed then reproduces a run to the last Redis call.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from random import Random
from types import SimpleNamespace, TracebackType
from typing import Any, Final
from unittest.mock import patch

import manager.advising
import manager.keeping
import manager.proposing
import split_union.control_source
import split_union.definition
import split_union.split
import trimtab.store
import worker.batch
import worker.resident
import worker.transfers
from balancing.replans.advice import advise
from balancing.replans.statistics import PlanPicture
from balancing.settings import Settings
from manager.advising import Look, limits_of

BEGINNING_MS: Final = 1_700_000_000_000
PHASE_NS: Final = 1_000
"""How long every phase of a worker's batch takes."""


class Step:
    """A point at which whoever awaits it can be left waiting, while others go on."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class VirtualClock:
    def __init__(self) -> None:
        self._elapsed_us = 0
        self._counter_ns = 0
        self.deadline = 0.0
        """Until when the manager that calls `asyncio.timeout` next to `stop.wait` wants to sleep."""

    def advance(self, ms: float) -> None:
        self._elapsed_us += int(ms * 1000)

    def monotonic(self) -> float:
        return self._elapsed_us / 1e6

    def time(self) -> float:
        return self.now_ms() / 1000

    def now_ms(self) -> int:
        return BEGINNING_MS + self._elapsed_us // 1000

    def perf_counter_ns(self) -> int:
        self._counter_ns += PHASE_NS
        return self._counter_ns


class Nap:
    """Stands in for the event that ends a manager: nobody sets it, and waiting for it is a nap until the deadline."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.until: float | None = None

    def is_set(self) -> bool:
        return False

    async def wait(self) -> None:
        self.until = self._clock.deadline
        while self._clock.monotonic() < self.until:
            await Step()
        self.until = None
        raise TimeoutError


class _Timeout(AbstractAsyncContextManager[None]):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class _Asyncio:
    """The little of asyncio that `manager.keeping` uses, without an event loop."""

    CancelledError = asyncio.CancelledError

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def current_task(self) -> None:
        return None

    def timeout(self, delay_s: float) -> _Timeout:
        self._clock.deadline = self._clock.monotonic() + delay_s
        return _Timeout()


class _Secrets:
    """Names that are drawn, from a seed."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)

    def token_hex(self, size: int) -> str:
        return self._random.randbytes(size).hex()

    def token_bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)


@contextmanager
def virtual_world(clock: VirtualClock, seed: int) -> Iterator[None]:
    """Production code runs by this clock and this seed."""
    secrets = _Secrets(f"secrets {seed}")

    async def here(function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """Instead of a thread."""
        return function(*values, **named)

    def look(picture: PlanPicture, settings: Settings) -> Look:
        done: Look = Future()
        done.set_result(advise(picture, budget_ms=settings.plan_budget_ms, limits=limits_of(settings)))
        return done

    changes: list[tuple[Any, str, Any]] = [
        (module, "now_ms", clock.now_ms)
        for name, module in sorted(sys.modules.items())
        if name.startswith("manager.") and hasattr(module, "now_ms")
    ]
    changes += [
        (module, "secrets", secrets)
        for module in (manager.proposing, worker.resident, worker.transfers, split_union.definition)
    ]
    changes += [
        (manager.advising, "look_aside", look),
        (manager.proposing, "asyncio", SimpleNamespace(to_thread=here)),
        (manager.keeping, "asyncio", _Asyncio(clock)),
        (trimtab.store, "time", SimpleNamespace(time=clock.time)),
        (split_union.definition, "time", SimpleNamespace(time=clock.time)),
        (split_union.control_source, "time", SimpleNamespace(monotonic=clock.monotonic)),
        (split_union.split, "settle", lambda: None),
        (worker.batch, "time", SimpleNamespace(perf_counter_ns=clock.perf_counter_ns)),
    ]
    with ExitStack() as stack:
        for module, name, value in changes:
            stack.enter_context(patch.object(module, name, value))
        yield
