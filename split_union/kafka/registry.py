"""Reads a schema registry (Confluent's HTTP API). Nothing is registered here: whoever owns a topic owns its schema."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

from split_union.kafka.formats import RegisteredSchema, check_avro_schema
from trimtab.errors import InvalidInput

TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 4 << 20


@dataclass(frozen=True)
class Registry:
    """Where it is, and who we are to it."""

    url: str
    username: str | None = None
    password: str | None = None


def versions_of(registry: Registry, subject: str, field: str) -> tuple[RegisteredSchema, ...]:
    """All versions of a subject, oldest first: records that were written with any of them can be read."""
    parts = urllib.parse.urlsplit(registry.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(f"{field}.url", registry.url, "is not an http(s) address", "Write http://host:8081.")
    if parts.username or parts.password:
        # Never repeated in a message.
        raise InvalidInput(
            f"{field}.url", parts.hostname, "has a user or a password in it", "Write `username` and `password` lines."
        )
    place = f"subjects/{urllib.parse.quote(subject, safe='')}/versions"
    numbers = _get(registry, place, subject, field)
    if not isinstance(numbers, list) or not numbers or not all(isinstance(number, int) for number in numbers):
        raise _stranger(registry, field)
    found = []
    for number in sorted(numbers):
        body = _get(registry, f"{place}/{number}", subject, field)
        if not isinstance(body, dict) or not isinstance(body.get("id"), int) or not isinstance(body.get("schema"), str):
            raise _stranger(registry, field)
        kind = body.get("schemaType", "AVRO")
        if kind != "AVRO" or body.get("references"):
            what = f"a {kind} schema" if kind != "AVRO" else "a schema that refers to others"
            raise InvalidInput(
                f"{field}.subject",
                subject,
                f"has {what} in version {number}",
                "Only Avro without references is read: give the schema inline, or use another subject.",
            )
        check_avro_schema(f"{field}.subject", body["schema"])
        found.append(RegisteredSchema(int(body["id"]), int(number), str(body["schema"])))
    return tuple(found)


def _stranger(registry: Registry, field: str) -> InvalidInput:
    return InvalidInput(
        f"{field}.url", registry.url, "answers, but not as a schema registry does", "Correct the address, and its path."
    )


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows nobody elsewhere: it would take our password there."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


def _get(registry: Registry, place: str, subject: str, field: str) -> Any:
    request = urllib.request.Request(f"{registry.url.rstrip('/')}/{place}")
    request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
    if registry.username is not None:
        pair = f"{registry.username}:{registry.password or ''}".encode()
        request.add_header("Authorization", f"Basic {base64.b64encode(pair).decode()}")
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise InvalidInput(
                f"{field}.subject", subject, "is not known to the registry", "Register a schema, or correct the name."
            ) from None
        remedy = "Check `username` and `password`." if error.code in (401, 403) else "Look at the registry's log."
        raise InvalidInput(f"{field}.url", registry.url, f"answers with status {error.code}", remedy) from None
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise InvalidInput(
            f"{field}.url", registry.url, f"does not answer ({reason})", "Start the registry, or correct the address."
        ) from None
