"""Reads what the journal has of a query, for a leader that takes over or whose Redis lost something."""

from __future__ import annotations

from balancing.happenings import BatchesMissed, Loaded, RecordsLost
from balancing.steering import Steering
from manager.store import ManagerStore, now_ms
from manager.watch import Watch
from trimtab.epochs import Epoch


async def loaded(store: ManagerStore, watch: Watch, query: str, bound: Epoch) -> Loaded:
    """All that a leader knows to begin with."""
    records = await store.records(query)
    return Loaded(
        now_ms=now_ms(),
        bound=bound,
        migrations=records.migrations,
        rebalances=records.rebalances,
        replans=records.replans,
        unreadable=tuple((each.kind, each.name, each.problem) for each in records.unreadable),
        trigger=await store.trigger_state(query),
        window_us=watch.event_time.window_us,
        lateness_us=watch.event_time.lateness_us,
    )


async def records_left(store: ManagerStore, query: str) -> RecordsLost:
    """What is still there where Redis lost records under a leader."""
    records = await store.records(query)
    return RecordsLost(
        now_ms=now_ms(), migrations=records.migrations, rebalances=records.rebalances, replans=records.replans
    )


async def batches_missed(watch: Watch, steering: Steering) -> BatchesMissed | None:
    """Audits count every batch: those that were committed while nobody led are read now."""
    audits = [each.audit for each in steering.migrations]
    audits += [each.audit for each in steering.ended if not each.audit.finished]
    newest = [audit.newest_batch for audit in audits if audit.newest_batch >= 0]
    if not newest:
        return None
    missed = tuple(await watch.past(min(newest) + 1))
    return BatchesMissed(now_ms=now_ms(), batches=missed, workers=watch.workers)
