"""The control source: a streaming source whose offset is the epoch.

Spark asks `latestOffset` on the driver before each batch and writes the answer to the offset log before the batch runs.
That is how a batch is bound to an epoch: one writer, durable, replayed by Spark itself. Redis is asked here and nowhere
else on the way of a batch; if it is away, empty or behind, the answer is the epoch that we have.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import redis
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import IntegerType, StructField, StructType

from plans.orders import check_orders
from split_union.driver_claim import DriverClaim
from trimtab.epochs import Epoch, text_digest
from trimtab.errors import BindingError, CorruptState
from trimtab.offset_log import TEXT_INLINE_MAX, Checkpoint, epoch_file, known_definition
from trimtab.offset_mark import MARK
from trimtab.store import Store, successor
from worker.transfers import TransferStore

log = logging.getLogger("trimtab.control")

NAME: Final = "trimtab_control"
SCHEMA: Final = StructType([StructField("tick", IntegerType(), False)])
POLL_S: Final = 0.05
QUIET_S: Final = 2.0
"""How long Redis is left alone after it did not answer."""

Offset = dict[str, Any]


class ControlSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self.options
        return ControlReader(
            query=options["query"],
            checkpoint=options["checkpoint"],
            redis_url=options.get("redis") or None,
            first=options["first"],
            workers=int(options["workers"]),
            streams=tuple(options["streams"].split(",")),
            tick_s=float(options["tickseconds"]),
        )


class ControlReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(
        self,
        *,
        query: str,
        checkpoint: str,
        redis_url: str | None,
        first: str,
        workers: int,
        streams: tuple[str, ...],
        tick_s: float,
    ) -> None:
        self._query = query
        self._checkpoint = Checkpoint(checkpoint)
        self._store = Store(redis_url) if redis_url else None
        self._claim = DriverClaim(self._checkpoint, self._last_beat)
        self._first = first
        self._workers = workers
        self._streams = streams
        self._tick_s = tick_s
        self._polled_at = 0.0
        self._quiet_until = 0.0
        self._advanced_at = time.monotonic()
        self._available_now = False
        self._alarmed = False
        self._committed: int | None = None
        self._beat_at = time.monotonic()
        self._gaps_ms: deque[int] = deque(maxlen=20)
        self._tidy = False

    def __getstate__(self) -> dict[str, Any]:
        # Spark ships the reader to the task that calls `read`, which needs none of this.
        return {}

    def initialOffset(self) -> Offset:
        # Asked before batch 0 and again while it runs, offsets/0 then being written: is it the checkpoint of `join`?
        if not self._checkpoint.exists("metadata") or (self._checkpoint.last_batch() or 0) > 0:
            raise BindingError(
                f"checkpoint = {self._checkpoint.location!r} is not the one that this query was started with: "
                "start it with option('checkpointLocation', ...) set to the checkpoint given to join()."
            )
        return {MARK: {"epoch": 0, "digest": "", "tick": 0}}

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        self._claim.hold()
        bound = start[MARK]
        if bound["epoch"] == 0:
            # Batch 0 always binds the first epoch, which `join` published: no batch ever runs without one.
            return self._offset(1, self._first, 1)
        self._tidy_up(bound)
        now = time.monotonic()
        if self._store is not None and now >= max(self._quiet_until, self._polled_at + POLL_S):
            self._polled_at = now
            found = self._following(start)
            if found is not None:
                self._advanced_at = now
                return self._offset(found.number, found.to_text(), bound["tick"] + 1)
        if not self._available_now and self._tick_s > 0 and now - self._advanced_at >= self._tick_s:
            self._advanced_at = now
            return {MARK: {**bound, "tick": bound["tick"] + 1}}
        return start

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        # A batch that is run again is planned without a question for offsets.
        self._claim.hold()
        self._advanced_at = time.monotonic()
        return [] if start == end else [InputPartition(end[MARK]["tick"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (int(partition.value),)

    def _last_beat(self) -> tuple[int, int] | None:
        try:
            return None if self._store is None else self._store.driver_beat(self._query)
        except (redis.RedisError, OSError, ValueError):
            return None

    def _tidy_up(self, bound: dict[str, Any]) -> None:
        """Once, when the query goes on: remove packages of moves that are over, which a worker that died left behind.

        Spark asks for offsets only between batches, so the bound epoch is that of a batch that is committed.
        """
        if not self._tidy:
            self._tidy = True
            open_moves = {move.id for move in self._checkpoint.epoch_of(bound).moves}
            TransferStore(self._checkpoint.location, b"").collect(open_moves)

    def _following(self, start: Offset) -> Epoch | None:
        """The successor of the bound epoch, if Redis has it; puts back what Redis has forgotten."""
        assert self._store is not None
        number, digest = start[MARK]["epoch"], start[MARK]["digest"]
        try:
            current, known = self._store.beat(self._query, self._newest_commit(), number, digest, self._gap_ms())
            if current is None or current < number or known != digest:
                self._put_back(start, "redis-went-back", f"Redis had epoch {current}, the query runs with {number}")
                return None
            self._recovered()
            if current == number:
                return None
            try:
                following = successor(self._store, self._query, self._checkpoint.epoch_of(start[MARK]), self._workers)
                if following is not None:
                    check_orders(following, self._streams)
            except CorruptState as error:
                self._put_back(start, "stray-epoch", f"epoch {number + 1} in Redis cannot be run: {error}")
                return None
            if following is None:
                self._put_back(start, "stray-epoch", f"epoch {number + 1} is missing in Redis")
            return following
        except (redis.RedisError, OSError, ValueError) as error:
            # ValueError: somebody else's values under our keys.
            self._quiet_until = time.monotonic() + QUIET_S
            if not self._alarmed:
                self._alarmed = True
                log.warning("Redis does not answer, going on with epoch %s: %s", start[MARK]["epoch"], error)
            return None

    def _put_back(self, start: Offset, kind: str, text: str) -> None:
        assert self._store is not None
        self._store.restore(self._checkpoint.epoch_of(start[MARK]))
        if self._store.definition(self._query) is None:
            self._store.define(self._query, known_definition(self._checkpoint))
        self._store.alarm(self._query, kind, f"{text}: published again")
        log.warning("%s: published again", text)

    def _gap_ms(self) -> int:
        """The longest silence lately, for readers to judge by whether the query has stopped."""
        now = time.monotonic()
        self._gaps_ms.append(int((now - self._beat_at) * 1000))
        self._beat_at = now
        return max(self._gaps_ms)

    def _newest_commit(self) -> int:
        """Spark asks for offsets only between batches, so every batch that was begun is committed by now."""
        if self._committed is None:
            self._committed = self._checkpoint.last_commit()
        while self._checkpoint.exists(f"commits/{self._committed + 1}"):
            self._committed += 1
        return self._committed

    def _recovered(self) -> None:
        if self._alarmed and self._store is not None:
            self._alarmed = False
            self._store.alarm(self._query, "redis-away", "Redis did not answer for a while; the query went on")

    def _offset(self, number: int, text: str, tick: int) -> Offset:
        digest = text_digest(text)
        entry: Offset = {"epoch": number, "digest": digest, "tick": tick}
        if len(text) <= TEXT_INLINE_MAX:
            entry["text"] = text
        else:
            self._checkpoint.write(epoch_file(number, digest), text)
        return {MARK: entry}
