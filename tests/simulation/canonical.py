"""Values kept once, under small numbers, and without what no decision depends on: so worlds recur and are small.

Of migrations, rebalances and steerings everything goes that only people read: stories, reasons, times, audits (they
count, and change nothing). Of instructions those stay that leave a trace; one that only says something, or only holds,
leaves its steering to the instruction before it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Final, Generic, NamedTuple, TypeVar

from balancing.audit import MigrationAudit
from balancing.instructions import Instruction, Propose, PublishEpoch, Write
from balancing.protocols.migration import COMMITTED, Migration
from balancing.replans.replan import Replan
from balancing.replans.table import State as ReplanState
from balancing.replans.trigger import PlanTrigger
from balancing.requests import Rebalance
from balancing.steering import Steering
from balancing.triggers import TriggerState
from tests.simulation.plane import Wrong
from trimtab.epochs import Epoch

T = TypeVar("T")

NO_AUDIT: Final = MigrationAudit(newest_batch=10**9)
"""It has seen all batches to come."""
NO_STALLS: Final = Steering(query="").stalls
NOTHING: Final = -1


class Interned(Generic[T]):
    """Values by number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.values: list[T] = []

    def of(self, value: T, key: Hashable | None = None) -> int:
        key = value if key is None else key
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(value)
        return number

    def __getitem__(self, number: int) -> T:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)


def plain_migration(migration: Migration) -> Migration:
    problem = "why" if migration.problem else ""
    return replace(
        migration, story=(), problem=problem, reason="", requested_by="", created_ms=0, adopted=False, audit=NO_AUDIT
    )


def plain_rebalance(rebalance: Rebalance) -> Rebalance:
    return replace(rebalance, request={}, by="", reason="", created_ms=0, closed_ms=None, refusal=None, note="")


def rebalance_key(rebalance: Rebalance) -> Hashable:
    """What is left of a plain one."""
    return rebalance.id, rebalance.state, rebalance.migrations, rebalance.automatic


def plain_replan(replan: Replan) -> Replan:
    counts = replan.state in (ReplanState.SETTLED, ReplanState.CLOSING)
    return replace(
        replan,
        story=(),
        problem="why" if replan.problem else "",
        refusal=None,
        reason="",
        by="",
        note="",
        created_ms=0,
        adopted=False,
        settled_batch=replan.settled_batch if counts else NOTHING,
    )


class Do(NamedTuple):
    """An instruction that leaves a trace; all but `point` are numbers of interned values."""

    then: int
    migrations: tuple[int, ...] = ()
    rebalances: tuple[int, ...] = ()
    replans: tuple[int, ...] = ()
    request: int = NOTHING
    epoch: int = NOTHING
    point: str = ""

    @property
    def is_record(self) -> bool:
        """Whether it writes migrations and nothing else."""
        return bool(self.migrations) and not (self.rebalances or self.replans) and self.request == NOTHING


class Canon:
    """The interned values of one search."""

    def __init__(self) -> None:
        self.migrations: Interned[Migration] = Interned()
        self.rebalances: Interned[Rebalance] = Interned()
        self.replans: Interned[Replan] = Interned()
        self.steerings: Interned[Steering] = Interned()
        self.epochs: Interned[Epoch] = Interned()
        self.digests: list[str] = []
        self.requests: Interned[str] = Interned()
        """Texts, as the list of requests has them."""

    def migration(self, migration: Migration) -> int:
        return self.migrations.of(plain_migration(migration))

    def rebalance(self, rebalance: Rebalance) -> int:
        plain = plain_rebalance(rebalance)
        return self.rebalances.of(plain, rebalance_key(plain))

    def replan(self, replan: Replan) -> int:
        return self.replans.of(plain_replan(replan))

    def epoch(self, epoch: Epoch) -> int:
        return self.epochs.of(epoch)

    def steering(self, steering: Steering) -> int:
        migrations = [self.migration(each) for each in steering.migrations]
        ended = [self.migration(each) for each in sorted(steering.ended, key=lambda each: each.id)]
        rebalances = [self.rebalance(each) for each in steering.rebalances]
        over = [self.rebalance(each) for each in sorted(steering.ended_rebalances, key=lambda each: each.id)]
        replans = [self.replan(each) for each in steering.replans]
        left = [self.replan(each) for each in sorted(steering.ended_replans, key=lambda each: each.id)]
        key = (steering.fence, steering.parked, *map(tuple, (migrations, ended, rebalances, over, replans, left)))
        plain = replace(
            steering,
            migrations=tuple(self.migrations[each] for each in migrations),
            ended=tuple(self.migrations[each] for each in ended),
            rebalances=tuple(self.rebalances[each] for each in rebalances),
            ended_rebalances=tuple(self.rebalances[each] for each in over),
            replans=tuple(self.replans[each] for each in replans),
            ended_replans=tuple(self.replans[each] for each in left),
            waits={},
            planner=PlanTrigger(),
            trigger=TriggerState(),
            was_busy=False,
            stalls=NO_STALLS,
        )
        return self.steerings.of(plain, key)

    def instructions(self, before: int, instructions: Sequence[Instruction]) -> tuple[tuple[Do, ...], int]:
        """Those that leave a trace, and the steering that holds in the end."""
        durable: list[Do] = []
        held = before
        written: set[int] = set()
        for instruction in instructions:
            held = self.steering(instruction.then)
            do = self._do(instruction, held)
            if do is not None and not (do.is_record and written.issuperset(do.migrations)):
                durable.append(do)
                written.update(do.migrations)
            elif durable:
                # Nothing but an audit is new.
                durable[-1] = durable[-1]._replace(then=held)
        return tuple(durable), held

    def _do(self, instruction: Instruction, then: int) -> Do | None:
        if isinstance(instruction, PublishEpoch):
            return Do(then, epoch=self.epoch(instruction.epoch))
        if isinstance(instruction, Write):
            for alarm in instruction.alarms:
                if alarm.kind == "protocol":
                    raise Wrong(alarm.text)
            for each in instruction.migrations:
                if each.done and each.outcome != COMMITTED and not each.problem:
                    raise Wrong(f"{each.id} ended {each.outcome}, and its record does not say why")
            migrations = tuple(self.migration(each) for each in instruction.migrations)
            rebalances = tuple(self.rebalance(each) for each in instruction.rebalances)
            request = self.requests.of(instruction.request) if instruction.request else NOTHING
            for replan in instruction.replans:
                if replan.done and replan.state != ReplanState.COMMITTED and not replan.problem:
                    raise Wrong(f"{replan.id} ended {replan.state}, and its record does not say why")
            replans = tuple(self.replan(each) for each in instruction.replans)
            if migrations or rebalances or replans or request != NOTHING:
                return Do(then, migrations, rebalances, replans, request, point=instruction.point)
        if isinstance(instruction, Propose):
            raise Wrong(f"nobody asked for a proposal: {instruction}")
        return None
