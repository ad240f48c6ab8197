"""The union operator: frames of results from all workers become rows again.

Where every column of the result has a plain type, workers hand out rows themselves and Spark's own union of their
partitions is all there is to do (`transport.leaves_as_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from trimtab import frames
from trimtab.spark_task import settle


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each frame's rows, in the order in which the worker put them."""
    for batch in batches:
        for frame in batch.column(0):
            yield frames.decode(frame.as_buffer())
    settle()
