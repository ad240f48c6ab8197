"""A query whose batches run by themselves beside a test: production workers and epochs, a real Redis, no Spark."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from types import TracebackType
from typing import Self

import redis

from api.keys import Scope, new_key
from tests.simulation.data_plane import DataPlane
from trimtab import redis_keys
from trimtab.reports import WorkerReport
from worker.arriving import SplitCounts
from worker.batch import BatchInput, BatchOutcome


def make_key(redis_url: str, scope: Scope, name: str = "test") -> str:
    """A new key. Written without an event loop: Playwright has one in this thread already."""
    text, record = new_key(name, scope, time.time_ns() // 1_000_000)
    with redis.Redis.from_url(redis_url) as client:
        client.hset(redis_keys.API_KEYS, record.id, json.dumps(asdict(record)))
    return text


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.05)


class RunningQuery:
    """Runs a batch every so often; `held` stops it between two batches, so that a move stands still."""

    def __init__(self, plane: DataPlane, every_s: float = 0.25) -> None:
        self.plane = plane
        self.failure: BaseException | None = None
        self._every_s = every_s
        self._may_run = threading.Event()
        self._may_run.set()
        self._ends = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._may_run.set()
        self._thread.join(60)
        if self.failure is not None and error is None:
            raise self.failure

    @contextmanager
    def held(self) -> Iterator[None]:
        self._may_run.clear()
        with self._turn:  # the batch that runs is over
            pass
        try:
            yield
        finally:
            self._may_run.set()

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                if not self._may_run.wait(0.2):
                    self.plane.beat()  # as an idle driver does
                    continue
                with self._turn:
                    self.plane.step()
                self._ends.wait(self._every_s)
        except BaseException as failure:
            self.failure = failure


class NamedExecutors(DataPlane):
    """Executors are called what the test says."""

    executor_name = "{}"

    def _report(self, batch: BatchInput, outcome: BatchOutcome, counts: SplitCounts) -> WorkerReport:
        report = super()._report(batch, outcome, counts)
        return replace(report, executor=self.executor_name.format(report.executor))


def skewed(
    url: str, *, partitions: int = 64, workers: int = 4, query: str = "orders", executor_name: str = "{}"
) -> DataPlane:
    """Worker 0 has most of the load, in groups of different weight."""
    weights = [(2 + group % 7 if group % workers == 0 else 1) for group in range(partitions)]
    plane = NamedExecutors(url, query=query, partitions=partitions, workers=workers, weights=weights, window=4)
    plane.executor_name = executor_name
    return plane
