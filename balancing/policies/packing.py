"""Bins of groups brought below a bound: what `level` searches over.

For a given bound every bin above it gives groups away until it is not, those first that relieve most for a byte of
state, and the groups given away go, largest first, to the bin that has least. Either everything fits below the bound or
the bound is too low.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np

from balancing.load import Ints
from balancing.selection import nearest
from balancing.smoothing import Floats

ROUNDING: Final = 1e-9
"""Relative: a bin that exceeds the bound by less is at the bound."""
REFINEMENTS_MAX: Final = 32


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The problem: loads and bytes of groups, the bin each is in, and what bins weigh."""

    group_load: Floats
    group_bytes: Floats
    bin_of: Ints
    """Bin of each group; -1 for groups that do not matter here."""
    may_move: tuple[tuple[int, ...], ...]
    """By bin: groups that may leave, most relief for a byte first."""
    bin_load: Floats


@dataclass(frozen=True, kw_only=True)
class Packed:
    """An answer: group -> bin for the groups that move."""

    moved: dict[int, int]
    largest: float
    moved_bytes: float


def by_relief(groups: list[int], load: Floats, size: Floats) -> tuple[int, ...]:
    """Most load for a byte first; of equal ones the larger, then the lower number. Groups without load never move."""
    loaded = [group for group in groups if load[group] > 0]
    return tuple(sorted(loaded, key=lambda group: (-load[group] / (size[group] + 1.0), -load[group], group)))


def pack_below(problem: Packing, bound: float, max_bytes: float) -> Packed | None:
    """Moves after which no bin that can help it exceeds `bound`, or None where they were not found."""
    slack = bound * ROUNDING
    loads = problem.bin_load.tolist()
    load_of, bytes_of = problem.group_load, problem.group_bytes
    pool: list[int] = []
    for number, load in enumerate(loads):
        if load <= bound + slack:
            continue
        leaving = _leaving(problem, number, load - bound, slack)
        if leaving is None:
            return None
        pool += leaving
        loads[number] -= sum(float(load_of[group]) for group in leaving)
    moved_bytes = sum(float(bytes_of[group]) for group in pool)
    if moved_bytes > max_bytes:
        return None
    heap = [(load, number) for number, load in enumerate(loads)]
    heapq.heapify(heap)
    moved: dict[int, int] = {}
    for group in sorted(pool, key=lambda each: (-load_of[each], each)):
        load, number = heap[0]
        grown = load + float(load_of[group])
        if grown > bound + slack:
            return None
        heapq.heapreplace(heap, (grown, number))
        loads[number] = grown
        if number == problem.bin_of[group]:
            moved_bytes -= float(bytes_of[group])
        else:
            moved[group] = number
    return Packed(moved=moved, largest=max(loads), moved_bytes=moved_bytes)


def _leaving(problem: Packing, number: int, excess: float, slack: float) -> list[int] | None:
    """Groups that take at least `excess` off the bin: what fits into it, then the smallest that covers the rest."""
    leaving: list[int] = []
    left: list[int] = []
    for group in problem.may_move[number]:
        load = float(problem.group_load[group])
        if load <= excess:
            leaving.append(group)
            excess -= load
        else:
            left.append(group)
        if excess <= slack:
            return leaving
    # All that is left is larger than the rest, so one of them is enough.
    if not left:
        return None
    return [*leaving, min(left, key=lambda each: (problem.group_load[each], problem.group_bytes[each], each))]


def lowest_packing(problem: Packing, floor: float, precision: float, max_bytes: float) -> Packed | None:
    """The packing with the lowest largest bin that halving the interval from `floor` to the present largest finds."""
    low, high = floor, float(problem.bin_load.max(initial=0.0))
    best = pack_below(problem, low, max_bytes)
    if best is not None:
        return best
    while high - low > precision:
        middle = (low + high) / 2
        found = pack_below(problem, middle, max_bytes)
        if found is None:
            low = middle
        else:
            best, high = found, min(middle, max(found.largest, low))
    return best


def refined(problem: Packing, packed: Packed | None, precision: float, max_bytes: float) -> Packed:
    """`packed` with the largest bin and the least one levelled against each other as long as that helps.

    The packing leaves the last bit to chance: with few, large groups in a bin a subset that fits better may exist.
    """
    moved = {} if packed is None else dict(packed.moved)
    bin_of, loads = problem.bin_of.copy(), problem.bin_load.copy()
    for group, number in moved.items():
        loads[bin_of[group]] -= problem.group_load[group]
        loads[number] += problem.group_load[group]
        bin_of[group] = number
    may_move = np.zeros(bin_of.size, np.bool_)
    may_move[[group for groups in problem.may_move for group in groups]] = True
    spent = sum(float(problem.group_bytes[group]) for group in moved)
    for _ in range(REFINEMENTS_MAX):
        sender, receiver = int(loads.argmax()), int(loads.argmin())
        amount = float(loads[sender] - loads[receiver]) / 2
        there = np.flatnonzero((bin_of == sender) & may_move)
        here = np.flatnonzero((bin_of == receiver) & may_move)
        away, back = _exchange(problem.group_load, there, here, amount)
        load = float(problem.group_load[away].sum() - problem.group_load[back].sum())
        cost = sum(_added_bytes(problem, group, sender, receiver) for group in away)
        cost += sum(_added_bytes(problem, group, receiver, sender) for group in back)
        if max(loads[sender] - load, loads[receiver] + load) > loads[sender] - precision or spent + cost > max_bytes:
            break
        spent += cost
        bin_of[away], bin_of[back] = receiver, sender
        loads[sender] -= load
        loads[receiver] += load
    changed = np.flatnonzero(bin_of != problem.bin_of).tolist()
    return Packed(
        moved={group: int(bin_of[group]) for group in changed},
        largest=float(loads.max()),
        moved_bytes=sum(float(problem.group_bytes[group]) for group in changed),
    )


def _exchange(load: Floats, there: Ints, here: Ints, amount: float) -> tuple[list[int], list[int]]:
    """Groups to give away and to take back, differing by nearly `amount`: some for none, or, if nearer, one for one."""
    away = list(nearest({group: float(load[group]) for group in there.tolist()}, amount))
    if not there.size or not here.size:
        return away, []
    # For each group that could leave, the two that come nearest to what should come back for it.
    ascending = here[np.argsort(load[here], kind="stable")]
    wanted = load[there] - amount
    above = np.searchsorted(load[ascending], wanted).clip(0, ascending.size - 1)
    options = np.stack([ascending[(above - 1).clip(0)], ascending[above]])
    off = np.abs(load[options] - wanted)
    side, which = np.unravel_index(int(off.argmin()), off.shape)
    if off[side, which] >= abs(amount - float(load[away].sum())):
        return away, []
    return [int(there[which])], [int(options[side, which])]


def _added_bytes(problem: Packing, group: int, sender: int, receiver: int) -> float:
    """A group that moved already costs nothing more, and one that goes back home costs nothing at all."""
    home = int(problem.bin_of[group])
    return float(problem.group_bytes[group]) * ((receiver != home) - (sender != home))


def bins(owners: Ints, bin_of_worker: dict[int, int]) -> Ints:
    """The bin of each group's worker, -1 for workers without a bin."""
    table = np.full(int(max(owners.max(initial=0), max(bin_of_worker, default=0))) + 1, -1, np.int64)
    for worker, number in bin_of_worker.items():
        table[worker] = number
    return np.asarray(table[owners], np.int64)
