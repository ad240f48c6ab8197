"""What a policy is: a function from a snapshot to moves. It suggests; the manager enacts (style, 10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

import numpy as np

from balancing.load import Ints, Snapshot
from balancing.settings import Settings
from balancing.words import Measure
from trimtab.errors import InvalidInput

GROUP_EXCEEDS_MEAN: Final = "group-exceeds-mean"
PINNED_STAY: Final = "pinned-groups-stay"
MOVING_ALREADY: Final = "groups-moving-already"
NO_RECEIVER: Final = "no-receiver"
BUDGET_LIMITS: Final = "budget-limits"


@dataclass(frozen=True, kw_only=True)
class SuggestedMove:
    """Groups that should go from one worker to another."""

    sender: int
    receiver: int
    groups: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {"sender": self.sender, "receiver": self.receiver, "groups": list(self.groups)}


def parse_suggested_move(body: dict[str, Any]) -> SuggestedMove:
    return SuggestedMove(
        sender=int(body["sender"]), receiver=int(body["receiver"]), groups=tuple(map(int, body["groups"]))
    )


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that people should know and that no move can mend."""

    kind: str
    text: str
    group: int | None = None
    worker: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    moves: tuple[SuggestedMove, ...] = ()
    findings: tuple[Finding, ...] = ()
    among: tuple[str, ...] = ()
    """Executors whose largest load the moves are to lower; all that take part where none is named."""


class Policy(Protocol):
    """One per file."""

    @property
    def name(self) -> str: ...

    def suggest(self, snapshot: Snapshot, settings: Settings) -> Suggestion: ...


def moves_between(snapshot: Snapshot, wanted: Ints) -> tuple[SuggestedMove, ...]:
    """The moves that lead from where the groups are going to `wanted`, the largest number of groups first."""
    pairs: dict[tuple[int, int], list[int]] = {}
    placed = snapshot.placed()
    for group in np.flatnonzero(placed != wanted).tolist():
        pairs.setdefault((int(placed[group]), int(wanted[group])), []).append(group)
    ordered = sorted(pairs.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return tuple(SuggestedMove(sender=s, receiver=r, groups=tuple(groups)) for (s, r), groups in ordered)


def movable_groups(snapshot: Snapshot, placed: Ints, senders: Sequence[int]) -> list[int]:
    """Groups of `senders` that may leave, in ascending order."""
    mine = np.flatnonzero(np.isin(placed, np.array(sorted(senders), np.int64))).tolist()
    return [group for group in mine if snapshot.movable(group)]


def taking_part(snapshot: Snapshot) -> dict[str, list[int]]:
    """Executor -> its workers that may give and take, in order of executor and worker."""
    executors: dict[str, list[int]] = {}
    for worker in range(len(snapshot.workers)):
        if snapshot.takes_part(worker):
            executors.setdefault(snapshot.executor_of(worker), []).append(worker)
    return dict(sorted(executors.items()))


def executors_taking_part(snapshot: Snapshot, measure: Measure, owners: Ints | None = None) -> dict[str, float]:
    """Loads of the executors that have at least one worker that may give or take; all of the executor's load counts."""
    loads = snapshot.executor_loads(measure, owners)
    return {executor: loads[executor] for executor in taking_part(snapshot)}


def oversized_groups(snapshot: Snapshot, measure: Measure) -> tuple[Finding, ...]:
    """Groups that alone exceed the mean of the executors: wherever one goes, that executor is above the mean.

    Named, so that nobody waits for the balancer to do what no move can do.
    """
    loads = executors_taking_part(snapshot, measure)
    if len(loads) < 2:
        return ()
    mean = sum(loads.values()) / len(loads)
    groups = snapshot.group_load(measure)
    return tuple(
        Finding(
            kind=GROUP_EXCEEDS_MEAN,
            group=group,
            worker=snapshot.owners[group],
            text=(
                f"Group {group} alone has {groups[group] / mean:.2f} times the mean {measure} load of an executor: "
                "moving it cannot level the load. More partitions, or a key with more values, would split it."
            ),
        )
        for group in np.flatnonzero(groups > mean).tolist()
        if mean > 0
    )


def check_worker(snapshot: Snapshot, worker: int) -> None:
    if not 0 <= worker < len(snapshot.workers):
        raise InvalidInput(
            "worker", worker, "is not a worker of this query", f"Use a number from 0 to {len(snapshot.workers) - 1}."
        )
    if not snapshot.workers[worker].alive:
        raise InvalidInput("worker", worker, "is down", "Wait until it reports again.")
