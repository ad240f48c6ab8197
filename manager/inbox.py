"""Takes up requests, oldest first: checks them against the query as it is now, then grants or refuses.

A request leaves the list in the same durable write that records the answer, so it is answered once even if the manager
stops in between; one that comes twice finds its record and changes nothing.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from manager.journal import Entry
from manager.requests import CancelRequest, RebalanceRequest, Refused, check, parse_rebalance, parse_request, requested
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
                request = parse_request(json.loads(text))
            except ValueError as error:
                log.warning("%s: %s", runner.query, error)
                await runner.write(Entry(request=text, events=(_refused("request", str(error), {}),)))
                continue
            if isinstance(request, CancelRequest):
                await self._cancel(request, text)
            else:
                await self._rebalance(request, text)

    async def _rebalance(self, request: RebalanceRequest, text: str) -> None:
        runner = self._runner
        known = await runner.store.rebalance(runner.query, request.id)
        if known is not None and parse_rebalance(known).state != "requested":
            await runner.write(Entry(request=text))  # told twice
            return
        seen = runner.view()
        try:
            check(request, seen)
            if request.proposal is not None:
                check_proposal(request, await runner.store.proposal(runner.query, request.proposal), seen)
        except Refused as refused:
            record = replace(requested(request), state="refused", closed_ms=now_ms(), refusal=refused.to_json())
            await runner.write(
                Entry(
                    rebalances={record.id: record.to_json()},
                    closed=(f"rebalance:{record.id}",),
                    request=text,
                    events=(_refused(record.id, str(refused), {"rebalance": record.id}),),
                )
            )
            return
        snapshot = runner.watch.snapshot(runner.receivers(), runner.rules)
        accepted = accept(request, seen, snapshot, now_ms())
        await runner.start(accepted.rebalance, accepted.migrations, text)

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


def _refused(name: str, problem: str, data: Json) -> Json:
    return {"at_ms": now_ms(), "kind": "refused", "text": f"{name}: {problem}", "data": data}
