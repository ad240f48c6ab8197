"""A toy data plane for tests of the audit: two workers of a move that keep their rows in lists, and count them there.

A seed draws a legal history of one move: what arrives, what is late, how long packing fails, when the package shows,
when somebody cancels. Every count is taken from the lists after the fact, so a *damage* (one wrong line at one place
where a row is touched, switched on by name) is told as honestly as everything else, and the audit must find it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from balancing.committed import CommittedBatch
from trimtab.epochs import first_epoch
from trimtab.evidence import NOTHING, Evidence, Seen, Tally
from trimtab.moves import Kind, Move, RoleState, Side, Way, is_switched, move_id
from trimtab.reports import MoveReport, WorkerReport

MIGRATION = "m1"
WORKERS = 3
GROUPS = 4
AFTER_CLOSE = 2

S = RoleState
Results = list[tuple[int, int, int]]
"""Number of the row that made it, group, key."""


@dataclass(frozen=True)
class ToyRow:
    number: int
    stream: str
    group: int
    time: int
    key: int

    @property
    def arriving(self) -> int:
        return _hash(self.stream, self.group, self.time)

    @property
    def stored(self) -> int:
        return _hash(self.stream, self.group, self.time, self.key)


def _hash(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def arriving(rows: Iterable[ToyRow]) -> Tally:
    return sum((Tally(rows=1, digest=row.arriving) for row in rows), NOTHING)


def stored(rows: Iterable[ToyRow]) -> Tally:
    return sum((Tally(rows=1, digest=row.stored) for row in rows), NOTHING)


@dataclass
class ToyRole:
    """One side of the move, as the durable record has it."""

    side: Side
    state: RoleState = S.ACTIVE
    rows: list[ToyRow] = field(default_factory=list)
    aside: list[ToyRow] = field(default_factory=list)
    new: set[int] = field(default_factory=set)
    """PTLB, sender: rows that came since the move is open."""
    package: Tally | None = None
    closed_for: int = 0


@dataclass
class History:
    """One move, drawn by a seed. `batches` is what a manager sees, oldest first."""

    seed: int
    kind: Kind
    damage: str = ""
    gaps: bool = False
    """Whether batches run no task, and reports get lost."""
    hit: bool = False
    """Whether the damage was done."""
    batches: list[CommittedBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(f"{self.seed} {self.kind}")
        self.window = self.random.randint(2, 9)
        self.busy = self.random.choice((0, 2, 6))
        """Rows per batch, at most: some histories have none at all."""
        self.clock = self.watermark = self.limit = self.batch = 0
        groups = (0,) if self.random.random() < 0.5 else (0, 2)
        self.move = Move(id=move_id(MIGRATION, 1), kind=self.kind, groups=groups, sender=0, receiver=1, epoch=2)
        self.roles = {side: ToyRole(side) for side in Side}
        self.bound = first_epoch("q", "i", tuple(group % 2 and 2 for group in range(GROUPS)))
        self.epoch_before = self.bound.number
        self.previous: CommittedBatch | None = None
        self.store: list[ToyRow] | None = None
        self.visible_from = 0
        self.rows_made = 0
        self._run()

    # -- the manager -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        random = self.random
        self._some_batches(1, 2)
        self._epoch(moves=(self.move,))
        cancels = random.random() < 0.5
        patience = random.randint(1, 6) if cancels else 40
        self.pack_fails_until = self.batch + (0 if random.random() < 0.5 else random.randint(1, 4))
        self.delay = random.choice((-1, 0, 0, 1, 3))
        for _ in range(patience):
            self._batch()
            wanted = {Kind.TRANSFER: S.RECEIVED, Kind.DUPLICATE: S.ALL_OLD_PURGED}[self.kind]
            side = Side.RECEIVER if self.kind == Kind.TRANSFER else Side.SENDER
            if self.roles[side].state == wanted and not cancels:
                break
            if self.kind == Kind.DUPLICATE and self.busy and not cancels:
                self.clock += 1  # event time has to go on
        if cancels:
            self._back()
        else:
            self._some_batches(1, 3)
            self._close(self.move.receiver)
        self._some_batches(AFTER_CLOSE + 2, AFTER_CLOSE + 3)

    def _back(self) -> None:
        if self.kind == Kind.TRANSFER:
            self._change_way(Way.RECALLED)
            recalled = (S.RECALLED_HELD, S.RECALLED_JOINED)
            while True:
                self._some_batches(1, 3)
                if self.roles[Side.RECEIVER].state in recalled:
                    break
            joined = self.roles[Side.RECEIVER].state == S.RECALLED_JOINED
            self._change_way(Way.JOINED if joined else Way.HELD)
            while True:
                self._some_batches(1, 3)
                if self.roles[Side.SENDER].state == S.RESTORED and self.roles[Side.RECEIVER].state == S.DROPPED:
                    break
        self._close(self.move.sender)

    def _epoch(self, moves: tuple[Move, ...] = (), owners: tuple[int, ...] | None = None) -> None:
        self.bound = self.bound.successor(owners or self.bound.owners, moves=moves)

    def _change_way(self, way: Way) -> None:
        self.move = replace(self.move, way=way)
        self._epoch(moves=(self.move,))

    def _close(self, owner: int) -> None:
        owners = tuple(owner if group in self.move.groups else each for group, each in enumerate(self.bound.owners))
        self._epoch(owners=owners)

    def _some_batches(self, least: int, most: int) -> None:
        for _ in range(self.random.randint(least, most)):
            self._batch()

    # -- one batch ---------------------------------------------------------------------------------------------------

    def hits(self, damage: str, possible: object = True) -> bool:
        """Whether this damage is to be done here and now: once, where it can do harm."""
        if self.damage != damage or self.hit or not possible:
            return False
        self.hit = True
        return True

    def _batch(self) -> None:
        no_task = self.gaps and self.random.random() < 0.08
        rows = [] if no_task else self._arriving()
        limit, self.limit = self.watermark, self.watermark
        self.watermark = max(self.watermark, self.clock - 3)
        if no_task:
            self.batch += 1
            self.epoch_before = self.bound.number
            self.previous = None
            return
        begun = self.bound.number >= self.move.epoch
        reports = self._reports(rows, limit) if begun else self._plain_reports(rows)
        if self.gaps and self.random.random() < 0.05:
            del reports[self.random.randrange(WORKERS)]
        committed = CommittedBatch(batch=self.batch, bound=self.bound, at_ms=0, reports=reports)
        self.batches.append(replace(committed, previous=self.previous))
        self.previous = committed
        self.batch += 1
        self.epoch_before = self.bound.number

    def _arriving(self) -> list[ToyRow]:
        self.clock += self.random.choice((0, 1, 1, 2, 6))
        rows = []
        for _ in range(self.random.randint(0, self.busy)):
            self.rows_made += 1
            time = max(1, self.clock - self.random.choice((0, 0, 1, 2, 4, 9)))
            group = self.random.randrange(GROUPS)
            rows.append(ToyRow(self.rows_made, self.random.choice("AB"), group, time, self.random.randrange(3)))
        return rows

    def _plain_reports(self, rows: list[ToyRow]) -> dict[int, WorkerReport]:
        """Before the move: the sender joins."""
        role = self.roles[Side.SENDER]
        role.rows += [row for row in self._mine(rows) if row.time > self.limit]
        self._expire(role)
        return {worker: self._report(worker) for worker in range(WORKERS)}

    def _mine(self, rows: list[ToyRow]) -> list[ToyRow]:
        return [row for row in rows if row.group in self.move.groups]

    def _expire(self, role: ToyRole) -> None:
        role.rows = [row for row in role.rows if self.watermark - row.time <= self.window]

    def _report(self, worker: int, **changes: Any) -> WorkerReport:
        return make_report(worker, self.batch, self.bound.number, **changes)

    def _reports(self, rows: list[ToyRow], limit: int) -> dict[int, WorkerReport]:
        move = next(iter(self.bound.moves), None)
        mine = self._mine(rows)
        seen: list[dict[int, Seen]] = [{} for _ in range(WORKERS)]
        for row in mine if move else ():
            told = seen[self.random.randrange(WORKERS)]
            on_time = arriving([row]) if row.time > limit else NOTHING
            told[row.group] = told.get(row.group, Seen()) + Seen(rows=1, on_time=on_time)
        made: dict[int, dict[str, Any]] = {worker: {} for worker in range(WORKERS)}
        for side in Side:
            worker = self.move.sender if side == Side.SENDER else self.move.receiver
            role = self.roles[side]
            if role.closed_for > AFTER_CLOSE:
                continue
            arrived = self._routed(mine, side, move)
            report, results = self._work(role, arrived, limit, move)
            emitted = results
            if self.hits("results handed over twice", results):
                emitted = 2 * results
            if side == Side.SENDER and self.kind == Kind.DUPLICATE and self.hits("sender emits nothing", results):
                emitted = 0
            made[worker] = {"moves": [report], "results": results, "emitted": emitted}
        return {worker: self._report(worker, seen=seen[worker], **made[worker]) for worker in range(WORKERS)}

    def _routed(self, rows: list[ToyRow], side: Side, move: Move | None) -> list[ToyRow]:
        if move is None:
            owner = self.bound.owners[self.move.groups[0]]
            mine = owner == (self.move.sender if side == Side.SENDER else self.move.receiver)
        elif move.kind == Kind.DUPLICATE:
            mine = True
        else:
            switched = is_switched(move, self.epoch_before) and not move.way.back
            mine = switched or side == Side.SENDER
        routed = list(rows) if mine else []
        if move is not None and self.hits("row not routed", routed):
            routed.pop()
        if move is not None and self.hits("row routed twice", routed):
            routed.append(routed[0])
        if move is not None and not mine and self.hits("row routed to the other worker too", rows):
            routed = [rows[0]]
        return routed

    # -- a worker ----------------------------------------------------------------------------------------------------

    def _work(self, role: ToyRole, arrived: list[ToyRow], limit: int, move: Move | None) -> tuple[MoveReport, int]:
        state, package = role.state, role.package
        self._damage_durable(role, move)
        waiting_before = arriving(role.aside)
        rejoined = self._begin(role, move)
        stored_before = stored(role.rows)
        filed_package, filed_waiting = self._filed(role, state, waiting_before)
        on_time = [row for row in arrived if row.time > self._limit(role, limit, arrived)]
        aside = role.state in (S.EXPORTED, S.EXPORT_FAILED, S.HOLDING, S.RECALLED_HELD)
        put_aside = on_time if aside else []
        if self.hits("row not put aside", put_aside):
            put_aside = put_aside[1:]
        role.aside += put_aside
        joined = rejoined + ([] if aside else on_time)
        if move is not None and self.hits("joined row changes its time", joined):
            joined[0] = replace(joined[0], time=joined[0].time + 1)
        if move is not None and self.hits("row joined twice", joined):
            joined.append(joined[0])
        results, expected, suppressed = self._results(role, joined, move)
        self._end(role, move)
        evidence = Evidence(
            stored_before=stored_before,
            stored_after=stored(role.rows),
            joined=arriving(joined),
            put_aside=arriving(put_aside),
            waiting_before=waiting_before,
            waiting_after=arriving(role.aside),
            filed_package=filed_package,
            filed_waiting=filed_waiting,
            frames_missing=int(state not in (S.ACTIVE, S.CLOSED) and self.hits("a frame is missing")),
            sampled_keys=2,
            sampled_expected=_sampled_results(expected),
            sampled_made=_sampled_results(results),
        )
        report = MoveReport(
            move=self.move.id,
            side=role.side,
            state=state,
            rows=package.rows if package else 0,
            digest=f"{package.rows}-{package.digest:016x}" if package else "",
            arrived=_by_group(row.group for row in arrived),
            results=_by_group(group for _, group, _ in results),
            suppressed=_by_group(group for _, group, _ in suppressed),
            evidence=evidence,
        )
        return report, len(results)

    def _filed(self, role: ToyRole, state: RoleState, waited: Tally) -> tuple[Tally, Tally]:
        """What the durable state has of a package that was taken in, and of rows that are joined or put back."""
        if role.state == state or role.state not in (S.RECEIVED, S.RESTORED):
            return NOTHING, NOTHING
        package = stored(self.store or ()) if role.state == S.RECEIVED else NOTHING
        if self.hits("package not filed", package.rows):
            package = NOTHING
        if self.hits("rows that had waited not filed", waited.rows):
            waited = NOTHING
        return package, waited

    def _damage_durable(self, role: ToyRole, move: Move | None) -> None:
        """Between two batches, as a rebuild that goes wrong would."""
        if role.state == S.ACTIVE:
            return  # Nobody has counted the rows yet.
        kept = move is not None or self.bound.owners[self.move.groups[0]] == self.move.sender
        if role.side == Side.SENDER and not kept:
            return  # They are dropped now.
        if move is not None and move.way.back and role.side == Side.RECEIVER:
            return
        if self.hits("stored row vanishes", role.rows):
            role.rows.pop()
        if self.hits("stored row doubled", role.rows):
            role.rows.append(role.rows[0])
        if move is not None and move.way == Way.THERE and self.hits("stored row changes its key", role.rows):
            role.rows[0] = replace(role.rows[0], key=role.rows[0].key + 7)
        if move is not None and self.hits("waiting row lost", role.aside):
            role.aside.pop()

    def _results(self, role: ToyRole, joined: list[ToyRow], move: Move | None) -> tuple[Results, Results, Results]:
        """Results made, those of the naive join, and those left out."""
        results, suppressed = self._join(role, joined)
        expected = list(results)
        sampled = [result for result in results if _sampled(result)]
        if self.hits("every result doubled", sampled):
            results = results * 2
        if self.hits("result of a sampled key lost", sampled):
            results.remove(sampled[0])
        if len(set(sampled)) > 1 and self.hits("result of a sampled key replaced by a copy of another"):
            results[results.index(max(sampled))] = min(sampled)
        track = move is not None and self.kind == Kind.DUPLICATE and role.side == Side.RECEIVER
        if track and self.hits("track result lost", results):
            results.pop()
            expected = list(results)  # of a key that was not sampled
        if self.hits("sender leaves out too much", suppressed):
            suppressed = [*suppressed, suppressed[0]]
        if self.hits("sender leaves out nothing", suppressed):
            results, suppressed = results + suppressed, []
            expected = list(results)
        return results, expected, suppressed

    def _limit(self, role: ToyRole, limit: int, arrived: list[ToyRow]) -> int:
        """By which rows are late; damaged: a wrong one, where that makes a difference."""
        damage, _, side = self.damage.partition(" at the ")
        if role.state == S.CLOSED or self.bound.move(self.move.id) is None or side != role.side:
            return limit
        wrong = {"lateness limit too high": limit + 3, "lateness limit too low": limit - 3}.get(damage, limit)
        if any((row.time > limit) != (row.time > wrong) for row in arrived):
            self.hit = True
        return wrong

    def _begin(self, role: ToyRole, move: Move | None) -> list[ToyRow]:
        """Facts of the batch's beginning; the rows that waited and are joined now."""
        if role.state == S.CLOSED:
            role.closed_for += 1
            owner = self.bound.owners[self.move.groups[0]]
            mine = owner == (self.move.sender if role.side == Side.SENDER else self.move.receiver)
            if mine and self.hits("owner loses a row after the close", role.rows):
                role.rows.pop()
            return []
        if move is None:
            return self._close_role(role)
        if move.kind == Kind.DUPLICATE:
            if role.side == Side.SENDER and role.state == S.ACTIVE:
                role.state = S.OLD_REMAINS
            if role.side == Side.RECEIVER and not role.rows and self.hits("receiver does not begin empty"):
                role.rows = [ToyRow(-1, "A", self.move.groups[0], self.watermark + 2, 0)]
            return []
        switched = is_switched(move, self.epoch_before)
        if role.side == Side.SENDER:
            return self._sender_begins(role, move, switched)
        return self._receiver_begins(role, move, switched)

    def _close_role(self, role: ToyRole) -> list[ToyRow]:
        owner = self.bound.owners[self.move.groups[0]]
        mine = owner == (self.move.sender if role.side == Side.SENDER else self.move.receiver)
        role.state, role.closed_for = S.CLOSED, 1
        role.aside = []
        if not mine and not self.hits("groups kept after the close", role.rows):
            role.rows = []
        return []

    def _sender_begins(self, role: ToyRole, move: Move, switched: bool) -> list[ToyRow]:
        if switched and role.state == S.ACTIVE:  # the batch that opened it ran no task
            role.state = S.EXPORT_FAILED
        if not move.way.back or role.state == S.RESTORED:
            return []
        role.state = S.RESTORED
        waited, role.aside = role.aside, []
        silently = move.way == Way.JOINED
        if silently and self.hits("rows of a recall not put back", waited):
            return []
        if silently and self.hits("rows of a recall put back twice", waited):
            role.rows += waited
        if silently and self.hits("rows of a recall joined once more", waited):
            return waited
        if not silently and self.hits("rows of a recall put back without results", waited):
            silently = True
        if not silently and self.hits("rows of a recall thrown away", waited):
            return []
        if silently:
            role.rows += waited
            return []
        return waited

    def _receiver_begins(self, role: ToyRole, move: Move, switched: bool) -> list[ToyRow]:
        if not switched:
            return []
        if move.way.back:
            if role.state != S.DROPPED:
                if not self.hits("groups kept after a recall", role.rows):
                    role.rows = []
                role.aside, role.state = [], S.DROPPED
            return []
        has = role.state in (S.RECEIVED, S.RECALLED_JOINED)
        if move.way == Way.RECALLED:
            if has or (role.state != S.RECALLED_HELD and self.hits("recall answered wrongly", role.aside)):
                role.state = S.RECALLED_JOINED
                return []
            there = self.store and self.visible_from <= self.batch
            if role.state != S.RECALLED_HELD and self.hits("taken in after the recall", there):
                role.state = S.RECALLED_HELD
                role.rows = list(self.store or ())
                return []
            role.state = S.RECALLED_HELD
            return []
        if has:
            return []
        role.state = S.HOLDING
        if self.store is None or self.visible_from > self.batch:
            return []
        return self._take_in(role, self.store)

    def _take_in(self, role: ToyRole, package: list[ToyRow]) -> list[ToyRow]:
        role.state = S.RECEIVED
        role.package = stored(package)
        role.rows = list(package)
        if self.hits("takes in nothing", package):
            role.rows = []
        if self.hits("takes in a part", package):
            role.rows.pop()
        if self.hits("takes in twice", package):
            role.rows *= 2
        if self.hits("takes in another row", package):
            role.rows[0] = replace(role.rows[0], time=role.rows[0].time + 1)
        waited, role.aside = role.aside, []
        if self.hits("held rows thrown away", waited):
            return []
        if self.hits("held rows joined twice", waited):
            return waited * 2
        if self.hits("held rows joined and kept", waited):
            role.aside = list(waited)
        return waited

    def _join(self, role: ToyRole, joined: list[ToyRow]) -> tuple[Results, Results]:
        """Results, and those that a PTLB sender leaves out because all in them is new."""
        results: Results = []
        suppressed: Results = []
        track = role.side == Side.SENDER and role.state in (S.OLD_REMAINS, S.ALL_OLD_PURGED)
        for row in joined:
            for other in role.rows:
                near = abs(row.time - other.time) <= self.window
                if near and (other.stream != row.stream and (other.group, other.key) == (row.group, row.key)):
                    all_new = track and other.number in role.new
                    (suppressed if all_new else results).append((row.number, row.group, row.key))
            role.rows.append(row)
            if track:
                role.new.add(row.number)
        return results, suppressed

    def _end(self, role: ToyRole, move: Move | None) -> None:
        frozen = role.state in (S.EXPORTED, S.EXPORT_FAILED)
        if frozen and any(self.watermark - row.time > self.window for row in role.rows) and self.hits("frozen expires"):
            frozen = False
        if not frozen:
            self._expire(role)
        if move is None or role.side == Side.RECEIVER or move.way != Way.THERE:
            return
        if move.kind == Kind.DUPLICATE:
            if all(row.number in role.new for row in role.rows):
                role.state = S.ALL_OLD_PURGED
        elif role.state in (S.ACTIVE, S.EXPORT_FAILED):
            role.state = S.EXPORT_FAILED
            if self.batch >= self.pack_fails_until:
                role.state = S.EXPORTED
                self.store = list(role.rows)
                if self.hits("packs a part", self.store):
                    self.store.pop()
                role.package = stored(self.store)
                self.visible_from = self.batch + 1 + self.delay


