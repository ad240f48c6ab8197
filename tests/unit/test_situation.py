"""One picture of a query: what is moving where."""

from __future__ import annotations

from dataclasses import replace

from balancing.protocols.migration import Migration, Request
from balancing.situation import SILENT_BATCHES, Situation, count_workers, workers_up
from tests.unit.audit_plane import make_report
from trimtab.epochs import first_epoch
from trimtab.moves import Kind, Move, Way

EPOCH = first_epoch("q", "i", (0, 0, 1))
MOVE = Move(id="lost.w1", kind=Kind.TRANSFER, groups=(0,), sender=0, receiver=1, epoch=2)


def test_groups_of_open_moves_are_moving_though_the_journal_lost_them() -> None:
    situation = Situation(query="q", workers=2, epoch=EPOCH.successor(EPOCH.owners, moves=(MOVE,)))
    assert situation.moving == {0: "lost.w1"}
    assert situation.movable(0) == [1]


def test_workers_are_up_that_reported_lately() -> None:
    reports = {0: make_report(0, batch=9), 1: make_report(1, batch=9 - SILENT_BATCHES)}
    assert workers_up(reports, 9) == {0}
    assert workers_up(reports, None) == frozenset()


def test_workers_are_counted_where_redis_lost_their_number() -> None:
    assert count_workers({"workers": 5}, EPOCH, {}) == 5
    assert count_workers({}, EPOCH, {}) == count_workers(None, EPOCH, {}) == 2
    assert count_workers(None, EPOCH, {3: make_report(3)}) == 4


def test_groups_of_migrations_are_moving_before_an_epoch_shows_it() -> None:
    migration = Migration(
        id="m", query="q", incarnation="i", strategy="ptlb", sender=0, receiver=1, request=Request(groups=(1,))
    )
    situation = Situation(query="q", workers=2, epoch=EPOCH, migrations=(migration,))
    assert (situation.moving, situation.receivers) == ({1: "m"}, {1: 1})


def test_a_recalled_transfer_ends_at_its_sender() -> None:
    for way, worker in ((Way.THERE, 1), (Way.RECALLED, 0), (Way.HELD, 0), (Way.JOINED, 0)):
        epoch = EPOCH.successor(EPOCH.owners, moves=(replace(MOVE, way=way),))
        assert Situation(query="q", workers=2, epoch=epoch).receivers == {0: worker}
