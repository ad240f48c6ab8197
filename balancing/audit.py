"""The audit of a migration: are the rows and results around its moves all there, and each once?

Split tasks and workers count rows, each in its own place, in every batch of an open move and for some batches after
it (`trimtab.evidence`). What they counted must agree (`balancing.comparing`):

    1 routed     rows that split tasks saw of a group arrived at each worker that is to have them, and at no other
    2 on time    rows after the watermark of the previous batch, and no others, were joined or put aside, as they came
    3 stored     rows in the buffers when a batch begins are those that the batch before left, but for 4 and a recall
    4 package    rows that the receiver finds in its buffers when it takes the package in are those that the sender
                 has frozen, and so are those that were packed
    5 waiting    rows that wait when a batch begins are those that the batch before left waiting
    6 results    the results of sampled keys are those of a naive join; results made were handed to Spark; under PTLB
                 those that the sender left out are those that the receiver made, group by group
    7 closed     who has lost the groups has no row of them, and with their owner 3, 5 and 6 go on to hold
    8 durable    rows of a package, and rows that had waited, are in the durable state once they are in the buffers; no
                 frame of rows in the buffers is missing there when a batch begins

What each side does, batch by batch. "Rows" are those of the batch, on time; `before` and `after` are `stored_before`
and `stored_after`. Rows expire from `after` only, and never from frozen groups.

    MSLB              sender                                     receiver
    opens             joins rows; packs and freezes `after`      gets none, has none
    there             puts rows aside; before = after = frozen   holds rows, before = 0; or takes the package in:
                                                                 before = frozen, joins rows and all that waited;
                                                                 from then on joins rows, before = last after
    recalled          the same                                   goes on to hold, or to join, whatever it did last
    back, held        joins rows and all that waited;            before = 0, what waited is dropped
                      before = frozen
    back, joined      joins rows; before = frozen + all that     before = 0
                      waited (counted: their results are made)
    back, later       joins rows; before = last after            before = 0
    closed, there     before = 0, what waited is dropped         joins rows; before = last after
    closed, back      joins rows; before = last after            before = 0

    PTLB              sender                                     receiver
    open              joins rows; before = last after            joins rows; before = 0 in the first batch, then
                                                                 the last after
    closed, there     before = 0                                 joins rows; before = last after
    closed, back      joins rows; before = last after            before = 0

A batch in which the receiver takes the package in cannot be known by its state, which is that of the batch's
beginning: the buffers show it. They show nothing where package and rows are all empty; then the next batch's state says
it, and there was nothing to lose. A package may be taken in before the manager hears that it was packed, or from an
attempt that lost; its rows are the frozen ones in any case. Rows of it that have expired meanwhile are in `before` of
that batch. A batch may run no task: what is to be done in it is done in the next one. So the state of a sender, not
the number of the batch, says whether it has its groups back already.

A batch that nobody saw, or of which a report that counts is missing, is unchecked, never guessed; the trails of stored
and waiting rows begin anew after it. What the audit does not find: payload columns that change (a package has a
checksum of every byte, Spark's state store one of its own); a row that comes back silently under another key; wrong
results of keys that were not sampled, unless their number shows under PTLB. After the close split does not count the
groups any more, so there a row that is wrongly dropped as late, or that is joined in place of a late one, is not found.
Groups that move again at once are followed for the same few batches, at the worker that has them and now sends them:
what the first move has left behind must be what the next one begins with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from balancing.committed import CommittedBatch
from balancing.comparing import (
    Discrepancy,
    MoveComparison,
    Phase,
    WatchedMove,
    discrepancy,
    is_with_one_owner,
    parse_watched,
    phase_of,
    where,
)
from trimtab.evidence import Seen
from trimtab.moves import BATCHES_AFTER_CLOSE, Move, parse_move_id
from trimtab.records import known_fields
from trimtab.reports import MoveReport, WorkerReport

PROBLEMS_KEPT: Final = 20


@dataclass(frozen=True, kw_only=True)
class AuditVerdict:
    """What the audit says so far."""

    lost: int
    doubled: int
    checked_rows: int
    checked_batches: int
    unchecked_batches: int
    opened: bool = False
    """Whether a move was ever open: without one there is nothing to check."""
    finished: bool
    """Whether no batch is left to be checked."""
    problems: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """No discrepancy was found so far, and every batch so far was checked."""
        return not (self.lost or self.doubled or self.problems or self.unchecked_batches)

    @property
    def clean(self) -> bool:
        """No discrepancy was found, and every batch was checked: nothing is left to look at."""
        return self.sound and self.finished and (self.checked_batches > 0 or not self.opened)


@dataclass(frozen=True, kw_only=True)
class MigrationAudit:
    """The sums of one migration, batch by batch. Adding a batch a second time changes nothing."""

    newest_batch: int = -1
    """The newest one that was dealt with; a migration begins with the newest one before it."""
    newest_epoch: int = -1
    """That it was bound to; -1: not known."""
    opened: bool = False
    checked_rows: int = 0
    checked_batches: int = 0
    unchecked_batches: int = 0
    lost: int = 0
    """Rows and results that should be there and are not."""
    doubled: int = 0
    """Rows and results that are there and should not be."""
    watched: tuple[WatchedMove, ...] = ()
    """Moves that are open, or were closed a few batches ago."""
    problems: tuple[str, ...] = ()
    """The first ones, in words."""

    @property
    def finished(self) -> bool:
        """Whether no batch to come concerns a move that was ever open. True before the first one opens."""
        return not self.watched

    def add(self, migration: str, committed: CommittedBatch, workers: int | None = None) -> MigrationAudit:
        """With one more batch: the one before `committed`, whose reports `committed` confirms.

        Batches that are missing between it and the newest one dealt with are unchecked, if a move was open at either
        end. `workers`: how many the query has. A split task's counts are in the report of any of them, so all are
        needed; where the number is not given, those of owners and of the moves' workers.
        """
        audit, subject = self, committed.previous
        if subject is not None and subject.batch > self.newest_batch:
            audit = _AuditedBatch(self, migration, subject, workers).result()
        return audit._noting(migration, committed)

    def _noting(self, migration: str, committed: CommittedBatch) -> MigrationAudit:
        """With the moves that are open in a batch which is not confirmed yet: they are to be followed from here on."""
        if committed.batch <= self.newest_batch:
            return self
        known = {each.move.id for each in self.watched}
        new = [
            WatchedMove(move=move, first_batch=committed.batch)
            for name, move in _moves_of(migration, committed).items()
            if name not in known
        ]
        return replace(self, opened=True, watched=(*self.watched, *new)) if new else self

    def verdict(self) -> AuditVerdict:
        return AuditVerdict(
            lost=self.lost,
            doubled=self.doubled,
            checked_rows=self.checked_rows,
            checked_batches=self.checked_batches,
            unchecked_batches=self.unchecked_batches,
            opened=self.opened,
            finished=self.finished,
            problems=self.problems,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "watched": [each.to_json() for each in self.watched],
            "problems": list(self.problems),
        }


def parse_audit(body: Mapping[str, Any]) -> MigrationAudit:
    watched = tuple(parse_watched(each) for each in body["watched"])
    fields = known_fields(MigrationAudit, body)
    return MigrationAudit(**{**fields, "watched": watched, "problems": tuple(body["problems"])})


class _AuditedBatch:
    """One confirmed batch on top of those before."""

    def __init__(self, before: MigrationAudit, migration: str, batch: CommittedBatch, workers: int | None) -> None:
        self.before = before
        self.batch = batch
        self.open = _moves_of(migration, batch)
        self.missed = batch.batch - self._newest_before() - 1
        self.epoch_before = before.newest_epoch if not self.missed and before.newest_epoch >= 0 else None
        self.later = tuple(each for each in before.watched if each.first_batch > batch.batch)
        """Moves that open in a later batch."""
        self.watched = self._watched()
        self.workers = self._needed(workers)

    def _newest_before(self) -> int:
        """The newest batch that was dealt with; where there is none, the last one before a move is known to be open."""
        if self.before.newest_batch >= 0:
            return self.before.newest_batch
        first = min((each.first_batch for each in self.before.watched), default=self.batch.batch)
        return min(first, self.batch.batch) - 1

    def _watched(self) -> list[WatchedMove]:
        """Moves that are open in this batch, and those that were closed not long ago."""
        known = {each.move.id: each for each in self.before.watched if each.first_batch <= self.batch.batch}
        watched = [
            replace(known[name], move=move) if name in known else WatchedMove(move=move, first_batch=self.batch.batch)
            for name, move in self.open.items()
        ]
        if self.missed:
            # When the others were closed nobody knows: the batches that are missing count for them.
            return [each.without_trails() for each in watched]
        return watched + [each for name, each in known.items() if name not in self.open]

    def _needed(self, workers: int | None) -> frozenset[int]:
        if workers is not None:
            return frozenset(range(workers)) | frozenset(self.batch.reports)
        sides = {worker for each in self.watched for worker in (each.move.sender, each.move.receiver)}
        return frozenset(self.batch.bound.owners) | sides | frozenset(self.batch.reports)

    def result(self) -> MigrationAudit:
        before, batch = self.before, self.batch
        dealt_with = replace(
            before,
            newest_batch=batch.batch,
            newest_epoch=batch.bound.number,
            opened=before.opened or bool(self.open),
            unchecked_batches=before.unchecked_batches + self._missed_batches(),
            watched=self.later,
        )
        if not self.watched:
            return dealt_with
        comparisons = self._comparisons()
        if comparisons is None:
            return replace(
                dealt_with,
                unchecked_batches=dealt_with.unchecked_batches + 1,
                watched=(*self._kept(each.without_trails() for each in self.watched), *self.later),
            )
        return self._checked(dealt_with, comparisons)

    def _missed_batches(self) -> int:
        """Of the batches that are missing, those that may have had something to check."""
        known = [each for each in self.before.watched if each.first_batch <= self.batch.batch]
        if self.open or any(not each.closed_batches for each in known):
            return self.missed
        left = [BATCHES_AFTER_CLOSE + 1 - each.closed_batches for each in known]
        return min(self.missed, max(left, default=0))

    def _checked(self, dealt_with: MigrationAudit, comparisons: list[MoveComparison]) -> MigrationAudit:
        watched = tuple(self._kept([comparison.run() for comparison in comparisons]))
        found = [*self._emitted(), *(each for comparison in comparisons for each in comparison.found)]
        return replace(
            dealt_with,
            checked_rows=dealt_with.checked_rows + sum(self.seen.get(group, Seen()).rows for group in self._groups()),
            checked_batches=dealt_with.checked_batches + 1,
            lost=dealt_with.lost + sum(each.lost for each in found),
            doubled=dealt_with.doubled + sum(each.doubled for each in found),
            watched=(*watched, *self.later),
            problems=(*dealt_with.problems, *(each.text for each in found))[:PROBLEMS_KEPT],
        )

    def _comparisons(self) -> list[MoveComparison] | None:
        """One for each move; None where a report that is needed is missing."""
        if any(self.batch.report(worker) is None for worker in self.workers):
            return None
        comparisons = []
        for watched in self.watched:
            sender, receiver = (
                self.batch.about(watched.move, worker) for worker in (watched.move.sender, watched.move.receiver)
            )
            if sender is None or receiver is None:
                return None
            phase = self._phase(watched.move, sender)
            if phase is None:
                return None
            comparisons.append(MoveComparison(watched, self.batch, phase, sender, receiver, self.seen))
        return comparisons

    def _phase(self, move: Move, sender: MoveReport) -> Phase | None:
        if move.id not in self.open:
            return Phase.CLOSED if is_with_one_owner(move, self.batch.bound) else None
        return phase_of(move, self.batch.bound.number, self.epoch_before, sender.state)

    def _kept(self, watched: Iterable[WatchedMove]) -> Iterable[WatchedMove]:
        """Those that are to be watched in the next batch."""
        for each in watched:
            closed = 0 if each.move.id in self.open else each.closed_batches + 1
            if closed <= BATCHES_AFTER_CLOSE:
                yield replace(each, closed_batches=closed)

    def _emitted(self) -> Iterable[Discrepancy]:
        """Rule 6, for each worker with a part in a move: what it made is what it handed to Spark."""
        sides = {worker for each in self.watched for worker in (each.move.sender, each.move.receiver)}
        for report in (self._report(worker) for worker in sorted(sides)):
            if report.emitted != report.results:
                place = f"{where(self.batch)}, worker {report.worker}"
                yield discrepancy(place, "results handed to Spark", report.results, report.emitted)

    @cached_property
    def seen(self) -> dict[int, Seen]:
        """By group: what split tasks saw of it."""
        sums: dict[int, Seen] = {}
        for worker in self.workers:
            for group, seen in self._report(worker).seen.items():
                sums[group] = sums.get(group, Seen()) + seen
        return sums

    def _groups(self) -> set[int]:
        return {group for move in self.open.values() for group in move.groups}

    def _report(self, worker: int) -> WorkerReport:
        report = self.batch.report(worker)
        assert report is not None, "looked at before it is known that all reports are there"
        return report


def _moves_of(migration: str, batch: CommittedBatch) -> dict[str, Move]:
    """The migration's moves that are open in a batch."""
    names = {name: parse_move_id(name) for name in batch.open_moves}
    return {name: batch.open_moves[name] for name, parts in names.items() if parts and parts[0] == migration}
