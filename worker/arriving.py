"""What split tasks send to workers: frames of rows and, beside them, what a task has counted. Spelled once, for both.

A row of this schema is a frame, or a tick (`frame` is null) so that every worker runs in every batch. `stream` is an
index into the query's streams. A task tells one worker how many rows it dropped (`bad_rows`) and what it has seen of
groups in open moves (`seen`, JSON by group).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from trimtab.evidence import Seen, parse_seen

WORKER_KEY: Final = "worker_key"
SCHEMA: Final = pa.schema(
    [
        pa.field(WORKER_KEY, pa.int64(), nullable=False),
        pa.field("stream", pa.int32(), nullable=False),
        pa.field("bad_rows", pa.int64(), nullable=False),
        pa.field("seen", pa.string()),
        pa.field("frame", pa.binary()),
    ]
)


@dataclass
class SplitCounts:
    """What split tasks say beside their rows."""

    bad_rows: dict[str, int] = field(default_factory=dict)
    """Rows that were dropped because key or time was null, by stream."""
    seen: dict[int, Seen] = field(default_factory=dict)
    """Rows of groups in open moves, by group, before routing."""

    def add(self, stream: str, bad_rows: int, seen: str | None) -> None:
        if bad_rows:
            self.bad_rows[stream] = self.bad_rows.get(stream, 0) + bad_rows
        for group, each in json.loads(seen or "{}").items():
            self.seen[int(group)] = self.seen.get(int(group), Seen()) + parse_seen(each)


def frame_row(worker_key: int, stream: int, frame: pa.Buffer) -> pa.RecordBatch:
    """One frame; its bytes are not copied."""
    length = pa.py_buffer(np.array([0, frame.size], np.int32))
    return _batch([worker_key], stream, [0], [None], pa.Array.from_buffers(pa.binary(), 1, [None, length, frame]))


def tick_rows(
    worker_keys: Sequence[int], stream: int, bad_rows: Sequence[int], seen: Sequence[Mapping[int, Seen] | None]
) -> pa.RecordBatch:
    """A row without a frame for each worker."""
    texts = [None if not each else json.dumps({group: s.to_json() for group, s in each.items()}) for each in seen]
    return _batch(worker_keys, stream, bad_rows, texts, pa.nulls(len(worker_keys), pa.binary()))


def _batch(
    worker_keys: Sequence[int], stream: int, bad_rows: Sequence[int], seen: Sequence[str | None], frame: pa.Array
) -> pa.RecordBatch:
    columns = [
        pa.array(worker_keys, pa.int64()),
        pa.array([stream] * len(worker_keys), pa.int32()),
        pa.array(bad_rows, pa.int64()),
        pa.array(seen, pa.string()),
        frame,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def read_rows(tables: Iterable[Any], streams: Sequence[str], counts: SplitCounts) -> Iterator[tuple[str, bytes]]:
    """Stream and frame of each row that has one; `counts` gains what is said beside them. Tables are pandas'."""
    for table in tables:
        columns = (table[name] for name in SCHEMA.names[1:])
        for stream, bad_rows, seen, frame in zip(*columns, strict=True):
            counts.add(streams[stream], int(bad_rows), seen)
            if frame is not None:
                yield streams[stream], frame
