"""How many bytes a row of each partition group has, on average: one group's rows may be far wider than another's.

Rows and bytes are summed up per group as rows arrive, and subtracted when they leave, so the averages are those of the
rows that are there. Payload leaves by the chunk: rows that have expired count until their whole chunk has. A row counts
the same whatever chunk it lies in, since chunks are merged meanwhile and what leaves must be what came. The sums live
in a small file beside the payload, as the join states do. Nothing is decided by them but what is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trimtab.keys import GROUP

Floats = npt.NDArray[np.float64]


class Widths:
    """Rows (in row 0) and bytes (in row 1) of each group."""

    def __init__(self, path: Path, partitions: int, *, new: bool) -> None:
        shape = (2, partitions)
        self._sums: Any = np.lib.format.open_memmap(path, "w+" if new else "r+", np.float64, shape)

    def add(self, batch: pa.RecordBatch) -> None:
        self._sums += self._sums_of(batch)

    def remove(self, batch: pa.RecordBatch) -> None:
        """The same rows leave, or rows that were added in several batches."""
        self._sums -= self._sums_of(batch)

    def _sums_of(self, batch: pa.RecordBatch) -> Floats:
        group = batch.column(GROUP).to_numpy(zero_copy_only=False)
        partitions = self._sums.shape[1]
        rows = np.bincount(group, minlength=partitions)
        fixed, lengths = row_bytes(batch)
        sizes = rows * fixed
        if lengths is not None:
            sizes += np.bincount(group, weights=lengths, minlength=partitions)
        return np.stack([rows, sizes])

    def averages(self) -> Floats:
        """Bytes of a row of each group; 0 where none was seen."""
        rows, sizes = self._sums
        averages: Floats = np.divide(sizes, rows, out=np.zeros(rows.size), where=rows > 0)
        return averages

    def close(self) -> None:
        del self._sums


def row_bytes(batch: pa.RecordBatch) -> tuple[float, Floats | None]:
    """Bytes that each row has in columns of fixed width, and those that depend on the row, if any.

    Bitmaps of nulls are left out. All numbers are multiples of 1/8, so that sums of them are exact in any order.
    """
    return _together(batch.columns)


def _together(columns: Sequence[pa.Array]) -> tuple[float, Floats | None]:
    fixed = 0.0
    lengths: Floats | None = None
    for column in columns:
        same, own = _bytes_of(column)
        fixed += same
        if own is not None:
            lengths = own if lengths is None else lengths + own
    return fixed, lengths


def _bytes_of(column: pa.Array) -> tuple[float, Floats | None]:
    kind = column.type
    if pa.types.is_struct(kind):
        return _together(column.flatten())
    if pa.types.is_fixed_size_list(kind):
        offsets = np.arange(column.offset, column.offset + len(column) + 1) * kind.list_size
        return _in_lists(offsets, *_bytes_of(column.values), 0)
    width = _offset_type(kind)
    if width is None:
        return kind.bit_width / 8, None
    offsets = _offsets(column, width)
    if not pa.types.is_nested(kind):
        return offsets.itemsize, np.diff(offsets).astype(np.float64)
    inner = (
        column.values if not pa.types.is_map(kind) else pa.StructArray.from_arrays([column.keys, column.items], "kv")
    )
    return _in_lists(offsets, *_bytes_of(inner), offsets.itemsize)


def _in_lists(offsets: npt.NDArray[Any], fixed: float, lengths: Floats | None, own: int) -> tuple[float, Floats | None]:
    """Of lists whose elements have so many bytes each, and between these offsets."""
    sizes: Floats = np.diff(offsets) * np.float64(fixed)
    if lengths is not None:
        before = np.concatenate([[0.0], np.cumsum(lengths)])
        sizes += before[offsets[1:]] - before[offsets[:-1]]
    return own, sizes


def _offset_type(kind: pa.DataType) -> Any:
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind):
        return np.int64
    small = (pa.types.is_string, pa.types.is_binary, pa.types.is_list, pa.types.is_map)
    return np.int32 if any(is_it(kind) for is_it in small) else None


def _offsets(column: pa.Array, width: Any) -> npt.NDArray[Any]:
    buffer = column.buffers()[1]
    if buffer is None or buffer.size == 0:
        return np.zeros(len(column) + 1, width)
    return np.frombuffer(buffer, width)[column.offset : column.offset + len(column) + 1]
