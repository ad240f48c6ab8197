"""Rows for a `Cluster`, batch by batch: out of order, some of them late."""

from __future__ import annotations

import random
from pathlib import Path

from tests.checkers.cluster import Cluster, Row
from worker.durable import Record

PLANS = ("((A B) C)", "((B C) A)", "(A B C)")
WINDOW = 20
STEP = 6


class Feed:
    """Rows out of order, some of them late; the watermark follows."""

    def __init__(self, seed: int, names: str = "ABC", keys: int = 8) -> None:
        self.random = random.Random(seed)
        self.names, self.keys = names, keys
        self.now = 100
        self.number = 0

    def rows(self, per_stream: int = 6) -> dict[str, list[Row]]:
        self.now += STEP
        return {name: [self._row() for _ in range(self.random.randint(0, per_stream))] for name in self.names}

    def _row(self) -> Row:
        self.number += 1
        return self.random.randrange(self.keys), self.now - self.random.randint(0, 18), self.number

    @property
    def watermark(self) -> int:
        return self.now - 10


def make(tmp_path: Path, seed: int = 1, plans: tuple[str, ...] = PLANS) -> tuple[Cluster, Feed]:
    cluster = Cluster(tmp_path, "ABC", WINDOW, 4, plans)
    feed = Feed(seed)
    for _ in range(5):
        cluster.step(feed.rows(), feed.watermark)
    return cluster, feed


def go(cluster: Cluster, feed: Feed, batches: int = 1) -> None:
    for _ in range(batches):
        cluster.step(feed.rows(), feed.watermark)


def record(cluster: Cluster, worker: int) -> Record:
    found = cluster.durable[worker].record()
    assert found is not None
    return found
