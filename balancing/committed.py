"""What the manager sees of the data plane: a committed batch, its epoch, and what its workers reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trimtab.epochs import Epoch
from trimtab.moves import Move
from trimtab.reports import MoveReport, WorkerReport


@dataclass(frozen=True, kw_only=True)
class CommittedBatch:
    """A batch that Spark has committed: only then do reports count (a batch that is replayed reports all of it again).

    Which of several attempts was committed is not known yet: `reports` are the likely ones, and only their levels may
    be relied on, since all attempts report the same ones. What an attempt did is counted in `previous`.
    """

    batch: int
    bound: Epoch
    at_ms: int
    reports: Mapping[int, WorkerReport]
    """By worker. Some may be missing: reports are levels, so the next batch says the same."""
    previous: CommittedBatch | None = None
    """The batch before, with exactly the reports that this batch confirms (`trimtab.reports.winners`), and without a
    previous one of its own. None where it is not known; a worker whose report is not confirmed is missing in it."""

    @cached_property
    def open_moves(self) -> dict[str, Move]:
        return {move.id: move for move in self.bound.moves}

    def report(self, worker: int) -> WorkerReport | None:
        """The worker's report of this very batch under this very epoch; any other one proves nothing."""
        report = self.reports.get(worker)
        if report is None or (report.batch, report.epoch) != (self.batch, self.bound.number):
            return None
        return report

    def about(self, move: Move, worker: int) -> MoveReport | None:
        """What one of its two workers says about a move, open or just closed."""
        report = self.report(worker)
        if report is None:
            return None
        side = move.side_of(worker)
        return next((each for each in report.moves if (each.move, each.side) == (move.id, side)), None)
