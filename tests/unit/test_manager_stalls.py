"""Stalls are told where event time is known to stand still; and what a runner tells without any turn."""

from __future__ import annotations

from manager.stalls import Stalls

from balancing.committed import CommittedBatch
from manager.runner import make_runner
from manager.store import ManagerStore
from tests.checkers.migrations import parallel_track
from trimtab.epochs import first_epoch
from trimtab.moves import Move

EPOCH = first_epoch("q", "i", (0, 1))


def test_a_batch_without_reports_says_nothing_about_event_time() -> None:
    stalls = Stalls(30.0, lambda: 86_400.0)
    assert stalls.look(CommittedBatch(batch=5, bound=EPOCH, at_ms=0, reports={}), [parallel_track()]) == []


def test_groups_of_open_moves_are_moving_though_the_journal_lost_them() -> None:
    runner = make_runner(ManagerStore("redis://127.0.0.1:1/0"), "q", "m")
    move = Move(id="lost.w1", kind="transfer", groups=(0,), sender=0, receiver=1, epoch=2)
    runner.watch.bound = runner.watch.current = EPOCH.successor(EPOCH.owners, migrations=(move.to_json(),))
    assert runner.view().moving == {0: "lost.w1"}
