"""What a scrape gets of the manager: the series of the queries that it leads, and those of the instance itself.

Everything is made anew for each scrape from what the runners hold, so nothing has to be forgotten: the series of a
query that has stopped, or that another instance leads by now, are simply not there any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from balancing.protocols.migration import Migration
from manager import metrics
from manager.metrics import FAMILIES, TEXT_MAX, Family
from manager.observing import Observed
from manager.runner import QueryRunner
from manager.store import now_ms
from trimtab import __version__
from trimtab.plain_text import plain_text

Labels = tuple[str, ...]


class Manages(Protocol):
    """The manager, as far as metrics need it."""

    @property
    def runners(self) -> Mapping[str, QueryRunner]: ...

    def not_ready(self) -> str: ...


def label_text(text: str) -> str:
    """Text from users as a label's value: nothing in it acts, and it is not too long."""
    shown = plain_text(text)
    return shown if len(shown) <= TEXT_MAX else shown[: TEXT_MAX - 1] + "…"


class Page:
    """The families of one scrape, in the order of the table, each with its samples."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def add(self, family: Family, labels: Labels, value: float) -> None:
        metric = self._of(family)
        assert isinstance(metric, GaugeMetricFamily | CounterMetricFamily)
        metric.add_metric(labels, value)

    def add_histogram(self, family: Family, labels: Labels, cumulative: Iterable[float], total: float) -> None:
        metric = self._of(family)
        assert isinstance(metric, HistogramMetricFamily)
        limits = [*map(floatToGoString, family.buckets), "+Inf"]
        metric.add_metric(labels, list(zip(limits, cumulative, strict=True)), total)

    def add_summary(self, family: Family, labels: Labels, count: int, total: float) -> None:
        metric = self._of(family)
        assert isinstance(metric, SummaryMetricFamily)
        metric.add_metric(labels, count, total)

    def metrics(self) -> Iterator[Metric]:
        for name in FAMILIES:
            if name in self._metrics:
                yield self._metrics[name]

    def _of(self, family: Family) -> Metric:
        metric = self._metrics.get(family.name)
        if metric is None:
            kinds: dict[str, type[Metric]] = {
                "counter": CounterMetricFamily,
                "gauge": GaugeMetricFamily,
                "histogram": HistogramMetricFamily,
                "summary": SummaryMetricFamily,
            }
            make = kinds[family.kind]
            metric = self._metrics[family.name] = make(family.name, family.help, labels=family.all_labels)  # type: ignore[call-arg]
        return metric


class ManagerCollector(Collector):
    """Registered once; `collect` is called for each scrape, on the manager's own event loop."""

    def __init__(self, manager: Manages) -> None:
        self._manager = manager

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        page = Page()
        page.add(metrics.BUILD, (__version__,), 1)
        page.add(metrics.READY, (), not self._manager.not_ready())
        shown: set[str] = set()
        for name, runner in sorted(self._manager.runners.items()):
            label = label_text(name)
            if label in shown:
                continue  # two names that differ only where they were cut; Prometheus refuses a series twice
            shown.add(label)
            if runner.leading or runner.watch.current is not None or runner.watch.bound is not None:
                # One whose epochs are gone cannot be led by anybody, and need not be.
                page.add(metrics.LEADING, (label,), runner.leading)
            page.add(metrics.LEADER_CHANGES, (label,), runner.observed.led)
            page.add(metrics.FAILING, (label,), bool(runner.problem))
            if runner.leading and runner.watch.running and runner.watch.bound is not None:
                _Query(page, label, runner).add()
        return page.metrics()


