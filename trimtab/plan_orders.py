"""Plan orders, as an epoch declares them, and what a worker says of its own.

An epoch says which plan each worker shall have. That is a level, like an open move: an order stays in every later epoch
until another one takes its place, also when the worker has long had the plan. A worker compares the order with its own
durable record and does what is missing, so a replayed batch does the same again and no message can be lost.

Taking an order back is another order, for the old plan. Within one order only the strategy may change, from HybMig to
moving state: where a stream stands still, HybMig would wait for it for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from trimtab.errors import CorruptState
from trimtab.records import known_fields

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,159}")


class PlanStrategy(StrEnum):
    """How a worker comes from one plan to another."""

    MS = "ms"
    """Moving state (MS/PT, algorithms 1 and 2): states that match stay, the others are recomputed; then it switches."""
    HYBMIG = "hybmig"
    """Both plans at once, and states computed in the background (HybMig, sections 3 to 5)."""


@dataclass(frozen=True, kw_only=True)
class PlanOrder:
    """The plan that one worker shall have."""

    id: str
    """Names the change (`replan`) that it belongs to, and the attempt at it: another id is another order."""
    worker: int
    plan: str
    """A tree as `str(parse_plan(...))` writes it."""
    strategy: PlanStrategy
    budget_ms: int
    """How much a batch of this worker may spend on it beside its rows."""
    epoch: int
    """The epoch that first had it."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_plan_order(body: Mapping[str, Any]) -> PlanOrder:
    try:
        order = PlanOrder(**{**body, "strategy": PlanStrategy(body["strategy"])})
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptState(f"a plan order cannot be read: {error}") from error
    if not isinstance(order.id, str) or not _ID.fullmatch(order.id) or not isinstance(order.plan, str):
        raise CorruptState(f"{order.id!r} is not the name of a plan order")
    if any(type(number) is not int or number < 0 for number in (order.worker, order.budget_ms, order.epoch)):
        raise CorruptState(f"plan order {order.id} has no worker, budget and epoch")
    return order


def changes_of_order(before: PlanOrder | None, after: PlanOrder, epoch: int) -> Iterator[str]:
    """Why `after` cannot follow `before` in epoch number `epoch`."""
    if before is None or before.id != after.id:
        if after.epoch != epoch:
            yield f"plan order {after.id} begins in the middle: epoch {after.epoch}"
        return
    fixed = ("worker", "plan", "budget_ms", "epoch")
    if any(getattr(before, name) != getattr(after, name) for name in fixed):
        yield f"plan order {before.id} changes from one epoch to the next"
    if before.strategy != after.strategy and after.strategy != PlanStrategy.MS:
        yield f"plan order {before.id} goes from {before.strategy} to {after.strategy}"


class PlanState(StrEnum):
    """Where a worker is with its order."""

    MIGRATING = "migrating"
    SETTLED = "settled"
    """It runs the ordered plan, and nothing else."""


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """What a worker says of its order in every batch, as its record was when the batch *began* (see MoveReport).

    `done` and `total` are this attempt's own estimate and are only shown.
    """

    order: str
    """Id of the order that the record knows; "" for the plan that the query was started with."""
    state: PlanState
    plan: str
    """The tree that the worker has, or is coming to."""
    former: str = ""
    """The tree that it comes from, while it is migrating."""
    strategy: str = ""
    since_batch: int = 0
    """The batch in which the worker first saw the order."""
    done: int = 0
    """Tuples of states of the new plan that have been computed."""
    total: int = 0
    """An estimate of how many it takes; never less than `done`."""
    waits_for: str = ""
    """HybMig: the stream that has to go on before the change can end; "" if none."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_plan_report(body: Mapping[str, Any]) -> PlanReport:
    return PlanReport(**{**known_fields(PlanReport, body), "state": PlanState(body["state"])})


@dataclass(frozen=True, kw_only=True)
class StepCount:
    """What one step of a plan has handled in one batch: the statistics of the optimiser."""

    stream: str
    """The stream whose new rows came this way."""
    other: tuple[str, ...]
    """The state that was probed."""
    tuples: int
    """Tuples that came in."""
    candidates: int
    """Tuples of the same key that were looked at."""
    matched: int
    """Those whose key and time fit."""
    passed: tuple[int, ...] = ()
    """By condition that was evaluated here, in the query's order: pairs that were left after it."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_step_count(body: Mapping[str, Any]) -> StepCount:
    lists = {"other": tuple(body["other"]), "passed": tuple(body.get("passed", ()))}
    return StepCount(**{**known_fields(StepCount, body), **lists})


@dataclass(frozen=True, kw_only=True)
class KeySample:
    """Live rows of a hash sample of keys, from which the size of any state follows (docs/plans.md, Sizes).

    Every stream counts the same keys: one in `one_in`, by their hash. Where there are too many of them `one_in` is
    raised, never the list cut.
    """

    one_in: int
    counts: Mapping[str, tuple[int, ...]]
    """Stream -> live rows of each sampled key, in one order of keys for all streams."""

    def to_json(self) -> dict[str, Any]:
        return {"one_in": self.one_in, "counts": {stream: list(counts) for stream, counts in self.counts.items()}}


def parse_key_sample(body: Mapping[str, Any]) -> KeySample:
    counts = {str(stream): tuple(map(int, each)) for stream, each in body["counts"].items()}
    return KeySample(one_in=int(body["one_in"]), counts=counts)
