"""Each guard on the worker's side of a move: what it refuses, keeps apart or leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkers.cluster import Cluster
from tests.checkers.feed import WINDOW, Feed, go, make, record
from trimtab.errors import BindingError, CorruptState
from trimtab.moves import Answer, ComputePartitionsToMove, Kind, Way


def test_an_epoch_of_a_manager_that_lost_its_lease_is_refused(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    cluster.epoch = cluster.epoch.successor(cluster.epoch.owners, fence=5)
    go(cluster, feed)
    cluster.epoch = cluster.epoch.successor(cluster.epoch.owners, fence=4)
    with pytest.raises(BindingError, match="lost its lease"):
        go(cluster, feed)


def _holding(tmp_path: Path, groups: tuple[int, ...] = (0,)) -> tuple[Cluster, Feed]:
    """Worker 1 waits for packages that are gone, one move for each group."""
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move(f"m{group}.0", "transfer", [group], 0, 1) for group in groups])
    go(cluster, feed)
    for package in (cluster.checkpoint / "trimtab" / "transfers").glob("*/*.package"):
        package.unlink()
    cluster.step(feed.rows(12), feed.watermark, order=[1, 0, 2])
    assert all(cluster.told(f"m{group}.0", 1).held_rows > 0 for group in groups)
    return cluster, feed


def test_a_move_that_is_closed_while_rows_wait_stops_the_query(tmp_path: Path) -> None:
    """No manager does that; one that did would lose them."""
    cluster, feed = _holding(tmp_path)
    # Not taken in either: the package is gone again.
    for package in (cluster.checkpoint / "trimtab" / "transfers").glob("*/*.package"):
        package.unlink()
    cluster.publish([], {0: 1})
    with pytest.raises(CorruptState, match="closed before its receiver had the package"):
        go(cluster, feed)


def test_a_parallel_track_that_is_closed_too_early_stops_the_query(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("p.0", "duplicate", [0], 0, 1)])
    go(cluster, feed)
    assert cluster.told("p.0", 0).state == "old-remains"
    cluster.publish([], {0: 1})
    with pytest.raises(CorruptState, match="rows that nobody else has"):
        go(cluster, feed)


@pytest.mark.parametrize(("kind", "told_apart"), [("duplicate", 45), ("transfer", 30)])
def test_row_numbers_are_drawn_anew_before_they_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, told_apart: int
) -> None:
    """32 bits tell some rows apart, and a row from the far future keeps the oldest of them for ever."""
    monkeypatch.setattr("worker.engine.ROWS_TOLD_APART", told_apart)
    cluster, feed = make(tmp_path)
    cluster.step({"A": [(0, feed.now + 10**6, 10**6)]}, feed.watermark)
    cluster.publish([cluster.move("m.0", kind, [0], 0, 1)])
    hits = []
    for _ in range(30):
        go(cluster, feed)
        hits.append(cluster.last[0].hit)
    assert {True, False} == set(hits)
    assert hits.count(True) > hits.count(False)
    cluster.check()


def test_rows_of_two_moves_wait_beside_each_other(tmp_path: Path) -> None:
    cluster, feed = _holding(tmp_path, groups=(0, 3))
    go(cluster, feed)
    assert [cluster.told(f"m{group}.0", 1).state for group in (0, 3)] == ["received", "received"]
    cluster.publish([], {0: 1, 3: 1})
    go(cluster, feed, 6)
    cluster.check()


def test_a_package_of_an_earlier_move_of_the_name_is_left_alone(tmp_path: Path) -> None:
    """A manager that lost its journal may use a name again, and the first one's package may lie there still."""
    earlier, stray_feed = make(tmp_path / "earlier", seed=2)
    earlier.publish([earlier.move("m.0", "transfer", [0], 0, 1)])
    go(earlier, stray_feed)
    (stray,) = (earlier.checkpoint / "trimtab" / "transfers" / "m.0").iterdir()
    cluster, feed = make(tmp_path)
    folder = cluster.checkpoint / "trimtab" / "transfers" / "m.0"
    folder.mkdir(parents=True)
    stray.rename(folder / "3-stray.package")
    cluster.publish([cluster.move("m.0", "transfer", [0], 0, 1)])
    go(cluster, feed)
    assert len(list(folder.iterdir())) == 2
    go(cluster, feed)
    assert cluster.told("m.0", 1).state == "received"
    cluster.publish([], {0: 1})
    go(cluster, feed, 5)
    cluster.check()


