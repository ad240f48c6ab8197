"""The heat map: every group's load and owner over time, and the moves between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

from api.backend import Backend
from balancing.protocols.migration import Migration
from manager.history import COARSE_KEPT, COARSE_S, FINE_S, LOAD_UNIT, Column, columns_text, reaches_back, thinned
from manager.store import Json, now_ms, readable_columns

MINUTES_MAX: Final = COARSE_S * COARSE_KEPT // 60


async def heat_map(use: Backend, query: str, minutes: int) -> str:
    """As JSON. Some hundred columns of some thousand groups: not on the loop that keeps the manager's lease."""
    since_ms, step_s = now_ms() - minutes * 60_000, FINE_S
    columns = await asyncio.to_thread(readable_columns, await use.store.column_texts(query, FINE_S))
    if not reaches_back(columns, since_ms):
        step_s = COARSE_S
        columns = await asyncio.to_thread(readable_columns, await use.store.column_texts(query, COARSE_S))
    text, stride = await asyncio.to_thread(_columns, columns, since_ms)
    migrations = await use.store.migrations(query)
    rest = {
        "query": query,
        "moves": moves_since(list(migrations.values()), since_ms),
        "step_s": step_s * stride,
        "load_unit": LOAD_UNIT,
    }
    return f'{json.dumps(rest, separators=(",", ":"))[:-1]},"columns":{text}}}'


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


def _columns(columns: Sequence[Column], since_ms: int) -> tuple[str, int]:
    few, stride = thinned(columns, since_ms)
    return columns_text(few), stride
