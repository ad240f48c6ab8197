"""The audit: no false alarm in any legal history, and every damage found."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from balancing.audit import PROBLEMS_KEPT, AuditVerdict, MigrationAudit, parse_audit
from balancing.committed import CommittedBatch
from balancing.comparing import HAS_PACKAGE, WatchedMove
from tests.unit.audit_plane import DAMAGES, MIGRATION, WORKERS, History, make_report
from trimtab.epochs import Epoch, first_epoch
from trimtab.evidence import Evidence, Seen, Tally
from trimtab.moves import BATCHES_AFTER_CLOSE, Kind, Move, RoleState, Side, Way
from trimtab.reports import MoveReport, WorkerReport

M = MIGRATION
THERE = Move(id="m1.w1", kind=Kind.TRANSFER, groups=(0,), sender=0, receiver=1, epoch=3)
BOTH = Move(id="m1.w1", kind=Kind.DUPLICATE, groups=(0,), sender=0, receiver=1, epoch=3)


def audited(history: History, *, restarts: bool = False) -> MigrationAudit:
    audit = MigrationAudit()
    for committed in history.batches:
        audit = audit.add(M, committed, WORKERS)
        if restarts:
            assert audit.add(M, committed, WORKERS) is audit, "a batch that is added twice changes nothing"
            audit = parse_audit(json.loads(json.dumps(audit.to_json())))
    return audit


@pytest.mark.parametrize("kind", Kind)
def test_no_false_alarm(kind: Kind) -> None:
    for seed in range(150):
        audit = audited(History(seed, kind), restarts=True)
        verdict = audit.verdict()
        assert verdict.clean, (seed, verdict)
        assert (verdict.lost, verdict.doubled, verdict.unchecked_batches, audit.finished) == (0, 0, 0, True), seed
        assert verdict.checked_batches >= 2 + BATCHES_AFTER_CLOSE, seed


@pytest.mark.parametrize("kind", Kind)
def test_no_false_alarm_where_batches_and_reports_are_missing(kind: Kind) -> None:
    """Batches without tasks, workers that do not report, a manager that was away: unchecked, and never guessed."""
    unchecked = 0
    for seed in range(150):
        history = History(seed, kind, gaps=True)
        away = history.random.randrange(len(history.batches))
        del history.batches[away : away + history.random.randint(0, 3)]
        audit = audited(history, restarts=True)
        verdict = audit.verdict()
        assert (verdict.lost, verdict.doubled, verdict.problems) == (0, 0, ()), (seed, verdict)
        looked = verdict.checked_batches > 0 or not verdict.opened
        assert verdict.clean == (looked and audit.finished and not verdict.unchecked_batches)
        unchecked += verdict.unchecked_batches > 0
    assert unchecked > 50


@pytest.mark.parametrize(("damage", "kind"), [(damage, kind) for damage, kinds in DAMAGES.items() for kind in kinds])
def test_every_damage_is_found(damage: str, kind: Kind) -> None:
    done = 0
    for seed in range(400):
        history = History(seed, kind, damage=damage)
        if not history.hit:
            continue
        done += 1
        verdict = audited(history).verdict()
        assert verdict.problems and not verdict.clean, (seed, damage)
        assert all(text.startswith("batch ") and text != damage for text in verdict.problems)
        if done == 8:
            return
    assert done >= 4, f"{damage} was done {done} times"


# -- single comparisons, by hand


def epoch(*moves: Move, number: int = 3, owners: tuple[int, ...] = (0, 0)) -> Epoch:
    return replace(first_epoch("q", "i", owners), number=number, moves=moves)


def side(move: Move, part: Side, state: RoleState, arrived: int = 0, seen: int = 0, **evidence: Any) -> WorkerReport:
    """A worker's report with one move in group 0. Rows are all alike: their digest is their number."""
    own = {name: evidence.pop(name) for name in ("results", "suppressed", "digest", "rows") if name in evidence}
    tallies: dict[str, Any] = {
        name: rows(count) if isinstance(count, int) else count for name, count in evidence.items()
    }
    told = MoveReport(move=move.id, side=part, state=state, arrived={0: arrived}, evidence=Evidence(**tallies), **own)
    worker = move.sender if part == Side.SENDER else move.receiver
    return make_report(worker, moves=[told], seen={0: Seen(rows=seen, on_time=rows(seen))} if seen else {})


