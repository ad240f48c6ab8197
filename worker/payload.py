"""Payload columns of one stream's live rows: Arrow chunks in memory-mapped files, gathered only for result rows.

A row is known by its number, which grows with every row that arrives; states keep its low 32 bits. Chunks are dropped
when their newest row has expired, and small neighbours are merged, so that the number of chunks stays small however
short the batches are (a row is rewritten at most a handful of times: the neighbours double in size).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from trimtab import frames
from worker import kernels
from worker.buffers import NEVER, Refs
from worker.widths import Floats, Widths

MERGE_ROWS_MAX: Final = 32_768

DurableKey = tuple[int, int]
"""Batch and number under which the durable state holds the rows."""


@dataclass
class Chunk:
    start: int
    rows: int
    newest_us: int
    durable: list[DurableKey]
    batch: pa.RecordBatch
    frozen_us: int = NEVER
    """The newest of its rows that belong to a frozen group and are live there, or NEVER: it keeps the chunk."""

    @property
    def end(self) -> int:
        return self.start + self.rows


class PayloadStore:
    """The chunks of one stream."""

    def __init__(self, directory: Path, stream: str, partitions: int, *, new: bool = True) -> None:
        self.directory = directory
        self.stream = stream
        self.chunks: list[Chunk] = []
        self.next_row = 0
        self._widths = Widths(directory / f"widths-{stream}", partitions, new=new)

    @classmethod
    def attach(cls, directory: Path, saved: dict[str, Any], partitions: int) -> PayloadStore:
        store = cls(directory, saved["stream"], partitions, new=False)
        store.next_row = saved["next_row"]
        for start, rows, newest_us, frozen_us, durable in saved["chunks"]:
            keys = [(batch, number) for batch, number in durable]
            store.chunks.append(Chunk(start, rows, newest_us, keys, _mapped(store._path(start)), frozen_us))
        return store

    def saved(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "next_row": self.next_row,
            "chunks": [
                [c.start, c.rows, c.newest_us, c.frozen_us, [list(key) for key in c.durable]] for c in self.chunks
            ],
        }

    def close(self) -> None:
        self._widths.close()

    @property
    def first_row(self) -> int:
        return self.chunks[0].start if self.chunks else self.next_row

    @property
    def nbytes(self) -> int:
        return sum(chunk.batch.nbytes for chunk in self.chunks)

    @property
    def row_bytes_by_group(self) -> Floats:
        """Of a row on average."""
        return self._widths.averages()

    def append(self, frame: pa.Buffer, newest_us: int, durable: DurableKey, frozen_us: int = NEVER) -> Refs:
        """Keep a frame's rows; returns their numbers."""
        start = self.next_row
        batch = self._write(start, frame)
        self._widths.add(batch)
        self.chunks.append(Chunk(start, batch.num_rows, newest_us, [durable], batch, frozen_us))
        self.next_row = start + batch.num_rows
        numbers = np.arange(start, self.next_row).astype(np.uint32)
        self._merge_small()
        return numbers

    def drop_expired(self, horizon: int) -> list[DurableKey]:
        """Let go of chunks whose newest row is before the horizon; returns what the durable state may remove.

        A chunk with live rows of frozen groups stays, whatever its age.
        """
        gone = [chunk for chunk in self.chunks if chunk.newest_us < horizon and chunk.frozen_us == NEVER]
        if gone:
            self.chunks = [chunk for chunk in self.chunks if chunk.newest_us >= horizon or chunk.frozen_us != NEVER]
            for chunk in gone:
                self._path(chunk.start).unlink(missing_ok=True)
                self._widths.remove(chunk.batch)
        return [key for chunk in gone for key in chunk.durable]

    def freeze(self, newest_frozen: Callable[[pa.RecordBatch], int] | None) -> None:
        """Groups were frozen, or are not any more: ask each chunk again for its newest row of a frozen group."""
        for chunk in self.chunks:
            chunk.frozen_us = NEVER if newest_frozen is None else newest_frozen(chunk.batch)

    def gather(self, rows: Refs, columns: Sequence[str]) -> list[pa.Array]:
        """The named columns of the rows, in the order asked. Costs the rows and the chunks they lie in."""
        if not self.chunks:
            return []
        base = self.chunks[0].start
        relative = (rows - np.uint32(base & 0xFFFFFFFF)).astype(np.int64)
        starts = np.array([chunk.start - base for chunk in self.chunks], np.int64)
        rank, offset, ends = kernels.order_by_chunk(relative, starts)
        touched = [i for i in range(len(self.chunks)) if ends[i + 1] > ends[i]]
        parts = [
            self.chunks[i].batch.select(list(columns)).take(pa.array(offset[ends[i] : ends[i + 1]])) for i in touched
        ]
        if not parts:
            return list(self.chunks[0].batch.slice(0, 0).select(list(columns)).columns)
        if len(parts) == 1:
            # One chunk: its offsets are in sorted order already, which is the order asked.
            return list(parts[0].columns)
        return list(pa.concat_batches(parts).take(pa.array(rank)).columns)

    @property
    def row_bytes(self) -> int:
        """Of a row on average, at least 1."""
        return max(1, self.nbytes // max(1, sum(chunk.rows for chunk in self.chunks)))

    def batches_of(self, rows: Refs) -> Iterator[pa.RecordBatch]:
        """All columns of the rows, in the order asked, in pieces of about a frame: an array holds 2 GB at the most."""
        names = self.chunks[0].batch.schema.names
        size = frames.rows_at_a_time(self.row_bytes)
        for start in range(0, rows.size, size):
            yield pa.RecordBatch.from_arrays(self.gather(rows[start : start + size], names), names=names)

    def places(self, rows: Refs, among: Refs) -> Refs:
        """Where each row stands in `among`, which has them all in the order of their numbers."""
        base = np.uint32(self.chunks[0].start & 0xFFFFFFFF)
        return np.searchsorted(among - base, rows - base).astype(np.uint32)

    @property
    def durable_keys(self) -> set[DurableKey]:
        """Of all rows that are here."""
        return {key for chunk in self.chunks for key in chunk.durable}

    def oldest_batch(self) -> int | None:
        """The oldest batch that rows of the durable state are filed under."""
        return min((batch for chunk in self.chunks for batch, _ in chunk.durable), default=None)

    def _merge_small(self) -> None:
        while len(self.chunks) > 1:
            left, right = self.chunks[-2:]
            together = left.rows + right.rows
            if left.end != right.start or left.rows > 2 * right.rows or together > MERGE_ROWS_MAX:
                return
            if (left.frozen_us == NEVER) != (right.frozen_us == NEVER):
                return  # one of them leaves by its age, the other does not
            if left.batch.nbytes + right.batch.nbytes > frames.FRAME_BYTES_MAX:
                return
            frame = frames.encode(pa.concat_batches([left.batch, right.batch]))
            self._path(right.start).unlink(missing_ok=True)
            batch = self._write(left.start, frame)
            newest = max(left.newest_us, right.newest_us)
            frozen = max(left.frozen_us, right.frozen_us)
            self.chunks[-2:] = [Chunk(left.start, together, newest, left.durable + right.durable, batch, frozen)]

    def _path(self, start: int) -> Path:
        return self.directory / f"rows-{self.stream}-{start}"

    def _write(self, start: int, frame: pa.Buffer) -> pa.RecordBatch:
        path = self._path(start)
        # A new file under the old name: another process may still have the old one mapped.
        path.unlink(missing_ok=True)
        with pa.OSFile(str(path), "wb") as sink:
            sink.write(frame)
        return _mapped(path)


def _mapped(path: Path) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.memory_map(str(path), "r")) as reader:
        return reader.read_next_batch()
