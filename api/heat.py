"""The heat map: every group's load and owner over time, and the moves between them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from api.backend import Backend
from balancing.protocols.migration import Migration
from manager.history import COARSE_KEPT, COARSE_S, FINE_S, LOAD_UNIT, Column, chosen_columns, columns_view
from manager.store import Json, now_ms

MINUTES_MAX: Final = COARSE_S * COARSE_KEPT // 60


async def heat_map(use: Backend, query: str, minutes: int) -> Json:
    since_ms = now_ms() - minutes * 60_000
    fine, coarse = await use.store.columns(query, FINE_S), await use.store.columns(query, COARSE_S)
    migrations = await use.store.migrations(query)
    # Some hundred columns of some thousand groups: not on the loop that keeps the manager's lease.
    columns, step_s = await asyncio.to_thread(_columns, fine, coarse, since_ms)
    return {
        "query": query,
        "columns": columns,
        "moves": moves_since(list(migrations.values()), since_ms),
        "step_s": step_s,
        "load_unit": LOAD_UNIT,
    }


def moves_since(migrations: Sequence[Migration], since_ms: int) -> list[Json]:
    """Moves that ended since then, or are under way, oldest first. A wave counts when its groups changed hands."""
    moves: list[dict[str, Any]] = []
    for each in migrations:
        at_ms = each.story[-1].at_ms if each.story else each.created_ms
        if at_ms >= since_ms:
            moves.append(
                {
                    "id": each.id,
                    "groups": list(each.moved_groups or each.chosen or each.request.groups),
                    "from": each.sender,
                    "to": each.receiver,
                    "at_ms": at_ms,
                    "begun_ms": each.created_ms,
                    "strategy": each.strategy,
                    "outcome": each.outcome or None,
                }
            )
    return sorted(moves, key=lambda move: (move["at_ms"], move["id"]))


def _columns(fine: Sequence[Column], coarse: Sequence[Column], since_ms: int) -> tuple[list[Json], int]:
    columns, step_s = chosen_columns(fine, coarse, since_ms)
    return columns_view(columns), step_s
