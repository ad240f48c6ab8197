"""Connections on which nothing is asked do not keep their place: each is an open file, and a port has only so many."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S: Final = 10.0
"""A connection on which no request has come for this long, or only a part of one, is closed."""


class BoundedProtocol(H11Protocol):
    """uvicorn's own, which waits for ever for a first request, and for the rest of any."""

    _look: asyncio.TimerHandle | None = None
    _answered: object = None
    """The request that was answered already when somebody looked last; None for no request at all."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look = self.loop.call_later(REQUEST_S, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def _close_if_idle(self) -> None:
        newest = self.cycle
        if newest is self._answered:
            self.transport.close()
            return
        if newest.response_complete:
            self._answered = newest
        self._look = self.loop.call_later(REQUEST_S, self._close_if_idle)
