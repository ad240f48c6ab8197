"""Moves that have ended, as charts mark them: the newest ones, in few words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from api.deltas import MARKS_SHOWN
from balancing.protocols.migration import Migration
from manager.store import Json, ManagerStore

_ENDED_READ: Final = 3 * MARKS_SHOWN
"""Entries of the history that are looked through for moves: rebalances are there, too."""
_QUERIES_KEPT: Final = 64


class Marks:
    """What has ended changes no more, so it is read again only when something else has ended."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[str, int] | None, list[Json]]] = {}

    async def of(self, store: ManagerStore, query: str, newest: tuple[str, int] | None) -> list[Json]:
        """Oldest first. `newest`: the newest entry of the query's history."""
        known = self._known.get(query)
        if known is not None and known[0] == newest:
            return known[1]
        marks = await _read(store, query)
        self._known.pop(query, None)
        self._known[query] = (newest, marks)
        if len(self._known) > _QUERIES_KEPT:
            del self._known[next(iter(self._known))]
        return marks


async def _read(store: ManagerStore, query: str) -> list[Json]:
    members = [member for member, _ in await store.history(query, _ENDED_READ) if member.startswith("migration:")]
    names = [member.partition(":")[2] for member in members[:MARKS_SHOWN]]
    return marks_of((await store.migrations_named(query, names)).values())


def marks_of(ended: Iterable[Migration]) -> list[Json]:
    """By the end of their stories: the history's own times move on while their audits do."""
    marks: list[Json] = [
        {
            "id": each.id,
            "from_ms": each.created_ms,
            "to_ms": each.story[-1].at_ms if each.story else each.created_ms,
            "from": each.sender,
            "to": each.receiver,
            "groups": len(each.moved_groups or each.chosen or each.request.groups),
            "strategy": each.strategy,
            "outcome": each.outcome,
        }
        for each in ended
    ]
    return sorted(marks, key=lambda mark: (mark["to_ms"], mark["id"]))
