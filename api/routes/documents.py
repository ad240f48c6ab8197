"""What OpenAPI says of answers: examples, and the problems that any request may meet."""

from __future__ import annotations

from typing import Any

from api.problems import MEDIA_TYPE
from api.schemas import ProblemDocument

_COMMON = {
    401: "No key, or one that is unknown or revoked",
    403: "The key's scope is not enough",
    429: "Too many requests with this key",
    503: "Redis does not answer; Retry-After says when to come back",
}
_MEANING = {
    404: "There is no such query, worker, group or record",
    409: "It conflicts with what is so now: a group in migration, a worker that is down, a stale plan",
    413: "The body is too large",
    415: "The body is not declared to be JSON",
    422: "A field is wrong; the document names it, its value and the remedy",
}


def answers(example: Any, *problems: int, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route."""
    told: dict[int | str, dict[str, Any]] = {
        status: {"description": "Done" if status == 200 else "Accepted; Location says where to look"}
    }
    told[status]["content"] = {"application/json": {"example": example}}
    for each in (*problems, *_COMMON):
        told[each] = {
            "description": _MEANING.get(each) or _COMMON[each],
            "model": ProblemDocument,
            "content": {MEDIA_TYPE: {}},
        }
    return told


MUTATION = (404, 409, 413, 415, 422)
