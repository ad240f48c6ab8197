"""The front page of a query: once, or as a stream of what changes."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from api.backend import By, QueryName, Use
from api.deltas import EVENTS_SHOWN
from api.events import only_json
from api.front import read_front
from api.routes.documents import answers
from api.routes.queries import QUERY_EXAMPLE, WORKER_EXAMPLE
from api.streaming import StreamAnswer
from manager.store import Json

router = APIRouter(prefix="/v1/queries/{query}", tags=["live"])
_FRONT: Json = {
    "seq": 17,
    "at_ms": 1_767_225_600_000,
    "query": QUERY_EXAMPLE,
    "imbalance": {"ratio": 1.52, "measure": "cpu", "start_ratio": 1.2, "stop_ratio": 1.08, "auto": True},
    "why": {"text": "It rests for another 3.2 s.", "code": "cooling-down", "act": False},
    "workers": [WORKER_EXAMPLE | {"groups": 16, "moving": 2}],
    "owners": [0, 1, 2, 3],
    "loads": [6100.0, 1200.0, 0.0, 2710.0],
    "moves": [],
    "marks": [],
    "batches": [[1_767_225_600_000, 311, 812.0, 30211.0, 4410.5, 1.52]],
    "events": [],
}
_DELTA: Json = {"seq": 18, "at_ms": 1_767_225_600_500, "set": {"why": _FRONT["why"]}, "owners": [[3, 1]]}


@router.get("/front", summary="All that the front page shows, in one document", responses=answers(_FRONT, 404))
async def front(query: QueryName, use: Use) -> Json:
    known = use.streams.front(query)
    if known is not None:
        return known
    await use.check_known(query)
    return {"seq": 0, **await read_front(use, query, await use.store.newest_events(query, EVENTS_SHOWN))}


@router.get(
    "/live",
    summary="The front page as a stream (SSE): `front` with the whole document, then a `delta` for each change",
    description="Apply deltas in the order of `seq`; after a gap, or an end of the stream, connect again. The document "
    "as JSON if the client accepts only that.",
    responses=answers(_DELTA, 404),
)
async def live(query: QueryName, use: Use, by: By, request: Request) -> Response:
    if only_json(request.headers.get("accept")):
        return JSONResponse(await front(query, use))
    async with use.streams.reading():
        await use.check_known(query)
    return StreamAnswer(await use.streams.follow_front(query, by.id, partial(read_front, use, query)))