def rows(count: int) -> Tally:
    return Tally(rows=count, digest=count)


def batch(bound: Epoch, *reports: WorkerReport, number: int = 7) -> CommittedBatch:
    by_worker = {each.worker: replace(each, batch=number, epoch=bound.number) for each in reports}
    return CommittedBatch(batch=number, bound=bound, at_ms=1000, reports=by_worker)


def added(audit: MigrationAudit, *batches: CommittedBatch, workers: int | None = None) -> MigrationAudit:
    """With these batches, each confirmed by one that says nothing else."""
    for subject in batches:
        following = CommittedBatch(
            batch=subject.batch + 1, bound=epoch(number=subject.bound.number), at_ms=0, reports={}, previous=subject
        )
        audit = audit.add(M, following, workers)
    return audit


BEGUN = MigrationAudit(newest_batch=6, newest_epoch=2)
S = RoleState


def opening(arrived: int = 4, seen: int = 4, receiver: int = 0, **sender: Any) -> CommittedBatch:
    stored = {"stored_before": 5, "stored_after": 9, "joined": 4} | sender
    return batch(
        epoch(THERE),
        side(THERE, Side.SENDER, S.ACTIVE, arrived, seen, **stored),
        side(THERE, Side.RECEIVER, S.ACTIVE, receiver),
    )


def switched(number: int = 8, state: RoleState = S.ACTIVE, aside: int = 6, **receiver: Any) -> CommittedBatch:
    """Six rows came since the groups were frozen; the receiver takes the package in."""
    taken = {"stored_before": 9, "stored_after": 15, "joined": 6} | receiver
    if not taken.get("put_aside"):
        filed = {"filed_package": 0 if state in HAS_PACKAGE else 9, "filed_waiting": taken.get("waiting_before", 0)}
        taken = filed | taken
    waiting = {"waiting_before": aside - 6, "waiting_after": aside, "put_aside": 6}
    frozen = {"stored_before": 9, "stored_after": 9, "rows": 9, "digest": "9-0000000000000009"}
    return batch(
        epoch(THERE),
        side(THERE, Side.SENDER, S.EXPORTED, 6, 6, **waiting, **frozen),
        side(THERE, Side.RECEIVER, state, 6, **taken),
        number=number,
    )


def test_a_clean_transfer() -> None:
    audit = added(BEGUN, opening(), switched())
    verdict = audit.verdict()
    assert verdict.sound and not verdict.finished and not verdict.clean, "batches are left to be checked"
    assert (verdict.checked_rows, verdict.checked_batches, verdict.unchecked_batches) == (10, 2, 0)
    assert added(audit, switched()) is audit
    assert parse_audit(json.loads(json.dumps(audit.to_json()))) == audit


def test_rows_that_did_not_arrive_and_rows_that_arrived_twice() -> None:
    lost, twice = added(BEGUN, opening(arrived=3, joined=3, stored_after=8)), added(BEGUN, opening(receiver=4))
    assert (lost.lost, lost.doubled, twice.lost, twice.doubled) == (1, 0, 0, 4)
    assert not lost.verdict().clean
    assert lost.problems == (
        "batch 7, epoch 3, move m1.w1, sender (worker 0): rows of group 0 that arrived: 4 expected, 3 found",
    )


