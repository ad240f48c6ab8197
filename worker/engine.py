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

from plans.tree import Join, inner_states, parse_plan, states
from trimtab import frames
from trimtab.plan_orders import StepCount
from worker.background import Pace, advance
from worker.buffers import NEVER, Flags, Horizon, Int64s, Refs, StateBuffer, Tuples, concatenated
from worker.lineage import Cuts, is_old
from worker.load import GroupLoad
from worker.migration import Migration
from worker.payload import DurableKey, PayloadStore
from worker.sampling import sample_of, sizes_of
from worker.spec import JoinSpec, Saved, result_names
from worker.states import Counted, States
from worker.walks import Level, Segment, Streams, inputs, is_same, segments

ROWS_TOLD_APART: Final = 2**30
"""Of the numbers from the oldest row on; half of it would do, and a batch adds some."""


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
class Engine(States):
    """The join state of one worker and the plan that runs over it; while it changes, two plans (worker.migration)."""

    plan: Join = field(kw_only=True)
    """The plan that all results can be made by."""
    migration: Migration | None = None
    tracks: dict[str, Track] = field(default_factory=dict)
    """By move."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.counted: Counted = {}
        """What each step of the plan has handled since this object was made."""
        self._segments: dict[str, list[Segment]] = {}

    @classmethod
    def create(cls, spec: JoinSpec, plan: Join, directory: Path) -> Engine:
        engine = cls(spec, directory, plan=plan)
        engine.payload |= {name: PayloadStore(directory, name, spec.partitions) for name in spec.names}
        engine.buffers = {frozenset(streams): StateBuffer.create(directory, streams) for streams in states(plan)}
        return engine

    @classmethod
    def attach(cls, spec: JoinSpec, directory: Path, saved: Saved) -> Engine:
        engine = cls(spec, directory, plan=parse_plan(saved["plan"], spec.names), horizon=saved["horizon"])
        engine.frozen = {int(group): horizon for group, horizon in saved["frozen"].items()}
        stores = [PayloadStore.attach(directory, entry, spec.partitions) for entry in saved["payload"]]
        engine.payload |= {store.stream: store for store in stores}
        buffers = [StateBuffer.attach(directory, entry) for entry in saved["buffers"]]
        engine.buffers = {frozenset(buffer.streams): buffer for buffer in buffers}
        for move, (groups, first_new) in saved["tracks"].items():
            engine.tracks[move] = Track(engine.flags(groups), first_new)
        if saved["migration"] is not None:
            engine.migration = Migration.attach(engine, engine.plan, saved["migration"])
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
            "migration": None if self.migration is None else self.migration.saved(),
        }

    def close(self) -> None:
        for buffer in self.buffers.values():
            buffer.close()
        for store in self.payload.values():
            store.close()
        self.payload.clear()

    # -- from one plan to another

    def start_change(self, target: Join, *, both_emit: bool) -> None:
        """Begin to come to another plan; what was being built for one before is dropped."""
        self.stop_change()
        if is_same(self.plan, target):
            self.plan = target
        else:
            self.migration = Migration(self, self.plan, target, both_emit=both_emit)
            self.migration.begin(sizes_of(sample_of(self), self.migration.growing))

    def stop_change(self) -> None:
        """Go on by the old plan."""
        if self.migration is not None:
            self.migration.abandon()
            self._change_is_over(self.plan)

    def go_on(self, pace: Pace | None) -> None:
        """Do what is due of a change at the end of a batch: within a budget, or only what nobody else would do."""
        if self.migration is None:
            return
        self.migration.expire_entries()
        if pace is not None:
            advance(self.migration, pace)
        if self.migration.is_over:
            self.migration.settle()
            self._change_is_over(self.migration.target)

    def _change_is_over(self, plan: Join) -> None:
        self.plan, self.migration = plan, None
        self._segments.clear()

    def load_rows(self, stream: str, batch: pa.RecordBatch, frame: pa.Buffer, durable: DurableKey) -> Tuples:
        """Take a batch's rows of one stream into the payload; returns them as tuples, not yet in any state."""
        tuples = self.tuples_of(stream, batch)
        frozen_us = self._newest_frozen(tuples) if self.frozen else NEVER
        tuples.refs[0] = self.payload[stream].append(frame, int(tuples.hi.max()), durable, frozen_us)
        return tuples

    def insert(self, new: Tuples, load: GroupLoad) -> Tuples:
        """Join new rows of one stream with all that came before them; returns the results as tuples."""
        (stream,) = new.streams
        load.rows += np.bincount(new.group, minlength=self.spec.partitions)
        moving = new
        for segment in self._way(stream):
            if segment.new:
                assert self.migration is not None
                moving = self.migration.through(segment, moving, load, self.counted)
            else:
                moving = self.climb(moving, segment.old[0], load.probes, self.counted)
            if len(segment.streams) < len(self.spec.streams):
                self.keep(moving)
        self.leaf(stream).append(new, self.limit)
        moving = self._without_all_new(moving, load.suppressed)
        load.results += np.bincount(moving.group, minlength=self.spec.partitions)
        return moving

    def _way(self, stream: str) -> list[Segment]:
        if stream not in self._segments:
            target = None if self.migration is None else self.migration.target
            self._segments[stream] = segments(self.plan, target, stream)
        return self._segments[stream]

    def restore(self, rows: Iterable[Tuples], horizon: int) -> None:
        """Fill all states from leaf rows: what a rebuild does after it has loaded the durable state."""
        self.horizon = horizon
        limit = self.limit
        limits = limit.by_group(self.spec.partitions)
        for tuples in rows:
            live = tuples.take(np.flatnonzero(tuples.lo >= limits[tuples.group]))
            self.keep(live)
        for _, (first, *others) in self._filled():
            self._fill(self.buffers[first].live(limit), others)

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
        for marks in (*(track.first_new for track in self.tracks.values()), self._cuts()):
            first = {name: min(row, marks.get(name, row)) for name, row in first.items()}
        return any(store.next_row - first[name] >= ROWS_TOLD_APART for name, store in self.payload.items())

    def _cuts(self) -> Cuts:
        return {} if self.migration is None else self.migration.oldest_cut

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
        self.tracks[move] = Track(self.flags(groups), self.next_rows)

    def export(self, groups: Iterable[int]) -> Exported:
        """Every live state of some groups (PTLB/MSLB section 4.2, step 6), as far as it is complete: the receiver
        computes the others."""
        wanted, limit = self.flags(groups), self.limit
        rows: dict[str, Tuples] = {}
        leaves: dict[str, list[pa.RecordBatch]] = {}
        combined: dict[tuple[str, ...], Refs] = {}
        # Leaves first, as `buffers` has them, so that what lies above can point to them.
        for known, buffer in self.buffers.items():
            if self.migration is not None and not self.migration.is_complete(known):
                continue
            streams, found = buffer.streams, buffer.live_of(wanted, limit)
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
            self.keep(tuples)
            stream = tuples.streams[0]
            rows[stream] = concatenated([rows[stream], tuples]) if stream in rows else tuples
        matching = {frozenset(streams): (streams, places) for streams, places in combined.items()}
        taken = {frozenset((stream,)): tuples for stream, tuples in rows.items()}
        for streams, (first, *others) in self._filled():
            found = matching.get(streams)
            if found is not None and streams <= rows.keys():
                taken[streams] = self.keep(_combined(*found, rows))
            elif first in taken:
                taken[streams] = self._fill(taken[first], others)

    def _filled(self) -> list[tuple[Streams, tuple[Streams, ...]]]:
        """States above the leaves that take what comes, and their inputs, from the bottom up."""
        own = [(frozenset(node.streams), inputs(node)) for node in inner_states(self.plan)]
        return own if self.migration is None else own + self.migration.filled

    def _fill(self, first: Tuples, others: Sequence[Streams]) -> Tuples:
        """Join tuples of a state's first input with the states of its others, and keep the outcome."""
        streams = frozenset(first.streams).union(*others)
        return self.keep(self.climb(first, Level(streams, tuple(others)), self.no_load()))

    def census(self) -> Census:
        """Count what is live, in one pass over every state."""
        limit, partitions = self.limit, self.spec.partitions
        group_rows, group_bytes = np.zeros(partitions, np.int64), np.zeros(partitions, np.float64)
        totals = {True: 0, False: 0}
        states: dict[str, int] = {}
        for buffer in self.buffers.values():
            streams = buffer.streams
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

    def steps(self) -> list[StepCount]:
        """What the steps of the plan have handled: for each stream in the order in which it takes them."""
        return [
            StepCount(
                stream=stream,
                other=tuple(name for name in self.spec.names if name in other),
                tuples=work.tuples,
                candidates=work.candidates,
                matched=work.matched,
                passed=tuple(work.passed),
            )
            for (stream, other), work in self.counted.items()
        ]

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
                all_new &= ~is_old(results.ref(stream), track.first_new[stream])
            if all_new.any():
                suppressed += np.bincount(results.group[all_new], minlength=self.spec.partitions)
                results = results.take(np.flatnonzero(~all_new))
        return results


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
