"""The query that a story is about, as plain data, and its rows as Arrow has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from trimtab.keys import CODE, GROUP, KeySpec
from worker.spec import JoinSpec, StreamSpec

TIME: Final = pa.timestamp("us", tz="UTC")
Row = tuple[int, int, int]
"""Key, time in microseconds, id."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    names: str = "AB"
    """One letter for each stream."""
    partitions: int = 6
    plans: tuple[str, ...] = ("mjoin", "mjoin", "mjoin")
    """Of each worker."""
    owners: tuple[int, ...] = (0, 1, 2, 0, 1, 2)
    window_us: int = 3_000_000
    lateness_us: int = 0
    executors: int = 2
    attempts: int = 4
    """How often Spark tries a task before it gives the query up; once in local mode."""
    text_keys: bool = False
    """Keys are texts whose codes are hashes, and meet often; else a key is its own code."""

    @property
    def workers(self) -> int:
        return len(self.plans)

    @cached_property
    def key(self) -> KeySpec:
        return KeySpec(("key",), "column" if self.text_keys else "exact")

    @cached_property
    def spec(self) -> JoinSpec:
        streams = tuple(StreamSpec(name, "at", self.key, ("key", "at", "id")) for name in self.names)
        return JoinSpec(streams, self.window_us, self.partitions)

    @cached_property
    def result_schema(self) -> pa.Schema:
        columns = (("key", pa.string() if self.text_keys else pa.int64()), ("at", TIME), ("id", pa.int64()))
        return pa.schema([(f"{name}_{column}", kind) for name in self.names for column, kind in columns])

    def code(self, key: int) -> int:
        # With texts two keys share a code: every match must be verified on the key itself.
        return key // 2 if self.text_keys else key

    def group(self, key: int) -> int:
        return self.code(key) % self.partitions

    def table(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Rows as Spark hands them to a split task."""
        keys = [row[0] for row in rows]
        columns = {
            "key": pa.array([f"key {key}" for key in keys]) if self.text_keys else pa.array(keys, pa.int64()),
            "at": pa.array([row[1] for row in rows], TIME),
            "id": pa.array([row[2] for row in rows], pa.int64()),
            GROUP: pa.array(np.array([self.group(key) for key in keys], np.int16)),
        }
        if self.text_keys:
            columns[CODE] = pa.array([self.code(key) for key in keys], pa.int64())
        return pa.RecordBatch.from_pydict(columns)
