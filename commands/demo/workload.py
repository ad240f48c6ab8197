"""The demo's input: three streams of parquet files, written as fast as they are read, with most rows for one worker.

The join takes most of the time: the window is short, the lateness long, and the keys are few, so every row is compared
with thousands of rows of its key and joins with a few of them. At first one worker has most of the work.

No row is late by accident. Each stream's files are in time order, a row is at most `DISORDER_US` older than
its file's slice of time, and that is less than the lateness; so every row is newer than the watermark, which
is the minimum over the streams of the newest time minus the lateness. Rows that are late on purpose are an
hour old and are written only after the third batch: from then on the watermark comes from data in every batch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

STREAMS: Final = ("A", "B", "C")
SCHEMA: Final = "user long, price double, at timestamp"
SLICE_US: Final = 1_000_000
DISORDER_US: Final = 2_000_000
LATENESS_US: Final = 12_000_000
WINDOW_US: Final = 8_000
HOUR_US: Final = 3_600_000_000
PARTITIONS: Final = 64
KEYS: Final = 4_000
"""Of which each group uses the first few."""
KEYS_PER_GROUP: Final = 2
HOT_WORKER: Final = 1
HOT_SHARE: Final = 0.6
"""Of the rows; of the work it is more, since a row is compared with the others of its key."""
SLICES_PER_BATCH: Final = 2
LOOK_S: Final = 0.05
ODD_ROWS: Final = 5
"""Late rows, and rows with a null key, in each file that has them."""

Longs = npt.NDArray[np.int64]


class DemoWorkload:
    """Makes the files; the same seed makes the same rows."""

    def __init__(
        self, directory: Path, *, seed: int, rows_per_s: int, groups: Longs, workers: int, start_us: int
    ) -> None:
        """`groups` is the partition group of each key, by Spark's hash."""
        self.directory = directory
        self.start_us = start_us
        self.rows_written = 0
        self.slices = 0
        self._rng = np.random.default_rng(seed)
        self._rows = max(1, rows_per_s // len(STREAMS))
        self._rank = _ranks(workers)
        self._keys, self._ends = _keys_by_rank(groups, self._rank)
        self.heat(range(HOT_WORKER % workers, PARTITIONS, workers))
        for stream in STREAMS:
            (directory / stream).mkdir(parents=True)

    @property
    def late_before_us(self) -> int:
        """Rows that are older than this are late on purpose; all others are on time."""
        return self.start_us - HOUR_US // 2

    def heat(self, groups: Collection[int]) -> None:
        """From the next slice on these groups have most of the rows."""
        cold = PARTITIONS - len(groups)
        shares = np.full(PARTITIONS, (1 - HOT_SHARE) / max(1, cold))
        shares[self._rank[list(groups)]] = HOT_SHARE / len(groups)
        self._weight = shares / shares.sum()

    def write_slice(self, *, late: bool) -> None:
        """The next second of event time, one file for each stream."""
        begin_us = self.start_us + self.slices * SLICE_US
        for stream in STREAMS:
            table = self._table(begin_us, late)
            self._write(self.directory / stream, table)
            self.rows_written += table.num_rows
        self.slices += 1

    def _table(self, begin_us: int, late: bool) -> pa.Table:
        rng = self._rng
        users = self._users(self._rows)
        times = begin_us + rng.integers(0, SLICE_US, self._rows)
        delayed = rng.random(self._rows) < 0.2
        times[delayed] -= rng.integers(0, DISORDER_US, int(delayed.sum()))
        missing = np.zeros(self._rows, bool)
        missing[:ODD_ROWS] = True
        if late:
            # The same users and times in all streams: these rows would join if they were not late.
            users = np.concatenate([users, np.arange(ODD_ROWS)])
            times = np.concatenate([times, np.full(ODD_ROWS, self.start_us - HOUR_US)])
            missing = np.concatenate([missing, np.zeros(ODD_ROWS, bool)])
        prices = np.round(rng.random(len(users)) * 100, 2)
        order = rng.permutation(len(users))
        return pa.table(
            {
                "user": pa.array(users[order], pa.int64(), mask=missing[order]),
                "price": pa.array(prices[order], pa.float64()),
                "at": pa.array(times[order], pa.timestamp("us", tz="UTC")),
            }
        )

    def _users(self, count: int) -> Longs:
        """Random users: first a group (more often one of the hot worker), then one of its keys."""
        rank = self._rng.choice(PARTITIONS, count, p=self._weight)
        users: Longs = self._keys[self._ends[rank] + self._rng.integers(0, KEYS_PER_GROUP, count)]
        return users

    def _write(self, directory: Path, table: pa.Table) -> None:
        """Written under a name that Spark ignores, then renamed: Spark reads a file whole or not at all."""
        name = f"{self.slices:06d}.parquet"
        part = directory / f".{name}.part"
        pq.write_table(table, part)
        # Spark reads files in order of these times; if two were equal, it might swap them.
        seconds = self.start_us / 1e6 + self.slices
        os.utime(part, (seconds, seconds))
        part.rename(directory / name)


def _ranks(workers: int) -> Longs:
    """The rank of each group, the hot worker's groups first."""
    order = sorted(range(PARTITIONS), key=lambda group: (group % workers != HOT_WORKER % workers, group))
    rank = np.empty(PARTITIONS, np.int64)
    rank[order] = np.arange(PARTITIONS)
    return rank


def _keys_by_rank(groups: Longs, rank: Longs) -> tuple[Longs, Longs]:
    """Keys by the rank of their group; and where each group's keys end."""
    ranks = rank[groups]
    keys = np.argsort(ranks, kind="stable").astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(np.bincount(ranks, minlength=PARTITIONS))]).astype(np.int64)
    return keys, ends


class Producer(threading.Thread):
    """Writes slices until it is stopped, never so many that the query falls far behind.

    With `pace_s` no slice sooner than this after the one before: a demo that is left alone must not take every core.
    """

    def __init__(
        self, workload: DemoWorkload, *, backlog: Callable[[], int], backlog_max: int, pace_s: float = 0.0
    ) -> None:
        super().__init__(name="trimtab-demo-producer", daemon=True)
        self._workload = workload
        self._backlog = backlog
        self._backlog_max = backlog_max
        self._pace_s = pace_s
        self._ended = threading.Event()
        self.late_allowed = False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                if self._backlog() <= self._backlog_max:
                    self._workload.write_slice(late=self.late_allowed)
                    self._ended.wait(self._pace_s)
                else:
                    self._ended.wait(LOOK_S)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """Write no further file; raises the error of an earlier one."""
        self._ended.set()
        self.join()
        if self.error is not None:
            raise self.error
