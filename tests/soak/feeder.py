"""Writes the input: three streams of Parquet files, a second of event time each, for as long as the soak lasts.

What the join must give has to be known exactly, so no row may be late by chance, however Spark cuts its batches and
however often they are repeated:

- Rows in time. A stream's files are read in the order in which they are written, and the rows of file k have times
  from `k * SLICE - DISORDER` to `(k + 1) * SLICE`. The watermark by which a batch judges is the minimum over the
  streams of the newest time read in earlier batches, minus the lateness. A batch that reads file k of a stream has
  read no later file of it before, so that watermark is at most `k * SLICE - LATENESS`. Every row is newer, since
  DISORDER < LATENESS.
- Late rows. They are an hour older than all others, and are written only after a batch was bound with a watermark that
  comes from data. Files that appear later are read by later batches, which judge by that watermark or a newer one. It
  is kept in the offset log, so no crash takes it back. These rows have partners of equal key and time in the other
  streams: if one of them counted, it would have results.

Load is skewed (some keys have far more rows than others) and drifts (which keys these are changes with time).
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tests.soak.layout import LATENESS_US, STREAMS, Layout
from tests.soak.progress import Progress
from trimtab.errors import TrimtabError

SLICE_US: Final = 1_000_000
DISORDER_US: Final = 2_000_000
assert DISORDER_US < LATENESS_US
HOUR_US: Final = 3_600_000_000
START_US: Final = 1_767_225_600_000_000
LATE_BEFORE_US: Final = START_US - HOUR_US // 2
"""Rows older than this are late on purpose, all others are in time."""
LATE_ROWS: Final = 4
BAD_ROWS: Final = 2
"""With a null key, in every file."""
KEYS: Final = 5_000
HOT_KEYS: Final = 24
HOT_SHARE: Final = 0.15
"""Of the rows; of the work it is far more, since a row is compared with the others of its key."""
DRIFT_SLICES: Final = 20
"""After so many slices the next keys are the hot ones."""
LAG_MAX_US: Final = 15 * SLICE_US
"""The feeder waits for a query that is further behind: one that was down for long must be able to catch up."""

Longs = npt.NDArray[np.int64]


class Feeder(threading.Thread):
    """One slice a second."""

    def __init__(self, layout: Layout, *, seed: int, rows_per_s: int) -> None:
        super().__init__(name="soak-feeder", daemon=True)
        self._directory = layout.input
        self._progress = Progress(layout)
        self._rng = np.random.default_rng(seed)
        self._rows = max(1, rows_per_s // len(STREAMS))
        self._ended = threading.Event()
        self.slices = 0
        self.rows_written = 0
        self.late_written = 0
        self.error: BaseException | None = None

    @property
    def written_until_us(self) -> int:
        return START_US + self.slices * SLICE_US

    @property
    def lag_s(self) -> float:
        return self._progress.lag_us(self.written_until_us, START_US) / 1e6

    def run(self) -> None:
        try:
            while not self._ended.wait(1.0):
                if self._lag_us() <= LAG_MAX_US:
                    self.write_slice(late=self._late_allowed())
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """No further file; raises what went wrong with the ones before."""
        self._ended.set()
        if self.is_alive():
            self.join()
        if self.error is not None:
            raise self.error

    def _lag_us(self) -> int:
        try:
            return self._progress.lag_us(self.written_until_us, START_US)
        except (TrimtabError, OSError):  # Spark purged the file between the look and the reading
            return LAG_MAX_US + 1

    def _late_allowed(self) -> bool:
        try:
            return self._progress.watermark_us() > LATE_BEFORE_US
        except (TrimtabError, OSError):
            return False

    def write_slice(self, *, late: bool) -> None:
        """The next second of event time, one file for each stream."""
        for stream in STREAMS:
            table = self._table(late)
            self._write(self._directory / stream, table)
            self.rows_written += table.num_rows
        self.late_written += len(STREAMS) * LATE_ROWS if late else 0
        self.slices += 1

    def _table(self, late: bool) -> pa.Table:
        rng = self._rng
        users = self._users()
        times = self.written_until_us + rng.integers(0, SLICE_US, self._rows)
        delayed = rng.random(self._rows) < 0.2
        times[delayed] -= rng.integers(0, DISORDER_US, int(delayed.sum()))
        missing = np.zeros(self._rows, bool)
        missing[:BAD_ROWS] = True
        if late:
            users = np.concatenate([users, np.arange(LATE_ROWS)])
            times = np.concatenate([times, np.full(LATE_ROWS, START_US - HOUR_US)])
            missing = np.concatenate([missing, np.zeros(LATE_ROWS, bool)])
        order = rng.permutation(len(users))
        return pa.table(
            {
                "user": pa.array(users[order], pa.int64(), mask=missing[order]),
                "price": pa.array(np.round(rng.random(len(users)) * 100, 4), pa.float64()),
                "at": pa.array(times[order], pa.timestamp("us", tz="UTC")),
            }
        )

    def _users(self) -> Longs:
        first = self.slices // DRIFT_SLICES * (HOT_KEYS // 3)
        weight = 1 / np.sqrt(np.arange(1, HOT_KEYS + 1))
        hot = (first + self._rng.choice(HOT_KEYS, self._rows, p=weight / weight.sum())) % KEYS
        cold = self._rng.integers(0, KEYS, self._rows)
        users: Longs = np.where(self._rng.random(self._rows) < HOT_SHARE, hot, cold)
        return users

    def _write(self, directory: Path, table: pa.Table) -> None:
        """Written under a name that Spark passes over, then renamed: a file is seen whole or not at all."""
        name = f"{self.slices:06d}.parquet"
        part = directory / f".{name}.part"
        pq.write_table(table, part)
        # Spark reads files in order of these times; if two were equal, it might swap them.
        seconds = START_US // 1_000_000 + self.slices
        os.utime(part, (seconds, seconds))
        part.rename(directory / name)
