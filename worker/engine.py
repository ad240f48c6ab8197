"""Runs a plan over the resident state: insert, probe, purge. No Spark, no Redis, no clock.

The symmetric window join of MS/PT section 2 over any tree: a new tuple of a stream is joined with the state of its
siblings on the way from its leaf to the root, kept in the state of each join that it passes below the root, and is a
result when it leaves the root. Streams are taken in a fixed order inside a batch, and a stream's tuples enter their
own leaf last, so each combination is found exactly once: when its last component is processed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plans.tree import Join, inner_states, parse_plan, path, states
from trimtab import conditions, frames
from trimtab.keys import GROUP, codes, timestamps_us
from worker.buffers import NEVER, Flags, Horizon, Int64s, Refs, StateBuffer, Tuples, flags_of
from worker.payload import DurableKey, PayloadStore
from worker.spec import ConditionSpec, JoinSpec, Saved, result_names

ROWS_TOLD_APART: Final = 2**30
"""Of the numbers from the oldest row on; half of it would do, and a batch adds some."""


@dataclass
class GroupLoad:
    """What each partition group cost in one batch."""

    rows: Int64s
    probes: Int64s
    results: Int64s
    suppressed: Int64s
    """All-new combinations that the root left out, because the receiver of a duplicated group has them."""

    @classmethod
    def zero(cls, partitions: int) -> GroupLoad:
        return cls(*(np.zeros(partitions, np.int64) for _ in range(4)))


@dataclass
class Track:
    """Groups whose rows another worker gets too (PTLB step 3): from some row number of each stream on, rows are new."""

    groups: Flags
    first_new: dict[str, int]


@dataclass(frozen=True)
class Exported:
    """The states of some groups: leaf rows as batches, and the states above them as positions in those batches."""

    leaves: dict[str, list[pa.RecordBatch]]
    combined: dict[tuple[str, ...], Refs]
    rows: dict[str, Tuples]
    """The leaf rows as tuples, for counting and digests."""


@dataclass(frozen=True)
class Census:
    """What is live in all states of a worker."""

    state_rows: int
    """Rows of the streams."""
    combined_rows: int
    """Tuples of the states above them."""
    group_rows: Int64s
    """Rows of the streams, by partition group."""
    group_bytes: Int64s
    """Bytes of columns and payload that a partition group's live tuples take up, in every state."""
    states: dict[str, int]
    """State of the plan, as "A B" -> its live tuples."""


