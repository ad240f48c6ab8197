"""The application: routes behind the gate, errors as problem documents, OpenAPI under a key."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final

from fastapi import FastAPI
from starlette.types import ASGIApp

from api import problems
from api.access import SESSION_PATH
from api.backend import Backend
from api.gate import Gate, GateSettings
from api.routes import (
    admin,
    events,
    explain,
    health,
    live,
    metrics,
    proposals,
    queries,
    rebalances,
    replans,
    session,
    settings,
)
from trimtab import __version__

DESCRIPTION: Final = """
Balances windowed stream joins while they run.

Every path but `/healthz`, `/readyz` and `/v1/session` needs a key from `trimtab keys create`: `Authorization: Bearer
KEY`. Scopes: `read` for GET, `operate` for changes, `admin` for keys and the audit log. Changes take an
`Idempotency-Key`: a request that is repeated with the same one is done only once. Errors are RFC 9457 problem
documents.
"""


def create_app(
    backend: Backend, gate: GateSettings | None = None, clock: Callable[[], float] = time.monotonic
) -> ASGIApp:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        backend.streams.stop()

    app = FastAPI(
        title="Trimtab",
        version=__version__,
        description=DESCRIPTION,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,  # a path that is not there is answered with 404, not with another path
    )
    app.state.backend = backend
    parts = (queries, live, proposals, rebalances, replans, settings, explain, events, session, admin, health, metrics)
    for module in parts:
        app.include_router(module.router)
    problems.install(app)
    _declare_keys(app)
    return Gate(app, backend.store.client, gate or GateSettings(), clock, backend.keys, backend.exposition.api)


def _declare_keys(app: FastAPI) -> None:
    """The gate checks keys, so FastAPI does not know about them: describe them in OpenAPI."""
    plain = app.openapi

    def with_keys() -> dict[str, Any]:
        document = plain()
        document.setdefault("components", {})["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "A key from `trimtab keys create`."}
        }
        document["security"] = [{"key": []}]
        for path, method in (("/healthz", "get"), ("/readyz", "get"), (SESSION_PATH, "post")):
            document["paths"][path][method]["security"] = []
        for operations in document["paths"].values():
            for method, operation in operations.items():
                if method in ("post", "put", "delete") and "security" not in operation:
                    operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)
        return document

    app.openapi = cache(with_keys)  # type: ignore[method-assign]


_IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 255},
    "description": "Names this request. Sent again within a day, it gets the first answer and is not done again.",
}
