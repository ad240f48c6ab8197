"""What a batch does to the small data plane: the production table of the workers, with toy actions.

What a worker does about a move is not decided here. The facts come from the epoch, what follows from them from the
workers' table (worker/roles.py), the routes from split_union/routing.py, whether an epoch may follow at all from
worker/continuity.py. Here are only the actions, done on rows that are their ages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from split_union.routing import NOBODY, routes_of
from tests.simulation.plane import (
    LUCKY,
    WINDOW,
    Ages,
    Applied,
    Cell,
    Luck,
    Package,
    Plane,
    Role,
    Worker,
    Wrong,
    too_old,
)
from trimtab.epochs import Epoch
from trimtab.moves import Kind, RoleState
from worker.continuity import check_continuity
from worker.durable import Record
from worker.durable import Role as RecordedRole
from worker.roles import Action, Arrival, Fact, Row, arrival, closing_fact, end_fact, fact_of, transition


def run_batch(plane: Plane, epoch: Epoch, before: int, luck: Luck = LUCKY, taken: set[Row] | None = None) -> Plane:
    """What is there after one attempt at a batch that is bound to `epoch`, after one bound to number `before`.

    `taken` is told which rows of the workers' table were taken.
    """
    return _Batch(plane, epoch, before, luck, set() if taken is None else taken).run()


@cache
def _routes(epoch: Epoch, before: int) -> tuple[frozenset[int], ...]:
    """By group, the workers that get its rows."""
    routes = routes_of(epoch, before)
    pairs = zip(routes.owner.tolist(), routes.also.tolist(), strict=True)
    return tuple(frozenset({owner, also} - {NOBODY}) for owner, also in pairs)


def _older(ages: Ages) -> Ages:
    return tuple(age + 1 for age in ages)


class _Batch:
    """One attempt at one batch, at all workers."""

    def __init__(self, plane: Plane, epoch: Epoch, before: int, luck: Luck, taken: set[Row]) -> None:
        self.taken = taken
        self.epoch, self.before, self.luck, self.applied = epoch, before, luck, plane.applied
        self.brings_rows = not too_old(plane)
        self.cells = [list(worker.cells) for worker in plane.workers]
        self.roles = [worker.roles for worker in plane.workers]
        store = () if luck.gone else plane.store
        self.store = {(package.move, package.epoch): package for package in store}
        self.due = [set(pairs) for pairs in plane.due]
        self.joined: list[set[int]] = [set() for _ in plane.due]
        """By group: where its new row was joined."""

    def run(self) -> Plane:
        if self.brings_rows:
            self._grow_older()
        workers = range(len(self.cells))
        for worker in reversed(workers) if self.luck.backwards else workers:
            _Task(self, worker).run()
        self._check()
        return Plane(
            tuple(Worker(tuple(cells), roles) for cells, roles in zip(self.cells, self.roles, strict=True)),
            tuple(sorted(self.store.values())),
            tuple(frozenset(pairs) for pairs in self.due),
            Applied(self.epoch.number, self.epoch.fence, self.epoch.owners),
        )

    def _grow_older(self) -> None:
        for cells in self.cells:
            for group, cell in enumerate(cells):
                fresh = cell.fresh if cell.fresh < 0 else min(cell.fresh + 1, WINDOW + 2)
                cells[group] = Cell(_older(cell.rows), _older(cell.aside), cell.frozen, fresh)
        for name, package in self.store.items():
            self.store[name] = package._replace(rows=tuple(map(_older, package.rows)))
        for group, pairs in enumerate(self.due):
            self.due[group] = {(old + 1, new + 1) for old, new in pairs} | {(age, 0) for age in range(1, WINDOW + 1)}

    def make(self, group: int, old: int, new: int) -> None:
        """A result."""
        if (old, new) not in self.due[group]:
            raise Wrong(f"doubled: group {group}, result of rows aged {old} and {new}")
        self.due[group].discard((old, new))

    def _check(self) -> None:
        moving = self.epoch.moving
        for group, pairs in enumerate(self.due):
            both = group in moving and moving[group].kind == Kind.DUPLICATE
            if len(self.joined[group]) > (2 if both else 1):
                raise Wrong(f"group {group} is joined at workers {sorted(self.joined[group])}")
            waiting = {age for cells in self.cells for age in cells[group].aside}
            lost = sorted(pair for pair in pairs if pair[1] not in waiting)
            if lost:
                raise Wrong(f"lost: group {group}, results of rows aged {lost}")


class _Task:
    """One attempt at one batch, at one worker: as worker/protocol.py does it, with toy actions."""

    def __init__(self, batch: _Batch, worker: int) -> None:
        self.batch = batch
        self.worker = worker
        check_continuity(self._record(), 1 + batch.applied.missed, batch.epoch, worker)
        self.cells = batch.cells[worker]
        self.moves = {move.id: move for move in batch.epoch.moves if move.side_of(worker) is not None}
        known = {role.move: role for role in batch.roles[worker]}
        for move in self.moves.values():
            side = move.side_of(worker)
            assert side is not None
            if move.id in known and known[move.id].epoch != move.epoch:
                raise Wrong(f"{move.id} was opened again before worker {worker} saw it closed")
            known.setdefault(move.id, Role(move.id, move.epoch, move.kind, side, move.groups))
        self.roles = known

    def _record(self) -> Record:
        """What the worker's durable record says of epochs and roles; its last batch is number 0."""
        applied = self.batch.applied
        owned = [group for group, owner in enumerate(applied.owners) if owner == self.worker]
        roles = [
            RecordedRole(role.move, role.kind, role.side, list(role.groups), role.epoch, role.state)
            for role in self.batch.roles[self.worker]
        ]
        return Record(
            batch=0, stamp="", applied_epoch=applied.number, fence=applied.fence, watermark_us=0, horizon_us=0, plan="",
            groups=[], owned=owned, roles=roles,
        )  # fmt: skip

    def run(self) -> None:
        for name, role in self.roles.items():
            if name not in self.moves:
                self._learn(name, closing_fact(name, role.groups, self.batch.epoch.owners, self.worker))
        for name, move in self.moves.items():
            self._learn(name, fact_of(move, self.batch.before))
        if self.batch.brings_rows:
            self._rows_arrive()
        self._purge()
        for name, move in self.moves.items():
            fact = end_fact(move)
            if fact is not None:
                self._learn(name, fact)
        left = [role for role in self.roles.values() if role.state != RoleState.CLOSED]
        self.batch.roles[self.worker] = tuple(sorted(left))

    def _learn(self, name: str, fact: Fact | None) -> None:
        """Do what the table says, and what follows from that."""
        while fact is not None:
            role = self.roles[name]
            row = transition(name, role.kind, role.side, role.state, fact)
            self.batch.taken.add(row)
            self.roles[name] = role._replace(state=row.next)
            fact = None
            for action in row.actions:
                fact = _EXECUTE[action](self, self.roles[name])

    def _rows_arrive(self) -> None:
        """The new row of each group that is routed here."""
        role_of = {group: role for role in self.roles.values() for group in role.groups if role.move in self.moves}
        for group, workers in enumerate(_routes(self.batch.epoch, self.batch.before)):
            if self.worker not in workers:
                continue
            role = role_of.get(group)
            if role is None and self.batch.epoch.owners[group] != self.worker:
                raise Wrong(f"a row of group {group} comes to worker {self.worker}, which has no part in it")
            what = Arrival.JOIN if role is None else arrival(role.kind, role.side, role.state)
            cell = self.cells[group]
            if what == Arrival.NONE:
                raise Wrong(f"a row of group {group} comes to worker {self.worker}, which is {role}")
            if what == Arrival.ASIDE:
                self.cells[group] = cell._replace(aside=(0, *cell.aside))
            else:
                self.batch.joined[group].add(self.worker)
                self._join(group, 0)

    def _join(self, group: int, new: int) -> None:
        """A row with the rows that are there. A sender that tracks leaves out what is all new."""
        cell = self.cells[group]
        for old in cell.rows:
            if 1 <= old - new <= WINDOW and not (cell.fresh >= 0 and old < cell.fresh):
                self.batch.make(group, old, new)
        self.cells[group] = cell._replace(rows=tuple(sorted((new, *cell.rows))))

    def _purge(self) -> None:
        for group, cell in enumerate(self.cells):
            if not cell.frozen:
                self.cells[group] = cell._replace(rows=tuple(age for age in cell.rows if age <= WINDOW))

    # -- actions

    def _each(self, role: Role, **changes: Any) -> None:
        for group in role.groups:
            self.cells[group] = self.cells[group]._replace(**changes)

    def _freeze(self, role: Role) -> None:
        self._each(role, frozen=True)

    def _unfreeze(self, role: Role) -> None:
        self._each(role, frozen=False)

    def _note(self, role: Role, problem: str) -> None:
        self.roles[role.move] = self.roles[role.move]._replace(problem=problem)

    def _pack(self, role: Role) -> Fact:
        if self.batch.luck.full:
            self._note(role, "the store is full")
            return Fact.PACK_FAILED
        rows = tuple(self.cells[group].rows for group in role.groups)
        self.batch.store[role.move, role.epoch] = Package(role.move, role.epoch, rows, self.batch.luck.differ)
        self._note(role, "")
        return Fact.PACKED

    def _check_package(self, role: Role) -> Fact:
        there = (role.move, role.epoch) in self.batch.store and not self.batch.luck.unlistable
        return Fact.PACKAGE_THERE if there else Fact.PACKAGE_MISSING

    def _look_for_package(self, role: Role) -> Fact:
        if self.batch.luck.corrupt:
            self.batch.store.pop((role.move, role.epoch), None)
        package = self.batch.store.get((role.move, role.epoch))
        if package is None or self.batch.luck.unlistable:
            self._note(role, "no good package")
            return Fact.PACKAGE_MISSING
        if package.differs and not self.moves[role.move].digest:
            self._note(role, "packages differ")
            return Fact.PACKAGE_MISSING
        return Fact.PACKAGE_THERE

    def _take_in(self, role: Role) -> None:
        package = self.batch.store[role.move, role.epoch]
        for group, rows in zip(role.groups, package.rows, strict=True):
            if self.cells[group].rows:
                raise Wrong(f"worker {self.worker} takes in group {group}, and has rows of it: {self.cells[group]}")
            self.cells[group] = self.cells[group]._replace(rows=rows)
        self._note(role, "")

    def _join_aside(self, role: Role) -> None:
        for group in role.groups:
            waiting = self.cells[group].aside
            self.cells[group] = self.cells[group]._replace(aside=())
            for new in sorted(waiting, reverse=True):
                self._join(group, new)

    def _add_aside_silently(self, role: Role) -> None:
        for group in role.groups:
            cell = self.cells[group]
            self.cells[group] = cell._replace(rows=tuple(sorted((*cell.rows, *cell.aside))), aside=())

    def _drop_aside(self, role: Role) -> None:
        self._each(role, aside=())

    def _drop_groups(self, role: Role) -> None:
        self._each(role, rows=())

    def _drop_package(self, role: Role) -> None:
        self.batch.store.pop((role.move, role.epoch), None)

    def _track(self, role: Role) -> None:
        self._each(role, fresh=1 if self.batch.brings_rows else 0)

    def _untrack(self, role: Role) -> None:
        self._each(role, fresh=-1)

    def _check_old(self, role: Role) -> Fact:
        cells = [self.cells[group] for group in role.groups]
        live = any(age >= cell.fresh for cell in cells for age in cell.rows)
        return Fact.OLD_LIVE if live else Fact.OLD_EXPIRED


_EXECUTE: Final[Mapping[Action, Callable[[_Task, Role], Fact | None]]] = {
    Action.FREEZE: _Task._freeze,
    Action.UNFREEZE: _Task._unfreeze,
    Action.PACK: _Task._pack,
    Action.CHECK_PACKAGE: _Task._check_package,
    Action.LOOK_FOR_PACKAGE: _Task._look_for_package,
    Action.TAKE_IN: _Task._take_in,
    Action.JOIN_ASIDE: _Task._join_aside,
    Action.ADD_ASIDE_SILENTLY: _Task._add_aside_silently,
    Action.DROP_ASIDE: _Task._drop_aside,
    Action.DROP_GROUPS: _Task._drop_groups,
    Action.DROP_PACKAGE: _Task._drop_package,
    Action.TRACK: _Task._track,
    Action.UNTRACK: _Task._untrack,
    Action.CHECK_OLD: _Task._check_old,
}
