"""Runs a plan over the resident state: insert, probe, purge. No Spark, no Redis, no clock.

The symmetric window join of MS/PT section 2 over any tree: a new tuple of a stream is joined with the state of its
siblings on the way from its leaf to the root, kept in the state of each join that it passes below the root, and is a
result when it leaves the root. Streams are taken in a fixed order inside a batch, and a stream's tuples enter their
own leaf last, so each combination is found exactly once: when its last component is processed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plans.tree import Join, inner_states, parse_plan, path, states
from trimtab import conditions
from trimtab.keys import GROUP, codes, timestamps_us
from worker.buffers import Int64s, StateBuffer, Tuples
from worker.payload import DurableKey, PayloadStore
from worker.spec import ConditionSpec, JoinSpec, Saved, result_names


@dataclass
class GroupLoad:
    """What each partition group cost in one batch."""

    rows: Int64s
    probes: Int64s
    results: Int64s

    @classmethod
    def zero(cls, partitions: int) -> GroupLoad:
        return cls(*(np.zeros(partitions, np.int64) for _ in range(3)))


@dataclass
class _Condition:
    spec: ConditionSpec
    tree: Any


@dataclass
class Engine:
    """The join state of one worker and the plan that runs over it."""

    spec: JoinSpec
    plan: Join
    directory: Path
    payload: dict[str, PayloadStore] = field(default_factory=dict)
    buffers: dict[tuple[str, ...], StateBuffer] = field(default_factory=dict)
    horizon: int = -(2**62)
    """Tuples that begin before this have expired: watermark - window."""

    def __post_init__(self) -> None:
        self._conditions = [_Condition(c, conditions.from_json(c.tree)) for c in self.spec.conditions]

    @classmethod
    def create(cls, spec: JoinSpec, plan: Join, directory: Path) -> Engine:
        engine = cls(spec, plan, directory)
        engine.payload = {name: PayloadStore(directory, name) for name in spec.names}
        engine.buffers = {streams: StateBuffer.create(directory, streams) for streams in states(plan)}
        return engine

    @classmethod
    def attach(cls, spec: JoinSpec, directory: Path, saved: Saved) -> Engine:
        engine = cls(spec, parse_plan(saved["plan"], spec.names), directory, horizon=saved["horizon"])
        engine.payload = {entry["stream"]: PayloadStore.attach(directory, entry) for entry in saved["payload"]}
        buffers = [StateBuffer.attach(directory, entry) for entry in saved["buffers"]]
        engine.buffers = {buffer.streams: buffer for buffer in buffers}
        return engine

    def saved(self) -> Saved:
        return {
            "plan": str(self.plan),
            "horizon": self.horizon,
            "payload": [store.saved() for store in self.payload.values()],
            "buffers": [buffer.saved() for buffer in self.buffers.values()],
        }

    def close(self) -> None:
        for buffer in self.buffers.values():
            buffer.close()
        self.payload.clear()

    def load_rows(self, stream: str, batch: pa.RecordBatch, frame: pa.Buffer, durable: DurableKey) -> Tuples:
        """Take a batch's rows of one stream into the payload; returns them as tuples, not yet in any state."""
        spec = self.spec.stream(stream)
        times = timestamps_us(batch.column(spec.time))
        numbers = self.payload[stream].append(frame, int(times.max()), durable)
        group = batch.column(GROUP).to_numpy(zero_copy_only=False)
        return Tuples((stream,), codes(batch, spec.key), times, times, group, numbers[np.newaxis])

    def insert(self, new: Tuples, load: GroupLoad) -> Tuples:
        """Join new rows of one stream with all that came before them; returns the results as tuples."""
        own = new.streams
        load.rows += np.bincount(new.group, minlength=self.spec.partitions)
        moving = new
        for step in path(self.plan, own[0]):
            moving = self._joined(moving, self.buffers[step.other], load.probes)
            if step.keep is not None:
                self._keep(step.keep, moving)
        self.buffers[own].append(new, self.horizon)
        load.results += np.bincount(moving.group, minlength=self.spec.partitions)
        return moving

    def restore(self, rows: Iterable[Tuples], horizon: int) -> None:
        """Fill all states from leaf rows: what a rebuild does after it has loaded the durable state."""
        self.horizon = horizon
        for tuples in rows:
            self.buffers[tuples.streams].append(tuples.take(np.flatnonzero(tuples.lo >= horizon)), horizon)
        ignored = np.zeros(self.spec.partitions, np.int64)
        for node in inner_states(self.plan):
            moving = self.buffers[node.inputs[0].streams].live(horizon)
            for other in node.inputs[1:]:
                moving = self._joined(moving, self.buffers[other.streams], ignored)
            self._keep(node.streams, moving)

    def purge(self, watermark_us: int) -> list[DurableKey]:
        """Let expired tuples go (a tuple is live while watermark - lo <= window)."""
        self.horizon = max(self.horizon, watermark_us - self.spec.window_us)
        for buffer in self.buffers.values():
            buffer.purge(self.horizon)
        return [key for store in self.payload.values() for key in store.drop_expired(self.horizon)]

    def live_rows(self) -> tuple[int, Int64s]:
        """Live leaf rows, in all and per partition group."""
        counts = np.zeros(self.spec.partitions, np.int64)
        total = sum(b.count_live(self.horizon, counts) for b in self.buffers.values() if b.is_leaf)
        return total, counts

    def combined_rows(self) -> int:
        """Live tuples of the states above the leaves."""
        ignored = np.zeros(self.spec.partitions, np.int64)
        return sum(b.count_live(self.horizon, ignored) for b in self.buffers.values() if not b.is_leaf)

    def state_bytes(self) -> tuple[int, int]:
        """Bytes of columns and indexes, and of payload."""
        return sum(b.nbytes for b in self.buffers.values()), sum(s.nbytes for s in self.payload.values())

    def results(self, tuples: Sequence[Tuples], schema: pa.Schema) -> pa.RecordBatch:
        """Result rows with all payload columns, gathered once."""
        refs = {name: np.concatenate([t.ref(name) for t in tuples]) for name in self.spec.names}
        if self.spec.ordered:
            order = np.argsort(np.concatenate([t.hi for t in tuples]), kind="stable")
            refs = {name: rows[order] for name, rows in refs.items()}
        arrays: list[pa.Array] = []
        for stream in self.spec.streams:
            arrays += self.payload[stream.name].gather(refs[stream.name], stream.columns)
        return pa.RecordBatch.from_arrays(arrays, names=result_names(self.spec)).cast(schema)

    def _keep(self, streams: tuple[str, ...], tuples: Tuples) -> None:
        order = [tuples.streams.index(stream) for stream in streams]
        tuples = Tuples(streams, tuples.code, tuples.lo, tuples.hi, tuples.group, tuples.refs[order])
        self.buffers[streams].append(tuples, self.horizon)

    def _joined(self, new: Tuples, buffer: StateBuffer, work: Int64s) -> Tuples:
        left, right = buffer.probe(new, self.spec.window_us, work)
        joined = buffer.joined(new, left, right)
        joined = self._with_equal_keys(joined, new.streams[0], buffer.streams[0])
        for condition in self._conditions:
            wanted = condition.spec.streams
            if wanted <= set(joined.streams) and not wanted <= set(new.streams) and not wanted <= set(buffer.streams):
                joined = self._where(joined, condition)
        return joined

    def _with_equal_keys(self, joined: Tuples, left: str, right: str) -> Tuples:
        compared = [self.spec.stream(name).key.compared for name in (left, right)]
        if compared[0] is None or compared[1] is None or len(joined) == 0:
            return joined
        (left_key,) = self.payload[left].gather(joined.ref(left), [compared[0]])
        (right_key,) = self.payload[right].gather(joined.ref(right), [compared[1]])
        equal = pc.equal(left_key, right_key)
        return joined if pc.all(equal).as_py() else joined.take(_true_positions(equal))

    def _where(self, joined: Tuples, condition: _Condition) -> Tuples:
        if len(joined) == 0:
            return joined
        columns: dict[tuple[str, str], pa.Array] = {}
        for stream in sorted(condition.spec.streams):
            names = [column for owner, column in condition.spec.columns if owner == stream]
            arrays = self.payload[stream].gather(joined.ref(stream), names)
            columns |= {(stream, name): array for name, array in zip(names, arrays, strict=True)}
        return joined.take(_true_positions(conditions.mask(condition.tree, columns)))


def _true_positions(mask: pa.Array) -> Int64s:
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False))