class _Query:
    """The series of one query that this instance leads."""

    def __init__(self, page: Page, label: str, runner: QueryRunner) -> None:
        self._page = page
        self._label = label
        self._runner = runner
        self._observed: Observed = runner.observed
        self._now_ms = now_ms()

    def add(self) -> None:
        self._add_levels()
        self._add_driver()
        self._add_load()
        self._add_counters()
        self._add_migrations(self._runner.steering.migrations)
        self._add_forecast()
        self._add_workers()

    def _gauge(self, family: Family, value: float, *labels: str) -> None:
        self._page.add(family, (self._label, *labels), value)

    def _add_levels(self) -> None:
        watch = self._runner.watch
        assert watch.bound is not None
        self._gauge(metrics.QUERY_UP, 1)
        self._gauge(metrics.QUERY_WORKERS, watch.workers)
        self._gauge(metrics.QUERY_PARTITIONS, len(watch.bound.owners))
        self._gauge(metrics.QUERY_WINDOW, watch.event_time.track_s)
        self._gauge(metrics.QUERY_BATCH, watch.committed)
        self._gauge(metrics.QUERY_EPOCH, (watch.current or watch.bound).number)
        self._gauge(metrics.QUERY_FENCE, self._runner.lease.fence)
        watermark_us = max((report.watermark_us for report in watch.newest.values()), default=0)
        if watermark_us > 0:  # zero is none yet
            self._gauge(metrics.QUERY_WATERMARK, watermark_us / 1e6)

    def _add_driver(self) -> None:
        heard, batches = self._runner.watch.heartbeat, self._observed.batches
        self._page.add_histogram(metrics.QUERY_BATCH_SECONDS, (self._label,), batches.cumulative(), batches.sum)
        if heard is None:
            return
        for family, value in (
            (metrics.QUERY_LAST_BATCH, None if heard.batch_ms is None else heard.batch_ms / 1000),
            (metrics.QUERY_INPUT_RATE, heard.rows_per_s),
            (metrics.QUERY_BACKLOG, heard.backlog),
        ):
            if value is not None:
                self._gauge(family, value)
        for stream, lag in heard.lags.items():
            self._gauge(metrics.QUERY_LAG, lag, label_text(stream))

    def _add_load(self) -> None:
        load = self._observed.load
        if load is None:
            return
        self._gauge(metrics.QUERY_RATIO, load.ratio)
        self._gauge(metrics.QUERY_START_RATIO, load.settings.start_ratio)
        self._gauge(metrics.QUERY_STOP_RATIO, load.settings.stop_ratio)
        self._gauge(metrics.QUERY_AUTO, load.settings.auto)
        self._page.add_histogram(metrics.GROUP_LOAD, (self._label,), load.group_counts, load.group_sum)
        for worker, ratio in enumerate(load.worker_ratios):
            self._gauge(metrics.WORKER_LOAD, ratio, str(worker))

    def _add_counters(self) -> None:
        for family in FAMILIES.values():
            if family.scope == "query" and family.kind == "counter":
                for combination in family.choices or ((),):
                    self._gauge(family, self._observed.tally.value(family, *combination), *combination)
        for combination in metrics.STEP_SECONDS.choices:
            count, seconds = self._observed.steps.value(combination)
            self._page.add_summary(metrics.STEP_SECONDS, (self._label, *combination), count, seconds)
        alarms = self._observed.alarms_recent(self._now_ms)
        for kind in metrics.ALARM_KINDS:
            self._gauge(metrics.ALARMS, alarms[kind], kind)
        decision = self._observed.decision
        for code in metrics.CODES:
            self._gauge(metrics.DECISION, decision is not None and decision.code == code, code)

    def _add_migrations(self, migrations: Iterable[Migration]) -> None:
        for strategy in metrics.STRATEGIES:
            under_way = [each for each in migrations if each.strategy == strategy]
            since = [each.story[-1].at_ms if each.story else each.created_ms for each in under_way]
            self._gauge(metrics.MIGRATIONS_OPEN, len(under_way), strategy)
            self._gauge(metrics.STEP_AGE, max(0.0, (self._now_ms - min(since, default=self._now_ms)) / 1000), strategy)
        for strategy in metrics.PLAN_STRATEGIES:
            changing = [each for each in self._runner.steering.replans if each.strategy == strategy]
            self._gauge(metrics.REPLANS_OPEN, len(changing), strategy)
        stalls = self._runner.steering.stalls.announced
        for reason in metrics.STALL_REASONS:
            waiting = {stall.migration for stall in stalls if stall.reason.value.replace(" ", "-") == reason}
            self._gauge(metrics.STALLED, len(waiting), reason)
        latest = self._runner.watch.latest
        reports = () if latest is None else latest.reports.values()
        for side in metrics.HOLDING_SIDES:
            held = sum(move.held_rows for report in reports for move in report.moves if move.side == side)
            self._gauge(metrics.HELD, held, side)

    def _add_forecast(self) -> None:
        compared = self._observed.compared_newest
        if compared is None:
            return
        for of, outcome in zip(metrics.EXPECTATIONS, compared, strict=True):
            for family, value in (
                (metrics.LAST_SECONDS, outcome.seconds),
                (metrics.LAST_PAUSE, None if outcome.pause_ms is None else outcome.pause_ms / 1000),
                (metrics.LAST_BYTES, outcome.bytes),
                (metrics.LAST_RATIO, outcome.ratio_after),
            ):
                if value is not None:
                    self._gauge(family, value, of)

    def _add_workers(self) -> None:
        watch, tally = self._runner.watch, self._observed.tally
        assert watch.bound is not None
        owned = [0] * watch.workers
        for owner in watch.bound.owners:
            if owner < len(owned):
                owned[owner] += 1
        counters = [each for each in FAMILIES.values() if each.scope == "worker" and each.kind == "counter"]
        for worker in range(watch.workers):
            name = str(worker)
            for family in counters:
                for combination in family.choices or ((),):
                    self._gauge(family, tally.value(family, name, *combination), name, *combination)
            self._gauge(metrics.WORKER_GROUPS, owned[worker], name)
            self._gauge(metrics.WORKER_UP, worker in watch.up, name)
            report = watch.newest.get(worker)
            if report is None:
                continue
            self._gauge(metrics.WORKER_STATE_ROWS, report.state_rows, name)
            self._gauge(metrics.WORKER_STATE_BYTES, report.state_bytes, name)
            self._gauge(metrics.WORKER_COMBINED, report.combined_rows, name)
            if report.watermark_us > 0:
                self._gauge(metrics.WORKER_DELAY, report.at_ms / 1000 - report.watermark_us / 1e6, name)
            self._gauge(metrics.WORKER_INFO, 1, name, label_text(report.executor))
            self._gauge(metrics.WORKER_PLAN_INFO, 1, name, label_text(report.plan))
