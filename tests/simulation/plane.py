"""A data plane small enough to search: two workers, a few groups, one row per group and batch.

Rows are their age in batches, so that states recur. A new row makes a result with every row of its group that came at
most WINDOW batches before it: `due` has the results still to be made. A result that is made and not due is a doubled
one; a due one whose newer row waits nowhere is a lost one. What split and workers do with moves is as trimtab/moves.py
says: a transfer is switched from the second batch of its epoch on, a duplicate makes rows new at the sender.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from trimtab.epochs import Epoch
from trimtab.moves import DUPLICATE, Move, is_switched, moves_of

WINDOW: Final = 2
AGE_MAX: Final = 14
"""Rows do not get older than this: by then nothing depends on how old they are."""

Ages = tuple[int, ...]


class Wrong(Exception):
    """An invariant does not hold."""


class Cell(NamedTuple):
    """What one worker has of one group."""

    rows: Ages | None = None
    """Live rows; None: the group is not joined here."""
    frozen: Ages | None = None
    held: Ages = ()
    fresh: int = -1
    """Sender of a duplicate: rows younger than this are new; -1: no duplicate is open."""


class Package(NamedTuple):
    """In the transfer store, under the move's name and epoch."""

    move: str
    epoch: int
    rows: Ages
    held: Ages
    whole: bool
    """Has the group's state; else only rows that waited."""
    fault: str = ""
    """"full": it could not be written; "corrupt": it cannot be read; "differ": there are two, and only a digest tells.
    (A fault "late", that it is written one batch later, leaves no trace here.)"""


class Group(NamedTuple):
    cells: tuple[Cell, Cell]
    packages: tuple[Package, ...] = ()
    due: frozenset[tuple[int, int]] = frozenset()


class Told(NamedTuple):
    """What a worker reports about a move."""

    worker: int
    move: str
    role: str
    state: str
    problem: str = ""


Plane = tuple[Group, ...]


def start(groups: int, owner: int) -> Plane:
    rows = tuple(range(WINDOW + 1))
    cells = (Cell(rows=rows), Cell()) if owner == 0 else (Cell(), Cell(rows=rows))
    return tuple(Group(cells=cells) for _ in range(groups))


def older(ages: Ages) -> Ages:
    return tuple(sorted({min(age + 1, AGE_MAX) for age in ages}))


def _young(ages: Ages, limit: int) -> Ages:
    return tuple(age for age in sorted(set(ages)) if age <= limit)


def run_batch(plane: Plane, epoch: Epoch, before: int, fault: str = "") -> tuple[Plane, frozenset[Told]]:
    """One committed batch bound to `epoch`, after one bound to number `before`. `fault` befalls what is packed."""
    moves = moves_of(epoch)
    told: set[Told] = set()
    after = []
    for number, group in enumerate(plane):
        mine = [move for move in moves if number in move.groups]
        after.append(_Batch(group, number, epoch, mine, before, fault, told).run())
    return tuple(after), frozenset(told)


def exporting(plane: Plane, epoch: Epoch) -> bool:
    """Whether a batch of this epoch packs anything for the first time: then a fault may befall it."""
    kept = {(package.move, package.epoch) for group in plane for package in group.packages}
    return any(move.kind != DUPLICATE and (move.id, move.epoch) not in kept for move in moves_of(epoch))