def test_a_package_that_changed() -> None:
    audit = added(BEGUN, opening(), switched(stored_before=Tally(rows=9, digest=8)))
    assert (audit.lost, audit.doubled) == (0, 0)
    assert audit.problems == (
        "batch 8, epoch 3, move m1.w1, receiver (worker 1): rows taken in, as frozen by the sender: "
        "9 rows (0000000000000009) expected, 9 rows (0000000000000008) found",
    )
    assert added(BEGUN, opening(), switched(stored_before=0, stored_after=6)).lost == 9


def test_a_package_that_is_said_to_be_in_and_was_not() -> None:
    """No row came in the batch in which it was taken in, so that only the next one's state says so."""
    frozen: dict[str, Any] = {"stored_before": 9, "stored_after": 9, "rows": 9, "digest": "9-0000000000000009"}
    silent = batch(
        epoch(THERE),
        side(THERE, Side.SENDER, S.EXPORTED, **frozen),
        side(THERE, Side.RECEIVER, S.ACTIVE),
        number=8,
    )
    audit = added(BEGUN, opening(), silent)
    assert audit.verdict().sound
    missing = switched(9, S.RECEIVED, stored_before=0, stored_after=6)
    assert added(audit, missing).lost == 9
    assert "rows taken in one batch ago" in added(audit, missing).problems[0]
    assert added(audit, switched(9, S.HOLDING)).verdict().sound, "taken in only now"


def test_a_package_with_fewer_rows_than_were_frozen() -> None:
    def packed(subject: CommittedBatch) -> CommittedBatch:
        (report,) = subject.reports[0].moves
        sender = replace(subject.reports[0], moves=[replace(report, rows=8, digest="8-0000000000000008")])
        return replace(subject, reports={**subject.reports, 0: sender})

    audit = added(BEGUN, opening(), packed(switched()))
    assert (audit.lost, len(audit.problems)) == (1, 1)
    again = switched(9, S.RECEIVED, 12, stored_before=15, stored_after=21)
    assert added(audit, packed(again)).lost == 1, "the same package is compared once"


def test_duplicates() -> None:
    def track(left_out: int, made: int) -> CommittedBatch:
        common = {"joined": 4, "stored_after": 4}
        return batch(
            epoch(BOTH),
            side(BOTH, Side.SENDER, S.ACTIVE, 4, 4, **common, suppressed={0: left_out}),
            side(BOTH, Side.RECEIVER, S.ACTIVE, 4, **common, results={0: made}),
        )

    assert added(BEGUN, track(3, 3)).verdict().sound
    lost, doubled = added(BEGUN, track(3, 2)), added(BEGUN, track(3, 5))
    assert (lost.lost, lost.doubled, doubled.lost, doubled.doubled) == (1, 0, 0, 2)


def test_rows_that_wait() -> None:
    def held(number: int, before: int, after: int) -> CommittedBatch:
        waiting = {"waiting_before": before, "waiting_after": after, "put_aside": 6, "joined": 0}
        return switched(number, S.HOLDING, 6 * (number - 7), stored_before=0, stored_after=0, **waiting)

    audit = added(BEGUN, opening(), held(8, 0, 6), held(9, 6, 12))
    assert audit.verdict().sound
    assert added(audit, held(10, 11, 17)).lost == 1
    assert added(audit, held(10, 12, 16)).lost == 2
    assert added(audit, held(10, 14, 20)).doubled == 2
    taken = switched(10, S.HOLDING, 18, waiting_before=12, joined=18, stored_after=27)
    assert added(audit, taken).verdict().sound
    assert added(audit, switched(10, S.HOLDING, 18, waiting_before=12)).lost == 12


def test_results_that_were_not_handed_over() -> None:
    subject = opening()
    silent = {**subject.reports, 0: replace(subject.reports[0], results=5, emitted=3)}
    audit = added(BEGUN, replace(subject, reports=silent))
    assert audit.problems == ("batch 7, epoch 3, worker 0: results handed to Spark: 5 expected, 3 found",)
    assert audit.lost == 2


