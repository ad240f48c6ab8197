"""Each comparison of the audit by itself: a batch in which all numbers agree, and then one of them does not.

Several comparisons find most damages, and that hides one that finds nothing any more. Here a number is changed that
only one of them looks at.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from balancing.committed import CommittedBatch
from balancing.comparing import MoveComparison, Phase, SideTrail, WatchedMove, package_digest
from trimtab.epochs import Epoch, first_epoch
from trimtab.evidence import NOTHING, Evidence, Seen, Tally
from trimtab.moves import Kind, Move, RoleState, Side, Way
from trimtab.reports import MoveReport

GROUPS = (0, 1)
TRANSFER = Move(id="m1.w1", kind=Kind.TRANSFER, groups=GROUPS, sender=0, receiver=1, epoch=3)
DUPLICATE = replace(TRANSFER, kind=Kind.DUPLICATE)

KEPT = Tally(rows=40, digest=4_000)
"""Rows that were stored before this batch."""
NEW = Tally(rows=5, digest=55)
"""This batch's rows, by the digest of arriving rows."""
NEW_STORED = Tally(rows=5, digest=77)
WAITED = Tally(rows=7, digest=700)
WAITED_STORED = Tally(rows=7, digest=900)
SEEN = {0: Seen(rows=4, on_time=Tally(rows=3, digest=33)), 1: Seen(rows=3, on_time=Tally(rows=2, digest=22))}
ARRIVED = {0: 4, 1: 3}

JOINS = Evidence(stored_before=KEPT, stored_after=KEPT + NEW_STORED, joined=NEW, joined_by_group={0: 3, 1: 2})
IDLE = Evidence()
FROZEN = Evidence(
    stored_before=KEPT, stored_after=KEPT, put_aside=NEW, waiting_before=WAITED, waiting_after=WAITED + NEW
)
TAKES_IN = replace(
    JOINS,
    stored_after=KEPT + NEW_STORED + WAITED_STORED,
    joined=NEW + WAITED,
    waiting_before=WAITED,
    filed_package=KEPT,
    filed_waiting=WAITED,
)
HOLDS = Evidence(put_aside=NEW, waiting_before=WAITED, waiting_after=WAITED + NEW)
DROPS = Evidence(waiting_before=WAITED)
RESTORES = replace(
    JOINS, stored_before=KEPT + WAITED_STORED, stored_after=KEPT + WAITED_STORED + NEW_STORED,
    waiting_before=WAITED, filed_waiting=WAITED,
)  # fmt: skip
PACKED: dict[str, Any] = {"state": RoleState.EXPORTED, "digest": package_digest(KEPT), "rows": KEPT.rows}


def trail(stored: Tally = NOTHING, waiting: Tally = NOTHING, package: bool | None = None) -> SideTrail:
    return SideTrail(stored=stored, waiting=waiting, package=package)


def report(side: Side, evidence: Evidence, state: RoleState, *, gets_rows: bool = True, **more: Any) -> MoveReport:
    arrived = ARRIVED if gets_rows else {}
    return MoveReport(move="m1.w1", side=side, state=state, arrived=arrived, evidence=evidence, **more)


def comparison(
    phase: Phase,
    sender: MoveReport,
    receiver: MoveReport,
    trails: tuple[SideTrail, SideTrail],
    move: Move = TRANSFER,
    bound: Epoch | None = None,
    **watched: Any,
) -> MoveComparison:
    bound = bound or replace(first_epoch("q", "life", [0, 0, 0]), number=4, moves=(move,))
    return MoveComparison(
        watched=WatchedMove(move=move, first_batch=8, sender=trails[0], receiver=trails[1], **watched),
        batch=CommittedBatch(batch=9, bound=bound, at_ms=0, reports={}),
        phase=phase,
        sender=sender,
        receiver=receiver,
        seen=SEEN,
    )


S, R = Side.SENDER, Side.RECEIVER
BACK = replace(TRANSFER, way=Way.JOINED)
TAKEN_TRAIL = trail(KEPT, package=True)
OWNED_BY_RECEIVER = replace(first_epoch("q", "life", [1, 1, 0]), number=5)

