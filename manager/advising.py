"""Lets the optimiser look at the workers' plans now and then, beside the event loop and the leader's turns.

Exact search takes up to a fifth of a second for each worker of eight streams, and a query may have hundreds of workers:
a turn never waits for it. What it says is as old as the statistics that it was made from.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import redis.asyncio

from balancing.replans.advice import Advice, advise, parse_advice
from balancing.replans.statistics import PlanPicture, parse_plan_picture
from balancing.settings import Settings
from plans.optimiser import Limits
from trimtab import redis_keys

log = logging.getLogger("trimtab.manager")


@dataclass(frozen=True, kw_only=True)
class Planning:
    """What is known of plans, and what the optimiser makes of it."""

    picture: PlanPicture
    advice: tuple[Advice, ...]

    def of(self, worker: int) -> Advice | None:
        return next((each for each in self.advice if each.worker == worker), None)

    def to_text(self) -> str:
        body = {"picture": self.picture.to_json(), "advice": [each.to_json() for each in self.advice]}
        return json.dumps(body, separators=(",", ":"))


def parse_planning(text: str) -> Planning:
    body: Mapping[str, Any] = json.loads(text)
    return Planning(
        picture=parse_plan_picture(body["picture"]), advice=tuple(parse_advice(each) for each in body["advice"])
    )


async def load_planning(client: redis.asyncio.Redis, query: str) -> Planning | None:
    """None where no leader has looked lately, or where another version has written it."""
    text = await client.get(redis_keys.planning(query))
    if text is None:
        return None
    try:
        return parse_planning(str(text))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def limits_of(settings: Settings) -> Limits:
    if settings.plan_memory_bytes is None:
        return Limits()
    return Limits(memory_bytes=float(settings.plan_memory_bytes))


Look = Future[tuple[Advice, ...]]


@cache
def _thread() -> ThreadPoolExecutor:
    """One for all queries of a process: the optimiser must not take more than a core from the managers."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="trimtab-plans")


def look_aside(picture: PlanPicture, settings: Settings) -> Look:
    return _thread().submit(advise, picture, budget_ms=settings.plan_budget_ms, limits=limits_of(settings))


class Advising:
    """One look at a time."""

    def __init__(self, every_s: float, clock: Callable[[], float]) -> None:
        self._every_s, self._clock = every_s, clock
        self._begun_at = -float("inf")
        self._look: Look | None = None
        self._picture: PlanPicture | None = None
        self.newest: Planning | None = None
        self._unsaved = False
        self._failed = False

    def forget(self) -> None:
        """Another manager leads."""
        self.newest, self._unsaved = None, False

    @property
    def is_due(self) -> bool:
        return self._look is None and self._clock() - self._begun_at >= self._every_s

    def begin(self, picture: PlanPicture, settings: Settings) -> None:
        self._begun_at = self._clock()
        self._picture = picture
        self._look = look_aside(picture, settings)

    def harvest(self) -> None:
        """Take in what a look has found that is over."""
        if self._look is None or not self._look.done() or self._picture is None:
            return
        look, self._look = self._look, None
        error = look.exception()
        if error is not None:
            if not self._failed:
                log.error("the optimiser failed; plans are not advised on", exc_info=error)
            self._failed = True
            return
        self.newest, self._unsaved = Planning(picture=self._picture, advice=look.result()), True

    def unsaved(self) -> str | None:
        """What is to be written, once; None where nothing is new."""
        if self.newest is None or not self._unsaved:
            return None
        self._unsaved = False
        return self.newest.to_text()
