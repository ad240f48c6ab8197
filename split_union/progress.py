"""Tells Redis what Spark says about each batch: how long it took, how many rows a second it read, how many wait.

The control source, which gives the driver's signs of life, runs in a process of its own and knows none of this. So a
listener in the driver's process adds it to the same hash. It also says, every ten seconds and while a batch runs, that
the process is alive, and that a query has ended: the control source is asked between batches only, so its silence may
mean a long batch. A session's listener hears of all its queries; a join is
known by its control source, whose end offset names the epoch. Nothing that happens here can fail a query: Spark calls
listeners beside it, and errors end here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, ParamSpec
from weakref import WeakKeyDictionary

import redis
from pyspark.sql.streaming.listener import StreamingQueryListener

from trimtab.driver_progress import Json, Sources, bound_entry, parse_driver_progress
from trimtab.epochs import parse_epoch
from trimtab.offset_log import Checkpoint, epoch_file
from trimtab.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("trimtab.progress")
Told = ParamSpec("Told")

QUIET_S: Final = 2.0
"""How long Redis is left alone after it did not answer."""
PULSE_S: Final = 10.0
"""Between two signs of life of the process."""
EPOCHS_KNOWN: Final = 256


@dataclass(frozen=True)
class _Join:
    store: Store
    checkpoint: Checkpoint
    sources: Sources


class ProgressListener(StreamingQueryListener):
    """One for each session."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._joins: dict[str, _Join] = {}
        self._names: dict[str, str] = {}
        """Digest of an epoch -> the query whose epoch it is; "" for one that is not known here."""
        self._runs: dict[str, str] = {}
        """Query -> Spark's id of its run, since its first batch was told of."""
        self._pulse: threading.Thread | None = None
        self._starting = threading.Lock()
        self._quiet_until = 0.0
        self._warned = False

    def add(self, query: str, store: Store, checkpoint: str, streams: Sequence[str] = ()) -> None:
        """A join of this session; one that is started again is the same."""
        self._joins[query] = _Join(store, Checkpoint(checkpoint), Sources(streams))
        self._names.clear()

    def reads(self, query: str, reads: Mapping[str, int]) -> None:
        """How often the plan reads the sources of some streams."""
        if (join := self._joins.get(query)) is not None:
            self._joins[query] = replace(join, sources=replace(join.sources, reads=reads))

    def forget(self, query: str) -> None:
        """Tell no more of this join: its Redis may end before Spark has told of its last batch."""
        self._joins.pop(query, None)
        self._runs.pop(query, None)
        self._names.clear()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Nothing is known about it yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.tell(event.progress)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.end(str(event.runId))

    def end(self, run: str) -> None:
        """Spark has ended this run of a query. Another may have begun meanwhile: that one is not meant."""
        for query in [name for name, each in list(self._runs.items()) if each == run]:
            self._runs.pop(query, None)
            join = self._joins.get(query)
            if join is not None:
                self._say(join.store.ended, query)

    def pulse(self) -> None:
        """Say that these queries run."""
        for query in list(self._runs):
            join = self._joins.get(query)
            if join is not None:
                self._say(join.store.pulse, query)

    def _keep_pulsing(self) -> None:
        while True:
            time.sleep(PULSE_S)
            self.pulse()
            with self._starting:
                if not self._runs:
                    self._pulse = None
                    return

    def tell(self, progress: Json) -> None:
        """Write what is known about a finished batch of a join; never raises."""
        if self._clock() < self._quiet_until:
            return
        try:
            entry = bound_entry(progress)
            query = "" if entry is None else self._query_of(entry)
            join = self._joins.get(query)
            batch = None if join is None else parse_driver_progress(progress, join.sources)
            if join is not None and batch is not None:
                self._say(join.store.progress, query, batch)
                self._begin(query, str(progress["runId"]))
        except Exception as error:
            self._warn("the progress of a batch cannot be read: %r", error)

    def _begin(self, query: str, run: str) -> None:
        with self._starting:
            self._runs[query] = run
            if self._pulse is None:
                self._pulse = threading.Thread(target=self._keep_pulsing, name="trimtab-pulse", daemon=True)
                self._pulse.start()

    def _say(self, write: Callable[Told, None], *args: Told.args, **kwargs: Told.kwargs) -> None:
        if self._clock() < self._quiet_until:
            return
        try:
            write(*args, **kwargs)
            self._warned = False
        except (redis.RedisError, OSError) as error:
            self._quiet_until = self._clock() + QUIET_S
            self._warn("Redis does not answer: %s", error)

    def _query_of(self, entry: dict[str, Any]) -> str:
        digest = str(entry["digest"])
        name = self._names.get(digest)
        if name is None:
            if len(self._names) >= EPOCHS_KNOWN:
                self._names.clear()
            name = self._names[digest] = self._look_up(entry)
        return name

    def _look_up(self, entry: dict[str, Any]) -> str:
        if "text" in entry:
            name = parse_epoch(entry["text"]).query
            return name if name in self._joins else ""
        # The text of a large epoch is in a file beside the checkpoint.
        path = epoch_file(int(entry["epoch"]), str(entry["digest"]))
        return next((name for name, join in list(self._joins.items()) if join.checkpoint.exists(path)), "")

    def _warn(self, text: str, error: Exception) -> None:
        """Once, until it works again."""
        if not self._warned:
            self._warned = True
            log.warning(text, error)


_LISTENERS: WeakKeyDictionary[SparkSession, ProgressListener] = WeakKeyDictionary()


def forget(spark: SparkSession, query: str) -> None:
    """The join is over, for whoever ends its Redis with it."""
    listener = _LISTENERS.get(spark)
    if listener is not None:
        listener.forget(query)


def reads(spark: SparkSession, query: str, reads: Mapping[str, int]) -> None:
    """Tell how often the plan of a join reads the sources of some streams, where that is more than once."""
    listener = _LISTENERS.get(spark)
    if listener is not None:
        listener.reads(query, reads)


def listen(spark: SparkSession, query: str, store: Store, checkpoint: str, streams: Sequence[str]) -> None:
    """Listen to a join of this session: once, however often it is started."""
    try:
        listener = _LISTENERS.get(spark)
        if listener is None:
            listener = ProgressListener()
            spark.streams.addListener(listener)
            _LISTENERS[spark] = listener
        listener.add(query, store, checkpoint, streams)
    except Exception as error:
        log.warning("%s runs without telling batch durations: %r", query, error)
