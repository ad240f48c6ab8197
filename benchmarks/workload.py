"""Input files for the benchmarks: the same bytes for every engine that is measured on them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

BATCH_US = 1_000_000
"""Event time that one micro-batch covers."""
START_US = 1_700_000_000_000_000
SCHEMA = "user long, price double, at timestamp"


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
            table = pa.table(
                {
                    "user": workload.draw(rng, keys, rows),
                    "price": rng.random(rows),
                    "at": pa.array(times, pa.timestamp("us", "UTC")),
                }
            )
            first = last
            path = directory / stream / f"{batch:05d}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1_600_000_000 + batch, 1_600_000_000 + batch))
