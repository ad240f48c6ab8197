"""What routes work with: the query as it is now, and the way to ask something of its leader."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from fastapi import Depends, Path, Request

from api.access import Caller
from api.events import EventStreams
from api.idempotency import KEPT_S
from api.problems import Problem
from balancing.load import Snapshot
from balancing.protocols.migration import Migration, parse_migration
from manager.requests import (
    CancelRequest,
    RebalanceRequest,
    Refused,
    View,
    check,
    enqueue,
    view,
)
from manager.settings import HEARTBEAT_MAX_MS
from manager.snapshots import load_snapshot
from manager.store import Json, ManagerStore
from trimtab import redis_keys
from trimtab.moves import moves_of

_FIELDS = {"sender": "from", "receiver": "to", "groups": "groups", "share": "amount", "measure": "measure"}
"""What a move's fields are called by who asks for just one."""


def always_ready() -> str:
    return ""


@dataclass
class Backend:
    store: ManagerStore
    streams: EventStreams
    heartbeat_max_ms: int = HEARTBEAT_MAX_MS
    not_ready: Callable[[], str] = field(default=always_ready)
    """Why this instance's manager cannot work, or nothing."""

    async def seen(self, query: str) -> View:
        return await view(self.store, query, self.heartbeat_max_ms)

    async def load(self, query: str) -> Snapshot | None:
        """As the leader has measured it; None where it has seen no batch lately."""
        return await load_snapshot(self.store.client, query)

    async def load_now(self, seen: View) -> Snapshot | None:
        """The loads as measured, under the mapping, the open moves and the rules of this moment.

        The leader's snapshot may be a second old; a proposal made from its mapping would be stale when it is born.
        """
        load = await self.load(seen.query)
        if load is None or load.incarnation != seen.epoch.incarnation or len(load.owners) != seen.partitions:
            return None
        moving = {
            group: migration.receiver
            for migration in _parsed(await self.store.open_migrations(seen.query)).values()
            for group in migration.busy_groups
        }
        for move in moves_of(seen.epoch):
            moving.update(dict.fromkeys(move.groups, move.receiver))
        return replace(
            load,
            epoch=seen.epoch.number,
            owners=seen.epoch.owners,
            moving=moving,
            pinned=seen.rules.pinned,
            excluded=seen.rules.excluded,
            workers=tuple(replace(each, alive=each.worker in seen.up) for each in load.workers),
        )

    async def migrations(self, query: str, names: Sequence[str] | None = None) -> dict[str, Migration]:
        """All, or these, as far as this version can read them; the leader raises an alarm for others."""
        store = self.store
        found = await (store.migrations(query) if names is None else store.migrations_named(query, names))
        return _parsed(found)

    async def track_s(self, query: str) -> float:
        """How long old rows stay: window and lateness."""
        shape = await self.store.definition(query) or {}
        return float((shape.get("window") or 0) + (shape.get("lateness") or 0)) / 1e6

    async def submit(self, request: RebalanceRequest, *, single: bool) -> None:
        """Check, then hand to the leader. The leader checks again when its turn comes."""
        try:
            check(request, await self.seen(request.query))
        except Refused as refused:
            raise _renamed(refused) if single else refused from None
        await enqueue(self.store.client, request)

    async def cancel(self, request: CancelRequest, operation: str) -> None:
        """Hand it to the leader. The mark comes first: a repeated request that finds it is not judged again, and to ask
        the leader twice does no harm."""
        await self.store.client.set(_cancel_mark(operation), request.id, ex=KEPT_S)
        await enqueue(self.store.client, request)

    async def cancelled_before(self, operation: str) -> bool:
        return bool(await self.store.client.exists(_cancel_mark(operation)))


def _cancel_mark(operation: str) -> str:
    return redis_keys.idempotency("cancel", operation)


def _parsed(bodies: Mapping[str, Json]) -> dict[str, Migration]:
    found: dict[str, Migration] = {}
    for name, body in bodies.items():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found[name] = parse_migration(body)
    return found


def _renamed(refused: Refused) -> Refused:
    """A complaint about moves[0].sender, to somebody who wrote `from`."""
    head, _, name = refused.field.partition(".")
    if head != "moves[0]" or name not in _FIELDS:
        return refused
    return Refused(_FIELDS[name], refused.value, refused.problem, refused.remedy, refused.status)


def backend_of(request: Request) -> Backend:
    found: Backend = request.app.state.backend
    return found


def caller_of(request: Request) -> Caller:
    found: Caller = request.scope["state"]["caller"]
    return found


def operation_of(request: Request) -> str:
    """The name of what this request makes; the same for a repeated one."""
    return str(request.scope["state"]["operation"])


Use = Annotated[Backend, Depends(backend_of)]
By = Annotated[Caller, Depends(caller_of)]
Operation = Annotated[str, Depends(operation_of)]
QueryName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$", description="The query's name.")]
Id = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]


def not_found(field: str, value: object, what: str, remedy: str) -> Problem:
    return Problem(404, "not-found", f"There is no {what} {value!r}.", field=field, value=value, remedy=remedy)
