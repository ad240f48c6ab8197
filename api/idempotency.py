"""A mutation that is sent twice is done once (Idempotency-Key).

The answer to an accepted request is kept for a day under the API key and the client's Idempotency-Key. The same request
gets the same answer again; another request with the same Idempotency-Key is refused. A refused request has changed
nothing, so it is checked again. If the server stops before the answer is kept, the repeated request has the same
operation id (`RequestToken.operation`): routes
look for what was made under it before they check anything.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from dataclasses import dataclass
from typing import Final

import redis
from redis.asyncio import Redis

from api.answers import HttpAnswer, parse_answer
from api.problems import Problem
from trimtab import redis_keys

KEPT_S: Final = 24 * 3600
RUNNING_S: Final = 10
"""A request that has not ended after this time has stopped with its server, and may be sent again."""
_LOG = logging.getLogger("trimtab.api")
_FORM = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True)
class RequestToken:
    """One client's name for one mutation."""

    key: str
    fingerprint: str

    @property
    def operation(self) -> str:
        """Names what this request makes. A repeated request has the same name, and no other request has it."""
        return _digest(f"{self.key}:{self.fingerprint}")[:12]


def token(caller_id: str, text: str, method: str, path: str, body: bytes) -> RequestToken:
    if not _FORM.fullmatch(text):
        raise Problem(
            400,
            "idempotency-key",
            "The Idempotency-Key is empty, too long or has characters other than visible ASCII.",
            field="Idempotency-Key",
            value=text,
            remedy="Use 1 to 255 visible characters, such as a UUID, a new one for each new request.",
        )
    fingerprint = hashlib.sha256(b"\0".join((method.encode(), path.encode(), body))).hexdigest()
    return RequestToken(redis_keys.idempotency(caller_id, _digest(text)), fingerprint)


class Idempotency:
    def __init__(self, client: Redis) -> None:
        self._client = client

    async def begin(self, token: RequestToken) -> HttpAnswer | None:
        """The answer to the first request; None for the first request itself, which calls `end` afterwards."""
        claim = json.dumps({"fingerprint": token.fingerprint})
        if await self._client.set(token.key, claim, nx=True, ex=RUNNING_S):
            return None
        text = await self._client.get(token.key)
        if text is None:  # ended without success just now
            return await self.begin(token)
        record = json.loads(text)
        if record["fingerprint"] != token.fingerprint:
            raise Problem(
                422,
                "idempotency-key-reused",
                "This Idempotency-Key was used for another request.",
                field="Idempotency-Key",
                value="(as sent)",
                remedy="Use a new one for each new request; repeat a request with exactly the same body.",
            )
        if "answer" not in record:
            raise Problem(
                409,
                "in-progress",
                "The first request with this Idempotency-Key has not ended yet.",
                field="Idempotency-Key",
                value="(as sent)",
                remedy="Ask again in a second.",
                headers={"Retry-After": "1"},
            )
        return parse_answer(record["answer"])

    async def end(self, token: RequestToken, answer: HttpAnswer | None) -> None:
        """Keep the answer. If that fails, the request is done nevertheless, and known by its operation id."""
        try:
            if answer is None or not 200 <= answer.status < 300:
                await self._client.delete(token.key)
                return
            record = json.dumps({"fingerprint": token.fingerprint, "answer": answer.to_text()})
            await self._client.set(token.key, record, ex=KEPT_S)
        except redis.RedisError as error:
            _LOG.warning("an answer was not kept for its Idempotency-Key: %s", type(error).__name__)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
