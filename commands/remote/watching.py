"""Follows a query's front page in the background, and says whether what it has is live."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from api.deltas import applied
from commands.remote.client import Client, Refusal, RemoteFailure

BACK_OFF_FIRST_S: Final = 0.5
BACK_OFF_MAX_S: Final = 8.0
Json = dict[str, Any]


@dataclass(frozen=True)
class Sight:
    """What is known of a query."""

    document: Json | None = None
    problem: str = ""
    """Why it is not live, or nothing."""
    version: int = 0
    """Grows with every change."""


class Watching(threading.Thread):
    """One query. It connects again when the stream ends: after a restart of the server, a failover, a lost line."""

    def __init__(self, connect: Callable[[], Client], query: str) -> None:
        super().__init__(name=f"trimtab-top-{query}", daemon=True)
        self.query = query
        self.sight = Sight(problem="connecting")
        self.refusal: Refusal | None = None
        """The server will never show it: a wrong key, an unknown query."""
        self._connect = connect
        self._ended = threading.Event()

    def end(self) -> None:
        self._ended.set()

    def run(self) -> None:
        wait_s = BACK_OFF_FIRST_S
        while not self._ended.is_set():
            before = self.sight.version
            try:
                with contextlib.closing(self._connect()) as client:
                    self._follow(client)
                problem = "the server has closed the stream"
            except Refusal as refusal:
                if refusal.status not in (404, 429) or self.sight.document is None:
                    self.refusal = refusal
                    return
                problem = str(refusal)
            except RemoteFailure as failure:
                problem = str(failure)
            wait_s = BACK_OFF_FIRST_S if self.sight.version > before else min(BACK_OFF_MAX_S, wait_s * 2)
            self._set(self.sight.document, f"{problem} (asking again in {wait_s:.0f} s)")
            self._ended.wait(wait_s)

    def _follow(self, client: Client) -> None:
        document: Json | None = None
        for name, body in client.live(self.query):
            if self._ended.is_set():
                return
            if name == "front":
                document = body
            elif name == "delta" and document is not None and body["seq"] == document["seq"] + 1:
                document = applied(document, body)
            else:
                return  # dropped, or something is missing: begin again
            self._set(document, "")

    def _set(self, document: Json | None, problem: str) -> None:
        self.sight = Sight(document, problem, self.sight.version + 1)

    def first(self, seconds: float) -> Sight:
        """What is known once anything is, or when the time is over."""
        deadline = time.monotonic() + seconds
        while self.sight.document is None and self.refusal is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if self.refusal is not None:
            raise self.refusal
        return self.sight
