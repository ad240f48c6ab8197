"""Everything that a scrape gets, as text: the manager's series, the API's, and those of the process."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.types import Receive, Scope, Send

from api.measures import ApiMeasures
from manager.collecting import ManagerCollector, Manages

PATH: Final = "/metrics"
MEDIA_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


class Exposition:
    """One per instance. `text` belongs on the manager's event loop: what it reads changes there."""

    def __init__(self, manager: Manages | None = None) -> None:
        self.api = ApiMeasures()
        self._registry = CollectorRegistry()
        if manager is not None:
            self._registry.register(ManagerCollector(manager))
        self._registry.register(self.api)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class MetricsOnly:
    """An application that answers GET /metrics and nothing else, without a key: for a port of its own."""

    def __init__(self, exposition: Exposition) -> None:
        self._exposition = exposition

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        found = scope["path"] == PATH and scope["method"] in ("GET", "HEAD")
        body = self._exposition.text() if found else b"Metrics are at /metrics; everything else needs the API's port.\n"
        headers = [
            (b"content-type", MEDIA_TYPE.encode() if found else b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": body})
