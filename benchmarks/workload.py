"""Input files for the benchmarks: the same bytes for every engine that is measured on them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

BATCH_US = 1_000_000
"""Event time that one micro-batch covers."""
START_US = 1_700_000_000_000_000
KEY_KINDS = {"long": "user long", "text": "user string", "pair": "user long, place string"}
"""Columns of the key: one number (its own hash code), text, or two columns (hashed, and verified in the join)."""


@dataclass(frozen=True)
class JoinWorkload:
    """`rows` rows per stream and batch; the window covers `window_batches` batches of event time.

    The first batch is as long as the window, so that the window is full from the second on.
    """

    streams: str
    rows: int
    batches: int
    skew: float = 0.0
    """Zipf exponent of the keys; 0 is uniform."""
    window_batches: int = 10
    results_per_row: float = 1.0
    """About how many results there are per input row: this determines the number of keys."""
    seed: int = 7
    key: str = "long"
    payload_bytes: int = 0
    """Of text in each row, beside key, price and time."""

    @property
    def schema(self) -> str:
        text = ", note string" if self.payload_bytes else ""
        return f"{KEY_KINDS[self.key]}, price double, at timestamp{text}"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return ("user", "place") if self.key == "pair" else ("user",)

    @property
    def name(self) -> str:
        kind = "skewed" if self.skew else "uniform"
        return f"{len(self.streams)}-way {kind} {self.rows // 1000}k"

    @property
    def input_rows_per_batch(self) -> int:
        return self.rows * len(self.streams)

    @property
    def window_us(self) -> int:
        return self.window_batches * BATCH_US

    def keys(self) -> int:
        """Number of keys with which a batch has about `results_per_row` results per input row.

        A batch finds about n * w^(n-1) * rows^n * sum(p^n) results: n streams, window of w batches, p the keys' shares.
        """
        ways = len(self.streams)
        wanted = self.results_per_row * self.input_rows_per_batch
        volume = ways * self.window_batches ** (ways - 1) * float(self.rows) ** ways
        low, high = 1, 1 << 34
        while high - low > max(1, low // 100):
            middle = (low + high) // 2
            if volume * self._coincidence(middle, ways) > wanted:
                low = middle
            else:
                high = middle
        return high

    def _coincidence(self, keys: int, ways: int) -> float:
        if not self.skew:
            return float(keys) ** (1 - ways)
        # Shares k^-s / H; sums over k by integrals beyond the first thousand keys, which carry the head.
        head = np.arange(1, min(keys, 1000) + 1, dtype=np.float64)

        def total(power: float) -> float:
            tail = 0.0
            if keys > 1000:
                tail = (keys ** (1 - power) - 1000 ** (1 - power)) / (1 - power) if power != 1 else np.log(keys / 1000)
            return float((head**-power).sum() + tail)

        return total(self.skew * ways) / total(self.skew) ** ways

    def draw(self, rng: np.random.Generator, keys: int, rows: int) -> npt.NDArray[np.int64]:
        if not self.skew:
            return rng.integers(0, keys, rows)
        # Inverse of the continuous Zipf distribution on 1..keys.
        power = 1 - self.skew
        sample = ((keys**power - 1) * rng.random(rows) + 1) ** (1 / power)
        drawn: npt.NDArray[np.int64] = np.minimum(sample, keys).astype(np.int64) * 7919
        return drawn


def write(workload: JoinWorkload, directory: Path) -> None:
    """One file per stream and batch, each with another time stamp: the file source may reorder equal ones."""
    rng = np.random.default_rng(workload.seed)
    keys = workload.keys()
    for stream in workload.streams:
        (directory / stream).mkdir(parents=True, exist_ok=True)
        first = START_US
        for batch in range(workload.batches):
            length = workload.window_batches if batch == 0 else 1
            rows, last = workload.rows * length, first + BATCH_US * length
            times = np.sort(rng.integers(first, last, rows))
            columns: dict[str, Any] = _key_columns(workload.key, workload.draw(rng, keys, rows))
            columns |= {"price": rng.random(rows), "at": pa.array(times, pa.timestamp("us", "UTC"))}
            if workload.payload_bytes:
                columns["note"] = _texts(rng, rows, workload.payload_bytes)
            table = pa.table(columns)
            first = last
            path = directory / stream / f"{batch:05d}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1_600_000_000 + batch, 1_600_000_000 + batch))


def _key_columns(kind: str, drawn: npt.NDArray[np.int64]) -> dict[str, Any]:
    if kind == "long":
        return {"user": drawn}
    numbers = pa.array(drawn)
    if kind == "text":
        return {"user": pc.binary_join_element_wise("user-", numbers.cast(pa.string()), "")}
    # Either column alone says little: the two are compared together.
    return {
        "user": drawn // 16,
        "place": pc.binary_join_element_wise("at-", pa.array(drawn % 16).cast(pa.string()), ""),
    }


def _texts(rng: np.random.Generator, rows: int, width: int) -> pa.Array:
    letters = rng.integers(ord("a"), ord("z") + 1, rows * width, dtype=np.uint8)
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
