"""How records outlive the version that wrote them (docs/upgrade.md).

A field that is added has a default, so a later version reads what an earlier one wrote. A field that is not known is
left out, so an earlier version reads what a later one wrote, unless that one says that it must not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

Json = dict[str, Any]


def known_fields(kind: type[Any], body: Mapping[str, Any]) -> Json:
    """The fields of `body` that a dataclass has."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in body.items() if name in names}


def in_format(body: Mapping[str, Any], current: int, upgrades: Mapping[int, Callable[[Json], Json]], what: str) -> Json:
    """The record in the current format: an older one is upgraded step by step; ValueError where that cannot be.

    A newer record is taken as it is if whoever wrote it says that this version may (`oldest_reader`).
    """
    record = dict(body)
    written = int(record["format"])
    if written > current and int(record.get("oldest_reader", written)) > current:
        raise ValueError(
            f"{what} format {written} is not {current}: written by a newer version of Trimtab, which has to finish it"
        )
    for step in range(written, current):
        if step not in upgrades:
            raise ValueError(
                f"{what} format {written} is not {current}: written by a version of Trimtab that is too old"
            )
        record = upgrades[step](record)
    return record