def test_a_way_back_that_contradicts_the_receiver() -> None:
    recalled, back = replace(THERE, way=Way.RECALLED), replace(THERE, way=Way.HELD)
    frozen = {"stored_before": 9, "stored_after": 9}
    second = batch(
        epoch(recalled, number=4),
        side(THERE, Side.SENDER, S.EXPORTED, **frozen, waiting_before=6, waiting_after=6, digest="9-0000000000000009"),
        side(THERE, Side.RECEIVER, S.RECEIVED, stored_before=15, stored_after=15),
        number=9,
    )
    third = batch(
        epoch(back, number=5),
        side(
            THERE,
            Side.SENDER,
            S.EXPORTED,
            stored_before=9,
            stored_after=15,
            waiting_before=6,
            filed_waiting=6,
            joined=6,
        ),
        side(THERE, Side.RECEIVER, S.RECALLED_JOINED),
        number=10,
    )
    audit = added(BEGUN, opening(), switched(), second)
    assert audit.verdict().sound
    assert added(audit, third).doubled == 6
    assert "had joined 6 rows, but the way back says otherwise: held" in added(audit, third).problems[0]


def test_the_audit_goes_on_after_the_close() -> None:
    def closed(number: int, stored: int = 15, left: int = 0) -> CommittedBatch:
        state = S.EXPORTED if number == 9 else S.CLOSED
        return batch(
            epoch(number=4, owners=(1, 0)),
            side(THERE, Side.SENDER, state, stored_before=left),
            side(THERE, Side.RECEIVER, S.RECEIVED, stored_before=stored, stored_after=15),
            number=number,
        )

    open_ = added(BEGUN, opening(), switched())
    audit = added(open_, closed(9), closed(10))
    assert not audit.finished
    audit = added(audit, closed(11))
    assert audit.finished and audit.verdict().clean
    assert audit.verdict().checked_batches == 5
    assert added(open_, closed(9, stored=14)).lost == 1
    assert added(open_, closed(9), closed(10, left=2)).doubled == 2
    assert added(open_, closed(9), closed(13)).verdict().unchecked_batches == BATCHES_AFTER_CLOSE


def moved_again(number: int, other: Move, sender: WorkerReport | None = None, **owner: Any) -> CommittedBatch:
    """Group 0, which worker 1 has by now, is on its way again. Workers go on reporting on the closed move."""
    stored = {"stored_before": 15, "stored_after": 15} | owner
    return batch(
        epoch(other, number=5, owners=(1, 0)),
        sender or side(THERE, Side.SENDER, S.CLOSED),
        side(THERE, Side.RECEIVER, S.CLOSED, 3, **stored),
        number=number,
    )


AGAIN = Move(id="m2.w1", kind=Kind.TRANSFER, groups=(0,), sender=1, receiver=2, epoch=5)
CLOSED_AND_OPENED = (
    batch(
        epoch(number=4, owners=(1, 0)),
        side(THERE, Side.SENDER, S.EXPORTED),
        side(THERE, Side.RECEIVER, S.RECEIVED, stored_before=15, stored_after=15),
        number=9,
    ),
)


def test_groups_that_move_again_begin_with_what_the_move_before_left() -> None:
    closed = added(BEGUN, opening(), switched(), *CLOSED_AND_OPENED)
    audit = added(closed, moved_again(10, AGAIN), moved_again(11, AGAIN))
    assert audit.finished and audit.verdict().clean
    assert audit.verdict().checked_batches == 5
    vanished = added(closed, moved_again(10, AGAIN, stored_before=0, stored_after=0))
    assert vanished.lost == 15
    assert (
        "batch 10, epoch 5, move m1.w1, receiver (worker 1): rows stored when the batch began" in vanished.problems[0]
    )
    assert added(closed, moved_again(10, AGAIN), moved_again(11, AGAIN, stored_before=14)).lost == 1


