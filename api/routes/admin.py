"""For administrators: keys and the audit log. Keys are made by the CLI alone, which needs access to Redis."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.audit import AuditLog
from api.backend import Use, not_found
from api.keys import NAME, KeyRecord, KeyStore
from api.routes.documents import answers
from manager.store import Json

router = APIRouter(prefix="/v1", tags=["admin"])
_KEY: Json = {"id": "5f0c2a9d11e8", "name": "ops", "scope": "operate", "created_ms": 1_767_225_600_000}
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
    return {"keys": [_shown(each) for each in await KeyStore(use.store.client).all()]}


@router.delete("/keys/{key}", summary="Revoke a key", responses=answers({"revoked": [_KEY]}, 404))
async def revoke(key: Annotated[str, Path(pattern=f"^{NAME}$", description="Its id or name.")], use: Use) -> Json:
    revoked = await KeyStore(use.store.client).revoke(key)
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


def _shown(record: KeyRecord) -> Json:
    return {"id": record.id, "name": record.name, "scope": record.scope, "created_ms": record.created_ms}
