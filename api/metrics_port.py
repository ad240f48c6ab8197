"""The port of its own on which metrics need no key: bound to loopback unless told otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn

from api.connections import BoundedProtocol
from api.exposition import Exposition, MetricsOnly


class _Beside(uvicorn.Server):
    """A server beside another one, which sees to signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving_metrics(exposition: Exposition, listening: socket.socket | None) -> AsyncIterator[None]:
    """Serve metrics on this socket meanwhile; nothing without one."""
    if listening is None:
        yield
        return
    server = _Beside(
        uvicorn.Config(
            MetricsOnly(exposition),
            http=BoundedProtocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            limit_concurrency=64,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listening]), name="trimtab-metrics")
    try:
        yield
    finally:
        server.should_exit = True
        await serving
