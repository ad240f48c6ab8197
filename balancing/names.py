"""Names of moves: the migration, the wave and, for the way back, "undo". They may stand in a path."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_MOVE: Final = re.compile(r"(?P<migration>.+)\.w(?P<wave>[1-9][0-9]*)(?P<undo>\.undo)?")


class Named(NamedTuple):
    migration: str
    wave: int
    undo: bool


def move_id(migration: str, wave: int) -> str:
    return f"{migration}.w{wave}"


def undo_id(migration: str, wave: int) -> str:
    return f"{migration}.w{wave}.undo"


def parse_name(move: str) -> Named | None:
    """Whose move it is; None for one that no migration of ours opened."""
    found = _MOVE.fullmatch(move)
    return Named(found["migration"], int(found["wave"]), bool(found["undo"])) if found else None
