"""GET /metrics: what Prometheus scrapes, with a key of scope read. Without one: `trimtab serve --metrics-port`."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from api.backend import Use
from api.exposition import MEDIA_TYPE, PATH

router = APIRouter(tags=["metrics"])


@router.get(
    PATH,
    summary="Metrics in Prometheus's text format",
    description="Series of a query come from its leader only: scrape every instance. See docs/metrics.md.",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(use: Use) -> Response:
    return Response(use.exposition.text(), headers={"content-type": MEDIA_TYPE})
