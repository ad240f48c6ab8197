"""Follows one query: its driver's heartbeat, the epochs it is bound to, the reports of its committed batches.

Every instance watches, leader or standby, so that each can answer for the load and a standby that takes over knows it
already. Nothing is written here but a definition that Redis has lost.

Several attempts may have reported on a batch, and which of them Spark committed is known only one batch later, when
each worker names the one that it went on from. So every batch comes with the batch before it (`previous`), of which
exactly the committed reports are kept. What is a level (where a move stands, how loaded a worker is) may be read from
the likely reports of the newest batch; what must be counted is counted in `previous`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from balancing.committed import CommittedBatch
from balancing.load import Context, LoadModel, Snapshot
from balancing.protocols.migration import Migration
from balancing.replans.replan import Replan
from balancing.replans.statistics import PlanPicture, PlanStatistics, conditions_of
from balancing.rules import Rules
from balancing.situation import Situation, count_workers, followers, plans_of, stream_names, workers_up
from manager.settings import ManagerSettings
from manager.spans import BatchSpans
from manager.store import EventTime, Heartbeat, Json, ManagerStore, event_time, now_ms
from trimtab.epochs import Epoch
from trimtab.reports import WorkerReport, likely, winners

EPOCHS_KEPT: Final = 64
CATCH_UP_BATCHES: Final = 500
"""How many batches back reports are read again, where each of them counts."""


class Watch:
    """What is known about a query. `look()` brings it up to date."""

    def __init__(
        self,
        store: ManagerStore,
        query: str,
        settings: ManagerSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._query = query
        self._settings = settings
        self._clock = clock
        self.heartbeat: Heartbeat | None = None
        self.running = False
        """Whether the driver has given a sign of life recently."""
        self.bound: Epoch | None = None
        """The epoch of the newest committed batch; None where Redis does not have its text (any more)."""
        self.current: Epoch | None = None
        """The newest epoch that is published."""
        self.definition: Json | None = None
        self.newest: Mapping[int, WorkerReport] = {}
        """The newest report of each worker in a committed batch."""
        self.latest: CommittedBatch | None = None
        """The newest committed batch: a manager that takes over begins with it."""
        self.load: LoadModel | None = None
        self.plans = PlanStatistics()
        self._shape: tuple[str, int, int] | None = None
        self._changed_at = 0.0
        self._last = -1
        self._spans = BatchSpans()
        self._epochs: dict[int, Epoch] = {}
        self._attempts: tuple[int, Sequence[WorkerReport]] = (-1, ())
        """The batch that was read last, and all reports on it: the next batch confirms some of them."""

    @property
    def settled(self) -> bool:
        """The newest published epoch is the bound one: another may be published."""
        return self.bound is not None and self.current is not None and self.current == self.bound

    @property
    def event_time(self) -> EventTime:
        return event_time(self.definition)

    @property
    def committed(self) -> int:
        """The newest batch that was looked at; -1 for none."""
        return self._last

    @property
    def workers(self) -> int:
        assert self.bound is not None
        return count_workers(self.definition, self.bound, self.newest)

    @property
    def up(self) -> frozenset[int]:
        return workers_up(self.newest, self._last if self._last >= 0 else None)

    async def look(self) -> list[CommittedBatch]:
        """Batches that were committed since the last look, oldest first."""
        heartbeat = await self._store.heartbeat(self._query)
        self._note(heartbeat)
        self.current = await self._store.current_epoch(self._query)
        await self._look_at_definition()
        if heartbeat is None:
            self.bound = None
            return []
        self.bound = await self._epoch(heartbeat.epoch, lambda epoch: epoch.digest == heartbeat.digest)
        if self.bound is None:
            # Redis has lost it; the control source puts it back.
            return []
        if heartbeat.committed < self._last or (self._shape and self._shape[0] != self.bound.incarnation):
            self._last, self._spans, self._shape, self.newest, self.latest = -1, BatchSpans(), None, {}, None
            self._attempts = (-1, ())
        most = self._settings.warm_up_batches if self._last < 0 else CATCH_UP_BATCHES
        first = max(self._last + 1, heartbeat.committed - most + 1)
        batches = await self._batches(range(first, heartbeat.committed + 1), heartbeat)
        for batch in batches:
            self._weigh(batch)
            self.latest = batch
        self._last = heartbeat.committed
        return batches

    async def past(self, first: int) -> list[CommittedBatch]:
        """Batches from `first` up to the newest one that was looked at, as far as their reports are still there."""
        if self.heartbeat is None or self.bound is None:
            return []
        numbers = range(max(0, first, self._last - CATCH_UP_BATCHES), self._last + 1)
        return [batch for batch in await self._batches(numbers, self.heartbeat) if batch.reports]

    def situation(
        self, migrations: Iterable[Migration], rules: Rules, replans: Iterable[Replan] = ()
    ) -> Situation | None:
        """The query as it is known here; None while Redis does not have its newest epoch."""
        if self.current is None:
            return None
        return Situation(
            query=self._query,
            workers=count_workers(self.definition, self.current, self.newest),
            epoch=self.current,
            migrations=tuple(migrations),
            replans=tuple(replans),
            streams=stream_names(self.definition),
            plans=plans_of(self.current, self.newest),
            follow=followers(self.newest),
            up=self.up,
            stopped=not self.running,
            rules=rules,
            committed=self.committed,
        )

    def snapshot(self, moving: Mapping[int, int], rules: Rules) -> Snapshot | None:
        """The load under the newest epoch; None where no batch has been seen yet."""
        epoch = self.current if self.current is not None else self.bound
        if epoch is None or self.load is None:
            return None
        return self.load.snapshot(
            epoch,
            Context(
                now_ms=now_ms(),
                alive=self.up,
                moving=moving,
                pinned=rules.pinned,
                excluded=rules.excluded,
                window_s=self.event_time.window_us / 1e6,
                lateness_s=self.event_time.lateness_us / 1e6,
            ),
        )

    def plan_picture(self, batch_ms: float) -> PlanPicture:
        """What is known of plans; `batch_ms` from one batch to the next, 0 where it is not known."""
        streams, time = stream_names(self.definition), self.event_time
        return self.plans.picture(
            self._query,
            streams,
            conditions_of(self.definition, streams),
            window_s=time.window_us / 1e6,
            lateness_s=time.lateness_us / 1e6,
            batch_s=batch_ms / 1000,
        )

    def _note(self, heartbeat: Heartbeat | None) -> None:
        # By our own clock, since its last change. The driver's clock counts only at the first look.
        if heartbeat is None or heartbeat.ended:
            self.running = False
        elif self.heartbeat is None:
            self.running = heartbeat.was_heard(now_ms(), self._settings.heartbeat_max_ms)
            self._changed_at = self._clock()
        elif heartbeat != self.heartbeat:
            self.running = True
            self._changed_at = self._clock()
        elif (self._clock() - self._changed_at) * 1000 > heartbeat.silence_max_ms(self._settings.heartbeat_max_ms):
            self.running = False
        self.heartbeat = heartbeat

    async def _look_at_definition(self) -> None:
        definition = await self._store.definition(self._query)
        if definition is not None:
            self.definition = definition
        elif self.definition is not None and self._is_ours(self.definition):
            await self._store.define_again(self._query, self.definition)

    def _is_ours(self, definition: Json) -> bool:
        return self.current is not None and definition.get("incarnation") == self.current.incarnation

    async def _epoch(self, number: int, is_it: Callable[[Epoch], bool]) -> Epoch | None:
        """The epoch of this number, if it is the right one: another life of the query has the same numbers."""
        cached = self._epochs.get(number)
        if cached is None or not is_it(cached):
            epoch = await self._store.epoch(self._query, number)
            if epoch is None or not is_it(epoch):
                return None
            cached = self._epochs[number] = epoch
            for old in sorted(self._epochs)[:-EPOCHS_KEPT]:
                del self._epochs[old]
        return cached

    async def _batches(self, numbers: range, heartbeat: Heartbeat) -> list[CommittedBatch]:
        """Oldest first, each with its previous one. Batches of which nothing is known are left out."""
        if not numbers:
            return []
        batches = []
        if self._attempts[0] != numbers[0] - 1:
            self._attempts = (numbers[0] - 1, await self._store.attempts(self._query, numbers[0] - 1))
        for number in numbers:
            attempts = await self._store.attempts(self._query, number)
            reports = likely(attempts)
            # The heartbeat has moved on from older batches; their reports say which epoch they were bound to.
            bound = self.bound if number == heartbeat.committed else await self._epoch_of(reports.values())
            if bound is not None:
                previous = await self._confirmed(reports.values(), heartbeat)
                batches.append(
                    CommittedBatch(batch=number, bound=bound, at_ms=heartbeat.at_ms, reports=reports, previous=previous)
                )
            self._attempts = (number, attempts)
        return batches

    async def _confirmed(self, following: Iterable[WorkerReport], heartbeat: Heartbeat) -> CommittedBatch | None:
        """The batch that was read last, with those of its reports that the following ones confirm; None without any."""
        number, attempts = self._attempts
        reports = winners(attempts, following)
        bound = await self._epoch_of(reports.values())
        if bound is None:
            return None
        return CommittedBatch(batch=number, bound=bound, at_ms=heartbeat.at_ms, reports=reports)

    async def _epoch_of(self, reports: Iterable[WorkerReport]) -> Epoch | None:
        """The epoch that these reports of one batch name; None where they disagree, or Redis does not have it."""
        numbers = {report.epoch for report in reports}
        if self.bound is None or len(numbers) != 1:
            return None
        # Reports and epochs of an earlier life of the query, with another checkpoint, stay in Redis for a while.
        life = self.bound.incarnation
        return await self._epoch(numbers.pop(), lambda epoch: epoch.incarnation == life)

    def _weigh(self, batch: CommittedBatch) -> None:
        """Every committed batch goes into the load model."""
        if not batch.reports:
            return
        self.newest = {**self.newest, **batch.reports}
        shape = (batch.bound.incarnation, len(batch.bound.owners), self.workers)
        if self.load is None or self._shape != shape:
            self.load = LoadModel(partitions=shape[1], workers=shape[2])
            self._shape = shape
        span_s = (self._spans.span_ms(batch) or 0.0) / 1000
        self.load.add(batch.reports, batch.bound, span_s=max(0.0, span_s))
        self.plans.add(batch, conditions_of(self.definition, stream_names(self.definition)))