def test_groups_that_move_back_at_once_are_left_to_the_audit_of_that_move_where_they_come_to() -> None:
    back = replace(AGAIN, receiver=0)
    closed = added(BEGUN, opening(), switched(), *CLOSED_AND_OPENED)
    comes = side(THERE, Side.SENDER, S.CLOSED, 3, stored_before=15, stored_after=18, joined=3)
    assert added(closed, moved_again(10, back), moved_again(11, back, comes)).verdict().clean
    assert added(closed, moved_again(10, back, stored_before=9)).lost == 6
    two = replace(THERE, groups=(0, 1))
    both = replace(closed, watched=tuple(replace(each, move=two) for each in closed.watched))
    stray = replace(comes, moves=[replace(comes.moves[0], arrived={0: 3, 1: 2})])
    found = added(both, replace(moved_again(10, back, stray), bound=epoch(back, number=5, owners=(1, 1))))
    assert found.problems == (
        "batch 10, epoch 5, move m1.w1, sender (worker 0): rows of group 1 that arrived: 0 expected, 2 found",
    )


def test_groups_that_move_again_unseen_are_unchecked() -> None:
    """Workers that do not report on the closed move, or groups that are with several workers by now."""
    closed = added(BEGUN, opening(), switched(), *CLOSED_AND_OPENED)
    silent = moved_again(10, AGAIN)
    silent = replace(silent, reports={worker: replace(each, moves=[]) for worker, each in silent.reports.items()})
    assert added(closed, silent).verdict().unchecked_batches == 1
    assert added(closed, moved_again(10, replace(AGAIN, way=Way.HELD))).verdict().unchecked_batches == 1


def test_nothing_is_guessed() -> None:
    """A batch without all reports is unchecked; one without moves of the migration is none of its business."""
    alone = batch(epoch(THERE), side(THERE, Side.SENDER, S.ACTIVE, 3, 4))
    verdict = added(BEGUN, alone).verdict()
    assert (verdict.checked_batches, verdict.unchecked_batches) == (0, 1)
    assert not verdict.clean, "nobody looked"
    following = CommittedBatch(batch=8, bound=alone.bound, at_ms=0, reports={}, previous=alone)
    assert BEGUN.add("other", following).verdict() == MigrationAudit().verdict()
    assert added(BEGUN, opening(), workers=3).verdict().unchecked_batches == 1


def test_a_trail_begins_anew_after_a_batch_that_was_not_checked() -> None:
    incomplete = replace(switched(), reports={0: switched().reports[0]})
    audit = added(BEGUN, opening(), incomplete, switched(9, S.RECEIVED, 12, stored_before=99, stored_after=105))
    assert (audit.problems, audit.verdict().unchecked_batches) == ((), 1)
    assert not audit.verdict().clean


def test_batches_that_nobody_saw_are_counted() -> None:
    """Between two that were seen, or between a migration's beginning and its first: unless no move was open there."""
    begun = MigrationAudit(newest_batch=4, newest_epoch=2)
    idle = added(begun, batch(epoch(number=2)))
    assert idle.verdict() == MigrationAudit().verdict()
    renumbered = replace(opening(), batch=8, reports={k: replace(v, batch=8) for k, v in opening().reports.items()})
    assert added(idle, renumbered).verdict().unchecked_batches == 0
    # The epoch before is not known after a gap: whether rows went to the receiver already is not known, either.
    assert added(begun, opening()).verdict().unchecked_batches == 3
    seen = added(BEGUN, opening())
    assert added(seen, switched(11)).verdict().unchecked_batches == 3
    closed = added(seen, batch(epoch(number=4, owners=(1, 0)), number=11)).verdict()
    assert (closed.checked_batches, closed.unchecked_batches, closed.clean) == (1, 3, False)


def test_a_move_that_opens_is_noticed_before_its_batch_is_confirmed() -> None:
    """Else a migration that ends at once would be clean though nobody looked."""
    newest = CommittedBatch(batch=7, bound=epoch(THERE), at_ms=0, reports={})
    audit = BEGUN.add(M, newest)
    assert not audit.finished and not audit.verdict().clean
    assert audit.add(M, newest) is audit