@dataclass
class Condition:
    """A condition over several streams, ready to be evaluated."""

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
    horizon: int = NEVER
    """Tuples that begin before this have expired: watermark - window."""
    frozen: dict[int, int] = field(default_factory=dict)
    """Groups of which nothing expires, and what their horizon was when they were frozen."""
    tracks: dict[str, Track] = field(default_factory=dict)
    """By move."""

    def __post_init__(self) -> None:
        self.conditions = [Condition(c, conditions.from_json(c.tree)) for c in self.spec.conditions]

    @classmethod
    def create(cls, spec: JoinSpec, plan: Join, directory: Path) -> Engine:
        engine = cls(spec, plan, directory)
        engine.payload = {name: PayloadStore(directory, name, spec.partitions) for name in spec.names}
        engine.buffers = {streams: StateBuffer.create(directory, streams) for streams in states(plan)}
        return engine

    @classmethod
    def attach(cls, spec: JoinSpec, directory: Path, saved: Saved) -> Engine:
        engine = cls(spec, parse_plan(saved["plan"], spec.names), directory, horizon=saved["horizon"])
        engine.frozen = {int(group): horizon for group, horizon in saved["frozen"].items()}
        stores = [PayloadStore.attach(directory, entry, spec.partitions) for entry in saved["payload"]]
        engine.payload = {store.stream: store for store in stores}
        buffers = [StateBuffer.attach(directory, entry) for entry in saved["buffers"]]
        engine.buffers = {buffer.streams: buffer for buffer in buffers}
        for move, (groups, first_new) in saved["tracks"].items():
            engine.tracks[move] = Track(engine.flags(groups), first_new)
        return engine

    def saved(self) -> Saved:
        return {
            "plan": str(self.plan),
            "horizon": self.horizon,
            "frozen": self.frozen,
            "payload": [store.saved() for store in self.payload.values()],
            "buffers": [buffer.saved() for buffer in self.buffers.values()],
            "tracks": {
                move: [np.flatnonzero(track.groups).tolist(), track.first_new] for move, track in self.tracks.items()
            },
        }

    def close(self) -> None:
        for buffer in self.buffers.values():
            buffer.close()
        for store in self.payload.values():
            store.close()
        self.payload.clear()

    @property
    def limit(self) -> Horizon:
        """Where tuples expire, those of frozen groups later than others."""
        return Horizon.of(self.horizon, self.frozen, self.spec.partitions)

    def load_rows(self, stream: str, batch: pa.RecordBatch, frame: pa.Buffer, durable: DurableKey) -> Tuples:
        """Take a batch's rows of one stream into the payload; returns them as tuples, not yet in any state."""
        tuples = self.tuples_of(stream, batch)
        frozen_us = self._newest_frozen(tuples) if self.frozen else NEVER
        tuples.refs[0] = self.payload[stream].append(frame, int(tuples.hi.max()), durable, frozen_us)
        return tuples

    def tuples_of(self, stream: str, batch: pa.RecordBatch) -> Tuples:
        """Rows as tuples that refer to nothing yet."""
        spec = self.spec.stream(stream)
        times = timestamps_us(batch.column(spec.time))
        group = batch.column(GROUP).to_numpy(zero_copy_only=False)
        refs = np.zeros((1, times.size), np.uint32)
        return Tuples((stream,), codes(batch, spec.key), times, times, group, refs)

    def insert(self, new: Tuples, load: GroupLoad) -> Tuples:
        """Join new rows of one stream with all that came before them; returns the results as tuples."""
        own = new.streams
        load.rows += np.bincount(new.group, minlength=self.spec.partitions)
        moving = new
        for step in path(self.plan, own[0]):
            moving = self._joined(moving, self.buffers[step.other], load.probes)
            if step.keep is not None:
                self._keep(step.keep, moving)
        self.buffers[own].append(new, self.limit)
        moving = self._without_all_new(moving, load.suppressed)
        load.results += np.bincount(moving.group, minlength=self.spec.partitions)
        return moving

    def restore(self, rows: Iterable[Tuples], horizon: int) -> None:
        """Fill all states from leaf rows: what a rebuild does after it has loaded the durable state."""
        self.horizon = horizon
        limit = self.limit
        limits = limit.by_group(self.spec.partitions)
        for tuples in rows:
            live = tuples.take(np.flatnonzero(tuples.lo >= limits[tuples.group]))
            self.buffers[tuples.streams].append(live, limit)
        for node in inner_states(self.plan):
            self._recompute(node, self.buffers[node.inputs[0].streams].live(limit))

    def purge(self, horizon: int) -> list[DurableKey]:
        """Let expired tuples go: those that begin before `horizon` (a tuple is live while watermark - lo <= window).

        Of frozen groups nothing goes.
        """
        self.horizon = max(self.horizon, horizon)
        limit = self.limit
        for buffer in self.buffers.values():
            buffer.purge(limit)
        # One at a time, before it must be: streams are alike, and all buffers would be cleaned up in the same batch.
        max(self.buffers.values(), key=lambda buffer: buffer.full_share).make_room_ahead(limit)
        return [key for store in self.payload.values() for key in store.drop_expired(self.horizon)]

    def freeze(self, groups: Iterable[int], horizon: int) -> None:
        """Let nothing of these groups expire that is live by `horizon`, until they are unfrozen."""
        self.frozen |= dict.fromkeys(groups, horizon)
        self._freeze_payload()

    def unfreeze(self, groups: Iterable[int]) -> None:
        self.frozen = {group: horizon for group, horizon in self.frozen.items() if group not in set(groups)}
        self._freeze_payload()

    def _freeze_payload(self) -> None:
        for stream, store in self.payload.items():
            store.freeze(partial(self._newest_frozen_of, stream) if self.frozen else None)

    def _newest_frozen_of(self, stream: str, batch: pa.RecordBatch) -> int:
        return self._newest_frozen(self.tuples_of(stream, batch))

    def _newest_frozen(self, rows: Tuples) -> int:
        floors = self.limit.floors[rows.group]
        return int(np.max(rows.lo, where=rows.lo >= floors, initial=NEVER))

    @property
    def worn(self) -> bool:
        """Whether row numbers have run so far that 32 bits will not tell two of them apart, or new ones from old.

        A row from the far future keeps its chunk for as long, and so does a parallel track that nobody closes.
        """
        first = {name: store.first_row for name, store in self.payload.items()}
        for track in self.tracks.values():
            first = {name: min(row, track.first_new[name]) for name, row in first.items()}
        return any(store.next_row - first[name] >= ROWS_TOLD_APART for name, store in self.payload.items())

    def flags(self, groups: Iterable[int]) -> Flags:
        return flags_of(groups, self.spec.partitions)

    def expire(self, groups: Iterable[int]) -> None:
        """Drop some groups from every state."""
        gone = self.flags(groups)
        for buffer in self.buffers.values():
            buffer.expire(gone)

    def newest(self, groups: Iterable[int], horizon: int) -> tuple[int, str] | None:
        """Time and stream of the newest live row of some groups."""
        wanted = self.flags(groups)
        leaves = ((b.streams[0], b.live_of(wanted, Horizon(horizon)).lo) for b in self.buffers.values() if b.is_leaf)
        return max(((int(times.max()), stream) for stream, times in leaves if times.size), default=None)

    def track(self, move: str, groups: Iterable[int]) -> None:
        """Rows of these groups that come from now on are new."""
        self.tracks[move] = Track(self.flags(groups), {name: store.next_row for name, store in self.payload.items()})

    def export(self, groups: Iterable[int]) -> Exported:
        """Every live state of some groups (PTLB/MSLB section 4.2, step 6)."""
        wanted, limit = self.flags(groups), self.limit
        rows: dict[str, Tuples] = {}
        leaves: dict[str, list[pa.RecordBatch]] = {}
        combined: dict[tuple[str, ...], Refs] = {}
        # Leaves first, as `buffers` has them, so that what lies above can point to them.
        for streams, buffer in self.buffers.items():
            found = buffer.live_of(wanted, limit)
            if len(found) == 0:
                continue
            if buffer.is_leaf:
                rows[streams[0]] = found
                leaves[streams[0]] = list(self.payload[streams[0]].batches_of(found.refs[0]))
            else:
                places = [self.payload[s].places(found.ref(s), rows[s].refs[0]) for s in streams]
                combined[streams] = np.stack(places)
        return Exported(leaves, combined, rows)

    def take_in(self, leaves: Sequence[Tuples], combined: Mapping[tuple[str, ...], Refs]) -> None:
        """Add states of groups that this worker has none of (step 7): insert matching states, recompute the others.

        `leaves` have been loaded already; `combined` points to their rows by position. States are matched by their set
        of streams, and what no state here matches is discarded.
        """
        rows: dict[str, Tuples] = {}
        for tuples in leaves:
            self.buffers[tuples.streams].append(tuples, self.limit)
            stream = tuples.streams[0]
            rows[stream] = concatenated([rows[stream], tuples]) if stream in rows else tuples
        matching = {frozenset(streams): (streams, places) for streams, places in combined.items()}
        taken: dict[tuple[str, ...], Tuples] = {(stream,): tuples for stream, tuples in rows.items()}
        for node in inner_states(self.plan):
            found = matching.get(frozenset(node.streams))
            if found is not None and all(stream in rows for stream in node.streams):
                taken[node.streams] = self._keep(node.streams, _combined(*found, rows))
            elif node.inputs[0].streams in taken:
                taken[node.streams] = self._recompute(node, taken[node.inputs[0].streams])

    def census(self) -> Census:
        """Count what is live, in one pass over every state."""
        limit, partitions = self.limit, self.spec.partitions
        group_rows, group_bytes = np.zeros(partitions, np.int64), np.zeros(partitions, np.float64)
        totals = {True: 0, False: 0}
        states: dict[str, int] = {}
        for streams, buffer in self.buffers.items():
            counts = np.zeros(partitions, np.int64)
            live = states[" ".join(streams)] = buffer.count_live(limit, counts)
            totals[buffer.is_leaf] += live
            width: Any = buffer.tuple_bytes
            if buffer.is_leaf:
                group_rows += counts
                width = width + self.payload[streams[0]].row_bytes_by_group
            group_bytes += counts * width
        return Census(totals[True], totals[False], group_rows, group_bytes.astype(np.int64), states)

    def state_bytes(self) -> tuple[int, int]:
        """Bytes of columns and indexes, and of payload."""
        return sum(b.nbytes for b in self.buffers.values()), sum(s.nbytes for s in self.payload.values())

    def results(self, tuples: Sequence[Tuples], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Result rows with all payload columns, gathered once, in pieces of about a frame."""
        refs = {name: np.concatenate([t.ref(name) for t in tuples]) for name in self.spec.names}
        if self.spec.ordered:
            order = np.argsort(np.concatenate([t.hi for t in tuples]), kind="stable")
            refs = {name: rows[order] for name, rows in refs.items()}
        size = frames.rows_at_a_time(sum(store.row_bytes for store in self.payload.values()))
        for start in range(0, sum(map(len, tuples)), size):
            arrays: list[pa.Array] = []
            for stream in self.spec.streams:
                arrays += self.payload[stream.name].gather(refs[stream.name][start : start + size], stream.columns)
            yield pa.RecordBatch.from_arrays(arrays, names=result_names(self.spec)).cast(schema)

    def _recompute(self, node: Join, first: Tuples) -> Tuples:
        """Join tuples of a node's first input with the states of its others, and keep the outcome."""
        ignored = np.zeros(self.spec.partitions, np.int64)
        for other in node.inputs[1:]:
            first = self._joined(first, self.buffers[other.streams], ignored)
        return self._keep(node.streams, first)

    def _keep(self, streams: tuple[str, ...], tuples: Tuples) -> Tuples:
        order = [tuples.streams.index(stream) for stream in streams]
        tuples = Tuples(streams, tuples.code, tuples.lo, tuples.hi, tuples.group, tuples.refs[order])
        self.buffers[streams].append(tuples, self.limit)
        return tuples

    def _without_all_new(self, results: Tuples, suppressed: Int64s) -> Tuples:
        """Leave out what the receiver of a duplicated group finds too: combinations of new rows only.

        PTLB/MSLB section 3.2, step 3: only the root looks at old and new, and a combined tuple is new only when all its
        parts are.
        """
        for track in self.tracks.values():
            if len(results) == 0:
                break
            all_new = track.groups[results.group]
            for stream in results.streams:
                # Numbers are kept modulo 2**32; the distance tells which side of the first new one a row is on.
                distance = results.ref(stream) - np.uint32(track.first_new[stream] & 0xFFFFFFFF)
                all_new &= distance < np.uint32(2**31)
            if all_new.any():
                suppressed += np.bincount(results.group[all_new], minlength=self.spec.partitions)
                results = results.take(np.flatnonzero(~all_new))
        return results

    def _joined(self, new: Tuples, buffer: StateBuffer, work: Int64s) -> Tuples:
        left, right = buffer.probe(new, self.spec.window_us, work)
        joined = buffer.joined(new, left, right)
        joined = self._with_equal_keys(joined, new.streams[0], buffer.streams[0])
        for condition in self.conditions:
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

    def _where(self, joined: Tuples, condition: Condition) -> Tuples:
        if len(joined) == 0:
            return joined
        columns: dict[tuple[str, str], pa.Array] = {}
        for stream in sorted(condition.spec.streams):
            names = [column for owner, column in condition.spec.columns if owner == stream]
            arrays = self.payload[stream].gather(joined.ref(stream), names)
            columns |= {(stream, name): array for name, array in zip(names, arrays, strict=True)}
        return joined.take(_true_positions(conditions.mask(condition.tree, columns)))


def concatenated(parts: Sequence[Tuples]) -> Tuples:
    """Runs of tuples of one state as one."""
    return Tuples(
        parts[0].streams,
        np.concatenate([part.code for part in parts]),
        np.concatenate([part.lo for part in parts]),
        np.concatenate([part.hi for part in parts]),
        np.concatenate([part.group for part in parts]),
        np.concatenate([part.refs for part in parts], axis=1),
    )


def _combined(streams: tuple[str, ...], places: Refs, rows: Mapping[str, Tuples]) -> Tuples:
    """Combined tuples from the positions of their parts."""
    parts = [rows[stream].take(places[index]) for index, stream in enumerate(streams)]
    return Tuples(
        streams,
        parts[0].code,
        np.minimum.reduce([part.lo for part in parts]),
        np.maximum.reduce([part.hi for part in parts]),
        parts[0].group,
        np.stack([part.refs[0] for part in parts]),
    )


def _true_positions(mask: pa.Array) -> Int64s:
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False))
