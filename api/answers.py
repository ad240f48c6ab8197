"""HTTP answers as values: taken from the application, kept for a moment or for a day, sent again."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

ENTRIES_MAX: Final = 512
BODY_KEPT_MAX: Final = 1_000_000
"""A larger answer is shared by those who wait for it, and then forgotten."""
Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: Headers
    body: bytes

    async def send(self, send: Send, extra: Headers = ()) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": [*self.headers, *extra]})
        await send({"type": "http.response.body", "body": self.body})

    def to_text(self) -> str:
        return json.dumps(
            {
                "status": self.status,
                "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in self.headers],
                "body": base64.b64encode(self.body).decode(),
            }
        )


def parse_answer(text: str) -> HttpAnswer:
    body = json.loads(text)
    headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in body["headers"])
    return HttpAnswer(body["status"], headers, base64.b64decode(body["body"]))


async def collect_answer(app: ASGIApp, scope: Scope, receive: Receive) -> HttpAnswer:
    """What the application answers, not sent yet."""
    status = 500
    headers: Headers = ()
    parts: list[bytes] = []

    async def catch(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = tuple((bytes(name), bytes(value)) for name, value in message.get("headers", ()))
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await app(scope, receive, catch)
    return HttpAnswer(status, headers, b"".join(parts))


class RecentAnswers:
    """Answers to reads, good for a fraction of a second.

    A dashboard in twenty browsers asks the same question twenty times within one batch, and the load changes at most
    once per batch. The first request makes the answer; requests that come meanwhile wait for it.
    """

    def __init__(self, keep_s: float, clock: Callable[[], float]) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._finished: OrderedDict[str, tuple[float, HttpAnswer]] = OrderedDict()
        self._pending: dict[str, asyncio.Task[HttpAnswer]] = {}

    async def get(self, name: str, make: Callable[[], Awaitable[HttpAnswer]]) -> HttpAnswer:
        recent = self._finished.get(name)
        if recent is not None and self._clock() - recent[0] < self._keep_s:
            return recent[1]
        task = self._pending.get(name)
        if task is None:
            task = asyncio.ensure_future(self._make(name, make))
            if self._keep_s > 0:
                self._pending[name] = task
        # A client that disconnects does not cancel the answer for others that wait for it.
        return await asyncio.shield(task)

    def forget(self) -> None:
        """After a change, which its author must see at once. Answers that are pending now may be outdated already."""
        self._finished.clear()
        self._pending.clear()

    async def _make(self, name: str, make: Callable[[], Awaitable[HttpAnswer]]) -> HttpAnswer:
        begun_s = self._clock()
        task = asyncio.current_task()
        try:
            answer = await make()
            if answer.status == 200 and len(answer.body) <= BODY_KEPT_MAX and self._pending.get(name) is task:
                self._finished[name] = (begun_s, answer)
                self._finished.move_to_end(name)
                if len(self._finished) > ENTRIES_MAX:
                    self._finished.popitem(last=False)
            return answer
        finally:
            if self._pending.get(name) is task:
                del self._pending[name]
