"""The soak's REST client: asks whichever manager answers, and gets itself a new key when Redis forgot the old one."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from tests.soak.layout import COMMAND, QUERY, ROOT
from tests.soak.ledger import Ledger

TIMEOUT_S: Final = 8.0
Json = dict[str, Any]


class Away(Exception):
    """No manager can answer now: killed, starting, or without Redis."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: Json

    @property
    def good(self) -> bool:
        return self.status < 400

    @property
    def words(self) -> str:
        """For counting: the status, and the kind of a refusal."""
        kind = str(self.body.get("type", "")).rpartition(":")[2]
        return f"{self.status} {kind}".strip()


class Rest:
    """For one thread at a time."""

    def __init__(self, urls: Sequence[str], redis: str, ledger: Ledger) -> None:
        self._clients = [httpx.Client(base_url=url, timeout=TIMEOUT_S) for url in urls]
        self._redis = redis
        self._ledger = ledger
        self._key = ""
        self._lock = threading.Lock()

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def get(self, path: str, **parameters: int) -> Answer:
        return self.ask("GET", path, None, **parameters)

    def ask(self, method: str, path: str, body: Json | None = None, **parameters: int) -> Answer:
        """Raises Away where neither manager answers. A 5xx other than 503 is a failure of the soak."""
        with self._lock:
            return self._ask(method, f"/v1/queries/{QUERY}{path}", body, parameters)

    def _ask(self, method: str, path: str, body: Json | None, parameters: dict[str, int]) -> Answer:
        # The same key with each manager: a request whose answer got lost must not be done twice.
        headers = {} if method == "GET" else {"Idempotency-Key": secrets.token_hex(16)}
        for _ in range(2):
            for client in self._clients:
                try:
                    answer = client.request(
                        method, path, json=body, params=parameters, headers={**headers, **self._authorization()}
                    )
                except httpx.HTTPError:
                    continue
                if answer.status_code == 401:
                    self._key = ""
                    break
                if answer.status_code == 503:
                    continue
                if answer.status_code >= 500:
                    self._ledger.fail(f"{method} {path} {body}: {answer.status_code} {answer.text[:300]}")
                return Answer(answer.status_code, _json(answer))
            else:
                raise Away
        raise Away

    def _authorization(self) -> Json:
        if not self._key:
            self._key = self._new_key()
        return {"Authorization": f"Bearer {self._key}"}

    def _new_key(self) -> str:
        arguments = ["keys", "create", "--scope", "operate", "--name", "soak", "--redis", self._redis]
        done = subprocess.run(
            [sys.executable, *COMMAND, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode != 0:
            raise Away
        return done.stdout.strip()


def _json(answer: httpx.Response) -> Json:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
