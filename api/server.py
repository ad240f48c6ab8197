"""`trimtab serve`: manager and API in one process, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import redis
import uvicorn
from starlette.types import ASGIApp

from api.app import create_app
from api.backend import Backend, always_ready
from api.exposition import Exposition
from api.gate import GateSettings
from api.key_files import KeyFiles
from api.keys import KeyStore
from api.live import LiveStreams
from api.metrics_port import serving_metrics
from api.streaming import StreamProtocol
from manager.service import ManagerService
from manager.settings import ManagerSettings
from manager.store import ManagerStore
from trimtab.defaults import DEFAULT_PORT, DEFAULT_REDIS
from trimtab.errors import InvalidInput
from trimtab.plain_text import plain_text
from trimtab.redis_access import reason, redacted

UNREAD_MS: Final = 60_000
"""How long what was sent may wait for the client to take it in."""
GRACE_S: Final = 5
"""How long open requests may take after a signal."""
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    redis: str = DEFAULT_REDIS
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tls_cert: Path | None = None
    tls_key: Path | None = None
    access_log: bool = True
    keys: Path | None = None
    """A directory with a file for each key, beside the keys in Redis."""
    gate: GateSettings = field(default_factory=GateSettings)
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    """Metrics without a key, on a port of their own; None: only with a key, on the API's."""


class Server(uvicorn.Server):
    """Ends on a signal without raising it again. It ends event streams first: they would never end by themselves."""

    def __init__(
        self, app: ASGIApp, streams: LiveStreams, settings: ServeSettings, listens: Callable[[], None]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=StreamProtocol,
                lifespan="on",
                log_config=None,
                access_log=False,  # the gate writes one that holds no secrets
                server_header=False,
                date_header=True,
                timeout_graceful_shutdown=GRACE_S,
                ssl_certfile=settings.tls_cert,
                ssl_keyfile=settings.tls_key,
                h11_max_incomplete_event_size=64 * 1024,
            )
        )
        self._streams = streams
        self._listens = listens

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listens()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int, frame: object) -> None:
        if self.should_exit and number == signal.SIGINT:
            self.force_exit = True
        self.end()

    def end(self) -> None:
        self._streams.stop()
        self.should_exit = True


@contextlib.asynccontextmanager
async def prepared(
    settings: ServeSettings,
    *,
    manager: ManagerSettings | None = None,
    with_manager: bool = True,
    clock: Callable[[], float] = time.monotonic,
    listens: Callable[[], None] = lambda: None,
    metrics: socket.socket | None = None,
) -> AsyncIterator[tuple[Server, ManagerStore]]:
    """A server that is ready to serve, and the API's connection to Redis. Afterwards the manager hands its leases back.

    API and manager have connections of their own: clients that follow events must not keep the manager from its lease.
    """
    files = None if settings.keys is None else KeyFiles(settings.keys, clock)
    if files is not None:
        files.check()
    manager_store, api_store = ManagerStore(settings.redis), ManagerStore(settings.redis, api=True)
    service = ManagerService(manager_store, manager)
    streams = LiveStreams(api_store, clock, KeyStore(api_store.client, files))
    not_ready = service.not_ready if with_manager else always_ready
    exposition = Exposition(service if with_manager else None)
    backend = Backend(api_store, streams, not_ready=not_ready, exposition=exposition, key_files=files)
    app = create_app(backend, settings.gate, clock)
    try:
        if with_manager:
            await service.start()
        async with serving_metrics(exposition, metrics):
            yield Server(app, streams, settings, listens), api_store
    finally:
        await service.stop()
        await manager_store.close()
        await api_store.close()


async def serve(settings: ServeSettings, tell: Callable[[str], None] = print) -> None:
    """Serve until a signal comes; then end requests first, and the manager after them."""
    with contextlib.ExitStack() as ports:
        listening = ports.enter_context(listen(settings.host, settings.port))
        metrics = None
        if settings.metrics_port is not None:
            metrics = ports.enter_context(listen(settings.metrics_host, settings.metrics_port, "--metrics-port"))
        async with prepared(settings, metrics=metrics) as (server, store):
            for line in await _greeting(settings, store, listening.getsockname()[1]):
                tell(line)
            for line in _metrics_greeting(settings, metrics):
                tell(line)
            await server.serve(sockets=[listening])


