"""A worker's side of PTLB and MSLB in one batch: Algorithms 2 and 4 of the paper, driven by the epoch's open moves.

Nothing here is told to happen once: in every batch the worker looks at what is open and at its own record, and does
what is missing. So a batch that Spark repeats does the same again, and there is no message to lose.

    begin    moves that are closed: forget them, drop groups that are not ours any more.
             duplicate, sender: what is here now is old, what comes is new (section 3.2, step 3).
             transfer, receiver: take the package in, then join the rows that waited for it (section 4.2, step 7).
    hold     rows of groups whose package is not here yet are kept, unjoined (the paper's split buffers, step 3).
    end      transfer, sender: pack all states of the groups (steps 5 and 6). From here on they are frozen: no row of
             theirs comes, and nothing of theirs is purged until the move is closed.
             duplicate, sender: has all that is old expired? (step 4)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from balancing.selection import nearest
from trimtab import frames
from trimtab.epochs import Epoch
from trimtab.errors import BindingError, CorruptState
from trimtab.keys import GROUP
from trimtab.moves import DUPLICATE, TRANSFER, Move, MoveReport, commands_of, is_switched, moves_of
from worker.buffers import Int64s, Tuples, flags_of
from worker.durable import DurableState, Record, Role
from worker.engine import Engine, GroupLoad, Track
from worker.package import Package, digest_of, pack
from worker.payload import DurableKey
from worker.transfers import TransferStore

FRAMES_PER_STREAM_MAX = 100_000


@dataclass(frozen=True)
class Keys:
    """Under which keys a batch files rows: those that arrive, that are taken in, and that wait, each in a range."""

    batch: int
    streams: tuple[str, ...]

    def arrived(self, stream: str, number: int) -> DurableKey:
        return self._key(0, stream, number)

    def taken_in(self, stream: str, number: int) -> DurableKey:
        return self._key(1, stream, number)

    def held(self, stream: str, number: int) -> DurableKey:
        return self._key(2, stream, number)

    def _key(self, range_: int, stream: str, number: int) -> DurableKey:
        index = range_ * len(self.streams) + self.streams.index(stream)
        return self.batch, index * FRAMES_PER_STREAM_MAX + number


class WorkerMoves:
    """The open moves of one worker in one batch."""

    def __init__(
        self,
        worker: int,
        batch: int,
        epoch: Epoch,
        epoch_before: int,
        record: Record | None,
        durable: DurableState,
        transfers: TransferStore,
    ) -> None:
        if record is not None and epoch.fence < record.fence:
            raise BindingError(
                f"epoch {epoch.number} was published with fencing token {epoch.fence}, after one with {record.fence}: "
                "a manager that lost its lease has written it"
            )
        self.worker = worker
        self.batch = batch
        self.epoch = epoch
        self.moves = {move.id: move for move in moves_of(epoch) if worker in (move.sender, move.receiver)}
        self.barriers = {} if record is None else {int(group): since for group, since in record.barriers.items()}
        self._epoch_before = epoch_before
        self._durable = durable
        self._transfers = transfers
        self._had = set() if record is None else set(record.groups)
        known = {} if record is None else {role.move: role for role in record.roles}
        self.closed = [role for move, role in known.items() if move not in self.moves]
        self.roles = {move.id: known.get(move.id) or self._new_role(move) for move in self.moves.values()}
        self._taken_in = 0
        self._held_now = 0

    def _new_role(self, move: Move) -> Role:
        role = "sender" if move.sender == self.worker else "receiver"
        return Role(move.id, role, move.kind, list(move.groups), since_batch=self.batch, undoes=move.undoes)

    @property
    def groups(self) -> list[int]:
        """All groups that this worker has a part in."""
        owned = {group for group, owner in enumerate(self.epoch.owners) if owner == self.worker}
        return sorted(owned.union(*(move.groups for move in self.moves.values())))

    # -- begin ---------------------------------------------------------------------------------------------------

    def begin(self, engine: Engine, true_horizon: int, insert: Callable[[Tuples], None]) -> None:
        """`true_horizon` is watermark - window at the end of the batch before; `insert` joins rows that waited."""
        for role in self.closed:
            self._close(engine, role)
        self._drop(engine, self._had - set(self.groups))
        for move in self.moves.values():
            role = self.roles[move.id]
            if move.kind == DUPLICATE and role.role == "sender" and role.since_batch == self.batch:
                role.newest_old_us = engine.newest_us(move.groups, true_horizon)
                role.state = "old-remains"
                engine.track(move.id, move.groups)
            elif self._awaits(move) and not self._undone(move):
                self._take_in(engine, move, insert)

    def _close(self, engine: Engine, role: Role) -> None:
        mine = any(self.epoch.owners[group] == self.worker for group in role.groups)
        if role.kind == DUPLICATE:
            if role.role == "sender" and not mine and role.state != "all-old-purged":
                raise CorruptState(f"move {role.move} was closed while its sender has rows that nobody else has")
            engine.tracks.pop(role.move, None)
        elif role.role == "sender":
            self._transfers.remove(role.move)
        elif mine and role.state != "received":
            raise CorruptState(f"move {role.move} was closed before its receiver had the package: {role.state}")
        else:
            for batch, number in role.held:
                self._durable.remove_rows((batch, number))

    def _drop(self, engine: Engine, groups: set[int]) -> None:
        if groups:
            engine.expire(groups)
            self.barriers |= dict.fromkeys(groups, self.batch)

    def _awaits(self, move: Move) -> bool:
        """Whether this worker is to take the move's package in and has not done so."""
        return (
            move.kind == TRANSFER
            and move.receiver == self.worker
            and is_switched(move, self._epoch_before)
            and self.roles[move.id].state != "received"
        )

    def _undone(self, move: Move) -> Move | None:
        return next((other for other in self.moves.values() if other.undoes == move.id), None)

    def _take_in(self, engine: Engine, move: Move, insert: Callable[[Tuples], None]) -> None:
        role = self.roles[move.id]
        package = self._chosen_package(move, role)
        if package is None:
            role.state = "holding"
            return
        # What had not expired when it was packed is wanted by the rows that waited, whatever the watermark is now.
        engine.horizon = min(engine.horizon, package.horizon_us)
        frozen = self.roles.get(move.undoes)
        if package.kind == "held":
            for tuples in self._filed(engine, package):
                insert(tuples)
        else:
            if frozen is not None:
                self._drop(engine, set(move.groups))
            engine.take_in(list(self._filed(engine, package)), package.combined)
        if frozen is not None:
            frozen.state = "returned"
        # They are filed anew: under their old keys a rebuild would take them for rows that have left this worker.
        waited = [((batch, number), *self._durable.get_rows((batch, number))) for batch, number in sorted(role.held)]
        for key, stream, frame in waited:
            self._durable.remove_rows(key)
            insert(self._file(engine, stream, pa.py_buffer(frame)))
        role.held, role.held_rows, role.problem = [], 0, ""
        role.state = "received"
        role.rows, role.digest = package.rows, package.digest

    def _chosen_package(self, move: Move, role: Role) -> Package | None:
        packages = self._transfers.packages(move.id, role.since_batch)
        if move.digest:
            packages = [package for package in packages if package.digest == move.digest]
        if not packages:
            role.problem = "there is no good package in the transfer store"
            return None
        if len({package.digest for package in packages}) > 1:
            role.problem = "packages of several attempts differ"
            return None
        return packages[0]

    def _filed(self, engine: Engine, package: Package) -> Iterator[Tuples]:
        for stream, frame in package.leaves:
            yield self._file(engine, stream, frame)

    def _file(self, engine: Engine, stream: str, frame: pa.Buffer) -> Tuples:
        """Load rows from elsewhere, and file them in the durable state as this worker's own."""
        key = Keys(self.batch, engine.spec.names).taken_in(stream, self._taken_in)
        self._taken_in += 1
        self._durable.put_rows(key, stream, frame.to_pybytes())
        return engine.load_rows(stream, frames.decode(frame), frame, key)

    # -- hold ----------------------------------------------------------------------------------------------------

    def hold(
        self, arrived: dict[str, list[pa.RecordBatch]], streams: tuple[str, ...], partitions: int
    ) -> dict[str, list[pa.RecordBatch]]:
        """Put rows aside whose groups' states are still on their way; returns the others."""
        waiting = [self.roles[move.id] for move in self.moves.values() if self._awaits(move)]
        if not waiting:
            return arrived
        keys = Keys(self.batch, streams)
        kept: dict[str, list[pa.RecordBatch]] = {}
        for stream, pieces in arrived.items():
            for piece in pieces:
                group = piece.column(GROUP).to_numpy(zero_copy_only=False)
                rest = np.ones(group.size, np.bool_)
                for role in waiting:
                    mine = flags_of(role.groups, partitions)[group]
                    if mine.any():
                        rest &= ~mine
                        self._put_aside(role, keys, stream, piece.filter(pa.array(mine)))
                if rest.any():
                    kept.setdefault(stream, []).append(piece if rest.all() else piece.filter(pa.array(rest)))
        return kept

    def _put_aside(self, role: Role, keys: Keys, stream: str, rows: pa.RecordBatch) -> None:
        key = keys.held(stream, self._held_now)
        self._held_now += 1
        self._durable.put_rows(key, stream, frames.encode(rows).to_pybytes())
        role.held.append(list(key))
        role.held_rows += rows.num_rows

    # -- end -----------------------------------------------------------------------------------------------------

    def purge_horizon(self, true_horizon: int) -> int:
        """How far may be purged: not beyond what was live when groups were frozen."""
        frozen = [r.horizon_us for r in self.roles.values() if r.state in ("exported", "export-failed")]
        return min([true_horizon, *frozen])

    def end(self, engine: Engine, true_horizon: int) -> None:
        for move in self.moves.values():
            role = self.roles[move.id]
            if move.kind == DUPLICATE:
                if role.role == "sender" and (role.newest_old_us is None or role.newest_old_us < true_horizon):
                    role.state = "all-old-purged"
            elif role.role == "sender" and role.state != "returned" and self._undone(move) is None:
                self._export(engine, move, role, true_horizon)
        oldest = [batch for store in engine.payload.values() if (batch := store.oldest_batch()) is not None]
        self.barriers = {group: since for group, since in self.barriers.items() if since > min(oldest, default=since)}

    def _export(self, engine: Engine, move: Move, role: Role, true_horizon: int) -> None:
        if role.state == "exported" and self._transfers.has(move.id, role.since_batch, role.digest):
            return
        if role.state == "active":
            role.horizon_us = true_horizon
        package = self._packed(engine, move, role)
        data = pack(package, self._transfers.key)
        role.rows, role.bytes, role.digest = package.rows, len(data), package.digest
        try:
            self._transfers.put(move.id, self.batch, package.digest, data)
            role.state, role.problem = "exported", ""
        except OSError as error:
            role.state, role.problem = "export-failed", f"the transfer store takes no package: {error}"

    def _packed(self, engine: Engine, move: Move, role: Role) -> Package:
        undone = self.roles.get(move.undoes)
        if undone is not None and undone.state != "received":
            held = [self._durable.get_rows((batch, number)) for batch, number in sorted(undone.held)]
            leaves = [(stream, pa.py_buffer(frame)) for stream, frame in held]
            rows = [engine.tuples_of(stream, frames.decode(frame)) for stream, frame in leaves]
            return self._package(move, "held", undone.horizon_us, rows, leaves)
        exported = engine.export(move.groups, role.horizon_us)
        leaves = [(stream, frames.encode(piece)) for stream, pieces in exported.leaves.items() for piece in pieces]
        package = self._package(move, "state", role.horizon_us, list(exported.rows.values()), leaves)
        return replace(package, combined=exported.combined)

    def _package(
        self,
        move: Move,
        kind: Literal["state", "held"],
        horizon: int,
        rows: Sequence[Tuples],
        leaves: Sequence[tuple[str, pa.Buffer]],
    ) -> Package:
        return Package(
            move=move.id,
            batch=self.batch,
            kind=kind,
            horizon_us=horizon,
            rows=sum(map(len, rows)),
            digest=digest_of(rows),
            leaves=tuple(leaves),
            combined={},
        )

    # -- what is told --------------------------------------------------------------------------------------------

    def reports(self, arrived: Int64s, load: GroupLoad) -> list[MoveReport]:
        def counts(role: Role, numbers: Int64s) -> dict[str, int]:
            return {str(group): int(numbers[group]) for group in role.groups if numbers[group]}

        return [
            MoveReport(
                move=role.move,
                role="sender" if role.role == "sender" else "receiver",
                state=_told(role.state),
                rows=role.rows,
                bytes=role.bytes,
                digest=role.digest,
                held_rows=role.held_rows,
                newest_old_us=role.newest_old_us,
                problem=role.problem,
                arrived=counts(role, arrived),
                results=counts(role, load.results),
                suppressed=counts(role, load.suppressed),
            )
            for role in self.roles.values()
        ]

    def chosen(self, load: GroupLoad, state_rows: Int64s) -> dict[str, list[int]]:
        """PartitionsToMove: step 2 of both protocols, answering each ComputePartitionsToMove in the epoch."""
        moving = {group for move in moves_of(self.epoch) for group in move.groups}
        mine = {g for g, owner in enumerate(self.epoch.owners) if owner == self.worker and g not in moving}
        work = load.rows + load.probes + load.results
        answers: dict[str, list[int]] = {}
        for command in commands_of(self.epoch):
            if command.worker != self.worker:
                continue
            if command.groups:
                answers[command.migration] = [group for group in command.groups if group in mine]
                continue
            # A batch without rows says nothing about work; state is the next best measure.
            measure = work if command.measure == "cpu" and work.sum() else state_rows
            loads = {group: float(measure[group]) for group in mine}
            amount = command.share * sum(loads.values())
            answers[command.migration] = list(nearest(loads, amount, excluded=set(command.excluded)))
        return answers


def rebuilt_tracks(engine: Engine, record: Record, first_rows: dict[str, list[tuple[int, int]]]) -> None:
    """Old and new after a rebuild: by the batch that rows are filed under.

    `first_rows[stream]` lists (batch, row number) of each frame in the order it was loaded.
    """
    for role in record.roles:
        if role.kind == DUPLICATE and role.role == "sender":
            first_new = {}
            for stream, store in engine.payload.items():
                later = (row for batch, row in first_rows.get(stream, ()) if batch >= role.since_batch)
                first_new[stream] = next(later, store.next_row)
            engine.tracks[role.move] = Track(engine.flags(role.groups), first_new)


def _told(state: str) -> Any:
    # "returned" is the worker's own word for a sender that has its groups back.
    return "exported" if state == "returned" else state
