"""What a worker must know of the query: shipped with the task, so it is plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trimtab.keys import KeySpec


@dataclass(frozen=True)
class StreamSpec:
    name: str
    time: str
    key: KeySpec
    columns: tuple[str, ...]
    """Payload columns in the order of the input: all of them appear in the result as NAME_COLUMN."""


@dataclass(frozen=True)
class ConditionSpec:
    """A condition over two or more streams, as `trimtab.conditions` ships it."""

    streams: frozenset[str]
    columns: tuple[tuple[str, str], ...]
    tree: str


@dataclass(frozen=True)
class JoinSpec:
    """The join itself, without anything about Spark or Redis."""

    streams: tuple[StreamSpec, ...]
    window_us: int
    partitions: int
    conditions: tuple[ConditionSpec, ...] = ()
    ordered: bool = False

    def stream(self, name: str) -> StreamSpec:
        return next(stream for stream in self.streams if stream.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(stream.name for stream in self.streams)


def result_names(spec: JoinSpec) -> list[str]:
    return [f"{stream.name}_{column}" for stream in spec.streams for column in stream.columns]


Saved = dict[str, Any]
