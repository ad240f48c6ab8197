"""Workers and split tasks that are damaged on purpose, each in one place where a row is touched.

A damage is what a wrong line of production code would do. The audit of some migration must find each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

import split_union.split
import worker.batch
from split_union.routing import Routes
from split_union.split import SplitTask
from trimtab.moves import RoleState
from worker.buffers import Tuples
from worker.durable import Role
from worker.engine import Engine, Exported
from worker.joining import JoinState
from worker.load import GroupLoad
from worker.protocol import WorkerMoves

Make = Callable[[Any], Any]
"""From the method as it is to the damaged one."""


@dataclass(frozen=True)
class Damage:
    owner: Any
    name: str
    make: Make
    ways: tuple[str, ...] = ("there",)
    """Which migrations it shows in (calm.py)."""

    def do(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(self.owner, self.name, self.make(getattr(self.owner, self.name)))


# -- packing and taking in


def _takes_in_nothing(_: Any) -> Any:
    return lambda self, leaves, combined: None


def _takes_in_one_stream_less(original: Any) -> Any:
    def take_in(self: Engine, leaves: list[Tuples], combined: Any) -> None:
        original(self, [each for each in leaves if each.streams != ("A",)], {})

    return take_in


def _takes_in_twice(original: Any) -> Any:
    def take_in(self: Engine, leaves: list[Tuples], combined: Any) -> None:
        original(self, leaves, combined)
        original(self, leaves, combined)

    return take_in


def _takes_in_another_key(original: Any) -> Any:
    def take_in(self: Engine, leaves: list[Tuples], combined: Any) -> None:
        original(self, [replace(each, code=each.code + 1) for each in leaves], combined)

    return take_in


def _takes_in_another_time(original: Any) -> Any:
    def take_in(self: Engine, leaves: list[Tuples], combined: Any) -> None:
        original(self, [replace(each, lo=each.lo + 1, hi=each.hi + 1) for each in leaves], combined)

    return take_in


def _forgets_combined(_: Any) -> Any:
    def take_in(self: Engine, leaves: list[Tuples], combined: object) -> None:
        for tuples in leaves:
            self.keep(tuples)

    return take_in


def _packs_without_one_stream(original: Any) -> Any:
    def export(self: Engine, groups: list[int]) -> Exported:
        whole = original(self, groups)
        return Exported(
            {stream: each for stream, each in whole.leaves.items() if stream != "B"},
            {},
            {stream: each for stream, each in whole.rows.items() if stream != "B"},
        )

    return export


def _packs_every_second_row(original: Any) -> Any:
    def export(self: Engine, groups: list[int]) -> Exported:
        whole = original(self, groups)
        rows = {stream: each.take(np.arange(0, len(each), 2)) for stream, each in whole.rows.items()}
        leaves = {stream: list(self.payload[stream].batches_of(each.refs[0])) for stream, each in rows.items()}
        return Exported(leaves, {}, rows)

    return export


# -- rows that wait


def _thrown_away(_: Any) -> Any:
    return lambda self, role, stream, rows: None


def _loses_some(original: Any) -> Any:
    def refiled(self: WorkerMoves, role: Role) -> Iterator[Any]:
        return (rows for number, rows in enumerate(original(self, role)) if number % 2)

    return refiled


def _loses_all(original: Any) -> Any:
    def refiled(self: WorkerMoves, role: Role) -> Iterator[Any]:
        list(original(self, role))
        return iter(())

    return refiled


def _joins_twice(original: Any) -> Any:
    def refiled(self: WorkerMoves, role: Role) -> Iterator[Any]:
        for rows in original(self, role):
            yield rows
            yield self._file(rows.stream, rows.frame)

    return refiled


def _adds_without_results(_: Any) -> Any:
    def join(self: JoinState, rows: Any) -> None:
        self.add_silently(range(self.engine.spec.partitions), [rows])

    return join


def _emits_while_silent(_: Any) -> Any:
    def add_silently(self: JoinState, groups: list[int], rows: list[Any]) -> None:
        for each in rows:
            self.results.append(self.engine.insert(self._loaded(each), GroupLoad.zero(self.engine.spec.partitions)))
        self._stored(groups)

    return add_silently


def _adds_nothing(_: Any) -> Any:
    return lambda self, groups, rows: self._stored(groups)


def _joins_instead_of_waiting(original: Any) -> Any:
    def put_aside(self: WorkerMoves, arrived: dict[str, list[pa.RecordBatch]], counts: Any) -> Any:
        original(self, arrived, counts)
        return arrived

    return put_aside


# -- the join


def _doubled(original: Any) -> Any:
    def insert(self: Engine, new: Tuples, load: GroupLoad) -> Tuples:
        results: Tuples = original(self, new, load)
        return results.take(np.repeat(np.arange(len(results)), 2))

    return insert


def _copies(original: Any) -> Any:
    """Every result of a key becomes the first one: as many as there should be."""

    def insert(self: Engine, new: Tuples, load: GroupLoad) -> Tuples:
        results: Tuples = original(self, new, load)
        _, first, place = np.unique(results.code, return_index=True, return_inverse=True)
        return results.take(first[place])

    return insert


def _inserted_twice(original: Any) -> Any:
    def insert(self: Engine, new: Tuples, load: GroupLoad) -> Tuples:
        results: Tuples = original(self, new, load)
        self.keep(new)
        return results

    return insert


def _inserted_at_another_time(original: Any) -> Any:
    def insert(self: Engine, new: Tuples, load: GroupLoad) -> Tuples:
        results: Tuples = original(self, replace(new, lo=new.lo + 1, hi=new.hi + 1), load)
        return results

    return insert


def _results_lost(original: Any) -> Any:
    def insert(self: Engine, new: Tuples, load: GroupLoad) -> Tuples:
        results: Tuples = original(self, new, load)
        return results.take(np.arange(0, len(results), 2))

    return insert


def _not_inserted(original: Any) -> Any:
    def insert(self: Engine, new: Tuples, load: GroupLoad) -> Tuples:
        results: Tuples = original(self, new.take(np.arange(0, len(new), 2)), load)
        return results

    return insert


def _pieces_doubled(original: Any) -> Any:
    def results(self: Engine, *arguments: Any) -> Iterator[Any]:
        for piece in original(self, *arguments):
            yield piece
            yield piece

    return results


def _piece_lost(original: Any) -> Any:
    def results(self: Engine, *arguments: Any) -> Iterator[Any]:
        for piece in original(self, *arguments):
            yield piece.slice(0, piece.num_rows // 2)

    return results


def _late_by(us: int) -> Make:
    def make(original: Any) -> Any:
        return lambda batch, record: original(batch, record) + us

    return make


def _purges_by(us: int) -> Make:
    def make(original: Any) -> Any:
        return lambda self, horizon: original(self, horizon + us)

    return make


def _stays(_: Any) -> Any:
    return lambda self, groups: None


def _does_not_freeze(_: Any) -> Any:
    return lambda self, groups, horizon_us: None


def _keeps_what_it_joined(_: Any) -> Any:
    return lambda self, role: None


def _vanish_after_the_close(original: Any) -> Any:
    def begin(self: WorkerMoves, state: JoinState, horizon_us: int) -> None:
        state.expire([g for role in self.roles if role.state == RoleState.CLOSED for g in role.groups])
        original(self, state, horizon_us)

    return begin


def _vanish_between_moves(original: Any) -> Any:
    """A worker loses rows that have come by one move, in the batch in which the next one is to take them on."""

    def begin(self: WorkerMoves, state: JoinState, horizon_us: int) -> None:
        closed = {group for role in self.roles if role.state == RoleState.CLOSED for group in role.groups}
        state.expire([g for role in self.roles if role.state == RoleState.ACTIVE for g in role.groups if g in closed])
        original(self, state, horizon_us)

    return begin


# -- PTLB


def _sender_emits_nothing(original: Any) -> Any:
    def insert(self: Engine, new: Tuples, load: GroupLoad) -> Tuples:
        results: Tuples = original(self, new, load)
        return results.take(np.arange(0)) if self.tracks else results

    return insert


def _leaves_out_too_much(original: Any) -> Any:
    def without(self: Engine, results: Tuples, suppressed: Any) -> Tuples:
        left: Tuples = original(self, results, suppressed)
        return left.take(np.arange(0, len(left), 2))

    return without


def _emits_all_new(_: Any) -> Any:
    return lambda self, results, suppressed: results


# -- split


def _to_the_wrong_worker(original: Any) -> Any:
    """The routes of moving groups point to the next worker."""

    def routes_of(epoch: Any, epoch_before: int) -> Routes:
        routes: Routes = original(epoch, epoch_before)
        owner = routes.owner.copy()
        for group in epoch.moving:
            third = {0, 1, 2} - {int(owner[group]), int(routes.also[group])}
            owner[group] = max(third)
        return Routes(owner, routes.also)

    return routes_of


def _loses_in_split(original: Any) -> Any:
    def frames(self: SplitTask, batch: pa.RecordBatch, routes: Routes, reached: set[int]) -> Iterator[pa.RecordBatch]:
        return original(self, batch.slice(0, max(1, batch.num_rows - 1)), routes, reached)  # type: ignore[no-any-return]

    return frames


def _doubles_in_split(original: Any) -> Any:
    def frames(self: SplitTask, batch: pa.RecordBatch, routes: Routes, reached: set[int]) -> Iterator[pa.RecordBatch]:
        return original(self, pa.concat_batches([batch, batch.slice(0, 1)]), routes, reached)  # type: ignore[no-any-return]

    return frames


def _no_copies(original: Any) -> Any:
    def routes_of(epoch: Any, epoch_before: int) -> Routes:
        routes: Routes = original(epoch, epoch_before)
        return Routes(routes.owner, np.full_like(routes.also, -1))

    return routes_of


LOST: Final = ("there, package lost",)
HELD: Final = ("back, nothing packed",)
JOINED: Final = ("back, joined",)
PTLB: Final = ("parallel",)
AGAIN: Final = ("there, and on at once",)
DAMAGES: Final[Mapping[str, Damage]] = {
    "take-in inserts nothing": Damage(Engine, "take_in", _takes_in_nothing),
    "take-in loses a stream": Damage(Engine, "take_in", _takes_in_one_stream_less),
    "take-in inserts twice": Damage(Engine, "take_in", _takes_in_twice),
    "take-in changes keys": Damage(Engine, "take_in", _takes_in_another_key),
    "take-in changes times": Damage(Engine, "take_in", _takes_in_another_time),
    "take-in forgets intermediate states": Damage(Engine, "take_in", _forgets_combined),
    "the package lacks a stream": Damage(Engine, "export", _packs_without_one_stream),
    "the package lacks rows": Damage(Engine, "export", _packs_every_second_row),
    "rows that must wait are thrown away": Damage(WorkerMoves, "_keep_aside", _thrown_away),
    "some rows that waited at the receiver are lost": Damage(WorkerMoves, "_refiled", _loses_some, LOST),
    "all rows that waited at the receiver are lost": Damage(WorkerMoves, "_refiled", _loses_all, LOST),
    "rows that waited at the receiver are joined twice": Damage(WorkerMoves, "_refiled", _joins_twice, LOST),
    "rows that wait are joined, too": Damage(WorkerMoves, "put_aside", _joins_instead_of_waiting, LOST),
    "some rows that waited at the sender are lost": Damage(WorkerMoves, "_refiled", _loses_some, HELD),
    "all rows that waited at the sender are lost": Damage(WorkerMoves, "_refiled", _loses_all, HELD),
    "rows that waited at the sender are joined twice": Damage(WorkerMoves, "_refiled", _joins_twice, HELD),
    "rows that waited at the receiver are joined, and wait on": Damage(
        WorkerMoves, "_drop_aside", _keeps_what_it_joined, LOST
    ),
    "rows that waited at the sender get no results": Damage(JoinState, "join", _adds_without_results, HELD),
    "a silent restore adds twice": Damage(WorkerMoves, "_refiled", _joins_twice, JOINED),
    "a silent restore emits": Damage(JoinState, "add_silently", _emits_while_silent, JOINED),
    "a silent restore adds nothing": Damage(JoinState, "add_silently", _adds_nothing, JOINED),
    "a silent restore loses rows": Damage(WorkerMoves, "_refiled", _loses_some, JOINED),
    "results are doubled in the engine, MSLB": Damage(Engine, "insert", _doubled),
    "results are doubled in the engine, PTLB": Damage(Engine, "insert", _doubled, PTLB),
    "results are replaced by copies of others, MSLB": Damage(Engine, "insert", _copies),
    "results are replaced by copies of others, PTLB": Damage(Engine, "insert", _copies, PTLB),
    "rows are inserted twice, MSLB": Damage(Engine, "insert", _inserted_twice),
    "rows are inserted twice, PTLB": Damage(Engine, "insert", _inserted_twice, PTLB),
    "rows are inserted with another time, MSLB": Damage(Engine, "insert", _inserted_at_another_time),
    "rows are inserted with another time, PTLB": Damage(Engine, "insert", _inserted_at_another_time, PTLB),
    "results are lost in the engine, MSLB": Damage(Engine, "insert", _results_lost),
    "results are lost in the engine, PTLB": Damage(Engine, "insert", _results_lost, PTLB),
    "rows are not inserted, MSLB": Damage(Engine, "insert", _not_inserted),
    "rows are not inserted, PTLB": Damage(Engine, "insert", _not_inserted, PTLB),
    "output pieces are doubled, MSLB": Damage(Engine, "results", _pieces_doubled),
    "output pieces are doubled, PTLB": Damage(Engine, "results", _pieces_doubled, PTLB),
    "output pieces lose rows": Damage(Engine, "results", _piece_lost),
    "late too soon, MSLB": Damage(worker.batch, "_late_us", _late_by(600_000)),
    "late too soon, PTLB": Damage(worker.batch, "_late_us", _late_by(600_000), PTLB),
    "late too late, MSLB": Damage(worker.batch, "_late_us", _late_by(-600_000)),
    "late too late, PTLB": Damage(worker.batch, "_late_us", _late_by(-600_000), PTLB),
    "the purge drops too much, MSLB": Damage(Engine, "purge", _purges_by(900_000)),
    "the purge drops too much, PTLB": Damage(Engine, "purge", _purges_by(900_000), PTLB),
    "groups that left stay, MSLB": Damage(Engine, "expire", _stays),
    "groups that went back stay": Damage(Engine, "expire", _stays, JOINED),
    "groups that left stay, PTLB": Damage(Engine, "expire", _stays, PTLB),
    "frozen groups expire": Damage(Engine, "freeze", _does_not_freeze, LOST),
    "rows vanish after the close, MSLB": Damage(WorkerMoves, "begin", _vanish_after_the_close),
    "rows vanish after the close, PTLB": Damage(WorkerMoves, "begin", _vanish_after_the_close, PTLB),
    "rows vanish between two moves of a group": Damage(WorkerMoves, "begin", _vanish_between_moves, AGAIN),
    "the PTLB sender emits nothing": Damage(Engine, "insert", _sender_emits_nothing, PTLB),
    "the PTLB sender emits what is all new, too": Damage(Engine, "_without_all_new", _emits_all_new, PTLB),
    "the PTLB sender leaves out too much": Damage(Engine, "_without_all_new", _leaves_out_too_much, PTLB),
    "split sends rows to the wrong worker, MSLB": Damage(split_union.split, "routes_of", _to_the_wrong_worker),
    "split sends rows to the wrong worker, PTLB": Damage(split_union.split, "routes_of", _to_the_wrong_worker, PTLB),
    "split sends no copies, MSLB": Damage(split_union.split, "routes_of", _no_copies),
    "split sends no copies, PTLB": Damage(split_union.split, "routes_of", _no_copies, PTLB),
    "split sends rows twice, MSLB": Damage(SplitTask, "_frames", _doubles_in_split),
    "split sends rows twice, PTLB": Damage(SplitTask, "_frames", _doubles_in_split, PTLB),
    "split loses rows, MSLB": Damage(SplitTask, "_frames", _loses_in_split),
    "split loses rows, PTLB": Damage(SplitTask, "_frames", _loses_in_split, PTLB),
}