def _sampled(result: tuple[int, int, int]) -> bool:
    return result[2] % 2 == 0


def _sampled_results(results: Results) -> Tally:
    return sum((Tally(rows=1, digest=_hash(result)) for result in results if _sampled(result)), NOTHING)


def _by_group(groups: Iterable[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for group in groups:
        counts[group] = counts.get(group, 0) + 1
    return counts


def make_report(worker: int, batch: int = 7, epoch: int = 3, **changes: Any) -> WorkerReport:
    nothing: dict[str, int] = {}
    fields: dict[str, Any] = {
        "query": "q", "batch": batch, "epoch": epoch, "worker": worker, "attempt": 0, "executor": "e", "process": 1,
        "at_ms": 0, "rows": nothing, "late_rows": nothing, "bad_rows": nothing, "results": 0, "state_rows": 0,
        "combined_rows": 0, "state_bytes": 0, "index_bytes": 0, "watermark_us": 0, "cpu_ns": 0,
    }  # fmt: skip
    return WorkerReport(**{**fields, **changes})


DAMAGES: dict[str, tuple[Kind, ...]] = {
    "row not routed": tuple(Kind),
    "row routed twice": tuple(Kind),
    "row routed to the other worker too": (Kind.TRANSFER,),
    "stored row vanishes": tuple(Kind),
    "stored row doubled": tuple(Kind),
    "stored row changes its key": tuple(Kind),
    "waiting row lost": (Kind.TRANSFER,),
    "row not put aside": (Kind.TRANSFER,),
    "joined row changes its time": tuple(Kind),
    "row joined twice": tuple(Kind),
    "every result doubled": tuple(Kind),
    "result of a sampled key lost": tuple(Kind),
    "result of a sampled key replaced by a copy of another": tuple(Kind),
    "results handed over twice": tuple(Kind),
    "sender emits nothing": (Kind.DUPLICATE,),
    "sender leaves out too much": (Kind.DUPLICATE,),
    "sender leaves out nothing": (Kind.DUPLICATE,),
    "track result lost": (Kind.DUPLICATE,),
    "receiver does not begin empty": (Kind.DUPLICATE,),
    "lateness limit too high at the sender": tuple(Kind),
    "lateness limit too high at the receiver": tuple(Kind),
    "lateness limit too low at the sender": tuple(Kind),
    "lateness limit too low at the receiver": tuple(Kind),
    "owner loses a row after the close": tuple(Kind),
    "groups kept after the close": tuple(Kind),
    "rows of a recall not put back": (Kind.TRANSFER,),
    "rows of a recall put back twice": (Kind.TRANSFER,),
    "rows of a recall joined once more": (Kind.TRANSFER,),
    "rows of a recall put back without results": (Kind.TRANSFER,),
    "rows of a recall thrown away": (Kind.TRANSFER,),
    "recall answered wrongly": (Kind.TRANSFER,),
    "taken in after the recall": (Kind.TRANSFER,),
    "groups kept after a recall": (Kind.TRANSFER,),
    "packs a part": (Kind.TRANSFER,),
    "frozen expires": (Kind.TRANSFER,),
    "takes in nothing": (Kind.TRANSFER,),
    "takes in a part": (Kind.TRANSFER,),
    "takes in twice": (Kind.TRANSFER,),
    "takes in another row": (Kind.TRANSFER,),
    "package not filed": (Kind.TRANSFER,),
    "rows that had waited not filed": (Kind.TRANSFER,),
    "a frame is missing": (Kind.TRANSFER, Kind.DUPLICATE),
    "held rows thrown away": (Kind.TRANSFER,),
    "held rows joined twice": (Kind.TRANSFER,),
    "held rows joined and kept": (Kind.TRANSFER,),
}
"""Every damage, and the moves in which it can be done."""
