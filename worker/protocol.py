"""A worker's side of PTLB and MSLB in one batch: what the table (`worker.roles`) says, done to a `MovableState`.

Nothing here is told to happen once: in every batch the worker looks at what is open and at its own record, and does
what is missing. So a batch that Spark repeats does the same again, and there is no message to lose.

    begin        each role learns what the epoch says about its move, and what follows from that
    put_aside    rows of groups that are frozen here, or whose state is still on its way, are kept unjoined
    end          each role learns that the batch's rows are joined
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Final

import numpy as np
import pyarrow as pa

from trimtab import frames
from trimtab.epochs import Epoch
from trimtab.errors import CorruptState
from trimtab.evidence import Evidence, Tally, arriving_digests, tally_of
from trimtab.keys import GROUP, timestamps_us
from trimtab.moves import BATCHES_AFTER_CLOSE, Kind, Move, RoleState, Side
from trimtab.reports import MoveReport
from worker.buffers import Int64s, flags_of
from worker.continuity import check_continuity, owned_groups
from worker.durable import Frames, Keys, Record, Role
from worker.load import GroupLoad
from worker.movable import FiledRows, MovableState
from worker.package import BYTES_MAX, Package, digest_text, pack
from worker.payload import DurableKey
from worker.roles import (
    Action,
    Arrival,
    Fact,
    arrival,
    closing_fact,
    end_fact,
    fact_of,
    is_frozen,
    transition,
)
from worker.spec import JoinSpec
from worker.transfers import TransferStore


class WorkerMoves:
    """The roles of one worker in one batch."""

    def __init__(
        self,
        worker: int,
        batch: int,
        epoch: Epoch,
        epoch_before: int,
        spec: JoinSpec,
        record: Record | None,
        durable: Frames,
        transfers: TransferStore,
    ) -> None:
        if record is not None:
            check_continuity(record, batch, epoch, worker)
        self.worker = worker
        self.batch = batch
        self.epoch = epoch
        self.moves = {move.id: move for move in epoch.moves if move.side_of(worker) is not None}
        self.barriers = {} if record is None else {int(group): since for group, since in record.barriers.items()}
        self.packed_bytes: dict[str, int] = {}
        """By move: what this batch wrote to the transfer store."""
        self.taken_bytes: dict[str, int] = {}
        self.aside_now: dict[str, list[DurableKey]] = {}
        """By move: keys of the rows that this batch put aside."""
        self.taken_now: dict[str, list[DurableKey]] = {}
        """By move: keys under which this batch filed a package's rows."""
        self.refiled_now: dict[str, list[DurableKey]] = {}
        """By move: keys under which this batch filed rows that had waited."""
        self._epoch_before = epoch_before
        self._spec = spec
        self._durable = durable
        self._transfers = transfers
        self._keys = Keys(batch, spec.names)
        self._filed = 0
        self._aside = 0
        known = [] if record is None else [role for role in record.roles if not self._is_over(role)]
        new = [self._new_role(move) for move in self.moves.values() if not any(role.is_of(move) for role in known)]
        self.roles = [*known, *new]
        self.before = [deepcopy(role) for role in self.roles]
        """The roles as the durable record had them when the batch began: what is reported."""
        self._package: Package | None = None
        self._state: MovableState
        self._horizon_us = 0

    def _is_over(self, role: Role) -> bool:
        """Whether nobody asks for a closed role any more: some batches have gone by, or its name is used again."""
        if role.state != RoleState.CLOSED:
            return False
        return role.move in self.moves or self.batch > role.closed_batch + BATCHES_AFTER_CLOSE

    def _new_role(self, move: Move) -> Role:
        side = Side.SENDER if move.sender == self.worker else Side.RECEIVER
        return Role(move.id, move.kind, side, list(move.groups), move.epoch, since_batch=self.batch)

    @property
    def groups(self) -> list[int]:
        """All groups that this worker has a part in."""
        return sorted(set(self.owned).union(*(move.groups for move in self.moves.values())))

    @property
    def owned(self) -> list[int]:
        return owned_groups(self.epoch, self.worker)

    @property
    def frozen(self) -> dict[int, int]:
        """Frozen groups and their horizons."""
        return frozen_groups(self.roles)

    # -- the batch -----------------------------------------------------------------------------------------------

    def begin(self, state: MovableState, horizon_us: int) -> None:
        """`horizon_us` is watermark - window as the batch before had it."""
        self._state, self._horizon_us = state, horizon_us
        open_roles = [role for role in self.roles if role.state != RoleState.CLOSED]
        for role in open_roles:
            if self._move(role) is None:
                self._learn(role, closing_fact(role.move, role.groups, self.epoch.owners, self.worker))
                role.closed_batch = self.batch
        for role in open_roles:
            move = self._move(role)
            if move is not None:
                self._check(role, move)
                self._learn(role, fact_of(move, self._epoch_before))

    def end(self, horizon_us: int) -> None:
        """`horizon_us` is watermark - window as this batch has it; what had expired by it is gone."""
        self._horizon_us = horizon_us
        for role in self.roles:
            move = self._move(role)
            fact = None if move is None or role.state == RoleState.CLOSED else end_fact(move)
            if fact is not None:
                self._learn(role, fact)
        oldest = self._state.oldest_batch()
        self.barriers = {
            group: since for group, since in self.barriers.items() if oldest is not None and since > oldest
        }

    def _move(self, role: Role) -> Move | None:
        move = self.moves.get(role.move)
        return move if move is not None and role.is_of(move) else None

    def _check(self, role: Role, move: Move) -> None:
        if (role.kind, role.side, role.groups) != (move.kind, move.side_of(self.worker), list(move.groups)):
            raise CorruptState(f"move {move.id} is another one in epoch {self.epoch.number} than in the record: {role}")

    def _learn(self, role: Role, fact: Fact | None) -> None:
        """Do what the table says, and what follows from that."""
        while fact is not None:
            row = transition(role.move, role.kind, role.side, role.state, fact)
            role.state = row.next
            fact = None
            for action in row.actions:
                fact = _EXECUTE[action](self, role)

    # -- actions -------------------------------------------------------------------------------------------------

    def _freeze(self, role: Role) -> None:
        role.horizon_us = self._horizon_us
        self._state.freeze(role.groups, role.horizon_us)

    def _unfreeze(self, role: Role) -> None:
        self._state.unfreeze(role.groups)

    def _pack(self, role: Role) -> Fact:
        exported = self._state.export(role.groups)
        digest = digest_text(exported.tally)
        package = Package(
            move=role.move,
            batch=self.batch,
            horizon_us=role.horizon_us,
            rows=exported.tally.rows,
            digest=digest,
            leaves=exported.leaves,
            combined=exported.combined,
        )
        data = pack(package, self._transfers.key)
        role.rows, role.bytes, role.digest = package.rows, len(data), digest
        if len(data) > BYTES_MAX:
            role.problem = f"the package has {len(data)} bytes, more than {BYTES_MAX}: move fewer groups at once"
            return Fact.PACK_FAILED
        try:
            self._transfers.put(role.move, self.batch, digest, data)
        except OSError as error:
            role.problem = f"the transfer store takes no package: {error}"
            return Fact.PACK_FAILED
        self.packed_bytes[role.move] = len(data)
        role.problem = ""
        return Fact.PACKED

    def _check_package(self, role: Role) -> Fact:
        there = self._transfers.has(role.move, role.since_batch, role.digest)
        return Fact.PACKAGE_THERE if there else Fact.PACKAGE_MISSING

    def _look_for_package(self, role: Role) -> Fact:
        packages = self._transfers.packages(role.move, role.since_batch)
        wanted = self.moves[role.move].digest
        if wanted:
            packages = [package for package in packages if package.digest == wanted]
        if not packages:
            role.problem = "there is no good package in the transfer store"
            return Fact.PACKAGE_MISSING
        if len({package.digest for package in packages}) > 1:
            role.problem = "packages of several attempts differ"
            return Fact.PACKAGE_MISSING
        self._package = packages[0]
        return Fact.PACKAGE_THERE

    def _take_in(self, role: Role) -> None:
        package = self._package
        assert package is not None
        rows = [self._file(stream, frame) for stream, frame in package.leaves]
        self.taken_now[role.move] = [each.key for each in rows]
        self._state.take_in(role.groups, rows, package.combined, package.horizon_us)
        role.rows, role.bytes, role.digest, role.problem = package.rows, package.bytes, package.digest, ""
        self.taken_bytes[role.move] = package.bytes
        self._package = None

    def _join_aside(self, role: Role) -> None:
        for rows in self._refiled(role):
            self._state.join(rows)

    def _add_aside_silently(self, role: Role) -> None:
        self._state.add_silently(role.groups, list(self._refiled(role)))

    def _refiled(self, role: Role) -> Iterator[FiledRows]:
        """Rows that waited, in order of arrival. They are filed anew, as joined rows of this batch."""
        for batch, number in sorted(role.aside):
            stream, frame = self._durable.get_rows((batch, number))
            filed = self._file(stream, pa.py_buffer(frame))
            self.refiled_now.setdefault(role.move, []).append(filed.key)
            yield filed
        self._drop_aside(role)

    def _drop_aside(self, role: Role) -> None:
        for batch, number in role.aside:
            self._durable.remove_rows((batch, number))
        role.aside, role.aside_tally = [], [0, 0]

    def _drop_groups(self, role: Role) -> None:
        self._state.expire(role.groups)
        self.barriers |= dict.fromkeys(role.groups, self.batch)

    def _drop_package(self, role: Role) -> None:
        self._transfers.remove(role.move)

    def _track(self, role: Role) -> None:
        newest = self._state.newest(role.groups, self._horizon_us)
        if newest is not None:
            role.newest_old_us, role.newest_old_stream = newest
        self._state.track(role.move, role.groups)

    def _untrack(self, role: Role) -> None:
        self._state.untrack(role.move)

    def _check_old(self, role: Role) -> Fact:
        live = role.newest_old_us is not None and role.newest_old_us >= self._horizon_us
        return Fact.OLD_LIVE if live else Fact.OLD_EXPIRED

    def _file(self, stream: str, frame: pa.Buffer) -> FiledRows:
        """File rows from elsewhere in the durable state as this worker's own."""
        key = self._keys.taken_in(stream, self._filed)
        self._filed += 1
        self._durable.put_rows(key, stream, frame.to_pybytes())
        return FiledRows(key, stream, frame)

    # -- rows that wait ------------------------------------------------------------------------------------------

    def put_aside(self, arrived: dict[str, list[pa.RecordBatch]], counts: Int64s) -> dict[str, list[pa.RecordBatch]]:
        """Keep rows unjoined whose groups are not to be joined here now; returns the others.

        `counts` are the rows that arrived by group.
        """
        waiting: list[Role] = []
        for role in self.roles:
            what = arrival(role.kind, role.side, role.state)
            if what == Arrival.ASIDE:
                waiting.append(role)
            elif what == Arrival.NONE and counts[role.groups].any():
                raise CorruptState(
                    f"rows of move {role.move} came to worker {self.worker}, whose role is {role.side}, {role.state}: "
                    f"batch {self.batch} was not routed by epoch {self.epoch.number}"
                )
        if not waiting:
            return arrived
        kept: dict[str, list[pa.RecordBatch]] = {}
        for stream, pieces in arrived.items():
            for piece in pieces:
                group = piece.column(GROUP).to_numpy(zero_copy_only=False)
                rest = np.ones(group.size, np.bool_)
                for role in waiting:
                    mine = flags_of(role.groups, self._spec.partitions)[group]
                    if mine.any():
                        rest &= ~mine
                        self._keep_aside(role, stream, piece.filter(pa.array(mine)))
                if rest.any():
                    kept.setdefault(stream, []).append(piece if rest.all() else piece.filter(pa.array(rest)))
        return kept

    def _keep_aside(self, role: Role, stream: str, rows: pa.RecordBatch) -> None:
        key = self._keys.aside(stream, self._aside)
        self._aside += 1
        self._durable.put_rows(key, stream, frames.encode(rows).to_pybytes())
        role.aside.append(list(key))
        role.aside_tally = (role.aside_rows + arriving_tally(self._spec, stream, rows)).to_json()
        self.aside_now.setdefault(role.move, []).append(key)

    # -- what is reported ----------------------------------------------------------------------------------------

    def reports(self, arrived: Int64s, load: GroupLoad, witnessed: Mapping[str, Evidence]) -> list[MoveReport]:
        """For each role what the record said when the batch began, and what this attempt counted."""

        def counts(role: Role, numbers: Int64s) -> dict[int, int]:
            return {group: int(numbers[group]) for group in role.groups if numbers[group]}

        return [
            MoveReport(
                move=role.move,
                side=role.side,
                state=role.state,
                rows=role.rows,
                bytes=role.bytes,
                digest=role.digest,
                held_rows=role.aside_rows.rows,
                newest_old_us=role.newest_old_us,
                newest_old_stream=role.newest_old_stream,
                problem=role.problem,
                packed_bytes=self.packed_bytes.get(role.move, 0),
                taken_bytes=self.taken_bytes.get(role.move, 0),
                arrived=counts(role, arrived),
                results=counts(role, load.results),
                suppressed=counts(role, load.suppressed),
                evidence=witnessed[role.move],
            )
            for role in self.before
        ]


