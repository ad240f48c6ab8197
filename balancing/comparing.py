"""The comparisons of the audit: one move, one batch, two workers.

`MoveComparison` knows what each side must do in a batch (the table in balancing/audit.py) and compares it with what the
two workers found in their buffers. Nothing is believed because a worker says so: its state only tells which of the
legal things it is expected to have done, and the rows must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from balancing.committed import CommittedBatch
from trimtab.epochs import Epoch
from trimtab.evidence import NOTHING, Evidence, Seen, Tally, parse_tally
from trimtab.moves import Kind, Move, RoleState, Side, Way, is_switched, parse_move
from trimtab.records import known_fields
from trimtab.reports import MoveReport

HAS_PACKAGE: Final = frozenset({RoleState.RECEIVED, RoleState.RECALLED_JOINED})
"""States of a receiver that took the package in before the batch began."""


class Phase(StrEnum):
    """Where a move is in one batch."""

    OPENING = "opening"
    """Transfer, not switched: the sender joins, packs and freezes."""
    THERE = "there"
    RECALLED = "recalled"
    BACK = "back"
    PARALLEL = "parallel"
    """Duplicate, open."""
    CLOSED = "closed"


class Part(StrEnum):
    """What a worker does with the rows of a move in one batch."""

    JOIN = "join"
    """It gets the rows and joins them, together with all that waited."""
    ADD = "add"
    """It gets the rows and joins them; what waited is added to its state without results."""
    ASIDE = "aside"
    """It gets the rows and keeps them unjoined."""
    DROP = "drop"
    """It gets nothing and forgets what waited."""
    NONE = "none"
    """It gets nothing, and nothing waits."""

    @property
    def gets_rows(self) -> bool:
        return self not in (Part.DROP, Part.NONE)


@dataclass(frozen=True, kw_only=True)
class SideTrail:
    """What one side of a move left behind at the end of the newest batch that was checked."""

    stored: Tally
    waiting: Tally
    package: bool | None = None
    """Receiver of a transfer: whether its buffers showed the package; None: there was nothing to see, since neither
    package nor rows had come."""

    def to_json(self) -> dict[str, Any]:
        return {"stored": self.stored.to_json(), "waiting": self.waiting.to_json(), "package": self.package}


def parse_trail(body: Mapping[str, Any] | None) -> SideTrail | None:
    if body is None:
        return None
    return SideTrail(stored=parse_tally(body["stored"]), waiting=parse_tally(body["waiting"]), package=body["package"])


@dataclass(frozen=True, kw_only=True)
class WatchedMove:
    """A move that the audit follows, from the batch that opens it until some batches after the one that closes it."""

    move: Move
    """As the newest batch had it."""
    first_batch: int
    """The first one that is known to have had it."""
    closed_batches: int = 0
    """Batches since it was closed, the one that closed it included."""
    package: str = ""
    """The newest package that was compared with the frozen rows."""
    sender: SideTrail | None = None
    """None: the batch before was not checked, so there is nothing to compare with."""
    receiver: SideTrail | None = None

    def without_trails(self) -> WatchedMove:
        return replace(self, sender=None, receiver=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "move": self.move.to_json(),
            "first_batch": self.first_batch,
            "closed_batches": self.closed_batches,
            "package": self.package,
            "sender": None if self.sender is None else self.sender.to_json(),
            "receiver": None if self.receiver is None else self.receiver.to_json(),
        }


def parse_watched(body: Mapping[str, Any]) -> WatchedMove:
    trails = {side: parse_trail(body[side]) for side in ("sender", "receiver")}
    return WatchedMove(**{**known_fields(WatchedMove, body), "move": parse_move(dict(body["move"])), **trails})


@dataclass(frozen=True, kw_only=True)
class Discrepancy:
    """Two numbers that should be equal."""

    text: str
    lost: int = 0
    doubled: int = 0


def discrepancy(where: str, what: str, expected: Tally | int, actual: Tally | int) -> Discrepancy:
    missing = _rows(expected) - _rows(actual)
    text = f"{where}: {what}: {expected} expected, {actual} found"
    return Discrepancy(text=text, lost=max(missing, 0), doubled=max(-missing, 0))


def phase_of(move: Move, bound: int, epoch_before: int | None, sender: RoleState) -> Phase | None:
    """Of an open move in a batch bound to epoch `bound`; None where nobody knows whether rows went to the receiver.

    An epoch lasts at least one batch, so rows are switched in every batch of a later epoch than the one that opened
    the move. In batches of that epoch itself the epoch of the batch before decides, as it does for split and workers;
    where that is not known, a sender that has frozen its groups says that they are not in the first one any more.
    """
    if move.kind == Kind.DUPLICATE:
        return Phase.PARALLEL
    if move.way.back:
        return Phase.BACK
    if epoch_before is not None:
        switched = is_switched(move, epoch_before)
    elif bound > move.epoch or sender != RoleState.ACTIVE:
        switched = True
    else:
        return None
    if not switched:
        return Phase.OPENING
    return Phase.RECALLED if move.way == Way.RECALLED else Phase.THERE


def is_with_one_owner(move: Move, bound: Epoch) -> bool:
    """Whether all groups of a closed move are with one worker, even if some of them are on their way again."""
    going_back = any(each.way.back and not set(each.groups).isdisjoint(move.groups) for each in bound.moves)
    return not going_back and len({bound.owners[group] for group in move.groups}) == 1


def package_digest(rows: Tally) -> str:
    """How a package with these rows is named in reports (`MoveReport.digest`)."""
    return f"{rows.rows}-{rows.digest:016x}"


@dataclass
class MoveComparison:
    """One move in one batch. `run()` says how the move is to be watched from here on; `found` is what was wrong."""

    watched: WatchedMove
    batch: CommittedBatch
    phase: Phase
    sender: MoveReport
    receiver: MoveReport
    seen: Mapping[int, Seen]
    """By group: the sums over all workers' reports."""
    found: list[Discrepancy] = field(default_factory=list)

    def run(self) -> WatchedMove:
        if self.phase == Phase.CLOSED:
            return self._closed()
        receiver_part, package = self._receiver_part()
        sender = self._side(Side.SENDER, self._sender_part())
        receiver = self._side(Side.RECEIVER, receiver_part)
        self._package()
        if self.phase == Phase.PARALLEL:
            self._suppressed()
        return replace(
            self.watched,
            package=self._shipped(),
            sender=sender,
            receiver=replace(receiver, package=package),
        )

    # -- what each side has to do ----------------------------------------------------------------------------------

    def _sender_part(self) -> Part:
        if self.phase in (Phase.THERE, Phase.RECALLED):
            return Part.ASIDE
        # What waited is added silently on one way back only; where the move opens, or is a duplicate, nothing waits.
        silently = self.move.way == Way.JOINED and self.sender.state != RoleState.RESTORED
        return Part.ADD if silently else Part.JOIN

    def _receiver_part(self) -> tuple[Part, bool | None]:
        """And whether it has the package once the batch has begun, by what its buffers show."""
        if self.phase == Phase.PARALLEL:
            return Part.JOIN, None
        if self.phase == Phase.OPENING:
            return Part.NONE, None
        if self.phase == Phase.BACK:
            known = self.watched.receiver.package if self.watched.receiver else None
            return (Part.NONE if self.receiver.state == RoleState.DROPPED else Part.DROP), known
        if self.receiver.state in HAS_PACKAGE:
            return Part.JOIN, True
        if self.phase == Phase.RECALLED:
            return Part.ASIDE, False
        evidence = self.receiver.evidence
        if evidence.stored_before.rows or evidence.joined.rows:
            return Part.JOIN, True
        idle = not (self._on_time.rows or evidence.waiting_before.rows or evidence.waiting_after.rows)
        return Part.ASIDE, None if idle else False

    # -- the comparisons ------------------------------------------------------------------------------------------

    def _side(self, side: Side, part: Part) -> SideTrail:
        report, trail = self._report(side), self._trail(side)
        evidence = report.evidence
        if self._arrived(side, part, report):
            self._on_time_rows(side, part, evidence)
        self._waiting(side, part, evidence, trail)
        self._stored(side, part, evidence, trail)
        self._filed(side, part, evidence)
        self._sampled(side, evidence)
        return SideTrail(stored=evidence.stored_after, waiting=evidence.waiting_after)

    def _arrived(self, side: Side, part: Part, report: MoveReport) -> bool:
        """Rule 1: what split saw of each group arrived. Rows that did not cannot be joined: rule 2 has no say then."""
        agreed = True
        for group in self.move.groups:
            expected = self.seen.get(group, Seen()).rows if part.gets_rows else 0
            agreed &= self._equal(side, f"rows of group {group} that arrived", expected, report.arrived.get(group, 0))
        return agreed

    def _on_time_rows(self, side: Side, part: Part, evidence: Evidence) -> None:
        """Rule 2: what was on time, and nothing else, was joined or put aside; what had waited was joined with it."""
        on_time = self._on_time if part.gets_rows else NOTHING
        joined = {Part.JOIN: on_time + evidence.waiting_before, Part.ADD: on_time}.get(part, NOTHING)
        aside = on_time if part == Part.ASIDE else NOTHING
        self._equal(side, "rows joined", joined, evidence.joined)
        self._equal(side, "rows put aside", aside, evidence.put_aside)

    def _waiting(self, side: Side, part: Part, evidence: Evidence, trail: SideTrail | None) -> None:
        """Rule 5: rows that wait are there in the next batch, until they are joined or not needed any more."""
        before = trail.waiting if trail else (NOTHING if part == Part.NONE else evidence.waiting_before)
        if part != Part.DROP or evidence.waiting_before != NOTHING:
            self._equal(side, "rows waiting when the batch began", before, evidence.waiting_before)
        after = evidence.waiting_before + evidence.put_aside if part == Part.ASIDE else NOTHING
        self._equal(side, "rows waiting when the batch ended", after, evidence.waiting_after)

    def _stored(self, side: Side, part: Part, evidence: Evidence, trail: SideTrail | None) -> None:
        """Rules 3, 4 and 7: rows in the buffers are those of the batch before, and what is taken in or put back."""
        self._stored_before(side, part, evidence, trail)
        if side == Side.SENDER and self.phase in (Phase.THERE, Phase.RECALLED):
            self._equal(side, "frozen rows when the batch ended", evidence.stored_before, evidence.stored_after)
            return
        most = evidence.stored_before.rows + evidence.joined.rows
        if evidence.stored_after.rows > most:
            self._wrong(side, "rows stored when the batch ended, at most", most, evidence.stored_after.rows)

    def _stored_before(self, side: Side, part: Part, evidence: Evidence, trail: SideTrail | None) -> None:
        what, actual = "rows stored when the batch began", evidence.stored_before
        if self._is_empty(side, part):
            self._equal(side, what, NOTHING, actual)
        elif side == Side.RECEIVER and self._takes_in(part):
            self._equal(side, "rows taken in, as frozen by the sender", self.sender.evidence.stored_before, actual)
        elif trail is not None and part == Part.ADD:
            # The rows that waited are known by the digest of arriving rows only, so they can be counted, not compared.
            self._equal(side, what, trail.stored.rows + evidence.waiting_before.rows, actual.rows)
        elif trail is not None:
            self._equal(side, what, trail.stored, actual)

    def _filed(self, side: Side, part: Part, evidence: Evidence) -> None:
        """Rule 8: rows that came from elsewhere are in the durable state as they are in the buffers."""
        taken = self.sender.evidence.stored_before if side == Side.RECEIVER and self._takes_in(part) else NOTHING
        self._equal(side, "rows of the package in the durable state", taken, evidence.filed_package)
        waited = evidence.waiting_before if part in (Part.JOIN, Part.ADD) else NOTHING
        self._equal(side, "rows that had waited in the durable state", waited, evidence.filed_waiting)
        self._frames(side, evidence)

    def _frames(self, side: Side, evidence: Evidence) -> None:
        """Rule 8, for whole frames of any row; each has one row at least."""
        if evidence.frames_missing:
            text = f"{self._where(side)}: frames missing from the durable state: {evidence.frames_missing}"
            self.found.append(Discrepancy(text=text, lost=evidence.frames_missing))

    def _is_empty(self, side: Side, part: Part) -> bool:
        """Whether a side has no rows of the groups when the batch begins."""
        if side == Side.SENDER:
            return False
        first = self.phase == Phase.PARALLEL and self.sender.state == RoleState.ACTIVE
        return first or part in (Part.NONE, Part.DROP, Part.ASIDE)

    def _takes_in(self, part: Part) -> bool:
        return self.phase == Phase.THERE and part == Part.JOIN and self.receiver.state not in HAS_PACKAGE

    def _package(self) -> None:
        """Rule 4, where the receiver's buffers and what it says about the package disagree; and what was packed."""
        trail, rows = self.watched.receiver, self.sender.evidence.stored_before
        before = trail.package if trail else None
        if self.phase in (Phase.THERE, Phase.RECALLED):
            says_so = self.receiver.state in HAS_PACKAGE
            if says_so and trail is not None and not before and rows.rows:
                self._wrong(Side.RECEIVER, "rows taken in one batch ago", rows, trail.stored)
            if before and not says_so:
                text = "it joined rows one batch ago, and did not have the package"
                self.found.append(Discrepancy(text=f"{self._where(Side.RECEIVER)}: {text}"))
            if self._shipped() != self.watched.package and self._shipped() != package_digest(rows):
                self._wrong(Side.SENDER, f"frozen rows, packed as {self.sender.digest}", rows.rows, self.sender.rows)
        first_back = self.phase == Phase.BACK and self.receiver.state != RoleState.DROPPED
        if first_back and before is not None and before != (self.move.way == Way.JOINED):
            waited = self.sender.evidence.waiting_before.rows
            text = f"the receiver had {'joined' if before else 'held'} {waited} rows, but the way back says otherwise"
            self.found.append(
                Discrepancy(
                    text=f"{self._where(Side.SENDER)}: {text}: {self.move.way}",
                    lost=0 if before else waited,
                    doubled=waited if before else 0,
                )
            )

    def _shipped(self) -> str:
        """The package that the sender says it has packed from the frozen rows, or the newest one that it said so of."""
        frozen = self.phase in (Phase.THERE, Phase.RECALLED)
        return self.sender.digest if frozen and self.sender.state == RoleState.EXPORTED else self.watched.package

    def _sampled(self, side: Side, evidence: Evidence) -> None:
        """Rule 6, for the keys whose results were computed once more."""
        what = f"results of {evidence.sampled_keys} sampled keys"
        self._equal(side, what, evidence.sampled_expected, evidence.sampled_made)

    def _suppressed(self) -> None:
        """Rule 6, PTLB/MSLB section 3.1: the all-new combinations left out at the sender are the receiver's results."""
        for group in self.move.groups:
            left_out, made = self.sender.suppressed.get(group, 0), self.receiver.results.get(group, 0)
            self._equal(Side.RECEIVER, f"results of group {group} that the sender left out", left_out, made)

    # -- after the close --------------------------------------------------------------------------------------------

    def _closed(self) -> WatchedMove:
        """Rule 7. Split does not count the groups any more; rows that the owner joined are rows that arrived there."""
        owner = self.batch.bound.owners[self.move.groups[0]]
        sides = {Side.SENDER: self.move.sender, Side.RECEIVER: self.move.receiver}
        for side, worker in sides.items():
            self._frames(side, self._report(side).evidence)
            if worker == owner:
                self._owner_goes_on(side)
            else:
                self._other_is_empty(side)
        trails = {
            side: SideTrail(stored=report.evidence.stored_after, waiting=report.evidence.waiting_after)
            for side, report in ((Side.SENDER, self.sender), (Side.RECEIVER, self.receiver))
        }
        return replace(self.watched, sender=trails[Side.SENDER], receiver=trails[Side.RECEIVER])

    def _owner_goes_on(self, side: Side) -> None:
        report, trail = self._report(side), self._trail(side)
        evidence, arrived = report.evidence, sum(report.arrived.values())
        self._stored(side, Part.JOIN, evidence, trail)
        self._sampled(side, evidence)
        self._waiting(side, Part.JOIN, evidence, trail)
        self._equal(side, "rows put aside", NOTHING, evidence.put_aside)
        if evidence.joined.rows > arrived + evidence.waiting_before.rows:
            self._wrong(side, "rows joined, at most", arrived, evidence.joined.rows)

    def _other_is_empty(self, side: Side) -> None:
        report = self._report(side)
        coming = self._coming_to(self.move.sender if side == Side.SENDER else self.move.receiver)
        if coming:  # The audits of these moves say what the worker must have of them.
            for group in sorted(set(self.move.groups) - coming):
                self._equal(side, f"rows of group {group} that arrived", 0, report.arrived.get(group, 0))
                self._equal(side, f"rows of group {group} joined", 0, report.evidence.joined_by_group.get(group, 0))
            return
        first = self.watched.closed_batches == 0
        self._equal(side, "rows that arrived", 0, sum(report.arrived.values()))
        self._equal(side, "rows stored when the batch began", NOTHING, report.evidence.stored_before)
        self._equal(side, "rows joined", NOTHING, report.evidence.joined)
        self._waiting(side, Part.DROP if first else Part.NONE, report.evidence, self._trail(side))

    def _coming_to(self, worker: int) -> frozenset[int]:
        """Groups of the closed move that another move brings to a worker."""
        moves = (each for each in self.batch.bound.moves if each.receiver == worker)
        return frozenset(group for each in moves for group in each.groups) & frozenset(self.move.groups)

    # -- words ------------------------------------------------------------------------------------------------------

    @property
    def move(self) -> Move:
        return self.watched.move

    @property
    def _on_time(self) -> Tally:
        return sum((self.seen.get(group, Seen()).on_time for group in self.move.groups), NOTHING)

    def _report(self, side: Side) -> MoveReport:
        return self.sender if side == Side.SENDER else self.receiver

    def _trail(self, side: Side) -> SideTrail | None:
        return self.watched.sender if side == Side.SENDER else self.watched.receiver

    def _equal(self, side: Side, what: str, expected: Tally | int, actual: Tally | int) -> bool:
        if expected != actual:
            self._wrong(side, what, expected, actual)
        return expected == actual

    def _wrong(self, side: Side, what: str, expected: Tally | int, actual: Tally | int) -> None:
        self.found.append(discrepancy(self._where(side), what, expected, actual))

    def _where(self, side: Side) -> str:
        worker = self.move.sender if side == Side.SENDER else self.move.receiver
        return f"{where(self.batch)}, move {self.move.id}, {side} (worker {worker})"


def where(batch: CommittedBatch) -> str:
    return f"batch {batch.batch}, epoch {batch.bound.number}"


def _rows(amount: Tally | int) -> int:
    return amount.rows if isinstance(amount, Tally) else amount
