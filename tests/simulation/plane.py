"""A data plane small enough to search: a few workers and groups, one row per group and batch.

Rows are their age in batches, so that states recur. A new row makes a result with every row of its group that came at
most WINDOW batches before it: `due` has the results still to be made. A result that is made and not due is a doubled
one; a due one whose newer row waits nowhere is a lost one.

Here is what there is, and how it has to be; what a batch does is in plane_batch.py. Once too many rows wait batches
bring no rows, and no time passes in them: so worlds are finite, and such batches happen.

A worker reports what its record said when the batch *began* (`reported`): an attempt that is not committed says the
same as the one that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.checkers.followers import Follower
from trimtab.epochs import Epoch
from trimtab.moves import Kind, Move, RoleState, Side

WINDOW: Final = 2
ASIDE_MAX: Final = WINDOW + 2
"""Once so many rows wait somewhere no rows come: nothing depends on whether there are more."""

Ages = tuple[int, ...]


class Wrong(Exception):
    """An invariant does not hold."""


class Cell(NamedTuple):
    """What one worker has of one group."""

    rows: Ages = ()
    """Rows in the buffers."""
    aside: Ages = ()
    """Rows that are kept unjoined."""
    frozen: bool = False
    """Nothing expires."""
    fresh: int = -1
    """Sender of a duplicate: rows younger than this are new; -1: no duplicate is open."""


class Role(NamedTuple):
    """A worker's part in a move."""

    move: str
    epoch: int
    """That opened the move."""
    kind: Kind
    side: Side
    groups: tuple[int, ...]
    state: RoleState = RoleState.ACTIVE
    problem: str = ""


class Worker(NamedTuple):
    """One worker's durable state."""

    cells: tuple[Cell, ...]
    """By group."""
    roles: tuple[Role, ...] = ()


class Package(NamedTuple):
    """In the transfer store."""

    move: str
    epoch: int
    rows: tuple[Ages, ...]
    """Of each group of the move."""
    differs: bool = False
    """There are two that differ, and only a digest says which one counts."""


class Applied(NamedTuple):
    """The epoch of the last batch in which workers ran."""

    number: int
    fence: int
    owners: tuple[int, ...]
    missed: int = 0
    """Batches since then that ran no task."""


class Plane(NamedTuple):
    workers: tuple[Worker, ...]
    store: tuple[Package, ...]
    due: tuple[frozenset[tuple[int, int]], ...]
    """By group: ages of the older and the newer row of each result that is still to be made."""
    applied: Applied
    followers: tuple[Follower, ...] = ()
    """By worker: what its record says of its plan order; none where no plan is changed."""


class Told(NamedTuple):
    """What a worker reports about a move."""

    worker: int
    move: str
    side: Side
    state: RoleState
    problem: str = ""


class Luck(NamedTuple):
    """What befalls one attempt at a batch."""

    full: bool = False
    """The transfer store takes no package."""
    corrupt: bool = False
    """Packages are found to be damaged, and are put away."""
    differ: bool = False
    """Packages are written twice, and differ."""
    gone: bool = False
    """Packages have vanished from the transfer store."""
    backwards: bool = False
    """The workers run in the opposite order: one may find what another one has just written."""
    unlistable: bool = False
    """Nobody can say what is in the transfer store, and the attempt is the last one: it goes on without."""


LUCKY: Final = Luck()
LASTING: Final[Mapping[str, Luck]] = {
    "": LUCKY,
    "full for good": Luck(full=True),
    "corrupt for good": Luck(corrupt=True),
    "gone for good": Luck(full=True, gone=True),
    "unlistable for good": Luck(unlistable=True),
}
"""What may befall every attempt from some time on."""


def followed(plane: Plane, epoch: Epoch) -> tuple[Follower, ...]:
    """What the records say of plan orders at the end of a batch."""
    return tuple(each.after(epoch, worker, 0) for worker, each in enumerate(plane.followers))


def start(owners: tuple[int, ...], workers: int = 2, plan: str = "") -> Plane:
    """Every group has been with its owner for a while, under the first epoch."""
    rows = Cell(rows=tuple(range(WINDOW + 1)))
    cells = [tuple(rows if owner == worker else Cell() for owner in owners) for worker in range(workers)]
    following = (Follower(plan=plan),) * workers if plan else ()
    applied = Applied(1, 0, owners)
    return Plane(tuple(Worker(each) for each in cells), (), (frozenset(),) * len(owners), applied, following)


def run_no_task(plane: Plane) -> Plane:
    """A batch in which no worker runs: an input of empty files."""
    return plane._replace(applied=plane.applied._replace(missed=plane.applied.missed + 1))


def levels(plane: Plane, epoch: Epoch) -> frozenset[Told]:
    """Where the records say that the epoch's moves stand."""
    told = set()
    for move in epoch.moves:
        for worker, side in ((move.sender, Side.SENDER), (move.receiver, Side.RECEIVER)):
            role = _role_in(plane.workers[worker].roles, move, side)
            told.add(Told(worker, move.id, side, role.state, role.problem))
    return frozenset(told)


def reported(before: Plane, after: Plane, epoch: Epoch) -> frozenset[Told]:
    """What an attempt says that found `before` and leaves `after`: only the former is committed by definition."""
    return levels(before, epoch)


def with_traces(plane: Plane, attempt: Plane) -> Plane:
    """An attempt was not committed: what it wrote to the transfer store, or took away there, stays so.

    The batch is run again, so the attempt's rows are younger by a batch: those of the batch itself are yet to come.
    """
    names = {(package.move, package.epoch) for package in attempt.store}
    kept = {(each.move, each.epoch): each for each in plane.store if (each.move, each.epoch) in names}
    younger = 0 if too_old(plane) else 1
    new = [
        package._replace(rows=tuple(tuple(age - younger for age in ages) for ages in package.rows))
        for package in attempt.store
        if (package.move, package.epoch) not in kept
    ]
    return plane._replace(store=tuple(sorted((*kept.values(), *new))))


def too_old(plane: Plane) -> bool:
    return any(len(cell.aside) >= ASIDE_MAX for worker in plane.workers for cell in worker.cells)


def settled(plane: Plane, epoch: Epoch) -> None:
    """No move is open: every group is where the mapping says, whole, nothing waits and nothing is left behind."""
    whole = Cell(rows=tuple(range(WINDOW + 1)))
    for group, owner in enumerate(epoch.owners):
        cells = {worker: each.cells[group] for worker, each in enumerate(plane.workers)}
        if plane.due[group] or cells.pop(owner) != whole or any(cell != Cell() for cell in cells.values()):
            raise Wrong(f"group {group} is not whole at worker {owner}: {plane}")
    if plane.store or any(worker.roles for worker in plane.workers):
        raise Wrong(f"no move is open, and something is left of one: {plane}")


def _role_in(roles: tuple[Role, ...], move: Move, side: Side) -> Role:
    for role in roles:
        if (role.move, role.epoch) == (move.id, move.epoch):
            return role
    return Role(move.id, move.epoch, move.kind, side, move.groups)
