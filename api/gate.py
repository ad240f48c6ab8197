"""The one way in: every request passes here before any route sees it, in this order.

    the page's files, by name
    key (401) -> rate (429) -> scope (403)
      reads:     -> a recent answer, or the route's
      streams:   -> a place (429, 503), the route's
      questions: -> size (413), form (415, 422) -> route
      mutations: -> size (413), form (415, 422), Idempotency-Key -> route -> audit

Plain ASGI: a thousand requests a second leave no room for layers, and a new route cannot forget a check that is made
here.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from redis.asyncio import Redis
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access import OPEN_PATHS, SESSION_PATH, Caller, Gatekeeper, check_scope, is_question, needed_scope
from api.access_log import log_request
from api.answers import Headers, HttpAnswer, RecentAnswers, collect_answer
from api.audit import AuditLog
from api.events import only_json
from api.idempotency import Idempotency, RequestToken, token
from api.keys import KeyStore, holds_key
from api.limits import Buckets, Places, RequestRates, check_depth, in_turn, read_body, replayed, too_many
from api.measures import ApiMeasures, request_kind
from api.pages import page_answer
from api.problems import Problem, of_error

SECURITY_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
STREAM_ENDS: Final = ("/events", "/live")
AT_ONCE_MAX: Final = 16
"""Requests that use Redis at the same time. Others wait for their turn; without it they would fail for lack of a
connection."""


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    rates: RequestRates = field(default_factory=RequestRates)
    answers_kept_s: float = 0.25
    """A read may be answered with what was true this long ago."""


class Gate:
    def __init__(
        self,
        app: ASGIApp,
        client: Redis,
        settings: GateSettings,
        clock: Callable[[], float] = time.monotonic,
        keys: KeyStore | None = None,
        measures: ApiMeasures | None = None,
    ) -> None:
        self._app = app
        self.measures = measures or ApiMeasures()
        self._clock = clock
        self._room = asyncio.Semaphore(AT_ONCE_MAX)
        failures = Buckets(settings.rates.failures_per_s)
        self._keys = Gatekeeper(keys or KeyStore(client), failures, self._room, clock)
        self._idempotency = Idempotency(client)
        self._audit = AuditLog(client)
        self._reads = Buckets(settings.rates.reads_per_s)
        self._mutations = Buckets(settings.rates.mutations_per_s)
        self._questions = Buckets(settings.rates.questions_per_s, settings.rates.questions_at_once)
        self._places = Places()
        self._recent = RecentAnswers(settings.answers_kept_s, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        await _Exchange(scope, send, self._clock).run(self, receive)

    async def enter(self, exchange: _Exchange, receive: Receive) -> None:
        scope, path, method = exchange.scope, exchange.path, exchange.method
        if (file := page_answer(method, path, exchange.headers.get(b"if-none-match"))) is not None:
            await file.send(exchange.send_as_is)
            return
        if path == "/healthz":
            await self._app(scope, receive, exchange.send)
            return
        if path in OPEN_PATHS:
            # Readiness asks Redis. It needs no key, so it must not take the connections of clients that have one.
            await self._read(exchange, receive)
            return
        if (method, path) == ("POST", SESSION_PATH):
            await self._open_session(exchange, receive)
            return
        headers = exchange.headers
        record = await self._keys.caller(headers.get(b"authorization"), _address(scope))
        exchange.who = record.id
        exchange.caller = Caller(record.id, record.name, record.scope)
        reads, exchange.asks = method in ("GET", "HEAD"), is_question(method, path)
        rates = self._reads if reads else self._questions if exchange.asks else self._mutations
        if wait_s := rates.wait_s(record.id, self._clock()):
            raise too_many(wait_s, "requests with this key")
        check_scope(record, needed_scope(method, path))
        _refuse_keys(path.encode() + scope.get("query_string", b""), "path")
        scope.setdefault("state", {})["caller"] = exchange.caller
        if exchange.asks:
            await self._ask(exchange, receive)
        elif not reads:
            await self._mutate(exchange, receive)
        elif _is_stream(path, headers.get(b"accept")):
            exchange.streams = True
            with self._places.taken(record.id):
                await self._app(scope, receive, exchange.send)
        elif path.endswith(STREAM_ENDS) or path == "/v1/me":  # the answer depends on a header, too
            await (await self._answer(scope, receive)).send(exchange.send)
        else:
            await self._read(exchange, receive)

    async def _read(self, exchange: _Exchange, receive: Receive) -> None:
        scope = exchange.scope
        name = f"{exchange.method} {exchange.path}?{scope.get('query_string', b'').decode('latin-1')}"
        answer = await self._recent.get(name, lambda: self._answer(scope, receive))
        await answer.send(exchange.send)

    async def _ask(self, exchange: _Exchange, receive: Receive) -> None:
        """Nothing is kept for a repeated question, nor written to the audit log: a key that may only read could fill
        both. The route finds what it has made under the same Idempotency-Key, for as long as that is kept."""
        body = await self._body(exchange, receive)
        named = self._token(exchange, body)
        exchange.scope["state"]["operation"] = secrets.token_hex(6) if named is None else named.operation
        answer = await self._answer(exchange.scope, replayed(body, receive))
        self._recent.forget()  # the list of proposals has another entry
        await answer.send(exchange.send)

    def _token(self, exchange: _Exchange, body: bytes) -> RequestToken | None:
        text, caller = exchange.headers.get(b"idempotency-key"), exchange.caller
        assert caller is not None
        return None if text is None else token(caller.id, text, exchange.method, exchange.path, body)

    async def _mutate(self, exchange: _Exchange, receive: Receive) -> None:
        scope = exchange.scope
        body = await self._body(exchange, receive)
        named = self._token(exchange, body)
        scope["state"]["operation"] = secrets.token_hex(6) if named is None else named.operation
        async with in_turn(self._room):
            answer = None if named is None else await self._idempotency.begin(named)
            again: Headers = () if answer is None else ((b"idempotency-replayed", b"true"),)
            if answer is None:
                answer = await self._make(named, scope, replayed(body, receive))
                self._recent.forget()
                await self.note(exchange, answer.status)
        await answer.send(exchange.send, again)

    async def _open_session(self, exchange: _Exchange, receive: Receive) -> None:
        """A ticket for a key. It costs a stranger's token, which is given back if the ticket is good."""
        address = _address(exchange.scope)
        self._keys.stranger(address)
        body = await self._body(exchange, receive)
        answer = await self._answer(exchange.scope, replayed(body, receive))
        if answer.status < 300:
            self._keys.welcome(address)
        await answer.send(exchange.send)

    async def _body(self, exchange: _Exchange, receive: Receive) -> bytes:
        """Read and checked, and declared to the application as what it is."""
        scope, headers = exchange.scope, exchange.headers
        body = exchange.body = await read_body(receive, headers.get(b"content-length"))
        _check_form(body, headers.get(b"content-type"))
        _refuse_keys(body, "body")
        body = body or b"{}"
        scope["headers"] = [
            *((name, value) for name, value in scope["headers"] if name not in (b"content-type", b"content-length")),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        return body

    async def _make(self, named: RequestToken | None, scope: Scope, receive: Receive) -> HttpAnswer:
        answer: HttpAnswer | None = None
        try:
            answer = await collect_answer(self._app, scope, receive)
            return answer
        finally:
            if named is not None:
                await self._idempotency.end(named, answer)

    async def _answer(self, scope: Scope, receive: Receive) -> HttpAnswer:
        async with in_turn(self._room):
            return await collect_answer(self._app, scope, receive)

    async def note(self, exchange: _Exchange, status: int) -> None:
        """Write a mutation by a known caller to the audit log, before the answer is sent. Refused ones count too.

        Requests over the rate limit do not count: a flood of them must not push other entries out of the log.
        """
        if exchange.caller is None or exchange.asks or exchange.method in ("GET", "HEAD") or status == 429:
            return
        outcome = "accepted" if status < 300 else "refused" if status < 500 else "failed"
        await self._audit.add(exchange.caller, exchange.method, exchange.path, exchange.body, status, outcome)


class _Exchange:
    """One request and its answer so far."""

    def __init__(self, scope: Scope, send: Send, clock: Callable[[], float]) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = _headers(scope)
        self.caller: Caller | None = None
        self.who = "-"
        self.streams = False
        self.asks = False
        self.body = b""
        self.status = 0
        self._send = send
        self._clock = clock

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *SECURITY_HEADERS]}
        await self.send_as_is(message)

    async def send_as_is(self, message: Message) -> None:
        """For the page's files, which bring security headers of their own."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)

    async def run(self, gate: Gate, receive: Receive) -> None:
        begun_s = self._clock()
        try:
            await gate.enter(self, receive)
        except ConnectionAbortedError:
            self.status = 499
        except Exception as error:
            if self.status:
                raise
            problem = of_error(error)
            await gate.note(self, problem.status)
            response = problem.response()
            await response(self.scope, receive, self.send)
        finally:
            spent_s = self._clock() - begun_s
            gate.measures.add(request_kind(self.method, self.path, streams=self.streams), self.status, spent_s)
            log_request(self.method, self.path, self.status, spent_s, self.who)


def _is_stream(path: str, accept: str | None) -> bool:
    return path.endswith(STREAM_ENDS) and not only_json(accept)


def _headers(scope: Scope) -> dict[bytes, str]:
    return {name: value.decode("latin-1") for name, value in scope["headers"]}


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _refuse_keys(text: bytes, field: str) -> None:
    if holds_key(text):
        raise Problem(
            422,
            "key-in-request",
            f"The {field} contains an API key, which would be stored or logged.",
            field=field,
            value="(not repeated)",
            remedy="Send keys in the Authorization header only. Revoke this one: trimtab keys revoke ID",
        )


def _check_form(body: bytes, content_type: str | None) -> None:
    if body and (content_type or "").partition(";")[0].strip().lower() != "application/json":
        raise Problem(
            415,
            "media-type",
            "The body is not declared to be JSON.",
            field="Content-Type",
            value=content_type,
            remedy="Send Content-Type: application/json.",
        )
    check_depth(body)
