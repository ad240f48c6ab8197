"""Answers to "why is this group here?" and "why is nothing moved now?": a text for people, and its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from balancing.forecast import load_ratio
from balancing.load import Snapshot
from balancing.policies.policy import executors_taking_part, oversized_groups
from balancing.settings import Settings
from balancing.triggers import Decision
from trimtab.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """The newest committed move of a group, from the manager's history."""

    migration: str
    sender: int
    at_ms: int
    strategy: str
    reason: str
    requested_by: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    text: str
    data: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "data": self.data}


def why_here(snapshot: Snapshot, settings: Settings, group: int, arrival: Arrival | None = None) -> Explanation:
    """Why a group is where it is, and whether anything would move it."""
    if not 0 <= group < len(snapshot.owners):
        last = len(snapshot.owners) - 1
        raise InvalidInput("group", group, "is not a group of this query", f"Use a number from 0 to {last}.")
    owner = snapshot.owners[group]
    load = float(snapshot.group_load(settings.measure)[group])
    executor = snapshot.executor_of(owner)
    sentences = [f"Group {group} belongs to worker {owner} on executor {executor}."]
    if arrival is None:
        sentences.append(
            "No move of it is on record: it is there since the query's first mapping, or since before them."
        )
    else:
        cause = f": {arrival.reason}" if arrival.reason else ""
        sentences.append(
            f"It came from worker {arrival.sender} by {arrival.strategy.upper()} with migration {arrival.migration}, "
            f"asked for by {arrival.requested_by}{cause}."
        )
    worker_load = float(snapshot.worker_loads(settings.measure)[owner])
    share = load / worker_load if worker_load > 0 else 0.0
    sentences.append(f"It is {share:.1%} of its worker's {settings.measure} load.")
    sentences += _hold(snapshot, settings, group)
    return Explanation(
        text=" ".join(sentences),
        data={
            "group": group,
            "owner": owner,
            "executor": executor,
            "epoch": snapshot.epoch,
            "moving_to": snapshot.moving.get(group),
            "pinned": group in snapshot.pinned,
            "owner_excluded": owner in snapshot.excluded,
            "measure": settings.measure,
            "load": load,
            "share_of_worker": share,
            "cpu_ns_per_s": snapshot.group_cpu[group],
            "rows_per_s": snapshot.group_rows[group],
            "state_bytes": snapshot.group_bytes[group],
            "state_rows": snapshot.group_state_rows[group],
            "arrived_with": None if arrival is None else arrival.migration,
        },
    )


def why_no_move(snapshot: Snapshot, settings: Settings, decision: Decision) -> Explanation:
    """Why nothing is moved now, or that something is about to be; `decision` is the newest one."""
    loads = executors_taking_part(snapshot, settings.measure)
    findings = oversized_groups(snapshot, settings.measure)
    # A decision against a proposal has told its findings already.
    told = [finding.text for finding in findings if finding.text not in decision.why]
    return Explanation(
        text=" ".join([decision.why, *told]),
        data={
            "act": decision.act,
            "code": decision.code,
            "level": decision.level,
            "ratio": decision.ratio,
            "executor_ratio": load_ratio(loads),
            "start_ratio": settings.start_ratio,
            "stop_ratio": settings.stop_ratio,
            "balancing": decision.state.balancing,
            "rest_until_ms": decision.state.rest_until_ms,
            "measure": settings.measure,
            "executors": loads,
            "moving": sorted(snapshot.moving),
            "pinned": sorted(snapshot.pinned),
            "excluded": sorted(snapshot.excluded),
            "down": [each.worker for each in snapshot.workers if not each.alive],
            "findings": [finding.to_json() for finding in findings],
        },
    )


def _hold(snapshot: Snapshot, settings: Settings, group: int) -> list[str]:
    """What keeps the group, or takes it away."""
    owner = snapshot.owners[group]
    held = []
    if group in snapshot.moving:
        held.append(f"It is on its way to worker {snapshot.moving[group]}.")
    if group in snapshot.pinned:
        held.append("It is pinned, so no policy moves it.")
    if owner in snapshot.excluded:
        held.append(f"Worker {owner} is excluded from balancing, so its groups stay until it is drained.")
    if not snapshot.workers[owner].alive:
        held.append(f"Worker {owner} is down, so nothing can leave it.")
    held += [finding.text for finding in oversized_groups(snapshot, settings.measure) if finding.group == group]
    if not held:
        ratio = load_ratio(executors_taking_part(snapshot, settings.measure))
        held.append(
            f"Nothing keeps it there; the largest executor load is {ratio:.2f} times the mean, "
            f"and groups move from {settings.start_ratio:.2f} on."
        )
    return held
