"""The audit of production workers: no false alarm, whatever is repeated, rebuilt or undone, and every damage found.

A damage replaces one function of the worker, at a place where rows are touched, by one that does it wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import tests.checkers.cluster
import worker.batch
from balancing.audit import MigrationAudit
from balancing.committed import CommittedBatch
from tests.checkers.cluster import Cluster, HeapState
from tests.checkers.feed import PLANS, WINDOW, Feed
from tests.unit.audit_plane import make_report
from trimtab import frames
from trimtab.evidence import stored_digests, tally_of
from trimtab.moves import Kind, RoleState, Way
from trimtab.reports import WorkerReport
from worker.batch import BatchInput
from worker.engine import Engine
from worker.joining import JoinState
from worker.movable import FiledRows
from worker.payload import DurableKey, PayloadStore
from worker.protocol import _EXECUTE, WorkerMoves
from worker.roles import Action

MOVE = "m1.w1"
WORKERS = len(PLANS)


class UncheckedCluster(Cluster):
    """Without the cluster's own checks, which other tests have, and which would find a damage first."""

    def _run_twin(self, *args: Any) -> None:
        return None

    def _check_twin(self, *args: Any) -> None:
        pass

    def _check_late(self, *args: Any) -> None:
        pass


class ForgivingState(HeapState):
    """As Spark's, it does not mind when rows are removed that it does not have."""

    def remove_rows(self, key: DurableKey) -> None:
        self.rows_kept.pop(key, None)


class AuditedCluster:
    """Steps a cluster and hands each batch to the audit, as a manager does."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = UncheckedCluster(directory, "ABC", WINDOW, 4, PLANS)
        self.cluster.durable = [ForgivingState() for _ in PLANS]
        self.feed = Feed(seed, keys=self.random.choice((4, 8)))
        self.audit = MigrationAudit()
        self.previous: CommittedBatch | None = None
        self.steady = False
        """Whether workers go on from their resident state, always."""

    def go(self, batches: int = 1) -> None:
        for _ in range(batches):
            order = self.random.sample(range(WORKERS), WORKERS)
            chosen = {
                name: [worker for worker in order if self.random.random() < 0.15 and not self.steady]
                for name in ("rebuild", "repeated", "zombies")
            }
            per_stream = self.random.choice((0, 6, 6))
            rows = self.feed.rows(per_stream)
            self.cluster.step(rows, self.feed.now - 4, order=order, **chosen)  # some rows are late
            self._committed()

    def _committed(self) -> None:
        cluster = self.cluster
        teller = self.random.randrange(WORKERS)
        number = cluster.batch - 1
        reports = {worker: self._report(worker, number, worker == teller) for worker in range(WORKERS)}
        committed = CommittedBatch(batch=number, bound=cluster.epoch, at_ms=0, reports=reports, previous=self.previous)
        self.audit = self.audit.add("m1", committed, WORKERS)
        self.previous = replace(committed, previous=None)

    def _report(self, number: int, batch: int, tells: bool) -> WorkerReport:
        outcome = self.cluster.last[number]
        return make_report(
            number,
            batch,
            self.cluster.epoch.number,
            results=outcome.results,
            emitted=sum(piece.num_rows for piece in outcome.pieces),
            moves=outcome.moves,
            seen=self.cluster.seen if tells else {},
        )

    def state(self, number: int) -> RoleState:
        return self.cluster.told(MOVE, number).state


def history(
    directory: Path, seed: int, kind: Kind, back: bool, held: bool = False, steady: bool = False
) -> AuditedCluster:
    """One move from worker 0 to worker 1, there or back; `held`: the package is not found for some batches."""
    each = AuditedCluster(directory, seed)
    each.steady = steady
    cluster, random = each.cluster, each.random
    each.go(4)
    groups = [0] if random.random() < 0.5 else [0, 3]
    cluster.publish([cluster.move(MOVE, kind, groups, 0, 1)])
    packages = cluster.transfers.packages
    if held:
        cluster.transfers.packages = lambda *args: []  # type: ignore[method-assign]
    each.go(random.randint(2, 4) if held else 1)
    late = held and back and random.random() < 0.5
    if not late:
        cluster.transfers.packages = packages  # type: ignore[method-assign]
        each.go(random.randint(1, 3))
    if back:
        _back(each, kind)
    else:
        wanted, number = (RoleState.RECEIVED, 1) if kind == Kind.TRANSFER else (RoleState.ALL_OLD_PURGED, 0)
        for _ in range(30):
            if each.state(number) == wanted:
                break
            each.go()
        each.go(random.randint(1, 2))
    cluster.publish([], {} if back else dict.fromkeys(groups, 1))
    each.go(5)
    return each


def _back(each: AuditedCluster, kind: Kind) -> None:
    if kind == Kind.DUPLICATE:
        return
    each.cluster.go_way(MOVE, Way.RECALLED)
    each.go(each.random.randint(1, 3))
    joined = each.state(1) == RoleState.RECALLED_JOINED
    each.cluster.go_way(MOVE, Way.JOINED if joined else Way.HELD)
    each.go(each.random.randint(1, 3))


WAYS = [(Kind.TRANSFER, False), (Kind.TRANSFER, True), (Kind.DUPLICATE, False), (Kind.DUPLICATE, True)]


@pytest.mark.parametrize(("kind", "back"), WAYS)
@pytest.mark.parametrize("held", [False, True])
def test_no_false_alarm(tmp_path: Path, kind: Kind, back: bool, held: bool) -> None:
    for seed in range(3):
        each = history(tmp_path / str(seed), seed, kind, back, held)
        verdict = each.audit.verdict()
        assert verdict.clean and each.audit.finished, (seed, verdict)
        assert verdict.checked_rows > 0 and verdict.unchecked_batches == 0
        each.cluster.check()


@dataclass(frozen=True)
class Damage:
    """A function of the worker, done wrong; and the history in which it matters."""

    owner: Any
    name: str | Action
    """An action is replaced in the table of the worker's actions."""
    wrong: Callable[[Any], Callable[..., Any]]
    kind: Kind = Kind.TRANSFER
    back: bool = False
    held: bool = False
    steady: bool = False
    """Nothing is rebuilt: what is wrong with the durable state must show all the same."""


