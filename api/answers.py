"""Whole answers as values: caught from the application, kept for a moment or for a day, sent again."""

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
Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Answer:
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


def parse_answer(text: str) -> Answer:
    body = json.loads(text)
    headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in body["headers"])
    return Answer(body["status"], headers, base64.b64decode(body["body"]))


async def caught(app: ASGIApp, scope: Scope, receive: Receive) -> Answer:
    """What the application answers, not yet sent."""
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
    return Answer(status, headers, b"".join(parts))


class RecentAnswers:
    """Answers to reads, good for a fraction of a second.

    A dashboard in twenty browsers asks the same question twenty times within one batch, and the load changes at most
    once per batch. Whoever asks first has the answer made; who asks meanwhile waits for it.
    """

    def __init__(self, keep_s: float, clock: Callable[[], float]) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._made: OrderedDict[str, tuple[float, Answer]] = OrderedDict()
        self._making: dict[str, asyncio.Task[Answer]] = {}

    async def get(self, name: str, make: Callable[[], Awaitable[Answer]]) -> Answer:
        known = self._made.get(name)
        if known is not None and self._clock() - known[0] < self._keep_s:
            return known[1]
        task = self._making.get(name)
        if task is None:
            task = asyncio.ensure_future(self._make(name, make))
            if self._keep_s > 0:
                self._making[name] = task
        # A client that goes away takes nothing from the others that wait for the same.
        return await asyncio.shield(task)

    def forget(self) -> None:
        """After a change: who made it must see it. What is being made now may be old already."""
        self._made.clear()
        self._making.clear()

    async def _make(self, name: str, make: Callable[[], Awaitable[Answer]]) -> Answer:
        begun_s = self._clock()
        task = asyncio.current_task()
        try:
            answer = await make()
            if answer.status == 200 and self._making.get(name) is task:
                self._made[name] = (begun_s, answer)
                self._made.move_to_end(name)
                if len(self._made) > ENTRIES_MAX:
                    self._made.popitem(last=False)
            return answer
        finally:
            if self._making.get(name) is task:
                del self._making[name]