def run_server(settings: ServeSettings) -> int:
    _allow_files()
    with _logging_to_stderr(settings.access_log):
        asyncio.run(serve(settings, lambda line: print(line, flush=True)))
    return 0


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """Opened before anything starts, so that a port in use is reported in one line."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        # asyncio sets TCP_NODELAY only if the protocol is named here; without it every answer waits 40 ms for the
        # client's delayed acknowledgement.
        with contextlib.ExitStack() as undo:
            listening = undo.enter_context(socket.socket(family, kind, socket.IPPROTO_TCP))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                # Connections inherit it: one whose client takes nothing in does not keep its memory for ever.
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
            listening.bind(address)
            listening.listen(2048)
            undo.pop_all()
            return listening
    except OSError as error:
        raise InvalidInput(
            option,
            f"{host}:{port}",
            f"cannot be listened on ({error.strerror})",
            f"Choose another {option} or {option.replace('port', 'host')}.",
        ) from None


async def _greeting(settings: ServeSettings, store: ManagerStore, port: int) -> list[str]:
    scheme = "http" if settings.tls_cert is None else "https"
    shown = redacted(settings.redis)
    lines = [f"Trimtab serves on {scheme}://{settings.host}:{port} (queries from {shown})"]
    known = KeyStore(store.client, None if settings.keys is None else KeyFiles(settings.keys))
    try:
        keys = await known.all()
    except (redis.RedisError, OSError) as error:
        lines.append(f"{shown} does not answer yet ({reason(error)}); waiting. Is it the Redis that the query uses?")
        keys = list((await known.in_files()).values())
    if not keys:
        lines.append("There is no API key yet. Create one in another terminal:")
    else:
        lines.append(f"There are {len(keys)} API keys. To create another one:")
    option = "" if settings.redis == DEFAULT_REDIS else f" --redis {shown}"
    lines.append(f"  export TRIMTAB_KEY=$(trimtab keys create --scope operate --name me{option})")
    if scheme == "http" and settings.host not in LOOPBACK:
        lines.append("Keys travel unencrypted: give --tls-cert and --tls-key, or put TLS in front.")
    return lines


def _metrics_greeting(settings: ServeSettings, metrics: socket.socket | None) -> list[str]:
    if metrics is None:
        return []
    lines = [f"Metrics without a key: http://{settings.metrics_host}:{metrics.getsockname()[1]}/metrics"]
    if settings.metrics_host not in LOOPBACK:
        lines.append("Whoever reaches that address can read them: let only Prometheus reach it.")
    return lines


def _allow_files() -> None:
    """As many open files as the system allows: every event stream is one, and many shells begin with 1,024."""
    with contextlib.suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class PlainLines(logging.Formatter):
    """What others wrote into Redis (names, requests, errors about them) is text in a log, too; a message is a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = copy.copy(record)
        line.msg, line.args = plain_text(record.getMessage()), ()
        return plain_text(super().format(line), lines=True)


@contextlib.contextmanager
def _logging_to_stderr(access: bool) -> Iterator[None]:
    """While it serves. Afterwards logging is as before, for programs that call it in their own process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainLines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    levels = {
        "trimtab": logging.INFO,
        "uvicorn": logging.WARNING,
        "trimtab.access": logging.INFO if access else logging.WARNING,
    }
    loggers = {name: logging.getLogger(name) for name in levels}
    before = {name: logger.level for name, logger in loggers.items()}
    for name, logger in loggers.items():
        logger.setLevel(levels[name])
    for name in ("trimtab", "uvicorn"):
        loggers[name].addHandler(handler)
        loggers[name].propagate = False
    try:
        yield
    finally:
        for name, logger in loggers.items():
            logger.setLevel(before[name])
            logger.removeHandler(handler)
            logger.propagate = True
