"""`--hold`: the demo goes on, and so that there is something to see its skew wanders from worker to worker."""

from __future__ import annotations

from typing import Final

import redis

from commands.demo.workload import DemoWorkload
from trimtab.store import Store

WANDER_S: Final = 120.0
"""How long one worker's groups stay hot: long enough for the balancer to level them and for a while of rest."""


class WanderingSkew:
    """Makes hot what one worker owns, then what the next one does. It starts with what the workload begins with."""

    def __init__(self, load: DemoWorkload, store: Store, query: str, workers: int, first: int) -> None:
        self._load, self._store, self._query, self._workers = load, store, query, workers
        self._worker = first
        self._since_s: float | None = None

    def look(self, now_s: float) -> int | None:
        """The worker whose groups have become hot just now, if any."""
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < WANDER_S:
            return None
        try:
            number = self._store.current_number(self._query)
            epoch = None if number is None else self._store.epoch(self._query, number)
        except redis.RedisError:
            return None
        if epoch is None or epoch.moving:
            return None  # the moves under way are to be seen to their end
        self._since_s = now_s
        for step in range(1, self._workers + 1):
            worker = (self._worker + step) % self._workers
            groups = [group for group, owner in enumerate(epoch.owners) if owner == worker]
            if groups:
                self._worker = worker
                self._load.heat(groups)
                return worker
        return None
