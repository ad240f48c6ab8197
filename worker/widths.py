"""How many bytes a row of each partition group has, on average: one group's rows may be far wider than another's.

Rows and bytes are summed up per group as rows arrive and shrink with what leaves, so the averages follow the window.
They live in a small file beside the payload, as the join states do. Nothing is decided by them but what is reported.
"""

from __future__ import annotations

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
        group = batch.column(GROUP).to_numpy(zero_copy_only=False)
        partitions = self._sums.shape[1]
        rows = np.bincount(group, minlength=partitions)
        fixed, lengths = row_bytes(batch)
        self._sums[0] += rows
        self._sums[1] += rows * fixed
        if lengths is not None:
            self._sums[1] += np.bincount(group, weights=lengths, minlength=partitions)

    def shrink(self, share: float) -> None:
        """So much of what was counted is left."""
        self._sums *= share

    def averages(self) -> Floats:
        """Bytes of a row of each group; 0 where none was seen."""
        rows, sizes = self._sums
        averages: Floats = np.divide(sizes, rows, out=np.zeros(rows.size), where=rows > 0)
        return averages

    def close(self) -> None:
        del self._sums


def row_bytes(batch: pa.RecordBatch) -> tuple[float, Floats | None]:
    """Bytes that each row has in columns of fixed width, and those that depend on the row, if any.

    Text and binary columns are measured by their offsets. Nested ones are taken to be alike in all rows.
    """
    fixed = 0.0
    lengths: Floats | None = None
    for column in batch.columns:
        offsets = _offsets(column)
        if offsets is not None:
            each = np.diff(offsets).astype(np.float64)
            lengths = each if lengths is None else lengths + each
            fixed += offsets.itemsize
        elif pa.types.is_nested(column.type):
            fixed += column.nbytes / max(1, len(column))
        else:
            fixed += column.type.bit_width / 8
    return fixed, lengths


def _offsets(column: pa.Array) -> npt.NDArray[Any] | None:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        width: Any = np.int32
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        width = np.int64
    else:
        return None
    buffer = column.buffers()[1]
    if buffer is None or buffer.size == 0:
        return np.zeros(len(column) + 1, width)
    return np.frombuffer(buffer, width)[column.offset : column.offset + len(column) + 1]
