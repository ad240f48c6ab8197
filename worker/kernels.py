"""Hot loops over columns, compiled by numba. Each has a naive twin: in `reference.py`, or in its test.

A join state is a set of columns appended in arrival order (`code`, `lo`, `hi`, `group`, leaf references) with an index
on `code`: `slots` is an open-addressed table of the newest position of each distinct code, `following` links every
tuple to the next older one of the same code. Chains hold one code only, so a hot key never slows a cold one down.
Positions below `tail` are expired and end a chain: a chain runs from new to old.

`floors` is empty, or has a horizon for each partition group: that of a frozen group, else a time after all others.

`code` identifies the join key: its value where that fits into 64 bits, else a 64-bit hash of it, whose matches the
caller verifies on the key itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, uint64

EMPTY = np.int32(-1)
_MIX = uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True, inline="always")
def _find(slots: Any, code: Any, wanted: Any, shift: Any) -> Any:
    """The slot that holds `wanted`, or the empty one where it belongs."""
    mask = slots.size - 1
    slot = np.int64((np.uint64(wanted) * _MIX) >> np.uint64(shift))
    while slots[slot] >= 0 and code[slots[slot]] != wanted:
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, nogil=True)
def link(slots: Any, following: Any, code: Any, start: int, end: int, shift: int) -> None:
    """Put the tuples at positions start..end, already written to the columns, into the index."""
    for position in range(start, end):
        slot = _find(slots, code, code[position], shift)
        following[position] = slots[slot]
        slots[slot] = position


@njit(cache=True, nogil=True)
def probe(
    slots: Any,
    following: Any,
    code: Any,
    lo: Any,
    hi: Any,
    shift: int,
    tail: int,
    new_code: Any,
    new_lo: Any,
    new_hi: Any,
    new_group: Any,
    window: int,
    work: Any,
) -> Any:
    """Pairs (new tuple, stored tuple) with equal code whose common time span is at most `window`.

    `work` gains, per partition group, the number of stored tuples looked at: the measure of load.
    """
    size = max(1024, new_code.size)
    left = np.empty(size, np.int32)
    right = np.empty(size, np.int32)
    count = 0
    for i in range(new_code.size):
        wanted = new_code[i]
        position = slots[_find(slots, code, wanted, shift)]
        first = new_lo[i]
        last = new_hi[i]
        seen = 1
        while position >= tail:
            seen += 1
            if max(hi[position], last) - min(lo[position], first) <= window:
                if count == left.size:
                    left = _grown(left)
                    right = _grown(right)
                left[count] = i
                right[count] = position
                count += 1
            position = following[position]
        work[new_group[i]] += seen
    return left[:count], right[:count]


@njit(cache=True, nogil=True)
def _grown(array: Any) -> Any:
    bigger = np.empty(array.size * 2, array.dtype)
    bigger[: array.size] = array
    return bigger


@njit(cache=True, nogil=True)
def merge_spans(lo: Any, hi: Any, right: Any, new_lo: Any, new_hi: Any, left: Any) -> Any:
    """Time span of each joined pair: the smaller beginning and the larger end (MS/PT: min and max timestamps)."""
    out_lo = np.empty(left.size, np.int64)
    out_hi = np.empty(left.size, np.int64)
    for i in range(left.size):
        out_lo[i] = min(lo[right[i]], new_lo[left[i]])
        out_hi[i] = max(hi[right[i]], new_hi[left[i]])
    return out_lo, out_hi


@njit(cache=True, nogil=True, inline="always")
def _is_live(lo: Any, group: Any, position: int, horizon: int, floors: Any) -> Any:
    """Begins at or after the horizon, or at or after that of its group, where groups are frozen."""
    return lo[position] >= horizon or (floors.size > 0 and lo[position] >= floors[group[position]])


@njit(cache=True, nogil=True)
def advance_tail(lo: Any, group: Any, tail: int, head: int, horizon: int, floors: Any) -> int:
    """The first position from `tail` on that is still live."""
    while tail < head and not _is_live(lo, group, tail, horizon, floors):
        tail += 1
    return tail


@njit(cache=True, nogil=True)
def count_live(lo: Any, group: Any, tail: int, head: int, horizon: int, floors: Any, counts: Any) -> int:
    """Live tuples per partition group, added to `counts`; returns their sum."""
    total = 0
    for position in range(tail, head):
        if _is_live(lo, group, position, horizon, floors):
            counts[group[position]] += 1
            total += 1
    return total


@njit(cache=True, nogil=True)
def live_positions(lo: Any, group: Any, tail: int, head: int, horizon: int, floors: Any) -> Any:
    """Positions of the live tuples in arrival order."""
    out = np.empty(head - tail, np.int32)
    count = 0
    for position in range(tail, head):
        if _is_live(lo, group, position, horizon, floors):
            out[count] = position
            count += 1
    return out[:count]


@njit(cache=True, nogil=True)
def live_positions_of(lo: Any, group: Any, tail: int, head: int, horizon: int, floors: Any, wanted: Any) -> Any:
    """Positions, in arrival order, of the live tuples whose group is wanted (`wanted` is a flag per group)."""
    count = 0
    for position in range(tail, head):
        if wanted[group[position]] and _is_live(lo, group, position, horizon, floors):
            count += 1
    out = np.empty(count, np.int32)
    count = 0
    for position in range(tail, head):
        if wanted[group[position]] and _is_live(lo, group, position, horizon, floors):
            out[count] = position
            count += 1
    return out


@njit(cache=True, nogil=True)
def expire(lo: Any, group: Any, tail: int, head: int, gone: Any, never: int) -> None:
    """Let the tuples of some groups expire at once: they begin so long ago that no span fits any window."""
    for position in range(tail, head):
        if gone[group[position]]:
            lo[position] = never


@njit(cache=True, nogil=True)
def multiply_matches(slots: Any, following: Any, code: Any, shift: int, tail: int, new_code: Any, counts: Any) -> None:
    """Multiply each count (floats: the product may be large) by the length of the code's chain."""
    for i in range(new_code.size):
        position = slots[_find(slots, code, new_code[i], shift)]
        length = 0
        while position >= tail:
            length += 1
            position = following[position]
        counts[i] *= length


