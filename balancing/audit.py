"""The audit of a migration: are the rows and results around its moves all there, and each once?

Workers and split tasks count rows and results of the groups in open moves, each in its own place, in every batch. The
sums must agree:

    routed      a row that a split task saw (seen_rows) arrived at one worker, or at both under PTLB
    shipped     what the sender packed (rows, digest) is what the receiver took in
    held        rows that waited for a package went on when it came, or went back
    suppressed  PTLB: what the sender's root left out is what the receiver produced, group by group

From which follows: lost 0, doubled 0. A batch whose reports are incomplete, or that nobody saw, is counted as
unchecked, never guessed. A wrong sum is an alarm: the migration's record keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from balancing.committed import CommittedBatch
from balancing.names import parse_name
from trimtab.moves import DUPLICATE, Move, MoveReport
from trimtab.reports import WorkerReport

PROBLEMS_KEPT: Final = 20


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the audit says so far."""

    lost: int
    doubled: int
    checked_rows: int
    checked_batches: int
    unchecked_batches: int
    problems: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Nothing is wrong, and it was looked: where no batch could be checked, nobody knows."""
        unknown = self.unchecked_batches and not self.checked_batches
        return not (self.lost or self.doubled or self.problems or unknown)


@dataclass(frozen=True, kw_only=True)
class Package:
    """What one move shipped, as its two workers tell."""

    move: str
    packed_rows: int = -1
    packed_digest: str = ""
    taken_rows: int = -1
    taken_digest: str = ""
    held_rows: int = 0
    """Rows that waited for it at the end of the newest batch."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The sums of one migration, batch by batch. Adding a batch a second time changes nothing."""

    newest_batch: int = -1
    """That was looked at; a migration begins with the newest one before it."""
    open: bool = False
    """Whether a move was open in it."""
    checked_rows: int = 0
    checked_batches: int = 0
    unchecked_batches: int = 0
    lost: int = 0
    doubled: int = 0
    packages: tuple[Package, ...] = ()
    problems: tuple[str, ...] = ()

    def add(self, migration: str, committed: CommittedBatch, workers: int | None = None) -> Audit:
        """With one more committed batch; the same where it was added before.

        Batches between it and the one before that are missing are unchecked, if a move was open at either end.

        `workers`: how many the query has. Split's counts may be told to any of them, so all reports are needed; where
        the number is not given, those of owners and receivers.
        """
        if committed.batch <= self.newest_batch:
            return self
        names = {move: parse_name(move) for move in committed.open_moves}
        moves = [committed.open_moves[move] for move, name in names.items() if name and name.migration == migration]
        missed = committed.batch - self.newest_batch - 1 if self.newest_batch >= 0 and (moves or self.open) else 0
        before = replace(self, open=bool(moves), unchecked_batches=self.unchecked_batches + missed)
        if not moves:
            return replace(before, newest_batch=committed.batch)
        tally = _Tally(before, committed, workers)
        tally.rows(moves)
        for move in moves:
            tally.package(move)
            tally.held(move)
            if move.kind == DUPLICATE:
                tally.suppressed(move)
        return tally.result()

    def verdict(self) -> Verdict:
        return Verdict(
            lost=self.lost,
            doubled=self.doubled,
            checked_rows=self.checked_rows,
            checked_batches=self.checked_batches,
            unchecked_batches=self.unchecked_batches,
            problems=self.problems,
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "packages": [asdict(package) for package in self.packages]}


def parse_audit(body: Mapping[str, Any]) -> Audit:
    return Audit(
        **{
            **body,
            "packages": tuple(Package(**package) for package in body["packages"]),
            "problems": tuple(body["problems"]),
        }
    )


