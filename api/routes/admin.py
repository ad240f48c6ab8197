"""For administrators: keys and the audit log. Keys are made by the CLI alone: in Redis, or as files."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.audit import AuditLog
from api.backend import Use, not_found
from api.keys import NAME, KeyInFile, KeyRecord
from api.problems import Problem
from api.routes.documents import answers
from manager.store import Json

router = APIRouter(prefix="/v1", tags=["admin"])
_KEY: Json = {
    "id": "5f0c2a9d11e8",
    "name": "ops",
    "scope": "operate",
    "created_ms": 1_767_225_600_000,
    "from": "redis",
}
_ENTRY: Json = {
    "id": "1767225600000-0",
    "at_ms": 1_767_225_600_000,
    "key": "5f0c2a9d11e8",
    "name": "ops",
    "method": "POST",
    "path": "/v1/queries/orders/rebalances",
    "reason": "evening peak",
    "body": "{}",
    "status": 202,
    "outcome": "accepted",
}


@router.get("/keys", summary="API keys, without their secrets", responses=answers({"keys": [_KEY]}))
async def keys(use: Use) -> Json:
    files = await use.keys.in_files()
    return {"keys": [_shown(each, each.id in files) for each in await use.keys.all()]}


@router.delete("/keys/{key}", summary="Revoke a key", responses=answers({"revoked": [_KEY]}, 404, 409))
async def revoke(key: Annotated[str, Path(pattern=f"^{NAME}$", description="Its id or name.")], use: Use) -> Json:
    try:
        revoked = await use.keys.revoke(key)
    except KeyInFile as error:
        raise Problem(
            409, "key-in-file", f"{key} {error.problem}.", field="key", value=key, remedy=error.remedy
        ) from None
    if not revoked:
        raise not_found("key", key, "key", "See GET /v1/keys for ids and names.")
    return {"revoked": [_shown(each) for each in revoked]}


@router.get(
    "/audit",
    summary="The audit log: who requested what, why, and how it ended",
    responses=answers({"entries": [_ENTRY]}),
)
async def audit(use: Use, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Json:
    return {"entries": await AuditLog(use.store.client).newest(limit)}


def _shown(record: KeyRecord, in_file: bool = False) -> Json:
    shown: Json = {"id": record.id, "name": record.name, "scope": record.scope, "created_ms": record.created_ms}
    return {**shown, "from": "file" if in_file else "redis"}
