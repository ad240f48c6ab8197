"""When the optimiser acts by itself: the best plan is cheaper by a margin, for a while, and pays for the change.

Hysteresis is in all three: to come back, the old plan must be cheaper by the same margin, for as long, and the worker
has rested. What is remembered is not durable: a leader that takes over waits anew, so a change comes too late at worst.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from balancing.replans.advice import Advice, Change
from balancing.settings import Settings
from balancing.situation import Situation


@dataclass(frozen=True, kw_only=True)
class PlanTrigger:
    better_since_ms: Mapping[int, int] = field(default_factory=dict)
    """Worker -> since when another plan has been worth the change without a break."""
    changed_ms: Mapping[int, int] = field(default_factory=dict)
    """Worker -> when its last change ended, or was refused."""

    def ended(self, worker: int, now_ms: int) -> PlanTrigger:
        return replace(self, changed_ms={**self.changed_ms, worker: now_ms})

    def interrupted(self) -> PlanTrigger:
        """Groups move or a plan changes: what was measured until now is about another load."""
        return replace(self, better_since_ms={}) if self.better_since_ms else self


@dataclass(frozen=True, kw_only=True)
class Weighed:
    trigger: PlanTrigger
    due: tuple[Change, ...] = ()
    """To be carried out now."""
    waiting: tuple[Change, ...] = ()
    """Worth it, and not for long enough yet: no group is moved meanwhile, or the plan would never have its turn."""


def weigh(
    advice: Iterable[Advice], settings: Settings, trigger: PlanTrigger, situation: Situation, now_ms: int
) -> Weighed:
    better: dict[int, int] = {}
    due: list[Change] = []
    waiting: list[Change] = []
    for each in advice:
        if each.change is None or not _may_change(each, settings, trigger, situation, now_ms):
            continue
        if not is_worth_it(each.change, settings):
            continue
        since = better[each.worker] = trigger.better_since_ms.get(each.worker, now_ms)
        (due if now_ms - since >= settings.plan_hold_s * 1000 else waiting).append(each.change)
    return Weighed(trigger=replace(trigger, better_since_ms=better), due=tuple(due), waiting=tuple(waiting))


def is_worth_it(change: Change, settings: Settings) -> bool:
    pays_s = change.payback_s
    return change.saves >= settings.plan_min_gain and pays_s is not None and pays_s <= settings.plan_horizon_s


def _may_change(each: Advice, settings: Settings, trigger: PlanTrigger, situation: Situation, now_ms: int) -> bool:
    worker = each.worker
    rests_until_ms = trigger.changed_ms.get(worker, -(10**15)) + settings.plan_rest_s * 1000
    return (
        each.plan == situation.plans.get(worker)  # else the advice is older than the plan
        and worker not in situation.rules.plans
        and worker in situation.follow & situation.up
        and now_ms >= rests_until_ms
    )
