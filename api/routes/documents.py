"""What OpenAPI says about answers: examples, and the problems that any request may have."""

from __future__ import annotations

from typing import Any

from api.problems import MEDIA_TYPE
from api.schemas import ProblemDocument

_COMMON = {
    401: "There is no key, or it is unknown or revoked",
    403: "The key's scope is not sufficient",
    429: "Too many requests with this key",
    503: "Redis does not answer; Retry-After says when to try again",
}
_MEANING = {
    404: "There is no such query, worker, group or record",
    409: "It conflicts with the state of the query: a group in a migration, a worker that is down, a stale proposal",
    413: "The body is too large",
    415: "The body is not declared to be JSON",
    422: "A field is wrong; the document names it, its value and the remedy",
}


def answers(example: Any, *problems: int, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route."""
    documents: dict[int | str, dict[str, Any]] = {
        status: {"description": "Done" if status == 200 else "Accepted; Location says where to look"}
    }
    documents[status]["content"] = {"application/json": {"example": example}}
    for each in (*problems, *_COMMON):
        documents[each] = {
            "description": _MEANING.get(each) or _COMMON[each],
            "model": ProblemDocument,
            "content": {MEDIA_TYPE: {}},
        }
    return documents


MUTATION = (404, 409, 413, 415, 422)
