"""Old and new by row numbers: which combinations the old plan still has to make, and which the new one makes.

HybMig's characteristics table (section 3.2, Table 2). The paper's bitmap of violated entries is not kept with each
tuple: a tuple has its rows' numbers, from which the bitmap follows, as for a parallel track (`Engine.track`).

An entry gives each of its streams a cut of its own, the number of the first new row; a combination satisfies it if all
its rows of these streams are older. The paper has one instant for all streams and entries, and then background state
computation loses results: see `worker.migration`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from worker.buffers import Flags, Refs, Tuples

Cuts = Mapping[str, int]
"""Stream -> number of the first new row."""

_HALF: Final = np.uint32(2**31)


def is_old(rows: Refs, cut: int) -> Flags:
    """Numbers are kept modulo 2**32; the distance tells which side of the cut a row is on."""
    old: Flags = (rows - np.uint32(cut & 0xFFFFFFFF)) >= _HALF
    return old


def may_satisfy(tuples: Tuples, table: Sequence[Cuts]) -> Flags:
    """Tuples that violate not every entry by the rows that they have so far.

    Of tuples that have all streams of the entries this is: those that satisfy one.
    """
    found = np.zeros(len(tuples), np.bool_)
    for entry in table:
        meets = ~found
        for stream, rows in zip(tuples.streams, tuples.refs, strict=True):
            if stream in entry:
                meets &= is_old(rows, entry[stream])
        found |= meets
    return found


def grown(entry: Cuts, streams: Iterable[str], next_rows: Cuts) -> dict[str, int]:
    """The entry, and beside it: older than now in all of `streams` that it does not speak of."""
    return {**{stream: next_rows[stream] for stream in streams}, **entry}
