"""Who am I, and how does a page get its key: from a one-time ticket, without anybody typing it."""

from __future__ import annotations

from fastapi import APIRouter

from api.access import Caller
from api.audit import AuditLog
from api.backend import By, Use
from api.problems import Problem
from api.routes.documents import answers
from api.schemas import SessionBody
from api.tickets import Tickets
from manager.store import Json, now_ms

router = APIRouter(prefix="/v1", tags=["session"])
_ME: Json = {"id": "5f0c2a9d11e8", "name": "ops", "scope": "operate"}


@router.get("/me", summary="The key that this request has: its name and scope", responses=answers(_ME))
async def me(by: By) -> Json:
    return {"id": by.id, "name": by.name, "scope": by.scope}


@router.post(
    "/session",
    status_code=201,
    summary="A key for a one-time ticket, as the demo prints it; needs no key",
    responses=answers(_ME | {"key": "trimtab_5f0c2a9d11e8_(shown once)"}, 413, 415, 422, status=201),
)
async def session(body: SessionBody, use: Use) -> Json:
    made = await Tickets(use.store.client).redeem(body.ticket, now_ms())
    if made is None:
        raise Problem(
            401,
            "ticket",
            "This ticket is unknown, used or expired.",
            field="ticket",
            value="(not repeated)",
            remedy="A ticket is good once, for ten minutes. Use a key: trimtab keys create --scope read --name NAME",
        )
    caller = Caller(made.record.id, made.record.name, made.record.scope)
    await AuditLog(use.store.client).add(caller, "POST", "/v1/session", b"", 201, "accepted")
    return {"key": made.text, "id": caller.id, "name": caller.name, "scope": caller.scope}
