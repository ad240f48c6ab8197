"""How the API does: requests by kind and status, how long they took, what was refused. For /metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from api.access import OPEN_PATHS
from manager import metrics
from manager.collecting import Page
from manager.metrics import OTHER
from manager.tally import Distribution, Tally

GONE: Final = 499
"""The client went away before there was an answer."""


def request_kind(method: str, path: str, *, streams: bool) -> str:
    """One of `metrics.REQUEST_KINDS`: by what a request costs, not by its path, which clients choose."""
    if path in OPEN_PATHS:
        return "open"
    if streams:
        return "stream"
    return "read" if method in ("GET", "HEAD") else "change"


class ApiMeasures(Collector):
    def __init__(self) -> None:
        self._tally = Tally()
        self._seconds = {kind: Distribution(metrics.API_BUCKETS) for kind in metrics.REQUEST_KINDS}

    def add(self, kind: str, status: int, seconds: float) -> None:
        """One request that has been answered."""
        status = status or GONE
        self._seconds[kind].add(seconds)
        status_class = f"{min(max(status, 200), 599) // 100}xx"
        self._tally.add(metrics.API_REQUESTS, 1, kind, status_class)
        if status >= 400:
            shown = str(status)
            self._tally.add(metrics.API_REFUSED, 1, shown if shown in metrics.REFUSED_STATUSES else OTHER)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        page = Page()
        for kind, seconds in self._seconds.items():
            page.add_histogram(metrics.API_SECONDS, (kind,), seconds.cumulative(), seconds.sum)
        for family in (metrics.API_REQUESTS, metrics.API_REFUSED):
            for combination in family.choices:
                page.add(family, combination, self._tally.value(family, *combination))
        return page.metrics()