_EXECUTE: Final[Mapping[Action, Callable[[WorkerMoves, Role], Fact | None]]] = {
    Action.FREEZE: WorkerMoves._freeze,
    Action.UNFREEZE: WorkerMoves._unfreeze,
    Action.PACK: WorkerMoves._pack,
    Action.CHECK_PACKAGE: WorkerMoves._check_package,
    Action.LOOK_FOR_PACKAGE: WorkerMoves._look_for_package,
    Action.TAKE_IN: WorkerMoves._take_in,
    Action.JOIN_ASIDE: WorkerMoves._join_aside,
    Action.ADD_ASIDE_SILENTLY: WorkerMoves._add_aside_silently,
    Action.DROP_ASIDE: WorkerMoves._drop_aside,
    Action.DROP_GROUPS: WorkerMoves._drop_groups,
    Action.DROP_PACKAGE: WorkerMoves._drop_package,
    Action.TRACK: WorkerMoves._track,
    Action.UNTRACK: WorkerMoves._untrack,
    Action.CHECK_OLD: WorkerMoves._check_old,
}


def frozen_groups(roles: Iterable[Role]) -> dict[int, int]:
    """Frozen groups and their horizons."""
    frozen = [role for role in roles if is_frozen(role.state)]
    return {group: role.horizon_us for role in frozen for group in role.groups}


def tracked_roles(roles: Iterable[Role]) -> Iterator[Role]:
    """Senders of open duplicates: their rows are old or new."""
    return (r for r in roles if (r.kind, r.side) == (Kind.DUPLICATE, Side.SENDER) and r.state != RoleState.CLOSED)


def arriving_tally(spec: JoinSpec, stream: str, rows: pa.RecordBatch) -> Tally:
    """Rows of one stream as they arrive."""
    group = rows.column(GROUP).to_numpy(zero_copy_only=False)
    return tally_of(arriving_digests(stream, group, timestamps_us(rows.column(spec.stream(stream).time))))
