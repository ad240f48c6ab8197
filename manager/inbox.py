"""Takes up requests, oldest first: checks them against the query as it is now, then grants or refuses.

A request leaves the list in the same durable write that records the answer, so it is answered once even if the manager
stops in between; one that comes twice finds its record and changes nothing. One that cannot be read, or that the
manager stumbles over, is refused as well: left in the list it would stop all that come after it.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from manager.journal import Entry, WentBack
from manager.lease import Fenced
from manager.requests import CancelRequest, RebalanceRequest, Refused, check, parse_request, requested
from manager.store import Json, now_ms
from manager.takeup import accept, check_proposal

if TYPE_CHECKING:
    from manager.runner import QueryRunner

log = logging.getLogger("trimtab.manager")

AT_ONCE_MAX: Final = 20
"""Requests per turn: the query's batches are not kept waiting."""


class Inbox:
    """The requests of one query, for the leader."""

    def __init__(self, runner: QueryRunner) -> None:
        self._runner = runner

    async def take_up(self) -> None:
        runner = self._runner
        if runner.watch.current is None:
            return
        for _ in range(AT_ONCE_MAX):
            text = await runner.store.next_request(runner.query)
            if text is None:
                return
            try:
                await self._answer(text)
            except (Fenced, WentBack, RedisError, OSError):
                raise
            except Exception as error:
                log.exception("%s: request %.200s", runner.query, text)
                await self._give_up(text, f"{type(error).__name__}: {error}")

    async def _answer(self, text: str) -> None:
        request = parse_request(json.loads(text))
        if isinstance(request, CancelRequest):
            await self._cancel(request, text)
        else:
            await self._rebalance(request, text)

    async def _give_up(self, text: str, problem: str) -> None:
        """Whoever asked is told, if there is a record to tell it in."""
        runner = self._runner
        name = _id_of(text)
        known = await runner.store.rebalance(runner.query, name) if name else None
        if known is not None and known["state"] == "requested":
            remedy = "Look at the request; the manager's log says where it went wrong."
            await self._refuse(known, Refused("request", name, f"cannot be carried out: {problem}", remedy), text)
        else:
            await runner.write(Entry(request=text, events=(_refused(name or "request", problem, {}),)))
        await runner.alarm(
            "request", f"request {name or text[:80]} was refused, since it cannot be read or done: {problem}"
        )

    async def _rebalance(self, request: RebalanceRequest, text: str) -> None:
        runner = self._runner
        known = await runner.store.rebalance(runner.query, request.id)
        if known is not None and known["state"] != "requested":
            await runner.write(Entry(request=text))  # told twice
            return
        seen = runner.view()
        try:
            check(request, seen)
            if request.proposal is not None:
                check_proposal(request, await runner.store.proposal(runner.query, request.proposal), seen)
        except Refused as refused:
            await self._refuse(requested(request).to_json(), refused, text)
            return
        snapshot = runner.watch.snapshot(runner.receivers(), runner.rules)
        accepted = accept(request, seen, snapshot, now_ms())
        await runner.start(accepted.rebalance, accepted.migrations, text)

    async def _refuse(self, record: Json, refused: Refused, text: str) -> None:
        name = str(record["id"])
        closed = {**record, "state": "refused", "closed_ms": now_ms(), "refusal": refused.to_json()}
        await self._runner.write(
            Entry(
                rebalances={name: closed},
                closed=(f"rebalance:{name}",),
                request=text,
                events=(_refused(name, str(refused), {"rebalance": name}),),
            )
        )

    async def _cancel(self, request: CancelRequest, text: str) -> None:
        runner = self._runner
        wanted = [
            migration
            for migration in runner.migrations.values()
            if request.migration == migration.id or (request.rebalance and request.rebalance == migration.rebalance)
        ]
        for migration in wanted[:-1]:
            await runner.cancel(migration, request.by, request.reason)
        if wanted:
            await runner.cancel(wanted[-1], request.by, request.reason, text)
            return
        name = request.migration or request.rebalance or ""
        await runner.write(Entry(request=text, events=(_refused(name, "is not under way", {"cancel": name}),)))


def _id_of(text: str) -> str:
    """As far as it can be told."""
    try:
        body: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    name = body.get("id") if isinstance(body, dict) else None
    return name if isinstance(name, str) else ""


def _refused(name: str, problem: str, data: Json) -> Json:
    return {"at_ms": now_ms(), "kind": "refused", "text": f"{name}: {problem}", "data": data}
