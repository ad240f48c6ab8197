"""Talks to a Trimtab server over HTTP, and turns its problem documents into our errors."""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx

from trimtab import redis_keys
from trimtab.defaults import DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE
from trimtab.errors import InvalidInput, TrimtabError
from trimtab.plain_text import plain_text
from trimtab.redis_access import redacted

TIMEOUT_S: Final = 20.0
PATIENCE_S: Final = 15.0
"""How long a server that answers 503 is asked again before the user is told."""
Json = dict[str, Any]


class RemoteFailure(TrimtabError):
    """The server failed or cannot be reached. Nothing is known to be wrong with the request."""


class Refusal(InvalidInput):
    """The server refused, and said why in a problem document."""

    def __init__(
        self, field: str, value: object, problem: str, remedy: str, status: int = 422, kind: str = "invalid"
    ) -> None:
        super().__init__(field, value, problem, remedy)
        self.status = status
        self.kind = kind
        if not field:
            self.args = (f"{problem}. {remedy}",)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.value, self.problem, self.remedy, self.status, self.kind)


class Client:
    """One server, one key. Every mutation gets an Idempotency-Key, so it may be sent again after a lost connection."""

    def __init__(self, url: str, key: str | None, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if "@" in parts.netloc:
            raise InvalidInput(
                "--url",
                redacted(url),
                "has a user or a password, which this server does not take",
                f"Leave them out; the key comes from {KEY_VARIABLE} or --key-file.",
            )
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidInput(
                "--url", url, "is not the URL of a server", f"Write it as {DEFAULT_URL} or https://HOST."
            )
        if key is not None and not (key.isascii() and key.isprintable()):
            raise InvalidInput(
                KEY_VARIABLE, "(hidden)", "is not a key", "Copy it exactly as `trimtab keys create` printed it."
            )
        if key and parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
            print(f"trimtab: the key is sent to {parts.hostname} without encryption; use https", file=sys.stderr)
        headers = {"Accept": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_S, transport=transport)

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **parameters: str | int) -> Json:
        return self._ask("GET", path, parameters=parameters)

    def post(self, path: str, body: Json) -> Json:
        return self._ask("POST", path, body)

    def put(self, path: str, body: Json) -> Json:
        return self._ask("PUT", path, body)

    def queries(self) -> list[str]:
        """Those that can be asked about. One that somebody else wrote into Redis does not get in their way."""
        names = [each["name"] for each in self.get("/v1/queries")["queries"]]
        known = [name for name in names if re.fullmatch(redis_keys.QUERY_NAME, name)]
        for name in sorted({*names} - {*known}):
            print(f"trimtab: left out, not a name for a query: {plain_text(name)}", file=sys.stderr)
        return known

    def events(self, query: str, after: str | None) -> Iterator[Json]:
        """Events as they come, until the server closes the stream."""
        headers = {"Last-Event-ID": after} if after else {}
        for name, body in self._messages(f"{at(query)}/events", headers):
            if name != "dropped":
                yield body

    def live(self, query: str) -> Iterator[tuple[str, Json]]:
        """The front page of a query: ("front", the document), then ("delta", what has changed)."""
        return self._messages(f"{at(query)}/live", {})

    def _messages(self, path: str, more: dict[str, str]) -> Iterator[tuple[str, Json]]:
        """Name and body of what an event stream says, until the server closes it."""
        headers = {"Accept": "text/event-stream", **more}
        # The server sends something every ten seconds. A longer silence is a lost connection.
        timeout = httpx.Timeout(TIMEOUT_S, read=30.0)
        name = ""
        try:
            with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise _error(answer)
                if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                    raise self._foreign()
                for line in answer.iter_lines():
                    if line.startswith("event: "):
                        name = line.removeprefix("event: ")
                    elif line.startswith("data: "):
                        yield name, json.loads(line.removeprefix("data: "))
        except httpx.RemoteProtocolError:
            return  # closed in the middle: the caller connects again
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _ask(self, method: str, path: str, body: Json | None = None, parameters: Any = None) -> Json:
        headers = {} if method == "GET" else {"Idempotency-Key": secrets.token_hex(16)}
        deadline = time.monotonic() + PATIENCE_S
        connected = False
        while True:
            try:
                answer = self._http.request(method, path, json=body, params=parameters or None, headers=headers)
            except httpx.HTTPError as error:
                # A server that never answered is reported at once; one that stopped answering may come back.
                connected = connected or not isinstance(error, httpx.ConnectError)
                if not connected or time.monotonic() > deadline:
                    raise self._unreachable(error) from None
                time.sleep(0.5)
                continue
            connected = True
            wait_s = _retry_after_s(answer)
            if wait_s is None or time.monotonic() + wait_s > deadline:
                break
            time.sleep(wait_s)
        if answer.status_code >= 400:
            raise _error(answer)
        try:
            content = answer.json()
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise self._foreign()
        return content

    def _foreign(self) -> RemoteFailure:
        return RemoteFailure(
            f"{self.url} does not answer like a Trimtab server. Name the server with --url or {URL_VARIABLE}."
        )

    def _unreachable(self, error: Exception) -> RemoteFailure:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return RemoteFailure(
                f"{self.url} has a certificate that is not trusted here ({error}). Name its authority in "
                "SSL_CERT_FILE, and the server as the certificate does."
            )
        return RemoteFailure(
            f"{self.url} does not answer ({error or type(error).__name__}). Start it with `trimtab serve`, or name "
            f"another server with --url or {URL_VARIABLE}."
        )


def from_options(url: str | None, key_file: Path | None) -> Client:
    key = os.environ.get(KEY_VARIABLE) or None if key_file is None else _key_in(key_file)
    return Client(url or os.environ.get(URL_VARIABLE) or DEFAULT_URL, key)


def _key_in(path: Path) -> str:
    """The key in a file: alone, or behind `key:` as in a file of `serve --keys`."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise InvalidInput(
            "--key-file", str(path), f"cannot be read ({reason})", "Name a file with an API key in it."
        ) from None
    keys = [line.removeprefix("key:").strip() for line in lines if line.startswith("key:")] or lines
    if len(keys) != 1:
        raise InvalidInput("--key-file", str(path), "has no key, or several", "Put the key alone into the file.")
    return keys[0]


def at(query: str) -> str:
    return f"/v1/queries/{quote(query, safe='')}"


def _retry_after_s(answer: httpx.Response) -> float | None:
    """How long to wait before asking again, if the server says in a header that this may help."""
    if answer.status_code not in (409, 429, 503) or "Retry-After" not in answer.headers:
        return None
    text = answer.headers.get("Retry-After", "1")
    return float(text) if text.isdigit() else 1.0


def _error(answer: httpx.Response) -> TrimtabError:
    try:
        problem = answer.json()
        detail, remedy = str(problem["detail"]), str(problem["remedy"])
    except (ValueError, KeyError, TypeError):
        return RemoteFailure(f"the server answered {answer.status_code} {answer.reason_phrase} without a reason")
    if answer.status_code >= 500:
        return RemoteFailure(f"{detail.rstrip('.')}. {remedy}")
    field, value = str(problem.get("field", "")), problem.get("value")
    detail = detail.rstrip(".").removeprefix(field).lstrip(": ") if field else detail.rstrip(".")
    kind = str(problem.get("type", "")).rpartition(":")[2]
    return Refusal(field, value, detail, remedy, answer.status_code, kind)
