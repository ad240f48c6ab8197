"""States of the new plan, computed in the background: a piece at a time, within a budget, interrupted anywhere.

MS/PT algorithm 1 (recomputing unmatched states, from the bottom up) and HybMig section 3.4 (background state
computation, figs 11 and 12) in one: of all combinations of a state those are added, each once, that satisfy one of its
entries (`worker.migration`). One input is read from its newest tuple to its oldest one, so that tuples which expire
meanwhile are never joined; each is joined with the whole states of the other inputs, and what satisfies no entry is
left out, since the state has it already. Line 3 of fig 12 tests i instead of t_i, line 7 joins t_i with t_j: it is t_k.

Where reading has come to is a mark in the input's buffer, which stays with its tuple when the buffer makes room; so a
batch goes on where the one before has stopped, in whatever process it runs.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from worker import kernels
from worker.buffers import Tuples
from worker.lineage import may_satisfy
from worker.migration import Growing, Migration

PAIRS_FIRST: Final = 8_192
PAIRS_MIN: Final = 64
PAIRS_MAX: Final = 1_048_576
"""What a piece looks at: tuples read, and tuples of the same key in the other inputs."""
PIECES: Final = 8
"""That a budget should have room for, so that the last one oversteps it by little."""
PIECE_NS_MIN: Final = 500_000


@dataclass(frozen=True)
class Pace:
    """How much time there is. One piece is always done, so that a change ends however small the budget."""

    budget_ns: int
    clock: Callable[[], int] = time.perf_counter_ns

    @property
    def piece_ns(self) -> int:
        return max(PIECE_NS_MIN, self.budget_ns // PIECES)


@functools.cache
def prepare() -> None:
    """Load the compiled kernels, once per process: else the first batch of a change would, and take longer for it."""
    slots, following = np.full(2, kernels.EMPTY), np.zeros(1, np.int32)
    times, counts = np.zeros(1, np.int64), np.ones(1)
    groups, rows, passed = np.zeros(1, np.int16), np.zeros(1, np.uint32), np.zeros(1, np.bool_)
    kernels.multiply_matches(slots, following, times, 63, 0, times, counts)
    kernels.has_live_before(times, groups, rows, 0, 0, np.uint32(0), 0, passed)
    kernels.live_positions(times, groups, 0, 0, 0, times)


def advance(migration: Migration, pace: Pace) -> None:
    """Do what the budget allows."""
    began = now = pace.clock()
    if migration.pairs == 0:
        migration.pairs = PAIRS_FIRST
    while (each := _lowest(migration)) is not None:
        looked_at = _piece(migration, each)
        started, now = now, pace.clock()
        took = max(1, now - started)
        if looked_at:
            pace_of_it = migration.pairs * min(2.0, pace.piece_ns / took)
            migration.pairs = int(min(PAIRS_MAX, max(PAIRS_MIN, pace_of_it)))
        if now - began + took > pace.budget_ns:
            return


def _lowest(migration: Migration) -> Growing | None:
    """The first state, from the bottom up, that lacks something and whose inputs lack nothing."""
    for each in migration.growing.values():
        if each.lacks and all(map(migration.is_complete, each.inputs)):
            return each
    return None


def _piece(migration: Migration, each: Growing) -> int:
    """The next piece of one state; returns how much it looked at."""
    states = migration.states
    if each.driver is None:
        each.driver = min(each.inputs, key=lambda streams: states.buffers[streams].size)
        states.buffers[each.driver].mark = states.buffers[each.driver].head
    source = states.buffers[each.driver]
    level = each.level_from(each.driver)
    assert source.mark is not None
    limit = states.limit
    end = max(source.tail, source.mark)  # what lay above may have expired meanwhile
    start = max(source.tail, end - migration.pairs)
    positions = source.live_positions(start, end, limit)[::-1]
    tuples = source.at(positions)
    wanted = np.flatnonzero(may_satisfy(tuples, each.lacks) & ~migration.whole[tuples.group])
    tuples, positions = tuples.take(wanted), positions[wanted]
    looks = np.ones(len(tuples))
    for other in level.others:
        states.buffers[other].multiply_matches(tuples.code, looks)
    total = np.cumsum(looks + 1)
    fits = max(1, int(np.searchsorted(total, migration.pairs, side="right")))
    if fits < len(tuples):
        tuples, source.mark = tuples.take(np.arange(fits)), int(positions[fits - 1])
    else:
        source.mark = start
    states.keep(_missing(migration, each, states.climb(tuples, level, states.no_load())))
    if source.mark <= source.tail:
        source.mark = None
        migration.complete(each)
    return int(total[min(fits, total.size) - 1]) if total.size else 0


def _missing(migration: Migration, each: Growing, found: Tuples) -> Tuples:
    """Those of the combinations that the state does not have yet."""
    limits = migration.states.limit.by_group(migration.states.spec.partitions)
    wanted = may_satisfy(found, each.lacks) & (found.lo >= limits[found.group])
    return found if wanted.all() else found.take(np.flatnonzero(wanted))
