"""Naive twins of the kernels: what they mean, in as few lines as possible. Property tests hold the two together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence


def probe(
    stored: Sequence[tuple[int, int, int]], new: Sequence[tuple[int, int, int]], tail: int, window: int
) -> set[tuple[int, int]]:
    """Pairs (new, stored) of (code, lo, hi) tuples that join."""
    return {
        (i, position)
        for i, (new_code, new_lo, new_hi) in enumerate(new)
        for position, (code, lo, hi) in enumerate(stored)
        if position >= tail and code == new_code and max(hi, new_hi) - min(lo, new_lo) <= window
    }


def join(streams: Mapping[str, Iterable[tuple[object, int, int]]], window: int) -> list[tuple[int, ...]]:
    """All combinations of one (key, time, id) row per stream with equal key and a time span of at most `window`."""
    return [
        tuple(row[2] for row in rows)
        for rows in itertools.product(*streams.values())
        if len({row[0] for row in rows}) == 1 and max(row[1] for row in rows) - min(row[1] for row in rows) <= window
    ]
