"""An answer that never ends by itself: what an event stream says, piece by piece, until the client goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

SEND_S: Final = 20.0
"""A client that takes in nothing for this long is cut off: it would hold its place for ever."""


class StreamAnswer(Response):
    """Starlette's own takes three tasks and a task group for each client; there may be a thousand of them."""

    media_type = "text/event-stream"

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        speaking = asyncio.current_task()
        assert speaking is not None
        gone = False

        async def listen() -> None:
            nonlocal gone
            while (await receive())["type"] != "http.disconnect":
                pass
            gone = True
            speaking.cancel()

        listening = asyncio.create_task(listen())
        try:
            async with contextlib.aclosing(self._pieces) as pieces:  # type: ignore[type-var]
                async for data in pieces:
                    async with asyncio.timeout(SEND_S):
                        await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            if not gone:
                raise
            speaking.uncancel()
        except TimeoutError:
            raise ConnectionAbortedError("the client takes nothing in") from None
        finally:
            listening.cancel()
