"""Brings a world to its end, and says whether it has come to a good one.

No new faults from here on; those that last stay. Batches and turns go on and event time advances, so everything that
was begun must end. Then: results are those of the naive join, each group has one owner and nobody else has rows of it,
nothing is left over anywhere, and no audit has found anything.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from balancing.protocols.migration import Migration
from balancing.protocols.table import State
from balancing.settings import Settings
from manager.store import Records
from tests.simulator.files import StoreFault
from tests.simulator.managers import driven
from tests.simulator.shape import Row
from tests.simulator.spark import QUERY
from tests.simulator.world import World
from trimtab import redis_keys
from trimtab.epochs import breaks_between, check_epoch
from trimtab.moves import RoleState
from worker import reference
from worker.durable import is_aside

ROUNDS_MAX: Final = 120
ROUNDS_AFTER: Final = 5
BUGS: Final = frozenset({"audit", "manager", "protocol", "journal"})
"""Alarms that a fault of the world never is a reason for."""
FINISHER: Final = "finisher"
UNCOLLECTED: Final = (StoreFault.READ_ONLY, StoreFault.UNLISTABLE)
"""Faults of the transfer store that keep what is in it."""


class Ending:
    """What the last act needs to know of a world, and may do to it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.spark, self.shape = world.spark, world.story.shape
        self._row_id = 1_000_000

    # -- the last act

    def bring_about(self) -> None:
        """Raises AssertionError where something that was begun does not end."""
        self._heal()
        for _ in range(ROUNDS_MAX):
            self._round()
            if not self.under_way():
                break
        else:
            raise AssertionError("does not end: " + "; ".join(self.under_way()))
        for _ in range(ROUNDS_AFTER):
            self._round()
        # What a fault kept in the transfer store is collected when the query starts again.
        self.world.driver_stops()
        self._round()

    def _heal(self) -> None:
        world = self.world
        network = world.network
        network.down, network.lost_questions, network.lost_answers, network.slow_ms = False, 0, 0, 0.0
        world.plane.is_cut = False
        files = world.files
        if not world.fault_lasts:
            files.fault = StoreFault.NONE
        files.unlistable = files.unreadable = 0  # those that last are faults of their own
        for manager in world.managers.values():
            manager.client.is_cut = False
        world.manager_starts(FINISHER)
        world.finish_batch()
        driven(world.store.set_auto(QUERY, Settings()))
        while self.spark.workers.lingering:
            self.spark.linger(0)

    def _round(self) -> None:
        """A batch with rows of every stream, and a turn of every manager."""
        world = self.world
        newest = max([0, *self.spark._newest_us.values()])
        at = newest + self.shape.window_us // 2 + self.shape.lateness_us // 2 + 1_000
        rows: dict[str, list[Row]] = {}
        for place, name in enumerate(self.shape.names):
            self._row_id += 1
            rows[name] = [(self._row_id % 5, at + place * 250, self._row_id)]
        world.batch({name: [list(row) for row in each] for name, each in rows.items()})
        for manager in list(world.managers.values()):
            manager.turn()
        if world.bugs:
            raise AssertionError(f"a manager failed: {world.bugs[0]}")

    def records(self) -> Records:
        records = driven(self.world.store.records(QUERY))
        assert records is not None
        return records

    def under_way(self) -> list[str]:
        """What has not ended yet."""
        records, spark = self.records(), self.spark
        left = [f"{each.id} is {each.state}" for each in records.migrations.values() if not each.done]
        left += [f"{each.id} is {each.state}" for each in records.rebalances.values() if each.open]
        left += [f"{kind} {name} cannot be read: {problem}" for kind, name, problem in records.unreadable]
        left += [f"move {move.id} is open" for move in spark.bound.moves]
        left += [f"{question.migration} asks worker {question.worker}" for question in spark.bound.questions]
        left += [f"request {text}" for text in self.world.server.lrange(redis_keys.requests(QUERY), 0, -1)]
        if spark.reader is None:
            left.append("the driver is down")
        return left

    # -- the verdict

    def problems(self) -> Iterator[str]:
        yield from self._results()
        yield from self.world.strangers[:3]
        yield from self._epochs()
        yield from self._leftovers()
        yield from self._alarms()
        for migration in self.records().migrations.values():
            yield from self._record(migration)

    def _results(self) -> Iterator[str]:
        expected = expected_results(self.spark.on_time, self.shape.window_us)
        missing, extra = expected - self.spark.results, self.spark.results - expected
        if missing:
            yield f"{sum(missing.values())} results are missing, such as {missing.most_common(3)}"
        if extra:
            yield f"{sum(extra.values())} results are too many, such as {extra.most_common(3)}"

    def _epochs(self) -> Iterator[str]:
        epochs = self.spark.epochs
        for before, after in pairwise(epochs):
            if before != after:
                yield from (f"epoch {after.number}: {problem}" for problem in breaks_between(before, after))
                check_epoch(after, self.shape.partitions, self.shape.workers)

    def _leftovers(self) -> Iterator[str]:
        """Roles, rows that wait, rows of groups that belong to others."""
        owners = self.spark.bound.owners
        streams = len(self.shape.names)
        for worker, durable in enumerate(self.spark.workers.durable):
            record, outcome = durable.record(), self.spark.workers.last[worker]
            assert record is not None and outcome is not None and outcome.group_state_rows is not None
            for role in record.roles:
                if role.state != RoleState.CLOSED:
                    yield f"worker {worker} has a role left: {role}"
            if aside := [key for key in durable.rows_kept if is_aside(key, streams)]:
                yield f"worker {worker} keeps rows aside: {aside}"
            for group, rows in enumerate(outcome.group_state_rows.tolist()):
                if rows and owners[group] != worker:
                    yield f"worker {worker} has {rows} rows of group {group}, which belongs to worker {owners[group]}"
        files = self.world.files
        if files.fault not in UNCOLLECTED and files.files:
            yield f"the transfer store is not empty: {sorted(files.files)}"

    def _alarms(self) -> Iterator[str]:
        for told in self.world.server.told:
            if told.alarm and (told.kind in BUGS or (told.kind == "request" and not self.world.garbage_count)):
                yield f"alarm {told.kind}: {told.text}"

    def _record(self, migration: Migration) -> Iterator[str]:
        """A wave that the record calls committed was closed at its receiver, one that was rolled back was not."""
        verdict = migration.audit.verdict()
        if verdict.problems or verdict.lost or verdict.doubled:
            yield f"{migration.id}: the audit says {verdict}"
        if self.world.is_calm and not verdict.clean:
            yield f"{migration.id}: not clean, although nothing went wrong: {verdict}"
        for number, wave in enumerate(migration.waves, 1):
            ends = self._ends_of(migration.move_id(number))
            closed_there = ends[-1] == migration.receiver if ends else False
            if wave.groups and (wave.state == State.COMMITTED) != closed_there:
                yield f"{migration.id}, wave {number} is {wave.state}, but the epochs ended it with {ends or 'nothing'}"

    def _ends_of(self, move: str) -> list[int]:
        """Who had the groups of a move when it was closed, each time."""
        epochs = self.spark.epochs
        ends = []
        for before, after in pairwise(epochs):
            known = before.move(move)
            if known is not None and after.move(move) is None:
                ends.append(after.owners[known.groups[0]])
        return ends


def expected_results(on_time: Mapping[str, Sequence[Row]], window_us: int) -> Counter[tuple[int, ...]]:
    """The naive join (worker.reference), of the rows near each row of the first stream."""
    (first, anchors), *others = on_time.items()
    by_key = {name: _by_key(rows) for name, rows in others}
    results: Counter[tuple[int, ...]] = Counter()
    for row in anchors:
        near = {
            name: [each for each in rows.get(row[0], ()) if abs(each[1] - row[1]) <= window_us]
            for name, rows in by_key.items()
        }
        if all(near.values()):
            results.update(reference.join({first: [row], **near}, window_us))
    return results


def _by_key(rows: Sequence[Row]) -> dict[int, list[Row]]:
    keys: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        keys[row[0]].append(row)
    return keys
