"""For orchestrators: the two paths that need no key. They answer yes or no, and nothing else."""

from __future__ import annotations

import redis
from fastapi import APIRouter

from api.backend import Use
from api.problems import unavailable
from manager.store import Json

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="The process answers")
async def healthz() -> Json:
    return {"status": "ok"}


@router.get("/readyz", summary="Redis answers and the manager can work")
async def readyz(use: Use) -> Json:
    try:
        await use.store.ping()
    except (redis.RedisError, OSError):
        raise unavailable() from None
    if use.not_ready():
        # The reason is in the log: this path is open to everybody.
        raise unavailable("The manager is not ready")
    return {"status": "ready"}
