"""A data plane in one process: what split, workers and Spark's logs do with epochs, without Spark.

Rows are (batch, number) in a group; a result is a pair of rows of one group that are at most `window` batches apart,
made when the later one is joined. That is enough to tell a lost state, a lost row or a doubled result from a right one:
`verdict()` compares the multiset of results with what a join without any move gives.

As in the real one: one epoch is bound per batch, if it follows the bound one and its fencing token is not older; the
binding is written before the batch runs; a batch that is not committed is run again with the same binding; what a
worker does follows from the bound epoch, the epoch number of the batch before and its own durable state; reports,
heartbeat and restored epochs go to Redis if it answers, and are not missed if it does not.
"""

from __future__ import annotations

import copy
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import redis

from balancing.selection import nearest
from trimtab.epochs import Epoch, dealt_in_turn, first_epoch
from trimtab.moves import DUPLICATE, TRANSFER, Move, MoveReport, commands_of, is_switched, moves_of, routing
from trimtab.reports import WorkerReport
from trimtab.store import Store, successor

Row = tuple[int, int]
"""(batch in which it came, number in its batch and group)."""
ROW_BYTES = 100
CPU_NS_PER_ROW = 1_000_000


@dataclass
class Package:
    """What a transfer carries, by group: whole states, or only the rows that were held in wait for one."""

    has_state: bool
    rows: dict[int, list[Row]]
    held: dict[int, list[Row]]

    @property
    def count(self) -> int:
        return sum(map(len, self.rows.values())) + sum(map(len, self.held.values()))

    @property
    def digest(self) -> str:
        return str(hash(tuple((g, tuple(sorted(rows))) for g, rows in sorted(self.rows.items()))))


