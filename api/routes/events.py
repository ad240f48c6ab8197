"""The events of a query, as they happen."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response

from api.backend import By, QueryName, Use
from api.events import check_event_id, only_json
from api.routes.documents import answers
from api.streaming import StreamAnswer

router = APIRouter(prefix="/v1/queries", tags=["events"])
_EVENT = {
    "id": "1767225600000-0",
    "at_ms": 1_767_225_600_000,
    "kind": "step",
    "text": "m-5f0c: step 3 DeactivatePartitions",
    "data": {"migration": "m-5f0c", "step": 3},
}


@router.get(
    "/{query}/events",
    summary="Events as a stream (SSE), or the newest ones as JSON if the client accepts only that",
    description="`Last-Event-ID` continues after that event. Without it the stream begins with the next event.",
    responses=answers({"query": "orders", "events": [_EVENT]}, 404, 422),
)
async def events(
    query: QueryName,
    use: Use,
    by: By,
    request: Request,
    last_event_id: Annotated[str | None, Header()] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    after = None if last_event_id is None else check_event_id(last_event_id)
    async with use.streams.reading():
        await use.check_known(query)
    if only_json(request.headers.get("accept")):
        if after is None:
            newest = await use.store.newest_events(query, limit)
        else:
            newest = await use.store.events(query, after, limit)
        return JSONResponse({"query": query, "events": [asdict(event) for event in newest]})
    return StreamAnswer(await use.streams.follow_events(query, by.id, after))
