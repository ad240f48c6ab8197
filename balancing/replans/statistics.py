"""What workers report of keys and steps, smoothed, as the statistics that plans are costed by.

Each sample of keys stands for itself: keys have no names in it, so nothing can be added key by key. But the size of a
state is a sum over keys (plans/statistics.py), so a mixture of samples with decaying weights smooths all sizes at once.

Rows that a worker counted for other groups, or under another plan, say nothing about those that it has now: the
mixture begins anew when its owners or its plan change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from balancing.committed import CommittedBatch
from plans.costs import CostModel, TupleBytes
from plans.statistics import Condition, Statistics, from_key_counts
from trimtab.plan_orders import KeySample, StepCount, parse_key_sample
from trimtab.records import Json, known_fields
from trimtab.reports import WorkerReport

DECAY: Final = 0.7
"""Of a sample's weight with each later one."""
SAMPLES_KEPT: Final = 6
KEYS_MAX: Final = 4_096
"""Sampled keys of one worker that are kept: the newest samples first."""
COUNT_DECAY: Final = 0.9
"""Of what was counted at steps, with each batch."""


@dataclass(frozen=True)
class Passing:
    """Of one condition: pairs that it was evaluated on, and those that it passed; decayed."""

    evaluated: float = 0.0
    passed: float = 0.0

    @property
    def share(self) -> float:
        return self.passed / self.evaluated if self.evaluated > 0 else 1.0


@dataclass(frozen=True, kw_only=True)
class WorkerPicture:
    """What is known of one worker: enough to cost any plan."""

    worker: int
    plan: str = ""
    """That it runs, or is coming to."""
    samples: tuple[KeySample, ...] = ()
    """Oldest first."""
    conditions: Mapping[int, Passing] = field(default_factory=dict)
    """By number in the query."""
    batches: int = 0
    """With a sample, since the mixture began."""
    cpu_s: float = 0.0
    """CPU seconds in a batch, as measured; smoothed."""
    state_rows: int = 0
    state_bytes: int = 0
    combined_rows: int = 0
    plan_states: Mapping[str, int] = field(default_factory=dict)

    def with_report(self, report: WorkerReport, conditions: Sequence[frozenset[str]]) -> WorkerPicture:
        samples = self.samples if report.keys is None else _kept((*self.samples, report.keys))
        measured = report.cpu_ns / 1e9
        return replace(
            self,
            samples=samples,
            conditions=_passing(self.conditions, report.steps, conditions),
            batches=self.batches + (report.keys is not None),
            cpu_s=self.cpu_s * COUNT_DECAY + measured * (1 - COUNT_DECAY) if self.cpu_s else measured,
            state_rows=report.state_rows,
            state_bytes=report.state_bytes,
            combined_rows=report.combined_rows,
            plan_states=dict(report.plan_states),
        )

    def to_json(self) -> Json:
        body = {**self.__dict__, "samples": [each.to_json() for each in self.samples]}
        return {**body, "conditions": {number: asdict(each) for number, each in self.conditions.items()}}


@dataclass(frozen=True, kw_only=True)
class PlanPicture:
    """What a leader knows about a query's plans, as of one batch."""

    query: str
    batch: int
    at_ms: int
    streams: tuple[str, ...]
    window_s: float
    lateness_s: float
    batch_s: float
    """The time from one batch to the next; 0 where it is not known."""
    conditions: tuple[frozenset[str], ...]
    workers: tuple[WorkerPicture, ...]

    def worker(self, number: int) -> WorkerPicture | None:
        return next((each for each in self.workers if each.worker == number), None)

    def model(self, worker: int, rates: Mapping[str, float] | None = None) -> CostModel | None:
        """What plans cost at this worker, with some streams at other rates; None while there is no sample."""
        known = self.worker(worker)
        statistics = None if known is None else self.statistics(known)
        if statistics is None:
            return None
        for stream, rate in (rates or {}).items():
            statistics = statistics.with_rate(stream, rate)
        return CostModel(statistics, batches_per_s=1 / self.batch_s if self.batch_s > 0 else 1.0)

    def statistics(self, known: WorkerPicture) -> Statistics | None:
        if not known.samples or not self.streams or self.window_s <= 0:
            return None
        weights = [DECAY**age for age in reversed(range(len(known.samples)))]
        counts: dict[str, list[int]] = {stream: [] for stream in self.streams}
        one_in: list[float] = []
        for weight, sample in zip(weights, known.samples, strict=True):
            keys = max((len(each) for each in sample.counts.values()), default=0)
            one_in += [sample.one_in * weight / sum(weights)] * keys
            for stream in self.streams:
                counts[stream] += [*sample.counts.get(stream, ()), *(0,) * keys][:keys]
        columns = TupleBytes()
        combined = (columns.combined + 2 * columns.reference) * known.combined_rows
        payload = (known.state_bytes - combined) / known.state_rows - columns.leaf if known.state_rows else 0.0
        return from_key_counts(
            counts,
            window_s=self.window_s,
            lateness_s=self.lateness_s,
            one_in=one_in,
            conditions=[
                Condition(streams, known.conditions.get(number, Passing()).share)
                for number, streams in enumerate(self.conditions)
            ],
            row_bytes=dict.fromkeys(self.streams, max(0.0, payload)),
        )

    def to_json(self) -> Json:
        conditions = [sorted(each) for each in self.conditions]
        workers = [each.to_json() for each in self.workers]
        return {**self.__dict__, "streams": list(self.streams), "conditions": conditions, "workers": workers}