def test_a_migration_without_a_move_is_clean() -> None:
    assert MigrationAudit().verdict().clean and MigrationAudit().finished
    unchecked = AuditVerdict(
        lost=0, doubled=0, checked_rows=0, checked_batches=0, unchecked_batches=0, opened=True, finished=True
    )
    assert not unchecked.clean


@pytest.mark.parametrize(
    ("changes", "sound"),
    [
        ({"lost": 1}, False),
        ({"doubled": 1}, False),
        ({"problems": ("something",)}, False),
        ({"unchecked_batches": 1}, False),
        ({"finished": False}, True),
        ({"checked_batches": 0}, True),
    ],
)
def test_one_flaw_is_enough(changes: dict[str, Any], sound: bool) -> None:
    flawless = AuditVerdict(
        lost=0, doubled=0, checked_rows=9, checked_batches=2, unchecked_batches=0, opened=True, finished=True
    )
    assert flawless.sound and flawless.clean
    flawed = replace(flawless, **changes)
    assert (flawed.sound, flawed.clean) == (sound, False)


def test_a_broken_worker_does_not_fill_the_journal() -> None:
    audit = added(
        BEGUN,
        *(
            replace(
                opening(receiver=1),
                batch=number,
                reports={
                    worker: replace(report, batch=number) for worker, report in opening(receiver=1).reports.items()
                },
            )
            for number in range(7, 60)
        ),
    )
    assert len(audit.problems) == PROBLEMS_KEPT and len(audit.to_json()["watched"]) == 1


@pytest.mark.parametrize("missed", [0, 5])
def test_a_move_that_opens_later_has_no_part_in_the_batches_before(missed: int) -> None:
    """A batch is noted before the one that it follows is confirmed."""
    before = BEGUN.newest_batch + missed + 1
    noted = BEGUN.add(M, replace(opening(), batch=before + 1), None)
    confirmed = CommittedBatch(
        batch=before + 1, bound=epoch(THERE), at_ms=0, reports={}, previous=batch(epoch(number=3), number=before)
    )
    audit = noted.add(M, confirmed, None)
    assert (audit.newest_batch, audit.unchecked_batches, audit.checked_batches) == (before, 0, 0)
    assert [each.first_batch for each in audit.watched] == [before + 1]


def test_batches_that_nobody_saw_count_until_the_move_is_known_to_be_closed() -> None:
    """It was open when it was last seen: every batch that is missing may have had it."""
    open_ = added(BEGUN, opening(), switched())
    away = BATCHES_AFTER_CLOSE + 5
    assert added(open_, batch(epoch(number=4, owners=(1, 0)), number=9 + away)).unchecked_batches == away


@pytest.mark.parametrize("silent", [0, 1])
def test_a_batch_in_which_one_side_says_nothing_about_the_move_is_not_checked(silent: int) -> None:
    subject = opening()
    reports = {**subject.reports, silent: replace(subject.reports[silent], moves=[])}
    audit = added(BEGUN, replace(subject, reports=reports))
    assert (audit.checked_batches, audit.unchecked_batches, audit.problems) == (0, 1, ())


def test_a_closed_move_whose_groups_went_to_two_workers_is_not_checked() -> None:
    """What each side must have of them nobody can tell."""
    two = replace(THERE, groups=(0, 1))
    watched = replace(BEGUN, opened=True, watched=(WatchedMove(move=two, first_batch=5),))
    closed = batch(
        epoch(number=3, owners=(1, 0)), side(two, Side.SENDER, S.EXPORTED), side(two, Side.RECEIVER, S.RECEIVED)
    )
    audit = added(watched, closed)
    assert (audit.checked_batches, audit.unchecked_batches, audit.problems) == (0, 1, ())
