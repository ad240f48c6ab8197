"""Epochs: versioned, immutable mapping tables from partition groups to workers.

An epoch is published to Redis by whoever steers (the manager, or `join` for the first one) and bound to a
micro-batch by Spark's offset log (architecture, section 3). Its text is canonical JSON, so that equal epochs have
equal digests wherever they are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.errors import CorruptState, InvalidInput

FORMAT: Final = 1
NO_PREDECESSOR: Final = ""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One mapping version with the commands that take effect with it and the migrations open in it."""

    query: str
    number: int
    incarnation: str
    """Drawn once per checkpoint: epochs of an earlier life of a query's name are never taken for its own."""
    owners: tuple[int, ...]
    """Owner worker of each partition group, by partition number."""
    commands: tuple[dict[str, Any], ...] = ()
    migrations: tuple[dict[str, Any], ...] = ()
    predecessor: str = NO_PREDECESSOR
    """Digest of the epoch before: only a successor of the bound epoch can be bound."""
    fence: int = 0
    """Fencing token of the manager that published it."""

    def to_text(self) -> str:
        body = {
            "format": FORMAT,
            "query": self.query,
            "number": self.number,
            "incarnation": self.incarnation,
            "owners": _pack(self.owners),
            "commands": list(self.commands),
            "migrations": list(self.migrations),
            "predecessor": self.predecessor,
            "fence": self.fence,
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        return text_digest(self.to_text())

    def successor(self, owners: Sequence[int], *, fence: int = 0, **changes: Any) -> Epoch:
        return Epoch(
            query=self.query,
            number=self.number + 1,
            incarnation=self.incarnation,
            owners=tuple(owners),
            predecessor=self.digest,
            fence=fence,
            **changes,
        )

    def render(self) -> str:
        """A table for people: one line per worker with the groups that it owns."""
        lines = [f"epoch {self.number} of {self.query} ({self.digest[:12]})"]
        for worker in sorted(set(self.owners)):
            groups = [str(group) for group, owner in enumerate(self.owners) if owner == worker]
            lines.append(f"  worker {worker}: {' '.join(groups)}")
        return "\n".join(lines)


def first_epoch(query: str, incarnation: str, owners: Sequence[int]) -> Epoch:
    return Epoch(query=query, number=1, incarnation=incarnation, owners=tuple(owners))


def dealt_in_turn(partitions: int, workers: int) -> tuple[int, ...]:
    """The mapping a query starts with where none is asked for."""
    return tuple(group % workers for group in range(partitions))


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def parse_epoch(text: str, expected_digest: str | None = None) -> Epoch:
    """The epoch in `text`; refuses a text whose digest is not the expected one or whose fields are off."""
    if expected_digest is not None and text_digest(text) != expected_digest:
        raise CorruptState(f"epoch text has digest {text_digest(text)[:12]}, expected {expected_digest[:12]}")
    try:
        body = json.loads(text)
        if body["format"] != FORMAT:
            raise CorruptState(f"epoch format {body['format']} is not {FORMAT}: written by another version of Trimtab")
        return Epoch(
            query=str(body["query"]),
            number=int(body["number"]),
            incarnation=str(body["incarnation"]),
            owners=_unpack(body["owners"]),
            commands=tuple(body["commands"]),
            migrations=tuple(body["migrations"]),
            predecessor=str(body["predecessor"]),
            fence=int(body["fence"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptState(f"epoch text cannot be read: {error}") from error


def check_owners(owners: Sequence[int], partitions: int, workers: int) -> None:
    """Refuse a mapping that would route a row nowhere."""
    if len(owners) != partitions:
        raise InvalidInput("owners", len(owners), f"the query has {partitions} partitions", "Give one owner for each.")
    for group, owner in enumerate(owners):
        if not 0 <= owner < workers:
            raise InvalidInput(
                f"owners[{group}]", owner, "is no worker of this query", f"Use a number from 0 to {workers - 1}."
            )


def _pack(owners: Sequence[int]) -> str:
    return ",".join(map(str, owners))


def _unpack(packed: str) -> tuple[int, ...]:
    return tuple(map(int, packed.split(","))) if packed else ()
