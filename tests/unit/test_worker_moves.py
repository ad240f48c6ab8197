"""Moves of groups between workers give the results of the naive join, whatever is repeated, rebuilt, lost or undone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkers.cluster import Cluster
from tests.checkers.feed import PLANS, WINDOW, go, make, record
from tests.checkers.moving import go_on, open_some
from tests.checkers.witnesses import Witnesses
from trimtab.moves import Way
from worker.durable import is_aside


@pytest.mark.parametrize("plans", [PLANS, PLANS[::-1], ("((A B) C)",) * 3, ("(A B C)",) * 3])
def test_a_transfer_takes_two_batches_and_no_row_waits(tmp_path: Path, plans: tuple[str, ...]) -> None:
    cluster, feed = make(tmp_path, plans=plans)
    cluster.publish([cluster.move("m.0", "transfer", [0], 0, 1)])
    go(cluster, feed)
    sent = cluster.told("m.0", 0)
    assert sent.state == "exported" and sent.rows > 0 and sent.digest
    assert cluster.told("m.0", 1).state == "active"
    go(cluster, feed)
    received = cluster.told("m.0", 1)
    assert (received.state, received.held_rows) == ("received", 0)
    assert (received.rows, received.digest) == (sent.rows, sent.digest)
    cluster.publish([], {0: 1})
    go(cluster, feed, 6)
    assert not cluster.transfers.packages("m.0")
    assert record(cluster, 0).groups == [3]
    assert record(cluster, 1).groups == [0, 1]
    cluster.check()


def test_frozen_groups_are_kept_until_the_move_is_closed(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("m.0", "transfer", [0], 0, 1)])
    go(cluster, feed)
    frozen_at = feed.watermark - WINDOW
    go(cluster, feed, 3)
    (role,) = record(cluster, 0).roles
    assert role.horizon_us <= frozen_at < feed.watermark - WINDOW
    kept = cluster.report("m.0", 0).evidence
    assert kept.stored_before == kept.stored_after and kept.stored_after.rows == role.rows > 0
    cluster.publish([], {0: 1})
    go(cluster, feed)
    assert cluster.report("m.0", 0).evidence.stored_before.rows == 0
    assert record(cluster, 0).horizon_us == feed.watermark - WINDOW
    go(cluster, feed, 5)
    cluster.check()


@pytest.mark.parametrize("damage", ["gone", "corrupt", "cut"])
def test_rows_wait_for_a_package_that_was_damaged(tmp_path: Path, damage: str) -> None:
    """The receiver holds rows; the sender sees that there is no good package left and packs again."""
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("m.0", "transfer", [0, 3], 0, 1)])
    go(cluster, feed)
    (path,) = (cluster.checkpoint / "trimtab" / "transfers" / "m.0").iterdir()
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data if damage == "corrupt" else data[:-40])
    cluster.step(feed.rows(), feed.watermark, order=[1, 0, 2])
    assert cluster.told("m.0", 1).state == "holding"
    assert "no good package" in cluster.told("m.0", 1).problem
    assert cluster.told("m.0", 1).held_rows > 0
    go(cluster, feed)
    assert cluster.told("m.0", 1).state == "received"
    assert cluster.told("m.0", 1).held_rows == 0
    cluster.publish([], {0: 1, 3: 1})
    go(cluster, feed, 6)
    cluster.check()


def test_every_byte_of_a_package_counts(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("m.0", "transfer", [0], 0, 1)])
    go(cluster, feed)
    folder = cluster.checkpoint / "trimtab" / "transfers" / "m.0"
    (path,) = folder.iterdir()
    data = path.read_bytes()
    for place in random.Random(7).sample(range(len(data)), 60):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert cluster.transfers.packages("m.0") == []
        aside = path.with_name(path.name + ".corrupt")
        aside.rename(path)
    path.write_bytes(data)
    assert len(cluster.transfers.packages("m.0")) == 1


def test_packages_that_differ_wait_for_the_senders_word(tmp_path: Path) -> None:
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("m.0", "transfer", [0], 0, 1)])
    go(cluster, feed)
    good = cluster.told("m.0", 0).digest
    # A package of the same move that some other attempt packed from other rows.
    other, stray_feed = make(tmp_path / "other", seed=2)
    other.publish([other.move("m.0", "transfer", [0], 0, 1)])
    go(other, stray_feed)
    (stray,) = (other.checkpoint / "trimtab" / "transfers" / "m.0").iterdir()
    stray.rename(cluster.checkpoint / "trimtab" / "transfers" / "m.0" / "9-stray.package")
    go(cluster, feed)
    assert cluster.told("m.0", 1).state == "holding"
    assert "differ" in cluster.told("m.0", 1).problem
    (move,) = cluster.moves
    cluster.publish([replace(move, digest=good)])
    go(cluster, feed)
    assert cluster.told("m.0", 1).state == "received"
    cluster.publish([], {0: 1})
    go(cluster, feed, 5)
    cluster.check()


@pytest.mark.parametrize("arrived", [True, False])
def test_a_transfer_undone_brings_back_what_the_receiver_has(tmp_path: Path, arrived: bool) -> None:
    """Before the package was taken in nobody has joined the rows, after it the receiver has. The store is not needed:
    where it failed it stays broken."""
    cluster, feed = make(tmp_path)
    with _failing_puts(cluster, not arrived):
        cluster.publish([cluster.move("m.0", "transfer", [0, 3], 0, 1)])
        go(cluster, feed, 3)
        assert cluster.told("m.0", 0).state == ("exported" if arrived else "export-failed")
        assert cluster.told("m.0", 1).state == ("received" if arrived else "holding")
        assert cluster.told("m.0", 0).held_rows > 0
        if not arrived:
            assert "takes no package" in cluster.told("m.0", 0).problem
        cluster.go_way("m.0", Way.RECALLED)
        go(cluster, feed, 2)
        assert cluster.told("m.0", 1).state == ("recalled-joined" if arrived else "recalled-held")
        cluster.go_way("m.0", Way.JOINED if arrived else Way.HELD)
        go(cluster, feed)
        assert cluster.told("m.0", 0).state == "restored"
        assert cluster.told("m.0", 0).held_rows == 0
        assert cluster.told("m.0", 1).state == "dropped"
        go(cluster, feed)
        cluster.publish([])
        go(cluster, feed, 6)
    assert record(cluster, 1).groups == [1]
    assert record(cluster, 1).roles == [] == record(cluster, 0).roles
    cluster.check()


@contextmanager
def _failing_puts(cluster: Cluster, failing: bool) -> Iterator[None]:
    """A store that takes nothing, though it can be listed: a full disk, credentials that only read."""

    def refuse(*_: object) -> None:
        raise OSError("no space left on device")

    with pytest.MonkeyPatch.context() as patch:
        if failing:
            patch.setattr("worker.transfers.TransferStore.put", refuse)
        yield


@pytest.mark.parametrize("way", ["joined", "held"])
@pytest.mark.parametrize("moment", ["holding", "recalled", "back", "closed"])
def test_a_rebuild_at_any_point_of_the_way_back(tmp_path: Path, moment: str, way: str) -> None:
    """Rows that wait are never taken for joined ones, and those that went back stay gone."""
    cluster, feed = make(tmp_path)

    def step(now: str) -> None:
        rebuild = [0, 1] if now == moment else []
        for _ in range(2):
            cluster.step(feed.rows(12), feed.watermark, rebuild=rebuild)

    cluster.publish([cluster.move("m.w1", "transfer", [0, 3], 0, 1)])
    with _failing_puts(cluster, way == "held"):
        go(cluster, feed)
        step("holding")
        cluster.go_way("m.w1", Way.RECALLED)
        step("recalled")
        cluster.go_way("m.w1", Way(way))
        step("back")
    cluster.publish([])
    step("closed")
    go(cluster, feed, 4)
    cluster.check()


@pytest.mark.parametrize("recalled", [True, False])
def test_the_batch_that_opens_a_transfer_may_run_no_task(tmp_path: Path, recalled: bool) -> None:
    """The sender hears of it when rows go to the receiver already: it freezes first, then puts its copy aside."""
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("m.w1", "transfer", [0, 3], 0, 1)])
    cluster.skip(feed.watermark)
    if recalled:
        cluster.go_way("m.w1", Way.RECALLED)
    cluster.step(feed.rows(), feed.watermark, order=[1, 0, 2])
    assert cluster.told("m.w1", 0).state == ("export-failed" if recalled else "exported")
    assert cluster.told("m.w1", 0).held_rows == cluster.told("m.w1", 1).held_rows > 0
    if recalled:
        cluster.go_way("m.w1", Way.HELD)
        go(cluster, feed, 2)
        cluster.publish([])
    else:
        go(cluster, feed, 2)
        assert cluster.told("m.w1", 1).state == "received"
        cluster.publish([], {0: 1, 3: 1})
    go(cluster, feed, 6)
    cluster.check()


def test_other_groups_of_a_sender_expire_as_usual(tmp_path: Path) -> None:
    """A transfer that nobody closes: neither resident nor durable state of the other groups grows."""
    cluster, feed = make(tmp_path)
    go(cluster, feed, 10)
    cluster.publish([cluster.move("m.w1", "transfer", [0], 0, 1)])
    go(cluster, feed)
    frozen = cluster.told("m.w1", 0).rows
    sizes, filed = [], []
    for _ in range(40):
        go(cluster, feed)
        load = cluster.last[0].group_state_rows
        assert load is not None and load[0] == frozen
        sizes.append(int(load[3]))
        filed.append(sum(not is_aside(key, 3) for key in cluster.durable[0].rows_kept))
    assert max(sizes[20:]) <= max(sizes[:20]) + 10, "rows of group 3, which stays"
    assert max(filed[20:]) <= max(filed[:20]) + 3, "frames of joined rows"
    before = cluster.last[0].payload_bytes
    cluster.step({}, feed.watermark + 10 * WINDOW)
    load = cluster.last[0].group_state_rows
    assert load is not None and load.tolist() == [frozen, 0, 0, 0]
    assert cluster.last[0].payload_bytes < before


def test_a_duplicate_ends_after_one_window_and_suppresses_what_the_receiver_has(tmp_path: Path) -> None:
    """W after the largest old timestamp, not 2W: a combined tuple begins no later than its oldest part (HybMig)."""
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("p.0", "duplicate", [0], 0, 2)])
    suppressed = received = 0
    while True:
        go(cluster, feed)
        report = cluster.told("p.0", 0)
        assert report.suppressed == cluster.told("p.0", 2).results
        suppressed += sum(report.suppressed.values())
        received += sum(report.results.values())
        assert report.newest_old_us is not None
        assert (report.state == "all-old-purged") == (feed.watermark - WINDOW > report.newest_old_us)
        if report.state == "all-old-purged":
            break
    assert suppressed > 0 and received > 0
    go(cluster, feed, 2)
    assert not cluster.told("p.0", 0).results
    cluster.publish([], {0: 2})
    go(cluster, feed, 5)
    assert record(cluster, 0).groups == [3]
    cluster.check()


@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_duplicate_can_be_cancelled_at_any_time(tmp_path: Path, after: int) -> None:
    cluster, feed = make(tmp_path)
    cluster.publish([cluster.move("p.0", "duplicate", [0, 3], 0, 2)])
    go(cluster, feed, after)
    cluster.publish([])
    go(cluster, feed, 6)
    assert record(cluster, 2).groups == [2]
    cluster.check()


@pytest.mark.parametrize("seed", range(8))
def test_random_moves(tmp_path: Path, seed: int) -> None:
    """Both protocols, there and back, several at once, with attempts repeated, states rebuilt and packages lost."""
    luck = random.Random(seed)
    cluster, feed = make(tmp_path, seed, tuple(luck.choice(PLANS) for _ in range(3)))
    witnesses = Witnesses(cluster)
    opened = 0
    for batch in range(45):
        quiet = batch >= 24
        if luck.random() < 0.7:
            moves, owners = go_on(cluster, luck)
            if not quiet:
                opened = open_some(cluster, luck, moves, opened)
            cluster.publish(list(moves.values()), owners)
        cluster.step(
            feed.rows(),
            feed.watermark,
            rebuild=[worker for worker in range(3) if luck.random() < 0.3],
            repeated=[worker for worker in range(3) if luck.random() < 0.2],
            zombies=[worker for worker in range(3) if luck.random() < 0.15],
            order=luck.sample(range(3), 3),
        )
        witnesses.look()
        for path in (cluster.checkpoint / "trimtab" / "transfers").glob("*/*.package"):
            if not quiet and luck.random() < 0.15:
                path.unlink()
    assert opened > 3
    assert witnesses.problems == [] and witnesses.sampled > 20
    assert cluster.moves == ()
    assert [record(cluster, worker).roles for worker in range(3)] == [[], [], []]
    assert list((cluster.checkpoint / "trimtab" / "transfers").iterdir()) == []
    cluster.check()
    # Once all rows have expired nothing is left of them, of those that waited or went elsewhere neither.
    cluster.step({}, feed.watermark + 10 * WINDOW)
    cluster.step({}, feed.watermark + 10 * WINDOW)
    assert [durable.rows_kept for durable in cluster.durable] == [{}, {}, {}]