class _Tally:
    """One batch's sums on top of those before."""

    def __init__(self, before: Audit, committed: CommittedBatch, workers: int | None) -> None:
        self.before = before
        self.committed = committed
        needed = {move.receiver for move in committed.open_moves.values()} | set(committed.bound.owners)
        self.needed = needed if workers is None else set(range(workers))
        self.lost = self.doubled = self.checked_rows = 0
        self.complete = True
        self.problems: list[str] = []
        self.packages = {package.move: package for package in before.packages}

    def result(self) -> Audit:
        before = self.before
        return replace(
            before,
            newest_batch=self.committed.batch,
            checked_rows=before.checked_rows + self.checked_rows,
            checked_batches=before.checked_batches + self.complete,
            unchecked_batches=before.unchecked_batches + (not self.complete),
            lost=before.lost + self.lost,
            doubled=before.doubled + self.doubled,
            packages=tuple(self.packages.values()),
            problems=(*before.problems, *self.problems)[:PROBLEMS_KEPT],
        )

    def wrong(self, text: str) -> None:
        self.problems.append(f"batch {self.committed.batch}, epoch {self.committed.bound.number}: {text}")

    def rows(self, moves: list[Move]) -> None:
        """Rows that split tasks saw arrived once, or once at each of PTLB's two workers."""
        reports = self._all_reports()
        if reports is None:
            return
        for group in sorted({group for move in moves for group in move.groups}):
            seen = sum(report.seen_rows.get(str(group), 0) for report in reports)
            duplicated = any(move.kind == DUPLICATE and group in move.groups for move in moves)
            arrived = self._arrived(reports, group)
            self.checked_rows += seen
            expected = 2 * seen if duplicated else seen
            total = sum(arrived.values())
            if total == expected and (not duplicated or all(rows == seen for rows in arrived.values())):
                continue
            self.lost += max(expected - total, 0)
            self.doubled += max(total - expected, 0)
            self.wrong(f"group {group}: split saw {seen} rows, workers got {arrived}")

    def _all_reports(self) -> list[WorkerReport] | None:
        """Every worker's report, for split's counts may be told to any of them; None where one is missing."""
        workers = self.needed | set(self.committed.reports)
        reports = [report for worker in sorted(workers) if (report := self.committed.report(worker)) is not None]
        if len(reports) < len(workers):
            self.complete = False
            return None
        return reports

    def _arrived(self, reports: list[WorkerReport], group: int) -> dict[int, int]:
        """Rows of a group by worker. A worker tells the same rows under each of the group's moves: taken once."""
        arrived: dict[int, int] = {}
        for report in reports:
            told = [move.arrived[str(group)] for move in report.moves if str(group) in move.arrived]
            if told:
                arrived[report.worker] = max(told)
        for move in self.committed.open_moves.values():
            if group in move.groups and move.kind == DUPLICATE:
                arrived.setdefault(move.sender, 0)
                arrived.setdefault(move.receiver, 0)
        return arrived

    def package(self, move: Move) -> None:
        """What was packed is what was taken in."""
        packed, taken = self._told(move, move.sender, "exported"), self._told(move, move.receiver, "received")
        known = self.packages.get(move.id, Package(move=move.id))
        if packed:
            known = replace(known, packed_rows=packed.rows, packed_digest=packed.digest)
        if taken:
            known = replace(known, taken_rows=taken.rows, taken_digest=taken.digest)
        if known == self.packages.get(move.id) or (packed is None and taken is None):
            return
        self.packages[move.id] = known
        if known.packed_rows < 0 or known.taken_rows < 0:
            return
        self.lost += max(known.packed_rows - known.taken_rows, 0)
        self.doubled += max(known.taken_rows - known.packed_rows, 0)
        if (known.packed_rows, known.packed_digest) != (known.taken_rows, known.taken_digest):
            self.wrong(
                f"move {move.id}: packed {known.packed_rows} rows ({known.packed_digest[:12]}), "
                f"took in {known.taken_rows} ({known.taken_digest[:12]})"
            )

    def held(self, move: Move) -> None:
        """Rows that wait become more by those that arrive (late ones are dropped), never fewer, until they go on."""
        told = self._told(move, move.receiver, "holding")
        if told is None:
            return
        known = self.packages.get(move.id, Package(move=move.id))
        if self.before.newest_batch == self.committed.batch - 1:
            most = known.held_rows + sum(told.arrived.values())
            self.lost += max(known.held_rows - told.held_rows, 0)
            self.doubled += max(told.held_rows - most, 0)
            if not known.held_rows <= told.held_rows <= most:
                self.wrong(f"move {move.id}: {told.held_rows} rows wait, after {known.held_rows} and {most} at most")
        self.packages[move.id] = replace(known, held_rows=told.held_rows)

    def _told(self, move: Move, worker: int, state: str) -> MoveReport | None:
        told = self.committed.about(move, worker)
        return told if told is not None and told.state == state else None

    def suppressed(self, move: Move) -> None:
        """PTLB/MSLB section 3.1: the all-new combinations left out at the sender are the receiver's results."""
        sender, receiver = self.committed.about(move, move.sender), self.committed.about(move, move.receiver)
        if sender is None or receiver is None:
            self.complete = False
            return
        for group in map(str, move.groups):
            left_out, made = sender.suppressed.get(group, 0), receiver.results.get(group, 0)
            if left_out == made:
                continue
            self.lost += max(left_out - made, 0)
            self.doubled += max(made - left_out, 0)
            self.wrong(f"group {group}: sender left out {left_out} results, receiver made {made}")
