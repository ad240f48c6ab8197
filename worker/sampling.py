"""Live rows of a hash sample of keys, from which the size of any state follows (docs/plans.md, Sizes). And the sizes.

All streams count the same keys: those whose hash begins with zero bits. That is the hash of the buffers' index, so the
keys of one part in 64 stand together at its front, and nothing else has to be looked at. Where there are few keys, all
of them are counted, in rows at equal distances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from trimtab.plan_orders import KeySample
from worker.buffers import Int64s, StateBuffer
from worker.states import States
from worker.walks import Streams

EVERY: Final = 8
"""Batches from one sample to the next."""
ZEROS: Final = 6
"""One key in 64."""
KEYS_MAX: Final = 256
KEYS_FEW: Final = 16
"""Where a sample has fewer, all keys are counted."""
ROWS_MAX: Final = 8_192
"""Of each stream, that are looked at to count all keys."""
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
"""As `worker.kernels` hashes codes."""

Counts = dict[str, tuple[Int64s, Int64s]]
"""Stream -> codes and how many rows each has."""


def sample_of(states: States) -> KeySample:
    """What is live now."""
    limit = states.limit
    zeros = ZEROS
    found: Counts = {name: states.leaf(name).sample_keys(zeros, limit) for name in states.spec.names}
    codes = _codes(found)
    if codes.size < KEYS_FEW:
        zeros = 0
        limits = limit.by_group(states.spec.partitions)
        found = {name: _at_equal_distances(states.leaf(name), limits) for name in states.spec.names}
        codes = _codes(found)
    while codes.size > KEYS_MAX:
        zeros += 1
        codes = codes[codes.view(np.uint64) * _MIX >> np.uint64(64 - zeros) == 0]
    return KeySample(one_in=1 << zeros, counts={name: _of(codes, *each) for name, each in found.items()})


def sizes_of(sample: KeySample, wanted: Iterable[Streams]) -> dict[Streams, int]:
    """Tuples of states, more or less: the sum over keys of the products of counts. Conditions and times are not known
    here, so it is rather too much."""
    counts = {name: np.asarray(each, np.float64) for name, each in sample.counts.items()}
    return {
        streams: int(np.multiply.reduce([counts[name] for name in streams]).sum() * sample.one_in) for streams in wanted
    }


def _codes(found: Mapping[str, tuple[Int64s, Int64s]]) -> Int64s:
    """All keys that some stream has."""
    return np.unique(np.concatenate([codes for codes, _ in found.values()]))


def _at_equal_distances(leaf: StateBuffer, limits: Int64s) -> tuple[Int64s, Int64s]:
    distance = max(1, -(-leaf.size // ROWS_MAX))
    rows = slice(leaf.tail, leaf.head, distance)
    codes, counts = np.unique(leaf.code[rows][leaf.lo[rows] >= limits[leaf.group[rows]]], return_counts=True)
    return codes, counts * distance


def _of(codes: Int64s, known: Int64s, counts: Int64s) -> tuple[int, ...]:
    """The counts of some codes, 0 for those that are not known."""
    if known.size == 0:
        return (0,) * codes.size
    order = np.argsort(known)
    places = order[np.minimum(np.searchsorted(known, codes, sorter=order), known.size - 1)]
    return tuple(np.where(known[places] == codes, counts[places], 0).tolist())
