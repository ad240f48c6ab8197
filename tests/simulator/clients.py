"""Clients of the server in memory, in the shape of redis-py's: what stores, lease and journal are handed.

An asynchronous client waits before each command takes effect and again before its answer comes, so that others can act
in between, or the manager be killed there. Any client can be cut off, lose a question or lose an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Final, Self, cast

import redis
import redis.asyncio

from manager.store import ManagerStore
from tests.simulator.clock import Step
from tests.simulator.redis_scripts import run_script
from tests.simulator.redis_server import SimRedis
from trimtab.store import Store

CALL_MS: Final = 1.0
"""How long a call takes: so that no two writes share a time."""
TIMEOUT_MS: Final = 1_000.0


class Network:
    """Between all clients and the server."""

    def __init__(self, server: SimRedis) -> None:
        self.server = server
        self.down = False
        """The server does not answer."""
        self.lost_questions = 0
        """So many of the next calls fail before anything has happened."""
        self.lost_answers = 0
        """So many of the next calls fail although what was asked for has happened."""
        self.slow_ms = 0.0

    def before(self) -> None:
        self.server.clock.advance(CALL_MS + self.slow_ms)
        if self.down:
            raise redis.ConnectionError("the server is away")
        if self.lost_questions:
            self.lost_questions -= 1
            raise redis.ConnectionError("the question was lost")

    def after(self) -> None:
        if self.slow_ms >= TIMEOUT_MS:
            raise redis.TimeoutError("no answer in time")
        if self.lost_answers:
            self.lost_answers -= 1
            raise redis.ConnectionError("the answer was lost")

    def call(self, effect: Callable[[], Any]) -> Any:
        self.before()
        answer = effect()
        self.after()
        return answer


class _Pipeline:
    """Commands that are executed together."""

    def __init__(self, execute: Callable[[Callable[[], Any]], Any], server: SimRedis) -> None:
        self._execute = execute
        self._server = server
        self._commands: list[Callable[[], Any]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        command = getattr(self._server, name)

        def add(*arguments: Any, **options: Any) -> None:
            self._commands.append(lambda: command(*arguments, **options))

        return add

    def execute(self) -> Any:
        return self._execute(self._all)

    def _all(self) -> list[Any]:
        with self._server.writing():
            return [command() for command in self._commands]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class AsyncClient:
    """As far as manager and requests use `redis.asyncio.Redis`."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.is_cut = False
        """This client alone cannot reach the server."""

    async def _call(self, effect: Callable[[], Any]) -> Any:
        await Step()
        if self.is_cut:
            raise redis.ConnectionError("cut off")
        self._network.before()
        answer = effect()
        await Step()
        if self.is_cut:
            raise redis.ConnectionError("cut off")
        self._network.after()
        return answer

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        command = getattr(self._network.server, name)

        def call(*arguments: Any, **options: Any) -> Coroutine[Any, Any, Any]:
            return self._call(lambda: command(*arguments, **options))

        return call

    def eval(self, text: str, number: int, *arguments: object) -> Awaitable[Any]:
        keys = cast(Sequence[str], arguments[:number])
        return self._call(lambda: run_script(self._network.server, text, keys, arguments[number:]))

    def register_script(self, text: str) -> Callable[..., Awaitable[Any]]:
        def script(keys: Sequence[str], args: Sequence[object]) -> Awaitable[Any]:
            return self._call(lambda: run_script(self._network.server, text, keys, args))

        return script

    def pipeline(self, transaction: bool = True) -> _Pipeline:
        return _Pipeline(self._call, self._network.server)


class BlockingClient:
    """As far as driver and workers use `redis.Redis`."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.is_cut = False

    def _call(self, effect: Callable[[], Any]) -> Any:
        if self.is_cut:
            raise redis.ConnectionError("cut off")
        return self._network.call(effect)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        command = getattr(self._network.server, name)

        def call(*arguments: Any, **options: Any) -> Any:
            return self._call(lambda: command(*arguments, **options))

        return call

    def eval(self, text: str, number: int, *arguments: object) -> Any:
        keys = cast(Sequence[str], arguments[:number])
        return self._call(lambda: run_script(self._network.server, text, keys, arguments[number:]))

    def pipeline(self, transaction: bool = True) -> _Pipeline:
        return _Pipeline(self._call, self._network.server)


class SimManagerStore(ManagerStore):
    """The production store, on a client of the server in memory."""

    def __init__(self, client: AsyncClient) -> None:
        self.url = "redis://memory"
        self.client = cast(redis.asyncio.Redis, client)
        self._redis: Any = client


class SimStore(Store):
    """The same for driver and workers."""

    def __init__(self, client: BlockingClient) -> None:
        self.url = "redis://memory"
        self.client = cast(redis.Redis, client)
