"""From committed batches to events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from balancing.committed import CommittedBatch
from balancing.pacing import MARGIN, budget, next_wave
from balancing.protocols import (
    AllOldPurged,
    Applied,
    Deactivated,
    Event,
    ExportFailed,
    HeldTooLong,
    Holding,
    Migration,
    NothingToMove,
    PackageReady,
    PartitionsToMove,
    Proceed,
    RecallAnswered,
    Received,
    Request,
    Returned,
    State,
    StoreRefused,
    Wave,
    observe,
)
from trimtab.epochs import Epoch, first_epoch
from trimtab.moves import Answer, ComputePartitionsToMove, Kind, Move, RoleState, Side, Way
from trimtab.reports import MoveReport, WorkerReport

M = "m1"
THERE = Move(id="m1.w1", kind=Kind.TRANSFER, groups=(0,), sender=0, receiver=1, epoch=3)
RECALLED = replace(THERE, way=Way.RECALLED)
BACK = replace(THERE, way=Way.HELD)
BOTH = Move(id="m1.w1", kind=Kind.DUPLICATE, groups=(0,), sender=0, receiver=1, epoch=3)


def migration(state: State, **changes: Any) -> Migration:
    wave = Wave(groups=(0,), state=state, seen=2, **changes)
    return Migration(
        id=M,
        query="q",
        incarnation="i",
        strategy="mslb",
        sender=0,
        receiver=1,
        request=Request(groups=(0,)),
        first_state=State.CHOSEN,
        chosen=(0,),
        waves=(wave,),
    )


def asking(**request: Any) -> Migration:
    return replace(migration(State.CHOSEN), first_state=State.CHOOSING, waves=(), request=Request(**request))


def epoch(*moves: Move, number: int = 3, owners: tuple[int, ...] = (0, 0), **changes: Any) -> Epoch:
    first = first_epoch("q", "i", owners)
    return replace(first, number=number, moves=moves, **changes)


def question(number: int = 2) -> Epoch:
    return epoch(number=number, questions=(ComputePartitionsToMove(migration=M, worker=0),))


def report(worker: int, *moves: MoveReport, bound: int = 3, **changes: Any) -> WorkerReport:
    nothing: dict[str, int] = {}
    fields: dict[str, Any] = {
        "query": "q", "batch": 7, "epoch": bound, "worker": worker, "attempt": 0, "executor": "e", "process": 1,
        "at_ms": 0, "rows": nothing, "late_rows": nothing, "bad_rows": nothing, "results": 0, "state_rows": 0,
        "combined_rows": 0, "state_bytes": 0, "index_bytes": 0, "watermark_us": 0, "cpu_ns": 0, "resident": "hit",
        "moves": list(moves),
    }  # fmt: skip
    return WorkerReport(**{**fields, **changes})


def committed(bound: Epoch, *reports: WorkerReport, batch: int = 7) -> CommittedBatch:
    by_worker = {each.worker: replace(each, batch=batch, epoch=bound.number) for each in reports}
    return CommittedBatch(batch=batch, bound=bound, at_ms=1000, reports=by_worker)


def told(move: Move, side: str, state: str, **changes: Any) -> MoveReport:
    return MoveReport(move=move.id, side=Side(side), state=RoleState(state), **changes)


def answer(*groups: int, problem: str = "") -> WorkerReport:
    return report(0, chosen={M: Answer(groups=groups, problem=problem)})


def at(wave: int = 1, number: int = 3, batch: int = 7) -> dict[str, Any]:
    return {"migration": M, "wave": wave, "epoch": number, "now_ms": 1000, "cause": f"batch {batch}"}


def test_the_sender_names_the_groups() -> None:
    assert observe(asking(share=0.5), committed(question(), answer(1, 0))) == [
        PartitionsToMove(**at(0, 2), groups=(0, 1)),
    ]


def test_an_answer_to_no_question_of_this_epoch_is_none() -> None:
    assert observe(asking(share=0.5), committed(epoch(number=2), answer(0))) == []
    assert observe(asking(share=0.5), committed(question())) == []


def test_an_answer_with_groups_of_others_waits_for_the_next_question() -> None:
    assert observe(asking(share=0.5), committed(question(), answer(0)), taken={0}) == []


@pytest.mark.parametrize(
    ("chosen", "taken", "problem"),
    [
        ([0], set(), "worker 0 does not have group 1"),
        ([0, 1], {1}, "another migration has group 1"),
    ],
)
def test_groups_asked_for_by_number_come_all_or_not_at_all(chosen: list[int], taken: set[int], problem: str) -> None:
    found = observe(asking(groups=(0, 1)), committed(question(), answer(*chosen)), taken)
    assert found == [NothingToMove(**at(0, 2), problem=problem)]


def test_an_answer_is_heard_once() -> None:
    """The question is in the epoch until the next one is bound, and answered in every batch."""
    batch = committed(question(), answer(0))
    assert observe(replace(asking(groups=(0,)), first_state=State.CHOSEN), batch) == []


def test_a_migration_that_has_ended_learns_nothing() -> None:
    """Even where its wave was under way, because its query was started anew."""
    batch = committed(epoch(number=4, owners=(1, 0)))
    assert observe(replace(migration(State.REACTIVATING), outcome="rolled-back"), batch) == []


def test_a_wave_that_has_ended_learns_nothing() -> None:
    """Redis went back: an old batch is looked at again, in which its move is open."""
    batch = committed(epoch(THERE), report(0, told(THERE, "sender", "exported")))
    assert observe(migration(State.RECEIVING), batch) != []
    assert observe(migration(State.COMMITTED), batch) == []


def test_no_group_near_the_amount() -> None:
    (found,) = observe(asking(share=0.5), committed(question(), answer()))
    assert isinstance(found, NothingToMove)


def test_one_batch_tells_steps_4_to_8() -> None:
    batch = committed(
        epoch(THERE),
        report(0, told(THERE, "sender", "exported", rows=5, bytes=80, digest="d")),
        report(1, told(THERE, "receiver", "received", rows=5, digest="d")),
    )
    assert observe(migration(State.DEACTIVATING), batch) == [
        Deactivated(**at()),
        Proceed(**at()),
        PackageReady(**at(), rows=5, bytes=80, digest="d"),
        Received(**at(), rows=5, digest="d"),
        Proceed(**at()),
    ]


def test_a_report_of_another_batch_or_epoch_is_no_evidence() -> None:
    said = report(0, told(THERE, "sender", "exported"))
    for stale in (replace(said, batch=6), replace(said, batch=7, epoch=2)):
        batch = CommittedBatch(batch=7, bound=epoch(THERE), at_ms=0, reports={0: stale})
        assert observe(migration(State.DEACTIVATING), batch) == []


def test_an_export_that_failed() -> None:
    batch = committed(epoch(THERE), report(0, told(THERE, "sender", "export-failed", problem="no space left")))
    assert observe(migration(State.DEACTIVATING), batch) == [
        ExportFailed(**at(), problem="worker 0 could not pack: no space left")
    ]


def test_rows_wait_three_batches_and_no_longer() -> None:
    waiting = report(1, told(THERE, "receiver", "holding", problem="two packages", held_rows=4))
    first = observe(migration(State.RECEIVING, packed_digest="d"), committed(epoch(THERE), waiting))
    assert first == [Holding(**at(), batch=7, problem="two packages", digest="d")]
    second = observe(migration(State.RECEIVING, held_since=7), committed(epoch(THERE), waiting, batch=8))
    assert [type(event) for event in second] == [Holding]
    third = observe(migration(State.RECEIVING, held_since=7), committed(epoch(THERE), waiting, batch=9))
    assert third == [HeldTooLong(**at(batch=9), problem="rows wait since batch 7: two packages")]


def test_a_store_that_failed_its_trial() -> None:
    (refused,) = observe(asking(share=0.5), committed(question(), answer(0, 1, problem="no space left")))
    problem = "worker 0 cannot use the transfer store: no space left"
    assert refused == StoreRefused(**at(0, 2), problem=problem)
    ptlb = replace(asking(share=0.5), strategy="ptlb")
    (chosen,) = observe(ptlb, committed(question(), answer(0, problem="no space left")))
    assert isinstance(chosen, PartitionsToMove), "a protocol that ships nothing needs no store"


@pytest.mark.parametrize(("state", "joined"), [("recalled-joined", True), ("recalled-held", False)])
def test_the_receiver_answers_a_recall(state: str, joined: bool) -> None:
    batch = committed(epoch(RECALLED, number=4), report(1, told(RECALLED, "receiver", state)))
    assert observe(migration(State.RETURNING), batch) == [RecallAnswered(**at(number=4), joined=joined)]


@pytest.mark.parametrize("state", ["holding", "received", "active"])
def test_an_answer_from_before_the_recall_is_none(state: str) -> None:
    """What the receiver does may still change in the batch that recalls it first."""
    batch = committed(epoch(RECALLED, number=4), report(1, told(RECALLED, "receiver", state)))
    assert observe(migration(State.RETURNING), batch) == []


def test_the_sender_has_its_groups_back() -> None:
    restored = committed(epoch(BACK, number=5), report(0, told(BACK, "sender", "restored")))
    frozen = committed(epoch(BACK, number=5), report(0, told(BACK, "sender", "exported")))
    assert observe(migration(State.RESTORING, way=Way.HELD), restored) == [Returned(**at(number=5))]
    assert observe(migration(State.RESTORING, way=Way.HELD), frozen) == []


def test_duplicates() -> None:
    ptlb = replace(migration(State.DUPLICATING), strategy="ptlb")
    old = committed(epoch(BOTH), report(0, told(BOTH, "sender", "old-remains")))
    new = committed(epoch(BOTH), report(0, told(BOTH, "sender", "all-old-purged")))
    assert observe(ptlb, old) == []
    assert observe(ptlb, new) == [AllOldPurged(**at()), Proceed(**at())]
    cancelled = replace(ptlb, waves=(replace(ptlb.waves[0], state=State.RETURNING),))
    assert observe(cancelled, old) == [Returned(**at())]


@pytest.mark.parametrize(
    ("state", "owner", "number", "events"),
    [
        (State.REACTIVATING, 1, 4, [Applied(**at(number=4))]),
        (State.REACTIVATING, 0, 4, []),
        (State.CLEARING, 0, 4, [Applied(**at(number=4))]),
        (State.CLEARING, 0, 2, []),
        (State.RECEIVED, 1, 4, []),
    ],
)
def test_closed(state: State, owner: int, number: int, events: list[Event]) -> None:
    """Only by an epoch that is younger than what was seen, with the owner that was wanted."""
    assert observe(migration(state), committed(epoch(number=number, owners=(owner, 0)))) == events


def test_another_life_of_the_query_says_nothing() -> None:
    bound = replace(epoch(number=4, owners=(1, 0)), incarnation="another")
    assert observe(migration(State.REACTIVATING), committed(bound)) == []


def test_pace() -> None:
    sizes = {0: 50, 1: 30, 2: 20, 3: 10}
    assert next_wave([0, 1, 2, 3], sizes, None) == (0, 1, 2, 3)
    assert next_wave([0, 1, 2, 3], sizes, 60) == (0, 3)
    assert next_wave([0, 1, 2, 3], sizes, 60, "hot-last") == (1, 2, 3)
    assert next_wave([0, 1], sizes, 1) == (0,)
    assert next_wave([], sizes, 1) == ()
    # Others are under way: what is left of the budget, or nothing.
    assert next_wave([0, 1, 2, 3], sizes, 60, used_bytes=20) == (1, 3)
    assert next_wave([0, 1], sizes, 60, used_bytes=50) == next_wave([0, 1], sizes, 60, used_bytes=99) == ()


def test_budget() -> None:
    assert budget(median_batch_ms=1000, ns_per_byte=10, max_pause_ms=100) == int(100e6 / 10 * MARGIN)
    assert budget(median_batch_ms=1000, ns_per_byte=10) == int(500e6 / 10 * MARGIN)
    assert budget(median_batch_ms=1000, ns_per_byte=0) is None
    assert budget(median_batch_ms=0, ns_per_byte=10) is None
