"""The owners that a query begins with, as the user may write them: `{0: "50%", 2: [4, 9, 17]}`.

A dictionary from workers to what each begins with: a share of all partition groups, or a list of groups (`[]` for
none). A share takes the lowest groups that no list names, in the order of the workers' numbers. The remaining groups
are dealt in turn among the workers that the dictionary does not name; where it names all of them, among those with a
share, so that a list is always exactly what its worker owns.

The owners are those of the first epoch. Later ones come from moves, so a checkpoint that has run keeps its own mapping.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from trimtab.epochs import dealt_in_turn
from trimtab.errors import InvalidInput

FirstOwners = dict[int, str | tuple[int, ...]]
"""Worker -> share such as "50%", or groups."""
FIELD: Final = "owners"
_SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,6})?) ?%")
_GRAMMAR: Final = 'Give a share such as "50%", or a list of groups such as [4, 9, 17].'


def parse_first_owners(value: Any) -> FirstOwners:
    """The dictionary with numbers as numbers (YAML keys and values of the environment are texts), shares checked."""
    if not isinstance(value, Mapping):
        raise InvalidInput(
            FIELD, value, "is not a dictionary", 'Write it as {0: "50%"}: worker 0 owns half of the groups.'
        )
    parsed: FirstOwners = {}
    for key, part in value.items():
        worker = _worker(key)
        if worker in parsed:
            raise InvalidInput(FIELD, key, f"names worker {worker} twice", "Name each worker once.")
        parsed[worker] = _part(worker, part)
    return parsed


def first_owners(owners: FirstOwners, partitions: int, workers: int) -> tuple[int, ...]:
    """The owner of each group in the first epoch. Without wishes all groups are dealt in turn."""
    if not owners:
        return dealt_in_turn(partitions, workers)
    for worker in owners:
        if not 0 <= worker < workers:
            raise InvalidInput(FIELD, worker, "is not a worker of this query", f"Use a number from 0 to {workers - 1}.")
    mapping = _listed(owners, partitions)
    free = [group for group in range(partitions) if group not in mapping]
    for worker, count in _share_counts(owners, partitions, len(free)).items():
        mapping |= dict.fromkeys(free[:count], worker)
        del free[:count]
    unnamed = [worker for worker in range(workers) if worker not in owners]
    heirs = unnamed or [worker for worker in range(workers) if isinstance(owners[worker], str)]
    if free and not heirs:
        raise InvalidInput(
            FIELD,
            free,
            "belong to nobody, since every worker has a list",
            "Name these groups too, or leave a worker out: it gets the remaining groups.",
        )
    mapping |= {group: heirs[turn % len(heirs)] for turn, group in enumerate(free)}
    return tuple(mapping[group] for group in range(partitions))


def _worker(key: Any) -> int:
    if isinstance(key, str) and key.isdecimal():
        return int(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return key
    raise InvalidInput(FIELD, key, "is not the number of a worker", 'Write it as {0: "50%"}: worker 0 owns half.')


def _part(worker: int, part: Any) -> str | tuple[int, ...]:
    field = f"{FIELD}[{worker}]"
    if isinstance(part, str):
        _fraction(worker, part)
        return part
    if not isinstance(part, Sequence) or isinstance(part, bytes):
        raise InvalidInput(field, part, "is neither a share nor a list", _GRAMMAR)
    for group in part:
        if not isinstance(group, int) or isinstance(group, bool):
            raise InvalidInput(field, group, "is not the number of a group", _GRAMMAR)
    return tuple(part)


def _fraction(worker: int, share: str) -> Fraction:
    field = f"{FIELD}[{worker}]"
    match = _SHARE.fullmatch(share.strip())
    if match is None:
        raise InvalidInput(field, share, "is not a share", _GRAMMAR)
    fraction = Fraction(match.group(1)) / 100
    if not 0 < fraction <= 1:
        raise InvalidInput(
            field, share, "is out of range", "Give more than 0% and at most 100%; a worker that owns nothing has []."
        )
    return fraction


def _listed(owners: FirstOwners, partitions: int) -> dict[int, int]:
    """Group -> worker, of the groups that lists name."""
    mapping: dict[int, int] = {}
    for worker, part in owners.items():
        if isinstance(part, str):
            continue
        for group in part:
            if not 0 <= group < partitions:
                raise InvalidInput(
                    f"{FIELD}[{worker}]",
                    group,
                    "is not a partition group of this query",
                    f"Use numbers from 0 to {partitions - 1}.",
                )
            if group in mapping:
                raise InvalidInput(
                    f"{FIELD}[{worker}]", group, f"belongs to worker {mapping[group]} already", "Name each group once."
                )
            mapping[group] = worker
    return mapping


def _share_counts(owners: FirstOwners, partitions: int, free: int) -> dict[int, int]:
    """Worker -> number of groups that its share is. The sums are rounded, not the shares: two halves of five groups are
    three groups and two."""
    shares = {worker: _fraction(worker, part) for worker, part in sorted(owners.items()) if isinstance(part, str)}
    total = sum(shares.values(), Fraction(0))
    if total > 1:
        raise InvalidInput(
            FIELD,
            {worker: owners[worker] for worker in shares},
            f"adds up to {float(total * 100):g}%",
            "Give shares of 100% at most in all.",
        )
    counts: dict[int, int] = {}
    before, passed = 0, Fraction(0)
    for worker, share in shares.items():
        passed += share
        end = int(passed * partitions + Fraction(1, 2))
        counts[worker], before = end - before, end
        if counts[worker] == 0:
            raise InvalidInput(
                f"{FIELD}[{worker}]",
                owners[worker],
                f"is less than one of {partitions} groups",
                "Give a larger share, or the query more partitions.",
            )
    if before > free:
        raise InvalidInput(
            FIELD,
            {worker: owners[worker] for worker in shares},
            f"is {before} groups, but the lists leave only {free} of {partitions}",
            "Lower the shares, or name fewer groups.",
        )
    return counts