@njit(cache=True, nogil=True)
def sample_keys(
    slots: Any,
    following: Any,
    code: Any,
    lo: Any,
    group: Any,
    tail: int,
    zeros: int,
    horizon: int,
    floors: Any,
) -> Any:
    """Codes whose hash begins with so many zero bits, and how many live tuples each has.

    They are at home in the first part of the table; one that is not in its home slot comes before the next empty one.
    """
    home = max(1, slots.size >> zeros)
    codes = np.empty(64, np.int64)
    counts = np.empty(64, np.int64)
    found = 0
    for slot in range(slots.size):
        position = slots[slot]
        if position < 0:
            if slot >= home:
                break
            continue
        if position < tail or (np.uint64(code[position]) * _MIX) >> np.uint64(64 - zeros) != 0:
            continue
        wanted = code[position]
        live = 0
        while position >= tail:
            live += _is_live(lo, group, position, horizon, floors)
            position = following[position]
        if live > 0:
            if found == codes.size:
                codes = _grown(codes)
                counts = _grown(counts)
            codes[found] = wanted
            counts[found] = live
            found += 1
    return codes[:found], counts[:found]


@njit(cache=True, nogil=True)
def has_live_before(lo: Any, group: Any, row: Any, tail: int, head: int, cut: Any, horizon: int, passed: Any) -> bool:
    """Whether a row of a leaf, in the order of their numbers, is older than `cut` and live; not of passed groups."""
    for position in range(tail, head):
        if np.uint32(row[position] - cut) < np.uint32(2**31):
            return False
        if lo[position] >= horizon and not passed[group[position]]:
            return True
    return False


@njit(cache=True, nogil=True)
def order_by_chunk(row: Any, starts: Any) -> Any:
    """Sort references by the chunk that they point into (counting sort over ascending `starts`).

    Returns the position of each reference in the sorted sequence, the offsets inside their chunks in sorted order, and
    where each chunk's references end.
    """
    chunks = starts.size
    chunk_of = np.empty(row.size, np.int32)
    ends = np.zeros(chunks + 1, np.int64)
    for i in range(row.size):
        below = 0
        above = chunks
        while above - below > 1:
            middle = (below + above) >> 1
            if starts[middle] <= row[i]:
                below = middle
            else:
                above = middle
        chunk_of[i] = below
        ends[below + 1] += 1
    for chunk in range(chunks):
        ends[chunk + 1] += ends[chunk]
    cursor = ends[:chunks].copy()
    rank = np.empty(row.size, np.int64)
    offset = np.empty(row.size, np.int64)
    for i in range(row.size):
        chunk = chunk_of[i]
        place = cursor[chunk]
        cursor[chunk] = place + 1
        rank[i] = place
        offset[place] = row[i] - starts[chunk]
    return rank, offset, ends


# -- evidence: what lies in the columns, counted after the fact (see `worker.witness`)

