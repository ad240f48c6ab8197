"""Errors as RFC 9457 problem documents: what is wrong, with which field and value, and what to do about it.

Every answer with a status of 400 and above has this form, whether the problem was found by our own checks, by FastAPI's
validation, by the router, or because Redis does not answer. It never contains a stack trace, a key or Redis's address.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import redis
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from balancing.requests import Refused
from manager.requests import QueueFull
from trimtab.errors import InvalidInput, TrimtabError

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 2
"""How long a client should wait when Redis does not answer: about as long as a restart takes."""
VALUE_LENGTH_MAX: Final = 200
_KINDS: Final = {404: "not-found", 409: "conflict", 503: "unavailable"}
_LOG = logging.getLogger("trimtab.api")


class Problem(Exception):
    """Ends a request with a problem document."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        remedy: str,
        field: str = "",
        value: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.kind = kind
        """The last part of the document's `type`, stable and meant for programs: "stale", "unknown-worker"."""
        self.detail = detail
        self.remedy = remedy
        self.field = field
        self.value = value
        self.headers = dict(headers or {})
        super().__init__(f"{status} {kind}: {detail}")

    def document(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "type": f"urn:trimtab:problem:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        if self.field:
            body |= {"field": self.field, "value": shown(self.value)}
        return body | {"remedy": self.remedy}

    def response(self) -> Response:
        text = json.dumps(self.document(), separators=(",", ":"), default=str)
        return Response(text, self.status, self.headers, media_type=MEDIA_TYPE)


def shown(value: object) -> object:
    """A value as it may be repeated to its sender: whole, or only its beginning."""
    try:
        text = json.dumps(value, default=str, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return str(type(value).__name__) if isinstance(value, list | dict) else str(value)[:VALUE_LENGTH_MAX]
    return value if len(text) <= VALUE_LENGTH_MAX else text[: VALUE_LENGTH_MAX - 3] + "..."


def unavailable(what: str = "Redis does not answer") -> Problem:
    return Problem(
        503,
        "unavailable",
        f"{what}. Running queries continue with the mapping that they have.",
        remedy=f"Try again in {RETRY_AFTER_S} s, with the same Idempotency-Key, so that a change is made only once.",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def of_validation(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """The first of FastAPI's complaints: people correct one mistake at a time."""
    first = errors[0]
    place = [str(part) for part in first["loc"]]
    field = ".".join(place[1:]) or place[0]
    if first["type"] == "json_invalid":
        return Problem(
            400,
            "bad-json",
            "The body is not JSON.",
            field="body",
            value=str(first.get("ctx", {}).get("error", "")),
            remedy="Send a JSON object; an empty one is {}.",
        )
    raised = first.get("ctx", {}).get("error")
    if isinstance(raised, InvalidInput):
        return _of_input(raised)
    message = ": " + str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    remedy = f"Give {field} a value as docs/rest.md describes it."
    if first["type"] == "extra_forbidden":
        message, remedy = " is not a known field", "Leave it out, or see docs/rest.md for the right name."
    elif first["type"] == "missing":
        message, remedy = " is missing", f"Give {field}."
    elif first["type"] == "literal_error":
        message, remedy = " is not known", f"Choose one of {first['ctx']['expected']}."
    value = None if first["type"] == "missing" else first.get("input")
    return Problem(422, "invalid", f"{field}{message}.", field=field, value=value, remedy=remedy)


def of_http(error: HTTPException) -> Problem:
    if error.status_code == 404:
        return Problem(404, "no-such-path", "This path does not exist.", remedy="See GET /v1/openapi.json.")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return Problem(
            405,
            "method",
            "This path does not support this method.",
            remedy=f"Use {allowed or 'another method'}.",
            headers=error.headers,
        )
    return Problem(
        error.status_code, "http", str(error.detail), remedy="See docs/rest.md.", headers=error.headers or {}
    )


def of_error(error: Exception) -> Problem:
    """The problem for any exception that a route raises."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return of_validation(error.errors())
    if isinstance(error, HTTPException):
        return of_http(error)
    if isinstance(error, redis.RedisError | ConnectionError | TimeoutError):
        _LOG.warning("Redis does not answer: %s", type(error).__name__)
        return unavailable()
    if isinstance(error, QueueFull):
        return unavailable("Too many requests wait for the manager")
    if isinstance(error, InvalidInput):
        return _of_input(error)
    kind = "failed" if isinstance(error, TrimtabError) else "internal"
    _LOG.exception("request failed", exc_info=error)
    return Problem(
        500,
        kind,
        "The server failed. Your request is not the cause.",
        remedy="The server's log has the details. Check the state of the query before you try again.",
    )


def _of_input(error: InvalidInput) -> Problem:
    status = error.status if isinstance(error, Refused) else 422
    return Problem(
        status,
        _KINDS.get(status, "invalid"),
        f"{error.field} {error.problem}.",
        field=error.field,
        value=error.value,
        remedy=error.remedy,
        headers={"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None,
    )


def install(app: FastAPI) -> None:
    async def answer(request: Request, error: Exception) -> Response:
        return of_error(error).response()

    for kind in (Problem, RequestValidationError, HTTPException, redis.RedisError, OSError, TrimtabError):
        app.add_exception_handler(kind, answer)
