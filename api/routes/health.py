"""For orchestrators: the two paths that need no key. They answer yes or no, and nothing else."""

from __future__ import annotations

import logging

import redis
from fastapi import APIRouter

from api.backend import Use
from api.problems import unavailable
from manager.store import Json
from trimtab.redis_access import reason

_LOG = logging.getLogger("trimtab.health")
router = APIRouter(tags=["health"])


@router.get("/healthz", summary="The process answers")
async def healthz() -> Json:
    return {"status": "ok"}


@router.get("/readyz", summary="Redis answers and the manager can work")
async def readyz(use: Use) -> Json:
    try:
        await use.store.ping()
    except (redis.RedisError, OSError) as error:
        # Whoever asks here has no key: the reason is for the log.
        _LOG.warning("not ready: Redis does not answer the API (%s)", reason(error))
        raise unavailable() from None
    if use.not_ready():
        # The reason is in the log: this path is open to everybody.
        raise unavailable("The manager is not ready")
    return {"status": "ready"}