def _nothing(_: Any) -> Callable[..., Any]:
    return lambda *args: None


def _takes_in_nothing(right: Any) -> Callable[..., Any]:
    return lambda self, groups, rows, combined, horizon: right(self, groups, [], {}, horizon)


def _joins_twice(right: Any) -> Callable[..., Any]:
    def wrong(self: JoinState, rows: Any) -> None:
        right(self, rows)
        right(self, replace(rows, key=(rows.key[0], rows.key[1] + 50)))

    return wrong


def _doubles_results(right: Any) -> Callable[..., Any]:
    def wrong(self: JoinState, new: Any) -> None:
        right(self, new)
        self.results.append(self.results[-1])

    return wrong


def _sender_emits_nothing(right: Any) -> Callable[..., Any]:
    def wrong(spec: Any, given: BatchInput, *rest: Any) -> Any:
        outcome = right(spec, given, *rest)
        return replace(outcome, pieces=[]) if given.worker == 0 and given.epoch.moves else outcome

    return wrong


def _late_by(shift: int) -> Callable[[Any], Callable[..., Any]]:
    return lambda right: lambda given, record: right(given, record) + shift


def _exports_a_part(right: Any) -> Callable[..., Any]:
    def wrong(self: JoinState, groups: Any) -> Any:
        exported = right(self, groups)
        (stream, _), *leaves = exported.leaves
        lost = self.engine.buffers[frozenset({stream})].live_of(self.engine.flags(groups), self.engine.limit)
        digests = stored_digests(stream, lost.group, lost.lo, lost.code)
        return replace(exported, leaves=tuple(leaves), combined={}, tally=exported.tally - tally_of(digests))

    return wrong


def _keeps_a_part_aside(right: Any) -> Callable[..., Any]:
    return lambda self, role, stream, rows: right(self, role, stream, rows.slice(1)) if rows.num_rows > 1 else None


def _files_nothing(_: Any) -> Callable[..., Any]:
    def wrong(self: WorkerMoves, stream: str, frame: Any) -> FiledRows:
        self._filed += 1
        return FiledRows(self._keys.taken_in(stream, self._filed), stream, frame)

    return wrong


def _files_a_part(right: Any) -> Callable[..., Any]:
    def wrong(self: WorkerMoves, stream: str, frame: Any) -> FiledRows:
        rows = frames.decode(frame)
        part = frames.encode(rows.slice(1)) if rows.num_rows > 1 else frame
        return FiledRows(right(self, stream, part).key, stream, frame)

    return wrong


def _removes_live_rows(right: Any) -> Callable[..., Any]:
    return lambda self, horizon: [*right(self, horizon), *sorted(self.durable_keys)[-1:]]


