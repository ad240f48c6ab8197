"""The split operator: routes the rows of one stream to the owners of their partition groups (PTLB/MSLB section 1.1).

Groups in an open move go where the move says (`trimtab.moves`). One split task packs the rows of each worker into
frames. It sends every worker at least a tick, so that each runs in every batch: to purge, to look at open moves, to
report. Rows whose key or time is null never join: dropped and counted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from split_union.routing import Routes, route, routes_of
from trimtab import frames, offset_log
from trimtab.keys import CODE, GROUP, KEY, KeySpec, canonical_bytes, complete_rows
from trimtab.spark_task import batch_identity, check_version, settle

FRAME_SCHEMA = pa.schema(
    [
        pa.field("worker_key", pa.int64(), nullable=False),
        pa.field("stream", pa.int32(), nullable=False),
        pa.field("bad_rows", pa.int64(), nullable=False),
        pa.field("seen_rows", pa.string()),
        pa.field("frame", pa.binary()),
    ]
)
_GATHER_BYTES_MAX = 4 * frames.FRAME_BYTES_MAX


@dataclass(frozen=True)
class SplitTask:
    """All that a split task is shipped with."""

    stream: int
    arriving: tuple[str, ...]
    """Names of the columns as they arrive: they travel to this task without."""
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
        epoch = offset_log.binding(self.checkpoint, query_id, batch).epoch
        routes = routes_of(epoch, offset_log.epoch_before(self.checkpoint, query_id, batch, epoch))
        watched = sorted(epoch.moving)
        seen = np.zeros(len(epoch.owners), np.int64)
        reached: set[int] = set()
        bad_rows = 0
        for gathered in _gathered(batches):
            kept = self._complete(gathered.rename_columns(self.arriving))
            bad_rows += gathered.num_rows - kept.num_rows
            if kept.num_rows:
                if watched:
                    seen += np.bincount(kept.column(GROUP).to_numpy(zero_copy_only=False), minlength=seen.size)
                yield from self._frames(kept, routes, reached)
        told = context.partitionId() % len(self.worker_keys)
        seen_rows = {str(group): int(seen[group]) for group in watched if seen[group]}
        yield ticks(self.worker_keys, self.stream, reached, told=told, bad_rows=bad_rows, seen_rows=seen_rows)
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
                yield _row(self.worker_keys[worker], self.stream, 0, frames.encode(piece))

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


def ticks(
    worker_keys: Sequence[int],
    stream: int = 0,
    reached: Collection[int] = (),
    *,
    told: int = 0,
    bad_rows: int = 0,
    seen_rows: Mapping[str, int] | None = None,
) -> pa.RecordBatch:
    """A row without a frame for each worker that got none, and for the one that is told what this task counted."""
    workers = [worker for worker in range(len(worker_keys)) if worker not in reached]
    if (bad_rows or seen_rows) and told not in workers:
        workers.append(told)
    columns = [
        pa.array([worker_keys[worker] for worker in workers], pa.int64()),
        pa.array([stream] * len(workers), pa.int32()),
        pa.array([bad_rows if worker == told else 0 for worker in workers], pa.int64()),
        pa.array([json.dumps(seen_rows) if seen_rows and worker == told else None for worker in workers], pa.string()),
        pa.nulls(len(workers), pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA)


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


def _row(worker_key: int, stream: int, bad_rows: int, frame: pa.Buffer) -> pa.RecordBatch:
    length = pa.py_buffer(np.array([0, frame.size], np.int32))
    binary = pa.Array.from_buffers(pa.binary(), 1, [None, length, frame])
    columns = [
        pa.array([worker_key], pa.int64()),
        pa.array([stream], pa.int32()),
        pa.array([bad_rows], pa.int64()),
        pa.nulls(1, pa.string()),
        binary,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA)
