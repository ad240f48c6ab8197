"""What a runner tells without any turn."""

from __future__ import annotations

from manager.runner import QueryRunner
from manager.store import ManagerStore
from trimtab.epochs import first_epoch
from trimtab.moves import Move

EPOCH = first_epoch("q", "i", (0, 1))


def test_groups_of_open_moves_are_moving_though_the_journal_lost_them() -> None:
    runner = QueryRunner(ManagerStore("redis://127.0.0.1:1/0"), "q", "m")
    move = Move(id="lost.w1", kind="transfer", groups=(0,), sender=0, receiver=1, epoch=2)
    runner.watch.bound = runner.watch.current = EPOCH.successor(EPOCH.owners, migrations=(move.to_json(),))
    assert runner.view().moving == {0: "lost.w1"}