def test_a_name_that_is_used_again_means_the_newer_move(tmp_path: Path) -> None:
    """Though the role in the first one is remembered for some batches: two reports about one name would be mixed up."""
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("m.0", "transfer", [0], 0, 1)])
    go(cluster, feed, 2)
    cluster.publish([], {0: 1})
    go(cluster, feed)
    cluster.publish([cluster.move("m.0", "transfer", [0], 1, 0)])
    go(cluster, feed)
    assert [[(each.move, each.side) for each in cluster.last[worker].moves] for worker in (0, 1)] == [
        [("m.0", "receiver")],
        [("m.0", "sender")],
    ]
    go(cluster, feed)
    cluster.publish([], {0: 0})
    go(cluster, feed, 5)
    cluster.check()


@pytest.mark.parametrize("changes", [{"kind": Kind.DUPLICATE}, {"groups": (0,)}, {"groups": (0, 3, 1)}])
def test_a_move_that_changes_under_way_stops_the_query(tmp_path: Path, changes: dict[str, Any]) -> None:
    cluster, feed = make(tmp_path)
    move = cluster.move("m.0", "transfer", [0, 3], 0, 1)
    cluster.publish([move])
    go(cluster, feed)
    cluster.epoch = cluster.epoch.successor(cluster.epoch.owners, moves=(replace(move, **changes),))
    with pytest.raises(CorruptState, match="is another one in epoch"):
        go(cluster, feed)


def test_groups_that_left_are_told_apart_only_while_their_rows_may_be_read_again(tmp_path: Path) -> None:
    """A rebuild passes over rows from before they left; once these have expired there is nothing to remember."""
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("m.0", "transfer", [0], 0, 1)])
    go(cluster, feed, 2)
    cluster.publish([], {0: 1})
    go(cluster, feed)
    assert set(record(cluster, 0).barriers) == {"0"}
    cluster.step({}, feed.now + 2 * WINDOW)
    assert record(cluster, 0).barriers == {}


def test_a_package_is_written_once(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("m.0", "transfer", [0], 0, 1)])
    go(cluster, feed, 4)
    folder = cluster.checkpoint / "trimtab" / "transfers"
    assert len(list(folder.glob("m.0/*"))) == 1
    cluster.go_way("m.0", Way.RECALLED)
    go(cluster, feed)
    for package in folder.glob("m.0/*.package"):
        package.unlink()
    go(cluster, feed, 3)
    assert list(folder.glob("m.0/*")) == [], "what is undone is not packed again"
    cluster.go_way("m.0", Way.JOINED)
    go(cluster, feed)
    assert list(folder.iterdir()) == []
    cluster.publish([])
    go(cluster, feed, 5)
    cluster.check()


def test_old_rows_on_the_edge_of_the_window_are_live(tmp_path: Path) -> None:
    """AllOldPurged goes by liveness: watermark - timestamp <= window is live."""
    cluster = Cluster(tmp_path, "AB", 20, 2, ("(A B)", "(A B)"))
    cluster.step({"A": [(0, 100, 1)], "B": []}, 90)
    cluster.publish([cluster.move("p.0", "duplicate", [0], 0, 1)])
    states = []
    for watermark in (119, 120, 121):
        cluster.step({}, watermark)
        states.append(cluster.told("p.0", 0).state)
    assert states == ["old-remains", "old-remains", "all-old-purged"]
    assert cluster.told("p.0", 0).newest_old_us == 100
    assert cluster.told("p.0", 0).newest_old_stream == "A"


def test_only_groups_that_are_the_senders_and_stay_are_named(tmp_path: Path) -> None:
    """PartitionsToMove (step 2): neither those of others nor those on their way."""
    cluster, feed = make(tmp_path)
    assert cluster.epoch.owners == (0, 1, 2, 0)
    questions = tuple(
        ComputePartitionsToMove(migration=name, worker=0, share=1.0, groups=groups)
        for name, groups in (("all", ()), ("named", (0, 1, 3)))
    )
    moves = (cluster.move("m.0", "transfer", [3], 0, 1),)
    cluster.epoch = cluster.epoch.successor(cluster.epoch.owners, moves=moves, questions=questions)
    go(cluster, feed)
    assert cluster.last[0].chosen == {"all": Answer(groups=(0,)), "named": Answer(groups=(0,))}
    assert cluster.last[1].chosen == {}


def test_a_worker_keeps_its_plan_through_a_rebuild(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    before = record(cluster, 0).plan
    cluster.plans = ("(A B C)", *cluster.plans[1:])
    cluster.step(feed.rows(), feed.watermark, rebuild=[0])
    assert cluster.last[0].plan == before == record(cluster, 0).plan
    cluster.check()


def test_an_attempt_that_fails_leaves_no_files(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    good = cluster.frame
    cluster.frame = lambda rows: good(rows)[:-30]  # type: ignore[method-assign]
    with pytest.raises((OSError, ValueError)):
        cluster.step({"A": [(0, feed.now, 1)]}, feed.watermark)
    assert list(tmp_path.glob("**/busy-*")) == []
    cluster.frame = good  # type: ignore[method-assign]
    go(cluster, feed, 3)
    cluster.check()