def parse_plan_picture(body: Mapping[str, Any]) -> PlanPicture:
    fields = known_fields(PlanPicture, body)
    fields["streams"] = tuple(body["streams"])
    fields["conditions"] = tuple(map(frozenset, body["conditions"]))
    fields["workers"] = tuple(map(_parse_worker, body["workers"]))
    return PlanPicture(**fields)


def _parse_worker(body: Mapping[str, Any]) -> WorkerPicture:
    fields = known_fields(WorkerPicture, body)
    fields["samples"] = tuple(map(parse_key_sample, body["samples"]))
    fields["conditions"] = {int(number): Passing(**each) for number, each in body["conditions"].items()}
    return WorkerPicture(**fields)


class PlanStatistics:
    """Follows the reports of committed batches."""

    def __init__(self) -> None:
        self._workers: dict[int, WorkerPicture] = {}
        self._owned: dict[int, tuple[int, ...]] = {}
        self._incarnation = ""
        self._batch, self._at_ms = -1, 0

    def add(self, committed: CommittedBatch, conditions: Sequence[frozenset[str]]) -> None:
        bound = committed.bound
        if bound.incarnation != self._incarnation:
            self._workers, self._owned, self._incarnation = {}, {}, bound.incarnation
        self._batch, self._at_ms = committed.batch, committed.at_ms
        owned: dict[int, list[int]] = {}
        for group, owner in enumerate(bound.owners):
            owned.setdefault(owner, []).append(group)
        for worker, report in committed.reports.items():
            mine = tuple(owned.get(worker, ()))
            plan = report.order.plan if report.order is not None else report.plan
            known = self._workers.get(worker)
            if known is None or known.plan != plan or self._owned.get(worker) != mine:
                known = WorkerPicture(worker=worker, plan=plan)
            self._owned[worker] = mine
            self._workers[worker] = known.with_report(report, conditions)

    def picture(
        self,
        query: str,
        streams: Sequence[str],
        conditions: Sequence[frozenset[str]],
        *,
        window_s: float,
        lateness_s: float,
        batch_s: float,
    ) -> PlanPicture:
        return PlanPicture(
            query=query,
            batch=self._batch,
            at_ms=self._at_ms,
            streams=tuple(streams),
            window_s=window_s,
            lateness_s=lateness_s,
            batch_s=batch_s,
            conditions=tuple(conditions),
            workers=tuple(self._workers[worker] for worker in sorted(self._workers)),
        )


def conditions_of(definition: Mapping[str, Any] | None, streams: Sequence[str]) -> tuple[frozenset[str], ...]:
    """The streams of each condition that is on more than one; others are evaluated before the join."""
    found = []
    for text in (definition or {}).get("where", ()):
        named = frozenset(
            stream for stream in streams if re.search(rf"\b{re.escape(stream)}\s*\.", str(text), re.IGNORECASE)
        )
        if len(named) > 1:
            found.append(named)
    return tuple(found)


def _kept(samples: Sequence[KeySample]) -> tuple[KeySample, ...]:
    """The newest ones, as far as their keys are not too many; the newest in any case."""
    kept: list[KeySample] = []
    keys = 0
    for sample in reversed(samples[-SAMPLES_KEPT:]):
        keys += max((len(each) for each in sample.counts.values()), default=0)
        if kept and keys > KEYS_MAX:
            break
        kept.append(sample)
    return tuple(reversed(kept))


def _passing(
    before: Mapping[int, Passing], steps: Sequence[StepCount], conditions: Sequence[frozenset[str]]
) -> dict[int, Passing]:
    """With what each condition passed at the steps of one batch.

    A condition is evaluated at the step that brings its last stream. Steps of one stream come in the order in which its
    rows take them. Where a worker evaluated fewer conditions than that (others are left to Spark), nobody knows which.
    """
    now = {number: Passing(each.evaluated * COUNT_DECAY, each.passed * COUNT_DECAY) for number, each in before.items()}
    reached: dict[str, frozenset[str]] = {}
    for step in steps:
        had = reached.get(step.stream, frozenset({step.stream}))
        reached[step.stream] = has = had | frozenset(step.other)
        evaluated = [
            number
            for number, streams in enumerate(conditions)
            if streams <= has and not streams <= had and not streams <= frozenset(step.other)
        ]
        if len(evaluated) != len(step.passed):
            continue
        pairs = step.matched
        for number, passed in zip(evaluated, step.passed, strict=True):
            known = now.get(number, Passing())
            now[number] = Passing(known.evaluated + pairs, known.passed + passed)
            pairs = passed
    return now
