"""How much may move at a time, so that no batch takes much longer than usual.

A wave lengthens one batch at the sender (packing) and one at the receiver (unpacking, recomputing); both cost about the
same per byte, batch after batch, so a time that the user grants becomes a budget of bytes. A batch waits for its
slowest executor, so the budget is an executor's: all waves that it has a part in, of whichever migrations, share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from balancing.words import Order

FACTOR_MAX: Final = 1.5
"""No batch takes longer than this many times the median one, unless the user says otherwise."""
MARGIN: Final = 0.8
"""Of the time granted, what is planned for: a measured rate is an average."""

NS_PER_MS: Final = 1_000_000


def budget(
    *,
    median_batch_ms: float,
    ns_per_byte: float,
    max_pause_ms: float | None = None,
    factor: float = FACTOR_MAX,
) -> int | None:
    """Bytes that an executor may ship at a time; None where nothing is known yet that would bound it.

    `ns_per_byte`: measured, the larger of packing and unpacking. `max_pause_ms`, if given, bounds what a batch may take
    longer; else the factor of the median does.
    """
    granted_ms = max_pause_ms if max_pause_ms is not None else (factor - 1) * median_batch_ms
    if ns_per_byte <= 0 or granted_ms <= 0:
        return None
    return max(int(granted_ms * MARGIN * NS_PER_MS / ns_per_byte), 1)


def next_wave(
    remaining: Iterable[int],
    group_bytes: Mapping[int, float],
    budget_bytes: int | None,
    order: Order = "hot-first",
    used_bytes: float = 0,
) -> tuple[int, ...]:
    """The groups that move next: the hottest (or coldest) first, as many as fit.

    `used_bytes`: of the budget, by waves that are under way. Where there are none at least one group goes, however
    large; else there may be no room, and it is to be asked again. After the first group smaller ones may fill what is
    left, so that waves are few. Bytes stand for heat: they are what a wave costs, and a group with much state is one
    with many rows in the window.
    """
    groups = sorted(remaining, key=lambda group: (group_bytes.get(group, 0), -group), reverse=order == "hot-first")
    if budget_bytes is None:
        return tuple(sorted(groups))
    wave: list[int] = []
    left = budget_bytes - used_bytes
    for group in groups:
        size = group_bytes.get(group, 0)
        if (wave or used_bytes) and size > left:
            continue
        wave.append(group)
        left -= size
    return tuple(sorted(wave))
