"""What the manager sees of the data plane: a committed batch, the epoch it was bound to and what its workers told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trimtab.epochs import Epoch
from trimtab.moves import Move, MoveReport, moves_of
from trimtab.reports import WorkerReport


@dataclass(frozen=True, kw_only=True)
class CommittedBatch:
    """A batch that Spark has committed: only then do reports count (a batch that is replayed tells it all again)."""

    batch: int
    bound: Epoch
    at_ms: int
    reports: Mapping[int, WorkerReport]
    """By worker. Some may be missing: reports are levels, so the next batch tells the same."""
    previous: CommittedBatch | None = None
    """The batch before, with exactly the reports that this batch confirms; None where it is not known."""

    @cached_property
    def open_moves(self) -> dict[str, Move]:
        return {move.id: move for move in moves_of(self.bound)}

    def report(self, worker: int) -> WorkerReport | None:
        """The worker's report of this very batch under this very epoch; any other one is no evidence."""
        report = self.reports.get(worker)
        if report is None or (report.batch, report.epoch) != (self.batch, self.bound.number):
            return None
        return report

    def about(self, move: Move, worker: int) -> MoveReport | None:
        """What one of its two workers says about a move."""
        report = self.report(worker)
        role = "sender" if worker == move.sender else "receiver"
        for told in report.moves if report else ():
            if told.move == move.id and told.role == role:
                return told
        return None
