"""What routes work with: the query as it is now, and the way to send a request to its leader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated

from fastapi import Depends, Path, Request

from api.access import Caller
from api.exposition import Exposition
from api.idempotency import KEPT_S
from api.keys import KeyStore, OtherKeys
from api.limits import QUESTIONS_SHARE, Sparing
from api.live import LiveStreams
from api.marks import Marks
from api.problems import Problem
from balancing.load import Snapshot
from balancing.replans.requests import CancelReplan, ReplanRequest
from balancing.requests import CancelRequest, RebalanceRequest, Refused, check
from balancing.situation import Situation
from manager.advising import Planning, load_planning
from manager.requests import enqueue, newest_epoch, situation
from manager.settings import HEARTBEAT_MAX_MS
from manager.snapshots import load_snapshot
from manager.store import ManagerStore, event_time
from trimtab import redis_keys

_FIELDS = {"sender": "from", "receiver": "to", "groups": "groups", "share": "amount", "measure": "measure"}
"""The names of a move's fields in a request for a single move."""


def always_ready() -> str:
    return ""


@dataclass
class Backend:
    store: ManagerStore
    streams: LiveStreams
    heartbeat_max_ms: int = HEARTBEAT_MAX_MS
    not_ready: Callable[[], str] = field(default=always_ready)
    """Why this instance's manager cannot work, or nothing."""
    exposition: Exposition = field(default_factory=Exposition)
    """What /metrics answers."""
    key_files: OtherKeys | None = None
    asking: Sparing = field(default_factory=lambda: Sparing(QUESTIONS_SHARE))
    """The turn of those who ask what would be moved."""
    marks: Marks = field(default_factory=Marks)
    """Moves that have ended, for charts."""

    @property
    def keys(self) -> KeyStore:
        return KeyStore(self.store.client, self.key_files)

    async def situation(self, query: str) -> Situation:
        """The query as it is now; 404 where there is none."""
        return await situation(self.store, query, self.heartbeat_max_ms)

    async def check_known(self, query: str) -> None:
        """404 where there is no such query."""
        await newest_epoch(self.store, query)

    async def load(self, query: str) -> Snapshot | None:
        """As the leader has measured it; None where the leader has seen no batch lately."""
        return await load_snapshot(self.store.client, query)

    async def load_now(self, situation: Situation) -> Snapshot | None:
        """The loads as measured, under the mapping, the open moves and the rules of this moment.

        The leader's snapshot may be a second old: a proposal made for its mapping could be stale from the start.
        """
        load = await self.load(situation.query)
        epoch = situation.epoch
        if load is None or load.incarnation != epoch.incarnation or len(load.owners) != situation.partitions:
            return None
        return replace(
            load,
            epoch=epoch.number,
            owners=epoch.owners,
            moving=situation.receivers,
            pinned=situation.rules.pinned,
            excluded=situation.rules.excluded,
            workers=tuple(replace(each, alive=each.worker in situation.up) for each in load.workers),
        )

    async def track_s(self, query: str) -> float:
        """How long old rows stay: window and lateness."""
        return event_time(await self.store.definition(query)).track_s

    async def submit(self, request: RebalanceRequest, *, single: bool) -> None:
        """Check, then hand to the leader. The leader checks again when its turn comes."""
        try:
            check(request, await self.situation(request.query))
        except Refused as refused:
            raise _renamed(refused) if single else refused from None
        await enqueue(self.store.client, request)

    async def planning(self, query: str) -> Planning | None:
        """What the leader knows of plans, and what the optimiser makes of it."""
        return await load_planning(self.store.client, query)

    async def submit_replan(self, request: ReplanRequest) -> None:
        """Hand a request that is checked to the leader, which checks it again when its turn comes."""
        await enqueue(self.store.client, request)

    async def cancel(self, request: CancelRequest | CancelReplan, operation: str) -> None:
        """Hand it to the leader.

        The mark comes first: a repeated request that finds it is not checked again. Asking the leader twice does no
        harm.
        """
        await self.store.client.set(_cancel_mark(operation), request.id, ex=KEPT_S)
        await enqueue(self.store.client, request)

    async def cancelled_before(self, operation: str) -> bool:
        return bool(await self.store.client.exists(_cancel_mark(operation)))


def _cancel_mark(operation: str) -> str:
    return redis_keys.idempotency("cancel", operation)


def _renamed(refused: Refused) -> Refused:
    """A refusal of moves[0].sender, for somebody who wrote `from`."""
    head, _, name = refused.field.partition(".")
    if head != "moves[0]" or name not in _FIELDS:
        return refused
    return Refused(_FIELDS[name], refused.value, refused.problem, refused.remedy, refused.status)


def backend_of(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope["state"]["caller"]
    return caller


def operation_of(request: Request) -> str:
    """The name of what this request makes; the same for a repeated one."""
    return str(request.scope["state"]["operation"])


Use = Annotated[Backend, Depends(backend_of)]
By = Annotated[Caller, Depends(caller_of)]
Operation = Annotated[str, Depends(operation_of)]
QueryName = Annotated[str, Path(pattern=f"^{redis_keys.QUERY_NAME}$", description="The query's name.")]
Id = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]


def check_group(group: int, situation: Situation) -> None:
    """404 where the query does not have this group."""
    if not 0 <= group < situation.partitions:
        raise not_found("group", group, "group", f"Use a number from 0 to {situation.partitions - 1}.")


def not_found(field: str, value: object, what: str, remedy: str) -> Problem:
    return Problem(404, "not-found", f"There is no {what} {value!r}.", field=field, value=value, remedy=remedy)