TRACK: dict[str, Any] = {"kind": Kind.DUPLICATE}
DAMAGES = {
    "takes in nothing": Damage(JoinState, "take_in", _takes_in_nothing),
    "held rows thrown away": Damage(_EXECUTE, Action.JOIN_ASIDE, lambda _: WorkerMoves._drop_aside, held=True),
    "held rows joined twice": Damage(JoinState, "join", _joins_twice, held=True),
    "every result doubled, MSLB": Damage(JoinState, "insert", _doubles_results),
    "every result doubled, PTLB": Damage(JoinState, "insert", _doubles_results, **TRACK),
    "lateness limit too high, MSLB": Damage(worker.batch, "_late_us", _late_by(4)),
    "lateness limit too low, MSLB": Damage(worker.batch, "_late_us", _late_by(-4)),
    "lateness limit too high, PTLB": Damage(worker.batch, "_late_us", _late_by(4), **TRACK),
    "lateness limit too low, PTLB": Damage(worker.batch, "_late_us", _late_by(-4), **TRACK),
    "the sender emits nothing, PTLB": Damage(tests.checkers.cluster, "run_batch", _sender_emits_nothing, **TRACK),
    "groups kept after the close": Damage(_EXECUTE, Action.DROP_GROUPS, _nothing),
    "groups kept after a cancel, PTLB": Damage(_EXECUTE, Action.DROP_GROUPS, _nothing, back=True, **TRACK),
    "packs a part": Damage(JoinState, "export", _exports_a_part),
    "keeps not all rows aside": Damage(WorkerMoves, "_keep_aside", _keeps_a_part_aside, held=True),
    "nothing is put back silently": Damage(
        _EXECUTE, Action.ADD_ASIDE_SILENTLY, lambda _: WorkerMoves._drop_aside, back=True
    ),
    "a package is not filed": Damage(WorkerMoves, "_file", _files_nothing, steady=True),
    "a package is filed in part": Damage(WorkerMoves, "_file", _files_a_part, steady=True),
    "rows that waited are not filed": Damage(WorkerMoves, "_file", _files_nothing, back=True, steady=True),
    "rows that waited are filed in part": Damage(WorkerMoves, "_file", _files_a_part, back=True, steady=True),
    "live rows are removed from the durable state": Damage(
        PayloadStore, "drop_expired", _removes_live_rows, steady=True
    ),
    "the same, PTLB": Damage(PayloadStore, "drop_expired", _removes_live_rows, steady=True, **TRACK),
    "put back with results": Damage(_EXECUTE, Action.ADD_ASIDE_SILENTLY, lambda _: WorkerMoves._join_aside, back=True),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_found(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the latest in the third history: not each of them has rows, or results, for a damage to show in."""
    wrong = DAMAGES[damage]
    if isinstance(wrong.name, Action):
        monkeypatch.setitem(wrong.owner, wrong.name, wrong.wrong(wrong.owner[wrong.name]))
    else:
        monkeypatch.setattr(wrong.owner, wrong.name, wrong.wrong(getattr(wrong.owner, wrong.name)))
    for seed in range(3):
        audit = history(tmp_path / str(seed), seed, wrong.kind, wrong.back, wrong.held, wrong.steady).audit
        if audit.problems:
            assert not audit.verdict().clean
            return
    raise AssertionError(f"{damage}: nothing was found")


AGAIN = [(Kind.TRANSFER, [0], 2), (Kind.TRANSFER, [0], 0), (Kind.DUPLICATE, [0, 3], 2), (Kind.DUPLICATE, [3], 0)]


def moved_again(directory: Path, kind: Kind, groups: list[int], receiver: int) -> AuditedCluster:
    """Groups 0 and 3 go from worker 0 to worker 1, and as soon as they are there, some of them go on, or back."""
    each = AuditedCluster(directory, 1)
    cluster = each.cluster
    each.go(4)
    cluster.publish([cluster.move(MOVE, Kind.TRANSFER, [0, 3], 0, 1)])
    each.go(4)
    assert each.state(1) == RoleState.RECEIVED
    cluster.publish([], {0: 1, 3: 1})
    each.go()
    cluster.publish([cluster.move("m2.w1", kind, groups, 1, receiver)])
    each.go()
    return each


@pytest.mark.parametrize(("kind", "groups", "receiver"), AGAIN)
def test_groups_that_move_again_at_once_are_followed(
    tmp_path: Path, kind: Kind, groups: list[int], receiver: int
) -> None:
    each = moved_again(tmp_path, kind, groups, receiver)
    each.go(3)
    verdict = each.audit.verdict()
    assert verdict.clean and verdict.unchecked_batches == 0, verdict
    each.cluster.check()


@pytest.mark.parametrize(("kind", "groups", "receiver"), AGAIN)
def test_rows_that_vanish_between_two_moves_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, groups: list[int], receiver: int
) -> None:
    right, publish = JoinState.__init__, UncheckedCluster.publish

    def wrong(self: JoinState, engine: Engine) -> None:
        right(self, engine)
        engine.expire([0, 3])

    def vanish(self: UncheckedCluster, moves: Any, *args: Any) -> Any:
        if any(move.id == "m2.w1" for move in moves):
            monkeypatch.setattr(JoinState, "__init__", wrong)
        return publish(self, moves, *args)

    monkeypatch.setattr(UncheckedCluster, "publish", vanish)
    each = moved_again(tmp_path, kind, groups, receiver)
    monkeypatch.setattr(JoinState, "__init__", right)
    each.go(2)
    assert each.audit.lost > 0, each.audit.verdict()
    assert "rows stored when the batch began" in each.audit.problems[0]