_FIRST = uint64(0xBF58476D1CE4E5B9)
_SECOND = uint64(0x94D049BB133111EB)


@njit(cache=True, nogil=True, inline="always")
def _mixed(value: Any) -> Any:
    """As `trimtab.evidence.mixed`."""
    value = (value ^ (value >> uint64(30))) * _FIRST
    value = (value ^ (value >> uint64(27))) * _SECOND
    return value ^ (value >> uint64(31))


_BLOCK = 4096


@njit(cache=True, nogil=True)
def _watched(group: Any, start: int, end: int, watched: Any, out: Any) -> int:
    """Write the positions of watched groups to `out`; returns how many there are.

    Without a branch: a processor guesses wrong where groups come in any order. In blocks: `out` stays in its cache.
    """
    count = 0
    for position in range(start, end):
        out[count] = position
        count += watched[np.uint16(group[position])]
    return count


@njit(cache=True, nogil=True)
def _is_among(code: Any, wanted: Any) -> Any:
    found = False
    for k in range(wanted.size):
        found |= code == wanted[k]
    return found


@njit(cache=True, nogil=True)
def tally_leaf(
    code: Any,
    lo: Any,
    group: Any,
    row: Any,
    tail: int,
    head: int,
    watched: Any,
    first_new: Any,
    before: Any,
    after: Any,
    base: Any,
    wanted: Any,
    counts: Any,
    digests: Any,
) -> Any:
    """Rows of watched groups in one leaf: [0] stored before this batch's new ones, [1] new, [2] to be kept.

    `first_new` is the number of each group's first new row, `before` and `after` its horizons when the batch began and
    when it ends, `base` the digest of stream and group. `counts` and `digests` gain, per group, rows and their digests:
    of stored rows in [0] and [2], of arriving rows in [1]. Returns the positions of those that have one of a few wanted
    codes.
    """
    found = np.empty(64, np.int32)
    size = 0
    likely = uint64(0)  # bits of the wanted codes' hashes: most rows need no further look
    for k in range(wanted.size):
        likely |= uint64(1) << (_mixed(np.uint64(wanted[k])) & uint64(63))
    block = np.empty(_BLOCK, np.int32)
    for start in range(tail, head, _BLOCK):
        for place in range(_watched(group, start, min(start + _BLOCK, head), watched, block)):
            position = block[place]
            g = group[position]
            time = lo[position]
            is_new = np.uint32(row[position] - first_new[g]) < np.uint32(2**31)
            if not is_new and time < before[g]:
                continue
            own = _mixed(np.uint64(code[position]))
            arriving = _mixed(base[g] + np.uint64(time))
            stored = _mixed(arriving ^ own)
            if is_new:
                counts[1, g] += 1
                digests[1, g] += arriving
            else:
                counts[0, g] += 1
                digests[0, g] += stored
            if time >= after[g]:
                counts[2, g] += 1
                digests[2, g] += stored
            if likely & (uint64(1) << (own & uint64(63))) != 0 and _is_among(code[position], wanted):
                if size == found.size:
                    found = _grown(found)
                found[size] = position
                size += 1
    return found[:size]


@njit(cache=True, nogil=True)
def stored_digest(code: Any, lo: Any, group: Any, base: Any) -> Any:
    """The sum of the rows' digests as `trimtab.evidence.stored_digests` has them, in one pass and without copies."""
    digest = uint64(0)
    for i in range(code.size):
        digest += _mixed(_mixed(base[group[i]] + np.uint64(lo[i])) ^ _mixed(np.uint64(code[i])))
    return digest


@njit(cache=True, nogil=True)
def pick_keys(code: Any, group: Any, watched: Any, salt: Any, best: Any, best_code: Any, best_group: Any) -> None:
    """Keep the keys (code and group) of watched groups that a hash puts first, each once, the best at the front."""
    last = best.size - 1
    block = np.empty(_BLOCK, np.int32)
    for start in range(0, code.size, _BLOCK):
        for entry in range(_watched(group, start, min(start + _BLOCK, code.size), watched, block)):
            i = block[entry]
            g = group[i]
            rank = _mixed(np.uint64(code[i]) ^ salt ^ (np.uint64(g) << np.uint64(48)))
            if rank >= best[last]:
                continue
            place = last
            while place > 0 and best[place - 1] > rank:
                place -= 1
            if place > 0 and best[place - 1] == rank:
                continue
            for k in range(last, place, -1):
                best[k] = best[k - 1]
                best_code[k] = best_code[k - 1]
                best_group[k] = best_group[k - 1]
            best[place] = rank
            best_code[place] = code[i]
            best_group[place] = g
