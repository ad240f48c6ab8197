"""Frames: record batches as bytes, the form in which rows travel between operators and rest in stores.

PySpark walks the input of a stateful operator row by row in Python; a frame is one such row, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024


def encode(batch: pa.RecordBatch) -> pa.Buffer:
    """One batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def decode(frame: bytes | pa.Buffer) -> pa.RecordBatch:
    """The batch in a frame, without copying it."""
    with pa.ipc.open_stream(pa.py_buffer(frame)) as reader:
        return reader.read_next_batch()


def rows_at_a_time(row_bytes: int) -> int:
    """Rows of this size that make about a frame, at least one."""
    return max(1, FRAME_BYTES_MAX // row_bytes)


def slices(batch: pa.RecordBatch, bytes_max: int = FRAME_BYTES_MAX) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of about `bytes_max` at the most (rows are taken to be alike)."""
    pieces = max(1, -(-batch.nbytes // bytes_max))
    rows = max(1, -(-batch.num_rows // pieces))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
