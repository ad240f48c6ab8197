"""Workers that are damaged on purpose: whatever happens to a row, the numbers that workers and split count differ.

Each damage sits in one place where a row is touched. An undamaged run of the same story finds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkers.cluster import Cluster
from tests.checkers.feed import Feed, make
from tests.checkers.witnesses import Witnesses
from trimtab.moves import Way
from worker.buffers import Tuples
from worker.durable import Role
from worker.engine import Engine, Exported
from worker.joining import JoinState
from worker.load import GroupLoad
from worker.protocol import WorkerMoves
from worker.transfers import TransferStore

Damage = Callable[[pytest.MonkeyPatch], None]
REBUILD = [0, 1, 2]


def forward(cluster: Cluster, feed: Feed) -> Iterator[None]:
    """A transfer whose package comes late, so that rows wait for it, and that is closed."""
    cluster.publish([cluster.move("m.w1", "transfer", [0, 3], 0, 1)])
    yield
    for package in (cluster.checkpoint / "trimtab" / "transfers").glob("*/*.package"):
        package.unlink()
    cluster.order = [1, 0, 2]
    for _ in range(4):
        yield
    cluster.publish([], {0: 1, 3: 1})
    for _ in range(3):
        yield


def back_joined(cluster: Cluster, feed: Feed) -> Iterator[None]:
    """A transfer that is recalled after the package was taken in."""
    cluster.publish([cluster.move("m.w1", "transfer", [0, 3], 0, 1)])
    for _ in range(4):
        yield
    cluster.go_way("m.w1", Way.RECALLED)
    yield
    cluster.go_way("m.w1", Way.JOINED)
    for _ in range(2):
        yield
    cluster.publish([])
    for _ in range(2):
        yield


def back_held(cluster: Cluster, feed: Feed) -> Iterator[None]:
    """A transfer that is recalled while rows wait."""
    cluster.order = [1, 0, 2]
    cluster.publish([cluster.move("m.w1", "transfer", [0, 3], 0, 1)])
    for _ in range(3):
        yield
        for package in (cluster.checkpoint / "trimtab" / "transfers").glob("*/*.package"):
            package.unlink()
    cluster.go_way("m.w1", Way.RECALLED)
    yield
    cluster.go_way("m.w1", Way.HELD)
    for _ in range(2):
        yield
    cluster.publish([])
    for _ in range(2):
        yield


def parallel(cluster: Cluster, feed: Feed) -> Iterator[None]:
    cluster.publish([cluster.move("p.w1", "duplicate", [0, 3], 0, 2)])
    for _ in range(6):
        yield
    assert cluster.told("p.w1", 0).state == "all-old-purged"
    cluster.publish([], {0: 2, 3: 2})
    for _ in range(3):
        yield


Story = Callable[[Cluster, Feed], Iterator[None]]
STORIES: list[Story] = [forward, back_joined, back_held, parallel]


def tell(tmp_path: Path, story: Story, damage: Damage | None = None, *, rebuild: bool = False) -> Witnesses:
    cluster, feed = make(tmp_path)
    cluster.checking = damage is None
    witnesses = Witnesses(cluster)
    with pytest.MonkeyPatch.context() as patch:
        if damage is not None:
            damage(patch)
        for _ in story(cluster, feed):
            cluster.step(feed.rows(20), feed.watermark, rebuild=REBUILD if rebuild else ())
            witnesses.look()
    if damage is None:
        cluster.check()
    return witnesses


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("rebuild", [False, True])
def test_without_damage_all_numbers_agree(tmp_path: Path, story: Story, rebuild: bool) -> None:
    witnesses = tell(tmp_path, story, rebuild=rebuild)
    assert witnesses.problems == []
    assert witnesses.sampled > 3


def replacing(owner: Any, name: str, make_it: Callable[[Any], Any]) -> Damage:
    return lambda patch: patch.setattr(owner, name, make_it(getattr(owner, name)))


def takes_in_nothing(_: Any) -> Any:
    return lambda self, leaves, combined: None


def takes_in_no_intermediate_states(_: Any) -> Any:
    def take_in(self: Engine, leaves: list[Tuples], combined: object) -> None:
        for tuples in leaves:
            self.keep(tuples)

    return take_in


def loses_every_second(original: Any) -> Any:
    def refiled(self: WorkerMoves, role: Role) -> Iterator[Any]:
        return (rows for number, rows in enumerate(original(self, role)) if number % 2)

    return refiled


def joins_twice(original: Any) -> Any:
    def refiled(self: WorkerMoves, role: Role) -> Iterator[Any]:
        for rows in original(self, role):
            yield rows
            yield self._file(rows.stream, rows.frame)

    return refiled


def throws_away(_: Any) -> Any:
    return lambda self, role, stream, rows: None


def doubles(original: Any) -> Any:
    def insert(self: Engine, new: Tuples, load: GroupLoad) -> Tuples:
        results: Tuples = original(self, new, load)
        return results.take(np.repeat(np.arange(len(results)), 2))

    return insert


def doubles_pieces(original: Any) -> Any:
    def results(self: Engine, *arguments: Any) -> Iterator[Any]:
        for piece in original(self, *arguments):
            yield piece
            yield piece

    return results


def loses_results(original: Any) -> Any:
    def insert(self: Engine, new: Tuples, load: GroupLoad) -> Tuples:
        results: Tuples = original(self, new, load)
        return results.take(np.arange(0)) if self.tracks else results

    return insert


def emits_all_new(_: Any) -> Any:
    return lambda self, results, suppressed: results


def emits_while_silent(_: Any) -> Any:
    def add_silently(self: JoinState, groups: list[int], rows: list[Any]) -> None:
        for each in rows:
            self.results.append(self.engine.insert(self._loaded(each), GroupLoad.zero(4)))
        self._stored(groups)

    return add_silently


def forgets_silently(_: Any) -> Any:
    return lambda self, groups, rows: None


def purges(by: int) -> Callable[[Any], Any]:
    def make_it(original: Any) -> Any:
        return lambda self, horizon: original(self, horizon + by)

    return make_it


def exports_every_second(original: Any) -> Any:
    def export(self: Engine, groups: list[int]) -> Exported:
        whole = original(self, groups)
        rows = {stream: tuples.take(np.arange(0, len(tuples), 2)) for stream, tuples in whole.rows.items()}
        leaves = {stream: list(self.payload[stream].batches_of(tuples.refs[0])) for stream, tuples in rows.items()}
        return Exported(leaves, {}, rows)

    return export


def forgets_barriers(_: Any) -> Any:
    def drop_groups(self: WorkerMoves, role: Role) -> None:
        self._state.expire(role.groups)

    return drop_groups


def stays(_: Any) -> Any:
    return lambda self, groups: None


DAMAGES: dict[str, tuple[Story, Damage]] = {
    "take_in inserts nothing": (forward, replacing(Engine, "take_in", takes_in_nothing)),
    "take_in loses intermediate states": (forward, replacing(Engine, "take_in", takes_in_no_intermediate_states)),
    "export leaves rows out": (forward, replacing(Engine, "export", exports_every_second)),
    "held rows are thrown away when they come": (forward, replacing(WorkerMoves, "_keep_aside", throws_away)),
    "held rows are thrown away when they are joined": (forward, replacing(WorkerMoves, "_refiled", loses_every_second)),
    "held rows are joined twice": (forward, replacing(WorkerMoves, "_refiled", joins_twice)),
    "aside rows are lost, which the receiver joined": (
        back_joined,
        replacing(JoinState, "add_silently", forgets_silently),
    ),
    "some aside rows are lost, which the receiver joined": (
        back_joined,
        replacing(WorkerMoves, "_refiled", loses_every_second),
    ),
    "aside rows are lost, which nobody joined": (back_held, replacing(WorkerMoves, "_refiled", loses_every_second)),
    "aside rows are joined twice": (back_held, replacing(WorkerMoves, "_refiled", joins_twice)),
    "a silent restore emits": (back_joined, replacing(JoinState, "add_silently", emits_while_silent)),
    "every result is doubled, MSLB": (forward, replacing(Engine, "insert", doubles)),
    "every result is doubled, PTLB": (parallel, replacing(Engine, "insert", doubles)),
    "every result is doubled on its way out": (forward, replacing(Engine, "results", doubles_pieces)),
    "the limit for late rows is too high, MSLB": (forward, lambda p: p.setattr("worker.batch._late_us", _late(3))),
    "the limit for late rows is too low, MSLB": (forward, lambda p: p.setattr("worker.batch._late_us", _late(-3))),
    "the limit for late rows is too high, PTLB": (parallel, lambda p: p.setattr("worker.batch._late_us", _late(3))),
    "the limit for late rows is too low, PTLB": (parallel, lambda p: p.setattr("worker.batch._late_us", _late(-3))),
    "the PTLB sender emits nothing": (parallel, replacing(Engine, "insert", loses_results)),
    "the PTLB sender emits what is all new": (parallel, replacing(Engine, "_without_all_new", emits_all_new)),
    "the purge drops too much": (forward, replacing(Engine, "purge", purges(5))),
    "the purge drops too little": (forward, replacing(Engine, "purge", purges(-5))),
    "groups that left are not dropped": (forward, replacing(Engine, "expire", stays)),
    "groups that went back are not dropped": (back_joined, replacing(Engine, "expire", stays)),
    "nothing is frozen": (back_held, replacing(Engine, "freeze", lambda _: lambda self, groups, horizon: None)),
}


def _late(by: int) -> Any:
    from worker.batch import _late_us

    return lambda batch, record: _late_us(batch, record) + by


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damage_is_seen(tmp_path: Path, name: str) -> None:
    story, damage = DAMAGES[name]
    try:
        problems = tell(tmp_path, story, damage).problems
    except (IndexError, ValueError, KeyError) as error:  # louder still: the batch fails
        problems = [str(error)]
    assert problems != []


def test_rows_that_a_rebuild_brings_back_are_seen(tmp_path: Path) -> None:
    """A barrier that is forgotten: the rows of groups that left come back with the durable state."""

    def damage(patch: pytest.MonkeyPatch) -> None:
        from worker import protocol
        from worker.roles import Action

        patch.setitem(protocol._EXECUTE, Action.DROP_GROUPS, forgets_barriers(None))

    assert tell(tmp_path, forward, damage, rebuild=True).problems != []


@pytest.mark.parametrize("way", [Way.HELD, Way.JOINED])
def test_rows_that_waited_until_they_expired_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    """A buffer that makes room in the batch of the way back drops nothing of it before it is counted."""
    if way == Way.HELD:
        monkeypatch.setattr(TransferStore, "put", refuse)
    cluster = Cluster(tmp_path, "AB", 10, 4, ["(A B)", "(A B)"])
    count = 700

    def step(watermark: int) -> None:
        at, number = watermark + cluster.batch * 100 + 1, cluster.batch * 1000
        cluster.step({"A": [(0, at, number + index) for index in range(count)]}, watermark)

    step(0)
    cluster.publish([cluster.move("m.w1", "transfer", [0], 0, 1)])
    for _ in range(3):
        step(0)
    cluster.go_way("m.w1", Way.RECALLED)
    step(0)
    cluster.go_way("m.w1", way)
    waiting = cluster.report("m.w1", 0).evidence.waiting_after
    step(10_000)  # event time leaps: all that waited has expired
    evidence = cluster.report("m.w1", 0).evidence
    silent = waiting.rows if way == Way.JOINED else 0
    assert waiting.rows and evidence.waiting_before == waiting and evidence.waiting_after.rows == 0
    assert evidence.joined.rows == count + waiting.rows - silent


def refuse(*_: Any) -> None:
    raise OSError("no space left")