@dataclass
class WorkerState:
    """What a worker keeps from batch to batch."""

    rows: dict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    frozen: dict[int, list[Row]] = field(default_factory=dict)
    held: dict[str, dict[int, list[Row]]] = field(default_factory=dict)
    """Rows that wait, by move and group."""
    received: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Moves whose package was taken in: rows and digest."""
    exported: dict[str, tuple[int, str]] = field(default_factory=dict)
    new_since: dict[int, int] = field(default_factory=dict)
    """PTLB, sender: rows of the group are new from this batch on."""


class DataPlane:
    """A running query. `step()` runs one batch."""

    def __init__(
        self,
        url: str,
        *,
        query: str = "orders",
        partitions: int = 6,
        workers: int = 3,
        executors: int = 2,
        window: int = 3,
        weights: Sequence[int] | None = None,
        incarnation: str = "abc",
    ) -> None:
        self.query, self.partitions, self.workers, self.window = query, partitions, workers, window
        self.executors = executors
        self.weights = tuple(weights) if weights is not None else (1,) * partitions
        """Rows of each group in each batch."""
        self.store = Store(url, timeout_s=0.2)
        self.incarnation = incarnation
        self.offsets: list[Epoch] = []
        """The offset log: the epoch that each batch is bound to."""
        self.committed = -1
        self.states = [WorkerState() for _ in range(workers)]
        self.packages: dict[str, Package] = {}
        self.results: Counter[tuple[int, Row, Row]] = Counter()
        self.sent: dict[int, list[Row]] = defaultdict(list)
        self.exports_fail = False
        """The transfer store is full."""
        self.silent: set[int] = set()
        """Workers whose reports get lost."""
        self.watermark_stalls = False
        """An idle stream: nothing expires any more."""
        self._horizon = 0
        self._redis_away = False
        """Asked once per batch: one that does not answer is not waited for again and again."""
        self.restored = 0
        self.first = first_epoch(query, incarnation, dealt_in_turn(partitions, workers))
        self.define()

    def define(self) -> None:
        """What `join` does when the query starts."""
        bound = self.offsets[-1] if self.offsets else self.first
        if self.store.epoch(self.query, bound.number) != bound:
            self.store.restore(bound)
        self.store.define(
            self.query,
            {
                "checkpoint": "/nowhere",
                "incarnation": self.incarnation,
                "name": self.query,
                "partitions": self.partitions,
                "workers": self.workers,
                "window": self.window * 1_000_000,
                "lateness": 0,
            },
        )

    @property
    def bound(self) -> Epoch:
        return self.offsets[-1]

    @property
    def owners(self) -> tuple[int, ...]:
        return self.bound.owners

    def step(self, *, crash: bool = False, rows: bool = True) -> None:
        """One batch: bind, run, commit, say so. With `crash` the batch is run and then lost before its commit."""
        batch = self.committed + 1
        self._redis_away = False
        if len(self.offsets) == batch:
            self.offsets.append(self._bind())
        # Packages are attempt-scoped, and only those of the committed attempt are ever taken.
        packages = dict(self.packages)
        states, results, reports = self._run(batch, rows)
        for report in reports:
            self._to_redis(partial(self.store.report, report))
        if crash:
            self.packages = packages
            return
        self.states = states
        self.results.update(results)
        self.committed = batch
        for group in range(self.partitions):
            self.sent[group] += self._rows_of(batch, group, rows)
        self.beat()

    def beat(self) -> None:
        bound = self.bound
        self._to_redis(lambda: self.store.beat(self.query, self.committed, bound.number, bound.digest))

    # Binding, as the control source does it

    def _bind(self) -> Epoch:
        if not self.offsets:
            return self.first
        bound = self.bound
        try:
            current, known = self.store.beat(self.query, self.committed, bound.number, bound.digest)
            if current is None or current < bound.number or known != bound.digest:
                return self._put_back(bound)
            if current == bound.number:
                return bound
            return successor(self.store, self.query, bound, self.workers) or self._put_back(bound)
        except (redis.RedisError, OSError):
            self._redis_away = True
            return bound

    def _put_back(self, bound: Epoch) -> Epoch:
        self.store.restore(bound)
        self.store.alarm(self.query, "redis-went-back", f"epoch {bound.number} published again")
        self.restored += 1
        return bound

    # The batch

    def _run(
        self, batch: int, with_rows: bool
    ) -> tuple[list[WorkerState], Counter[tuple[int, Row, Row]], list[WorkerReport]]:
        epoch = self.offsets[batch]
        before = self.offsets[batch - 1].number if batch else 0
        moves = moves_of(epoch)
        routes = routing(epoch, moves, before)
        states = copy.deepcopy(self.states)
        results: Counter[tuple[int, Row, Row]] = Counter()
        if not self.watermark_stalls:
            self._horizon = batch - self.window
        _drop_what_is_gone(states, epoch, moves)
        undone = {move.undoes for move in moves if move.undoes and is_switched(move, before)}
        for move in moves:
            if move.id not in undone:
                self._take_in(move, states, before, results)
            if move.kind == DUPLICATE:
                for group in move.groups:
                    states[move.sender].new_since.setdefault(group, batch)
        arrived: dict[tuple[int, int], int] = {}
        made: dict[tuple[int, int], int] = {}
        suppressed: dict[tuple[int, int], int] = {}
        for group in range(self.partitions):
            rows = self._rows_of(batch, group, with_rows)
            for worker in {int(routes.owner[group]), int(routes.also[group])} - {-1}:
                arrived[worker, group] = len(rows)
                state = states[worker]
                waiting = _waiting(state, group, moves, before, worker)
                if waiting is not None:
                    state.held.setdefault(waiting, {}).setdefault(group, []).extend(rows)
                    continue
                assert group not in state.frozen, f"rows of group {group} came to worker {worker}, where it is frozen"
                made[worker, group], suppressed[worker, group] = self._join(state, group, rows, results)
        for move in moves:
            if move.kind == TRANSFER and move.id not in undone:
                self._export(move, states, before)
        self._purge(states)
        reports = [
            self._report(batch, epoch, worker, states[worker], moves, before, arrived, made, suppressed, with_rows)
            for worker in range(self.workers)
            if worker not in self.silent
        ]
        return states, results, reports

    def _rows_of(self, batch: int, group: int, with_rows: bool) -> list[Row]:
        return [(batch, number) for number in range(self.weights[group])] if with_rows else []

    def _join(
        self, state: WorkerState, group: int, rows: Sequence[Row], results: Counter[tuple[int, Row, Row]]
    ) -> tuple[int, int]:
        made = suppressed = 0
        new_since = state.new_since.get(group)
        for row in rows:
            for other in state.rows[group]:
                if row[0] - other[0] > self.window:
                    continue
                if new_since is not None and min(row[0], other[0]) >= new_since:
                    suppressed += 1  # all new: the receiver makes it too (PTLB/MSLB section 3)
                    continue
                results[group, other, row] += 1
                made += 1
            state.rows[group].append(row)
        return made, suppressed

    def _take_in(
        self, move: Move, states: list[WorkerState], before: int, results: Counter[tuple[int, Row, Row]]
    ) -> None:
        """The receiver of a switched transfer imports the package, once, and joins what it held."""
        state = states[move.receiver]
        if not is_switched(move, before) or move.id in state.received:
            return
        package = self.packages.get(move.id)
        if package is None:
            return
        for group in move.groups:
            own = state.frozen.pop(group, None)
            if package.has_state:
                state.rows[group] = list(package.rows.get(group, ()))
            elif own is not None:
                state.rows[group] = own  # the way back, before the receiver had taken it in
            waited = [*package.held.get(group, ()), *state.held.get(move.id, {}).get(group, ())]
            self._join(state, group, sorted(waited), results)
        state.held.pop(move.id, None)
        state.received[move.id] = (package.count, package.digest)

    def _export(self, move: Move, states: list[WorkerState], before: int) -> None:
        """The sender packs and freezes at the end of the first batch; again later, while there is no package."""
        state = states[move.sender]
        if not is_switched(move, before):
            has_state = move.undoes == "" or move.undoes in state.received
            held = state.held.pop(move.undoes, {}) if move.undoes else {}
            state.held[move.id + ":packed"] = held
            for group in move.groups:
                if has_state:
                    state.frozen[group] = state.rows.pop(group, [])
            state.exported[move.id] = (0, "state" if has_state else "held")
        if self.exports_fail or move.id in self.packages:
            return
        package = Package(
            has_state=state.exported[move.id][1] != "held",
            rows={group: list(state.frozen.get(group, ())) for group in move.groups},
            held=state.held[move.id + ":packed"],
        )
        self.packages[move.id] = package
        state.exported[move.id] = (package.count, package.digest if package.has_state else "held")

    def _purge(self, states: list[WorkerState]) -> None:
        for state in states:
            for group, rows in state.rows.items():
                # Frozen groups and groups with rows in wait are left alone.
                state.rows[group] = [row for row in rows if row[0] >= self._horizon]

    # Reports

    def _report(
        self,
        batch: int,
        epoch: Epoch,
        worker: int,
        state: WorkerState,
        moves: Sequence[Move],
        before: int,
        arrived: dict[tuple[int, int], int],
        made: dict[tuple[int, int], int],
        suppressed: dict[tuple[int, int], int],
        with_rows: bool,
    ) -> WorkerReport:
        group_rows = [arrived.get((worker, group), 0) for group in range(self.partitions)]
        group_bytes = [
            ROW_BYTES * (len(state.rows.get(g, ())) + len(state.frozen.get(g, ()))) for g in range(self.partitions)
        ]
        cpu = [count * CPU_NS_PER_ROW for count in group_rows]
        groups = [group for group in range(self.partitions) if group_rows[group] or group_bytes[group]]
        chosen = {}
        for command in commands_of(epoch):
            if command.worker == worker:
                loads = group_bytes if command.measure == "bytes" else cpu
                mine = [g for g, owner in enumerate(epoch.owners) if owner == worker and g not in command.excluded]
                if command.groups:
                    chosen[command.migration] = [g for g in command.groups if g in mine]
                else:
                    total = sum(loads[g] for g in mine)
                    chosen[command.migration] = list(nearest({g: loads[g] for g in mine}, command.share * total))
        moving = sorted({group for move in moves for group in move.groups})
        return WorkerReport(
            query=self.query,
            batch=batch,
            epoch=epoch.number,
            worker=worker,
            attempt=0,
            executor=str(worker % self.executors),
            process=1,
            at_ms=time.time_ns() // 1_000_000,
            rows={"A": sum(group_rows)},
            late_rows={},
            bad_rows={},
            results=sum(count for (at, _), count in made.items() if at == worker),
            state_rows=sum(map(len, state.rows.values())),
            combined_rows=0,
            state_bytes=sum(group_bytes),
            index_bytes=0,
            watermark_us=self._horizon * 1_000_000,
            cpu_ns=sum(cpu),
            resident="hit",
            phase_ns={},
            groups=groups,
            group_rows=[group_rows[group] for group in groups],
            group_probes=[group_rows[group] for group in groups],
            group_results=[made.get((worker, group), 0) for group in groups],
            group_state_rows=[len(state.rows.get(group, ())) for group in groups],
            group_bytes=[group_bytes[group] for group in groups],
            group_cpu_ns=[cpu[group] for group in groups],
            moves=[
                self._move_report(move, worker, state, before, arrived, made, suppressed)
                for move in moves
                if worker in (move.sender, move.receiver)
            ],
            chosen=chosen,
            # Split tasks tell one worker.
            seen_rows={str(g): len(self._rows_of(batch, g, with_rows)) for g in moving} if worker == 0 else {},
        )

    def _move_report(
        self,
        move: Move,
        worker: int,
        state: WorkerState,
        before: int,
        arrived: dict[tuple[int, int], int],
        made: dict[tuple[int, int], int],
        suppressed: dict[tuple[int, int], int],
    ) -> MoveReport:
        told = MoveReport(
            move=move.id,
            role="sender" if worker == move.sender else "receiver",
            state="active",
            arrived={str(g): arrived[worker, g] for g in move.groups if (worker, g) in arrived},
            results={str(g): made[worker, g] for g in move.groups if (worker, g) in made},
            suppressed={str(g): n for g in move.groups if (n := suppressed.get((worker, g), 0))},
        )
        if move.kind == DUPLICATE:
            if worker == move.receiver:
                return told
            old = [row for g in move.groups for row in state.rows.get(g, ()) if row[0] < state.new_since[g]]
            newest_us = max(row[0] for row in old) * 1_000_000 if old else None
            return replace(told, state="old-remains" if old else "all-old-purged", newest_old_us=newest_us)
        if worker == move.sender:
            packed = self.packages.get(move.id)
            if packed is None:
                return replace(told, state="export-failed", problem="transfer store full")
            size = packed.count * ROW_BYTES
            return replace(told, state="exported", rows=packed.count, bytes=size, digest=packed.digest)
        if move.id in state.received:
            rows, digest = state.received[move.id]
            return replace(told, state="received", rows=rows, bytes=rows * ROW_BYTES, digest=digest)
        if not is_switched(move, before):
            return told
        held = sum(map(len, state.held.get(move.id, {}).values()))
        return replace(told, state="holding", held_rows=held, problem="there is no package")

    def _to_redis(self, write: Callable[[], object]) -> None:
        # What cannot be told now is told again with the next batch.
        if self._redis_away:
            return
        try:
            write()
        except (redis.RedisError, OSError):
            self._redis_away = True

    # Verdict

    def expected(self) -> Counter[tuple[int, Row, Row]]:
        return Counter(
            (group, first, second)
            for group, rows in self.sent.items()
            for index, second in enumerate(rows)
            for first in rows[:index]
            if second[0] - first[0] <= self.window
        )

    def verdict(self) -> tuple[int, int]:
        """Results that are missing, results that are too many."""
        expected = self.expected()
        return sum((expected - self.results).values()), sum((self.results - expected).values())


def _drop_what_is_gone(states: list[WorkerState], epoch: Epoch, moves: Sequence[Move]) -> None:
    """Workers forget groups that they neither own nor take part in moving, and moves that are closed."""
    open_moves = {move.id for move in moves}
    for worker, state in enumerate(states):
        keeps = {group for group, owner in enumerate(epoch.owners) if owner == worker}
        keeps |= {g for move in moves if worker in (move.sender, move.receiver) for g in move.groups}
        duplicated = {g for move in moves if move.kind == DUPLICATE and move.sender == worker for g in move.groups}
        for group in set(state.rows) - keeps:
            del state.rows[group]
        for group in set(state.frozen) - keeps:
            del state.frozen[group]
        for group in set(state.new_since) - duplicated:
            del state.new_since[group]
        for move in set(state.held) - open_moves - {f"{each}:packed" for each in open_moves}:
            del state.held[move]


def _waiting(state: WorkerState, group: int, moves: Sequence[Move], before: int, worker: int) -> str | None:
    """The transfer that this worker holds the group's rows for, if it is waiting for one."""
    for move in reversed(moves):
        if group in move.groups and is_switched(move, before) and move.receiver == worker:
            return None if move.id in state.received else move.id
        if group in move.groups and move.undoes and not is_switched(move, before) and move.sender == worker:
            # First batch of the way back: still the receiver's, which may never have had the package.
            return None if move.undoes in state.received else move.undoes
    return None