CASES: dict[str, MoveComparison] = {
    "opening": comparison(
        Phase.OPENING,
        report(S, JOINS, RoleState.ACTIVE),
        report(R, IDLE, RoleState.ACTIVE, gets_rows=False),
        (trail(KEPT), trail()),
    ),
    "taking in": comparison(
        Phase.THERE,
        report(S, FROZEN, **PACKED),
        report(R, TAKES_IN, RoleState.HOLDING),
        (trail(KEPT, WAITED), trail(waiting=WAITED, package=False)),
    ),
    "taken in": comparison(
        Phase.THERE,
        report(S, FROZEN, **PACKED),
        report(R, JOINS, RoleState.RECEIVED),
        (trail(KEPT, WAITED), TAKEN_TRAIL),
        package=package_digest(KEPT),
    ),
    "holding": comparison(
        Phase.THERE,
        report(S, FROZEN, **PACKED),
        report(R, HOLDS, RoleState.HOLDING),
        (trail(KEPT, WAITED), trail(waiting=WAITED, package=False)),
    ),
    "recalled": comparison(
        Phase.RECALLED,
        report(S, FROZEN, **PACKED),
        report(R, HOLDS, RoleState.HOLDING),
        (trail(KEPT, WAITED), trail(waiting=WAITED, package=False)),
        replace(TRANSFER, way=Way.RECALLED),
    ),
    "back": comparison(
        Phase.BACK,
        report(S, RESTORES, **PACKED),
        report(R, IDLE, RoleState.RECALLED_JOINED, gets_rows=False),
        (trail(KEPT, WAITED), TAKEN_TRAIL),
        BACK,
    ),
    "parallel": comparison(
        Phase.PARALLEL,
        report(S, JOINS, RoleState.OLD_REMAINS, suppressed={0: 2}),
        report(R, JOINS, RoleState.ACTIVE, results={0: 2}),
        (trail(KEPT), trail(KEPT)),
        DUPLICATE,
    ),
    "closed": comparison(
        Phase.CLOSED,
        report(S, DROPS, RoleState.CLOSED, gets_rows=False),
        report(R, JOINS, RoleState.CLOSED),
        (trail(KEPT, WAITED), trail(KEPT)),
        bound=OWNED_BY_RECEIVER,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_where_all_agree_nothing_is_found(name: str) -> None:
    case = CASES[name]
    case.found.clear()
    case.run()
    assert case.found == []


MORE = Tally(rows=1, digest=9)
DAMAGES: list[tuple[str, Side, dict[str, Any], str]] = [
    # case, side, what the worker's evidence has more of, words of the only comparison that can see it
    ("opening", S, {"joined": MORE}, "rows joined"),
    ("opening", S, {"sampled_made": MORE}, "results of 0 sampled keys"),
    ("opening", S, {"stored_after": Tally(rows=9)}, "rows stored when the batch ended, at most"),
    ("opening", R, {"stored_before": MORE}, "rows stored when the batch began"),
    ("opening", R, {"frames_missing": 2}, "frames missing from the durable state"),
    ("taking in", R, {"filed_package": MORE}, "rows of the package in the durable state"),
    ("taking in", R, {"filed_waiting": MORE}, "rows that had waited in the durable state"),
    ("taking in", R, {"stored_before": MORE}, "rows taken in, as frozen by the sender"),
    ("taking in", R, {"waiting_after": MORE}, "rows waiting when the batch ended"),
    ("taken in", S, {"stored_after": MORE}, "frozen rows when the batch ended"),
    ("taken in", S, {"put_aside": MORE, "waiting_after": MORE}, "rows put aside"),
    ("taken in", R, {"put_aside": MORE}, "rows put aside"),
    ("taken in", R, {"filed_package": MORE}, "rows of the package in the durable state"),
    ("taken in", R, {"sampled_expected": MORE}, "results of 0 sampled keys"),
    ("holding", R, {"put_aside": MORE, "waiting_after": MORE}, "rows put aside"),
    ("holding", R, {"waiting_before": MORE, "waiting_after": MORE}, "rows waiting when the batch began"),
    ("holding", R, {"filed_waiting": MORE}, "rows that had waited in the durable state"),
    ("recalled", R, {"joined": MORE}, "rows joined"),
    ("back", S, {"filed_waiting": MORE}, "rows that had waited in the durable state"),
    ("back", R, {"stored_before": MORE}, "rows stored when the batch began"),
    ("parallel", R, {"joined": MORE}, "rows joined"),
    ("closed", S, {"joined": MORE}, "rows joined"),
    ("closed", S, {"stored_before": MORE}, "rows stored when the batch began"),
    ("closed", R, {"put_aside": MORE}, "rows put aside"),
    ("closed", R, {"joined": Tally(rows=30)}, "rows joined, at most"),
    ("closed", R, {"sampled_made": MORE}, "results of 0 sampled keys"),
]


@pytest.mark.parametrize(("name", "side", "more", "words"), DAMAGES)
def test_one_number_that_differs_is_found(name: str, side: Side, more: dict[str, Any], words: str) -> None:
    case = CASES[name]
    told = case.sender if side == S else case.receiver
    changed = {field: getattr(told.evidence, field) + amount for field, amount in more.items()}
    told = replace(told, evidence=replace(told.evidence, **changed))
    damaged = replace(case, found=[], sender=told) if side == S else replace(case, found=[], receiver=told)
    damaged.run()
    assert any(words in each.text and f"{side} " in each.text for each in damaged.found), damaged.found


def test_rows_that_arrive_where_nothing_is_owned_are_found() -> None:
    case = CASES["closed"]
    case = replace(case, found=[], sender=replace(case.sender, arrived={0: 1}))
    case.run()
    assert [each.text.rpartition("): ")[2] for each in case.found] == ["rows that arrived: 0 expected, 1 found"]


@pytest.mark.parametrize("coming_to", [0, 2])
def test_a_group_that_comes_back_by_another_move_is_left_to_its_audit(coming_to: int) -> None:
    """Worker 0 sent groups 0 and 1; group 1 comes back to it, or goes on to a third worker."""
    again = Move(id="m2.w1", kind=Kind.DUPLICATE, groups=(1,), sender=1, receiver=coming_to, epoch=5)
    case = CASES["closed"]
    evidence = replace(case.sender.evidence, joined=NEW, joined_by_group={0: 1})
    case = replace(
        case,
        found=[],
        batch=replace(case.batch, bound=replace(OWNED_BY_RECEIVER, moves=(again,))),
        sender=replace(case.sender, evidence=evidence),
    )
    case.run()
    texts = [each.text for each in case.found]
    assert any(("group 0 joined: 0" if coming_to == 0 else "rows joined: 0") in text for text in texts), texts


def test_a_receiver_that_joins_after_the_recall_is_found() -> None:
    """It would be right in every number, had it not been recalled: the sender joins these rows, too."""
    case = CASES["recalled"]
    evidence = Evidence(
        stored_after=NEW_STORED + WAITED_STORED, joined=NEW + WAITED, waiting_before=WAITED, filed_waiting=WAITED
    )
    case = replace(case, found=[], receiver=replace(case.receiver, evidence=evidence))
    case.run()
    assert any("rows joined: 0 rows" in each.text for each in case.found), case.found


def test_a_receiver_of_a_duplicate_that_puts_rows_aside_is_found() -> None:
    """A transfer's receiver may do so, and all its numbers would be right."""
    case = CASES["parallel"]
    idle = replace(case.receiver, evidence=Evidence(put_aside=NEW, waiting_after=NEW), results={0: 2})
    opened = replace(case.sender, state=RoleState.ACTIVE)
    watched = replace(case.watched, receiver=None)
    case = replace(case, found=[], sender=opened, receiver=idle, watched=watched)
    case.run()
    assert any("rows joined: 5 rows" in each.text for each in case.found), case.found
