"""A mutation that is sent twice is done once (Idempotency-Key).

What was accepted is kept for a day under the API key and the client's Idempotency-Key; the same request gets the same
answer again, another one under the same key is refused. A refused request changed nothing, so it is judged anew. If
the server dies between doing and noting, the repeated request has the same operation id (`Token.operation`): routes
look for what was made under it before they judge anything.
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

from api.answers import Answer, parse_answer
from api.problems import Problem
from trimtab import redis_keys

KEPT_S: Final = 24 * 3600
RUNNING_S: Final = 10
"""A request that has not ended by then has died with its server, and may be sent again."""
_LOG = logging.getLogger("trimtab.api")
_FORM = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True)
class Token:
    """One client's name for one mutation."""

    key: str
    fingerprint: str

    @property
    def operation(self) -> str:
        """Names what this request makes: the same for a repeated one, and for no other."""
        return _digest(f"{self.key}:{self.fingerprint}")[:12]


def token(caller_id: str, text: str, method: str, path: str, body: bytes) -> Token:
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
    return Token(redis_keys.idempotency(caller_id, _digest(text)), fingerprint)


class Idempotency:
    def __init__(self, client: Redis) -> None:
        self._client = client

    async def begin(self, token: Token) -> Answer | None:
        """The first one's answer, or None: then go on, and call `end`."""
        claim = json.dumps({"fingerprint": token.fingerprint})
        if await self._client.set(token.key, claim, nx=True, ex=RUNNING_S):
            return None
        text = await self._client.get(token.key)
        if text is None:  # ended without success just now
            return await self.begin(token)
        known = json.loads(text)
        if known["fingerprint"] != token.fingerprint:
            raise Problem(
                422,
                "idempotency-key-reused",
                "This Idempotency-Key was used for another request.",
                field="Idempotency-Key",
                value="(as sent)",
                remedy="Use a new one for each new request; repeat a request with exactly the same body.",
            )
        if "answer" not in known:
            raise Problem(
                409,
                "in-progress",
                "The first request with this Idempotency-Key has not ended yet.",
                field="Idempotency-Key",
                value="(as sent)",
                remedy="Ask again in a second.",
                headers={"Retry-After": "1"},
            )
        return parse_answer(known["answer"])

    async def end(self, token: Token, answer: Answer | None) -> None:
        """Keep the answer. Where that fails the request is done all the same, and known by its operation id."""
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
