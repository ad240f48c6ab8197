"""Answers that never end by themselves: what an event stream says, to many clients at once.

A message goes to all clients as the same bytes, framed for HTTP once, and straight into each connection: no task wakes
up, no timer starts and no frame is made for each client. That takes the connection, which ASGI hides; `StreamProtocol`
hands it to the application. What may wait for a client that does not read is bounded by bytes (`WAITING_BYTES_MAX`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from api.connections import BoundedProtocol

WAITING_BYTES_MAX: Final = 256 * 1024
"""What may wait in this process for one client when another message comes; the message comes on top."""
KERNEL_BYTES: Final = 128 * 1024
"""What the system may keep for one client beside it. Left alone it would take some megabytes for each."""
SEND_S: Final = 20.0
"""A client that takes in nothing for this long is cut off: it would hold its place for ever."""
_TRANSPORT: Final = "trimtab.transport"


class StreamProtocol(BoundedProtocol):
    """With the connection in the scope's extensions."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        app = self.app

        async def with_transport(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                scope.setdefault("extensions", {})[_TRANSPORT] = {"transport": transport}
            await app(scope, receive, send)

        self.app = with_transport


class Piece:
    """A message, and the same framed as a chunk."""

    __slots__ = ("chunk", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.chunk = b"%x\r\n%b\r\n" % (len(data), data)


class Wire(Protocol):
    """The way to one client."""

    def waiting(self) -> int:
        """Bytes that the client has not taken in."""

    def write(self, piece: Piece) -> None:
        """Never waits."""

    def end(self) -> None:
        """Nothing more is written."""


class Connection(Wire):
    """A connection, once the head of the answer is out."""

    def __init__(self, scope: Scope) -> None:
        self._transport: asyncio.Transport = scope["extensions"][_TRANSPORT]["transport"]
        # A proxy may speak HTTP/1.0, which knows no chunks: there the connection's end is the answer's.
        self._chunked = scope["http_version"] != "1.0"
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connection = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the client may have gone already
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)

    def waiting(self) -> int:
        return self._transport.get_write_buffer_size()

    def write(self, piece: Piece) -> None:
        if not self._transport.is_closing():
            self._transport.write(piece.chunk if self._chunked else piece.data)

    def end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


class Stream(Protocol):
    """What a client is told."""

    def past(self) -> AsyncIterator[bytes]:
        """What it gets before it is connected, as fast as it reads."""

    def connect(self, wire: Wire) -> None:
        """From now on messages go straight to it, until `wire.end()` is called."""

    def leave(self) -> None:
        """The client has gone."""


class StreamAnswer(Response):
    """Sends what a stream says until the client goes or the stream ends."""

    media_type = "text/event-stream"

    def __init__(self, stream: Stream) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with contextlib.aclosing(self._stream.past()) as past:  # type: ignore[type-var]
                async for data in past:
                    async with asyncio.timeout(SEND_S):
                        await send({"type": "http.response.body", "body": data, "more_body": True})
            wire = Connection(scope)
            self._stream.connect(wire)
            gone = asyncio.ensure_future(_disconnected(receive))
            try:
                await asyncio.wait((gone, wire.over), return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
            async with asyncio.timeout(SEND_S):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            raise ConnectionAbortedError("the client takes nothing in") from None
        finally:
            self._stream.leave()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
