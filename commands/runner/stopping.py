"""Ends a streaming query in order: on SIGINT or SIGTERM, after the current batch if that ends soon."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

GRACE_S: Final = 20.0
"""How long the current batch may take after a request to stop."""


class StopRequest:
    """Set by a first signal; a second one interrupts at once."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._event.is_set():
            raise KeyboardInterrupt
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)

    @contextlib.contextmanager
    def installed(self) -> Iterator[StopRequest]:
        """Catch SIGINT and SIGTERM. Needed again after a SparkContext was made: it replaces the handler of SIGINT."""
        before = {number: signal.signal(number, self) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def stop_query(query: StreamingQuery, last_batch: Callable[[], int], grace_s: float = GRACE_S) -> None:
    """Stop between two batches where possible.

    Stopping in the middle of a batch loses nothing (Spark replays the batch), but it wastes the work done and may race
    with the Python workers' state server, which then prints errors. So wait until a batch ends or none is running.
    """
    begun = last_batch()
    deadline = time.monotonic() + grace_s
    while query.isActive and time.monotonic() < deadline:
        if last_batch() > begun or not query.status["isTriggerActive"]:
            break
        time.sleep(0.02)
    # An error from a query that was asked to stop does not matter.
    with contextlib.suppress(Exception):
        query.stop()
    with contextlib.suppress(Exception):
        query.awaitTermination(30)
