"""The split operator: routes the rows of one stream to the owners of their partition groups (PTLB/MSLB section 1.1).

Groups in an open move go where the move says (`trimtab.moves`). One split task packs the rows of each worker into
frames. It sends every worker at least a tick, so that each runs in every batch: to purge, to look at open moves, to
report. Rows whose key or time is null never join: dropped and counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from split_union.routing import Routes, route, routes_of
from trimtab import frames, offset_log
from trimtab.evidence import Seen, Tally, arriving_digests
from trimtab.keys import CODE, GROUP, KEY, KeySpec, canonical_bytes, complete_rows, timestamps_us
from trimtab.spark_task import batch_identity, check_version, settle
from worker.arriving import frame_row, tick_rows

_GATHER_BYTES_MAX = 4 * frames.FRAME_BYTES_MAX


@dataclass(frozen=True)
class SplitTask:
    """All that a split task is shipped with."""

    stream: int
    name: str
    """The stream's name."""
    arriving: tuple[str, ...]
    """Columns arrive as c0, c1, ...; these are their real names."""
    key: KeySpec
    time: str
    key_source: tuple[str, ...]
    """Columns that canonical key bytes are made from: the key's, or binary stand-ins that Spark computed."""
    columns: tuple[str, ...]
    checkpoint: str
    worker_keys: tuple[int, ...]
    version: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_version(self.version)
        context = TaskContext.get()
        assert context is not None
        batch, query_id = batch_identity(context)
        bound = offset_log.binding(self.checkpoint, query_id, batch)
        epoch = bound.epoch
        routes = routes_of(epoch, offset_log.epoch_before(self.checkpoint, query_id, batch, epoch))
        watcher = None
        if epoch.moves:
            # The watermark of the batch before decides what is late; the first batch has only its own.
            before = offset_log.binding(self.checkpoint, query_id, batch - 1) if batch else bound
            watcher = Watcher(self.name, sorted(epoch.moving), len(epoch.owners), before.watermark_us)
        reached: set[int] = set()
        bad_rows = 0
        for gathered in _gathered(batches):
            kept = self._complete(gathered.rename_columns(self.arriving))
            bad_rows += gathered.num_rows - kept.num_rows
            if kept.num_rows:
                if watcher is not None:
                    watcher.add(kept.column(GROUP), kept.column(self.time))
                yield from self._frames(kept, routes, reached)
        listener = context.partitionId() % len(self.worker_keys)
        seen = {} if watcher is None else watcher.seen
        yield ticks(self.worker_keys, self.stream, reached, listener=listener, bad_rows=bad_rows, seen=seen)
        settle()

    def _complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mask = complete_rows([batch.column(name) for name in (*self.key.columns, self.time)])
        return batch if mask is None else batch.filter(mask)

    def _frames(self, batch: pa.RecordBatch, routes: Routes, reached: set[int]) -> Iterator[pa.RecordBatch]:
        batch = self._packed(batch)
        group = batch.column(GROUP).to_numpy(zero_copy_only=False)
        order, ends = route(group, routes.owner, routes.also, len(self.worker_keys))
        for worker in range(len(self.worker_keys)):
            mine = order[ends[worker] : ends[worker + 1]]
            if mine.size == 0:
                continue
            reached.add(worker)
            rows = batch if mine.size == batch.num_rows else batch.take(pa.array(mine))
            for piece in frames.slices(rows):
                yield frame_row(self.worker_keys[worker], self.stream, frames.encode(piece))

    def _packed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Payload columns, then the columns that the worker needs beside them."""
        names = [*self.columns, GROUP]
        arrays = [batch.column(name) for name in names]
        if self.key.kind != "exact":
            names.append(CODE)
            arrays.append(batch.column(CODE))
        if self.key.kind == "bytes":
            names.append(KEY)
            arrays.append(canonical_bytes([batch.column(name) for name in self.key_source]))
        return pa.RecordBatch.from_arrays(arrays, names=names)


class Watcher:
    """Counts rows of moving groups before they are routed: what the audit compares with what workers did.

    Late rows are told apart here by the same rule as in the worker, but read from the offset log by this task itself.
    """

    def __init__(self, stream: str, groups: Sequence[int], partitions: int, late_us: int) -> None:
        self._stream = stream
        self._groups = groups
        self._late_us = late_us
        self._watched = np.zeros(partitions, np.bool_)
        self._watched[list(groups)] = True
        self._rows, self._on_time = np.zeros(partitions, np.int64), np.zeros(partitions, np.int64)
        self._digests = np.zeros(partitions, np.uint64)

    def add(self, group_column: pa.Array, time_column: pa.Array) -> None:
        group = group_column.to_numpy(zero_copy_only=False)
        mine = np.flatnonzero(self._watched[group])
        group, time_us = group[mine], timestamps_us(time_column)[mine]
        on_time = time_us > self._late_us
        self._rows += np.bincount(group, minlength=self._rows.size)
        group, time_us = group[on_time], time_us[on_time]
        self._on_time += np.bincount(group, minlength=self._rows.size)
        np.add.at(self._digests, group, arriving_digests(self._stream, group, time_us))

    @property
    def seen(self) -> dict[int, Seen]:
        """Of each group that had rows."""
        return {
            group: Seen(
                rows=int(self._rows[group]),
                on_time=Tally(rows=int(self._on_time[group]), digest=int(self._digests[group])),
            )
            for group in self._groups
            if self._rows[group]
        }


def ticks(
    worker_keys: Sequence[int],
    stream: int = 0,
    reached: Collection[int] = (),
    *,
    listener: int = 0,
    bad_rows: int = 0,
    seen: Mapping[int, Seen] | None = None,
) -> pa.RecordBatch:
    """A row without a frame for each worker that got none, and for the listener, which hears what this task counted."""
    workers = [worker for worker in range(len(worker_keys)) if worker not in reached]
    if (bad_rows or seen) and listener not in workers:
        workers.append(listener)
    return tick_rows(
        [worker_keys[worker] for worker in workers],
        stream,
        [bad_rows if worker == listener else 0 for worker in workers],
        [seen if worker == listener else None for worker in workers],
    )


def tick_every_worker(worker_keys: Sequence[int], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the control source's rows become: a batch that has nothing else in it still runs every worker."""
    if sum(batch.num_rows for batch in batches):
        yield ticks(worker_keys)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Few large batches, so that frames are large too."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        pending.append(batch)
        size += batch.nbytes
        if size >= _GATHER_BYTES_MAX:
            yield pa.concat_batches(pending)
            pending, size = [], 0
    if pending:
        yield pending[0] if len(pending) == 1 else pa.concat_batches(pending)