@dataclass
class _Batch:
    group: Group
    number: int
    epoch: Epoch
    moves: list[Move]
    before: int
    fault: str
    told: set[Told]
    cells: list[Cell] = field(default_factory=list)
    packages: dict[str, Package] = field(default_factory=dict)
    due: set[tuple[int, int]] = field(default_factory=set)
    joined: set[int] = field(default_factory=set)

    def run(self) -> Group:
        cells = [
            Cell(
                rows=None if cell.rows is None else older(cell.rows),
                frozen=None if cell.frozen is None else older(cell.frozen),
                held=older(cell.held),
                fresh=cell.fresh if cell.fresh < 0 else min(cell.fresh + 1, WINDOW + 2),
            )
            for cell in self.group.cells
        ]
        self.packages = {
            package.move: package._replace(rows=older(package.rows), held=older(package.held))
            for package in self.group.packages
        }
        due = {(min(old + 1, AGE_MAX), min(new + 1, AGE_MAX)) for old, new in self.group.due}
        self.due = due | {(age, 0) for age in range(1, WINDOW + 1)}
        self.cells = cells
        self._close_and_drop()
        self._rows_arrive()
        self._purge()
        self._check()
        names = {move.id for move in self.moves}
        packages = tuple(package for name, package in sorted(self.packages.items()) if name in names)
        return Group((self.cells[0], self.cells[1]), packages, frozenset(self.due))

    @property
    def owner(self) -> int:
        return self.epoch.owners[self.number]

    def _close_and_drop(self) -> None:
        """Level-triggered: who takes no part in an open move has the group if it owns it, and else nothing of it."""
        parts = {worker for move in self.moves for worker in (move.sender, move.receiver)}
        duplicating = {move.sender for move in self.moves if move.kind == DUPLICATE}
        for worker, cell in enumerate(self.cells):
            if worker not in parts:
                if worker != self.owner:
                    self.cells[worker] = Cell()
                    continue
                rows = cell.rows if cell.rows is not None else cell.frozen
                self.cells[worker] = Cell(rows=rows if rows is not None else ())
            elif worker not in duplicating:
                self.cells[worker] = self.cells[worker]._replace(fresh=-1)

    def _rows_arrive(self) -> None:
        duplicate = next((move for move in self.moves if move.kind == DUPLICATE), None)
        transfer = next((move for move in self.moves if move.kind != DUPLICATE and not move.undoes), None)
        undo = next((move for move in self.moves if move.undoes), None)
        if duplicate is not None:
            self._duplicate(duplicate)
        elif transfer is None:
            self._join(self.owner)
        elif undo is not None:
            self._undo(transfer, undo)
        elif is_switched(transfer, self.before):
            self._retry_export(transfer)
            self._take_in(transfer, transfer.receiver)
        else:
            self._join(transfer.sender)
            self._export(transfer, transfer.sender)
            self._tell(transfer, transfer.receiver, "active")

    def _join(self, worker: int) -> None:
        """The new row with the rows that are there."""
        cell = self.cells[worker]
        rows = cell.rows if cell.rows is not None else ()
        self.joined.add(worker)
        for old in rows:
            if 1 <= old <= WINDOW and not (cell.fresh >= 0 and old < cell.fresh):
                self._result(old, 0)
        self.cells[worker] = cell._replace(rows=(0, *rows))

    def _result(self, old: int, new: int) -> None:
        if (old, new) not in self.due:
            raise Wrong(f"doubled: group {self.number}, result of rows aged {old} and {new}")
        self.due.discard((old, new))

    def _hold(self, worker: int) -> None:
        cell = self.cells[worker]
        self.cells[worker] = cell._replace(held=(0, *cell.held))

    def _export(self, move: Move, worker: int) -> None:
        """At the end of the batch: pack what is there, freeze it. A package that could not be written is not there."""
        cell = self.cells[worker]
        rows = cell.rows if cell.rows is not None else cell.frozen
        fault = "late" if self.fault and move.undoes and self.fault != "differ" else self.fault
        if fault != "late":
            self.packages[move.id] = Package(move.id, move.epoch, rows or (), cell.held, rows is not None, fault)
        self._tell_packed(move, worker)
        self.cells[worker] = cell._replace(rows=None, frozen=rows)

    def _tell_packed(self, move: Move, worker: int) -> None:
        package = self._package(move)
        if package is None or package.fault == "full":
            self._tell(move, worker, "export-failed", package.fault if package else "not this time")
        else:
            self._tell(move, worker, "exported")

    def _package(self, move: Move) -> Package | None:
        package = self.packages.get(move.id)
        return package if package is not None and package.epoch == move.epoch else None

    def _retry_export(self, move: Move) -> None:
        """The sender packs again from what it froze, where it could not."""
        frozen = self.cells[move.sender].frozen
        if self._package(move) is None and frozen is not None:
            self.packages[move.id] = Package(move.id, move.epoch, frozen, (), True)
        self._tell_packed(move, move.sender)

    def _take_in(self, move: Move, worker: int) -> None:
        """The receiver of a switched transfer: in with the package, then the rows that waited, then the new one."""
        cell = self.cells[worker]
        if cell.rows is not None:
            self._join(worker)
            self._tell(move, worker, "received")
            return
        package = self._package(move)
        readable = package is not None and (package.fault == "" or (package.fault == "differ" and move.digest))
        if package is None or not readable:
            self._hold(worker)
            self._tell(move, worker, "holding", package.fault if package else "no package")
            return
        # The way back may bring only rows that waited: then the state is what this worker froze.
        state = package.rows if package.whole else (cell.frozen or ())
        self.cells[worker] = Cell(rows=state)
        if move.undoes:  # Nobody looks at what waited there any more; kept, its age would tell worlds apart.
            self.cells[move.sender] = self.cells[move.sender]._replace(held=())
        self._join_waiting(worker, tuple(sorted({*package.held, *cell.held}, reverse=True)))
        self._join(worker)
        self._tell(move, worker, "received")

    def _join_waiting(self, worker: int, waiting: Ages) -> None:
        for new in waiting:
            rows = self.cells[worker].rows or ()
            for old in rows:
                if 1 <= old - new <= WINDOW:
                    self._result(old, new)
            self.cells[worker] = self.cells[worker]._replace(rows=tuple(sorted({*rows, new})))

    def _undo(self, move: Move, undo: Move) -> None:
        """Back: in the undo's first batch the receiver gets the rows once more and packs, later the sender takes in."""
        if is_switched(undo, self.before):
            if self._package(undo) is None:
                self._export(undo, undo.sender)
            else:
                self._tell(undo, undo.sender, "exported")
            self._take_in(undo, undo.receiver)
            return
        if not is_switched(move, self.before):
            raise Wrong(f"group {self.number}: {undo.id} opened in the same batch as {move.id}")
        if self.cells[undo.sender].rows is not None:
            self._join(undo.sender)
        else:
            self._hold(undo.sender)
        self._export(undo, undo.sender)
        self._tell(undo, undo.receiver, "active")

    def _duplicate(self, move: Move) -> None:
        """Rows to both. At the sender those that come from now on are new, and all-new results are left out."""
        sender = self.cells[move.sender]
        if sender.fresh < 0:
            self.cells[move.sender] = sender._replace(fresh=1)
        receiver = self.cells[move.receiver]
        if receiver.rows is None:
            self.cells[move.receiver] = receiver._replace(rows=())
        self._join(move.sender)
        self._join(move.receiver)
        cell = self.cells[move.sender]
        old = [age for age in cell.rows or () if cell.fresh <= age <= WINDOW]
        self._tell(move, move.sender, "old-remains" if old else "all-old-purged")
        self._tell(move, move.receiver, "active")

    def _tell(self, move: Move, worker: int, state: str, problem: str = "") -> None:
        role = "sender" if worker == move.sender else "receiver"
        self.told.add(Told(worker, move.id, role, state, problem))

    def _purge(self) -> None:
        """Rows beyond the window go. What is frozen or packed stays for as long as a row that waits may need it."""
        oldest = max((age for cell in self.cells for age in cell.held), default=0)
        for worker, cell in enumerate(self.cells):
            rows = None if cell.rows is None else _young(cell.rows, WINDOW)
            frozen = None if cell.frozen is None else _young(cell.frozen, WINDOW + oldest)
            self.cells[worker] = cell._replace(rows=rows, frozen=frozen)
        for name, package in self.packages.items():
            self.packages[name] = package._replace(rows=_young(package.rows, WINDOW + oldest))

    def _check(self) -> None:
        allowed = 2 if any(move.kind == DUPLICATE for move in self.moves) else 1
        if len(self.joined) > allowed:
            raise Wrong(f"group {self.number} is joined at {sorted(self.joined)}")
        waiting = {age for cell in self.cells for age in cell.held}
        lost = sorted(pair for pair in self.due if pair[1] not in waiting)
        if lost:
            raise Wrong(f"lost: group {self.number}, results of rows aged {lost}")


def too_old(plane: Plane) -> bool:
    """Whether rows have waited for so long that ages would run together: the search stops there."""
    return any(age >= AGE_MAX - WINDOW - 1 for group in plane for cell in group.cells for age in cell.held)


def settled(plane: Plane, epoch: Epoch) -> None:
    """No move is open: every group is where the mapping says, whole, and nothing waits."""
    for number, group in enumerate(plane):
        owner = epoch.owners[number]
        here, there = group.cells[owner], group.cells[1 - owner]
        if group.due or here != Cell(rows=tuple(range(WINDOW + 1))) or there != Cell():
            raise Wrong(f"group {number} is not whole at worker {owner}: {group}")
