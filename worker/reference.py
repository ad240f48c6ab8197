"""Naive twins of the kernels: what they mean, in as few lines as possible. Property tests hold the two together."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from trimtab.evidence import NOTHING, Tally, arriving_digests, stored_digests, tally_of


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


def live(
    lo: Sequence[int], group: Sequence[int], tail: int, horizons: Sequence[int], wanted: Collection[int]
) -> list[int]:
    """Positions of the tuples of some groups that have not expired; each group has a horizon."""
    return [i for i in range(tail, len(lo)) if lo[i] >= horizons[group[i]] and group[i] in wanted]


def advance_tail(lo: Sequence[int], group: Sequence[int], tail: int, horizons: Sequence[int]) -> int:
    """The first position from `tail` on that has not expired."""
    return next((i for i in range(tail, len(lo)) if lo[i] >= horizons[group[i]]), len(lo))


def tally_leaf(
    stream: str, rows: Iterable[tuple[int, int, int, int]], group: int, first_new: int, before: int, after: int
) -> tuple[Tally, Tally, Tally]:
    """Of (code, time, group, number) rows those of a group: stored before, new, and to be kept."""
    kept, new, left = NOTHING, NOTHING, NOTHING
    for code, time, _, number in (row for row in rows if row[2] == group):
        columns = [np.array([value], np.int64) for value in (group, time, code)]
        stored = tally_of(stored_digests(stream, *columns))
        if number >= first_new:
            new += tally_of(arriving_digests(stream, *columns[:2]))
        elif time >= before:
            kept += stored
        else:
            continue
        left += stored if time >= after else NOTHING
    return kept, new, left


def merge_spans(pairs: Iterable[tuple[tuple[int, int], tuple[int, int]]]) -> list[tuple[int, int]]:
    """The span of each pair of spans (lo, hi)."""
    return [(min(a[0], b[0]), max(a[1], b[1])) for a, b in pairs]


def join(streams: Mapping[str, Iterable[tuple[object, int, int]]], window: int) -> list[tuple[int, ...]]:
    """All combinations of one (key, time, id) row per stream with equal key and a time span of at most `window`."""
    return [
        tuple(row[2] for row in rows)
        for rows in itertools.product(*streams.values())
        if len({row[0] for row in rows}) == 1 and max(row[1] for row in rows) - min(row[1] for row in rows) <= window
    ]
