"""All states of a worker, by their set of streams, and how tuples climb through them. Which plan runs is the engine's.

A state is known by the set of its streams: `(A B)` and `(B A)` are one state, in whatever order its buffer has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from trimtab.keys import GROUP, codes, timestamps_us
from worker.buffers import NEVER, Flags, Horizon, Int64s, StateBuffer, Tuples, flags_of
from worker.joiner import Joiner, StepWork
from worker.payload import PayloadStore
from worker.spec import JoinSpec
from worker.walks import Level, Streams

Counted = dict[tuple[str, frozenset[str]], StepWork]
"""By stream and by the state that was probed, in the order of the steps."""


@dataclass
class States:
    """Buffers, payload and where things expire."""

    spec: JoinSpec
    directory: Path
    payload: dict[str, PayloadStore] = field(default_factory=dict)
    buffers: dict[Streams, StateBuffer] = field(default_factory=dict)
    """Leaves before what lies above them."""
    horizon: int = NEVER
    """Tuples that begin before this have expired: watermark - window."""
    frozen: dict[int, int] = field(default_factory=dict)
    """Groups of which nothing expires, and what their horizon was when they were frozen."""

    def __post_init__(self) -> None:
        self.joiner = Joiner(self.spec, self.payload)
        self._orders: dict[tuple[Streams, Level], list[Streams]] = {}

    @property
    def limit(self) -> Horizon:
        """Where tuples expire, those of frozen groups later than others."""
        return Horizon.of(self.horizon, self.frozen, self.spec.partitions)

    @property
    def next_rows(self) -> dict[str, int]:
        """The number that the next row of each stream will have."""
        return {name: store.next_row for name, store in self.payload.items()}

    def flags(self, groups: Iterable[int]) -> Flags:
        return flags_of(groups, self.spec.partitions)

    def leaf(self, stream: str) -> StateBuffer:
        return self.buffers[frozenset((stream,))]

    def tuples_of(self, stream: str, batch: pa.RecordBatch) -> Tuples:
        """Rows as tuples that refer to nothing yet."""
        spec = self.spec.stream(stream)
        times = timestamps_us(batch.column(spec.time))
        group = batch.column(GROUP).to_numpy(zero_copy_only=False)
        refs = np.zeros((1, times.size), np.uint32)
        return Tuples((stream,), codes(batch, spec.key), times, times, group, refs)

    def no_load(self) -> Int64s:
        """Takes up what work that is nobody's load has looked at."""
        return np.zeros(self.spec.partitions, np.int64)

    def climb(
        self,
        moving: Tuples,
        level: Level,
        work: Int64s,
        counted: Counted | None = None,
        prune: Callable[[Tuples], Tuples] | None = None,
    ) -> Tuples:
        """Join tuples of one input of a join with the states of all others; prune what comes of each step."""
        stream = moving.streams[0]
        for other in self.probe_order(frozenset(moving.streams), level):
            counts = None if counted is None else counted.setdefault((stream, other), StepWork())
            moving = self.joiner.joined(moving, self.buffers[other], work, counts)
            moving = moving if prune is None else prune(moving)
        return moving

    def probe_order(self, source: Streams, level: Level) -> list[Streams]:
        """The smallest state first (JTree section 3: an mjoin has one join order for each input); the same all through
        a batch, so that its steps can be counted."""
        key = (source, level)
        if key not in self._orders:
            self._orders[key] = sorted(level.others, key=lambda other: self.buffers[other].size)
        return self._orders[key]

    def keep(self, tuples: Tuples) -> Tuples:
        """Add tuples to the state that they belong to."""
        buffer = self.buffers[frozenset(tuples.streams)]
        buffer.append(tuples.ordered(buffer.streams), self.limit)
        return tuples
