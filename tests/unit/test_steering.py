"""The steering core: happenings in, whole lists of instructions out, and nothing believed before it is durable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from balancing.audit import MigrationAudit
from balancing.committed import CommittedBatch
from balancing.comparing import WatchedMove
from balancing.happenings import (
    BatchCommitted,
    BatchesMissed,
    CancelAsked,
    Happening,
    Led,
    Loaded,
    LoadWeighed,
    MovesAsked,
    Proposed,
    QueryRuns,
    QueryStopped,
    RecordsLost,
    RequestFailed,
    TurnEnds,
)
from balancing.instructions import Hold, Instruction, Notice, Propose, PublishEpoch, Write
from balancing.load import Snapshot
from balancing.policies import Level
from balancing.proposal import make_proposal
from balancing.protocols import Migration, Request, State, Wave
from balancing.requests import CancelRequest, MoveRequest, RebalanceRequest, requested
from balancing.rules import Rules
from balancing.settings import Settings
from balancing.situation import Situation
from balancing.steering import NotSteered, Steering
from manager.journal import operations_of
from tests.unit.balancing_snapshots import snapshot
from trimtab.epochs import Epoch, first_epoch
from trimtab.moves import Kind, Move, Way

FIRST = first_epoch("q", "i", (0, 0, 1))


def migration(name: str, state: State = State.NEW, *groups: int, **changes: Any) -> Migration:
    waves = () if state in (State.NEW, State.CHOOSING) else (Wave(groups=groups or (0,), state=state, seen=1),)
    made = Migration(
        id=name,
        query="q",
        incarnation="i",
        strategy="ptlb",
        sender=0,
        receiver=1,
        request=Request(groups=groups or (0,)),
        rebalance="r",
        waves=waves,
        chosen=(groups or (0,)) if waves else (),
        first_state=State.CHOSEN if waves else state,
    )
    return replace(made, **changes)


def steering(*migrations: Migration, **changes: Any) -> Steering:
    return replace(Steering(query="q", fence=3), migrations=migrations, **changes)


def situation(epoch: Epoch = FIRST, **changes: Any) -> Situation:
    return replace(Situation(query="q", workers=2, epoch=epoch, up=frozenset({0, 1}), committed=7), **changes)


def ends(epoch: Epoch = FIRST, load: Snapshot | None = None) -> TurnEnds:
    return TurnEnds(now_ms=9, situation=situation(epoch), bound=epoch, snapshot=load)


def committed(epoch: Epoch) -> BatchCommitted:
    batch = CommittedBatch(batch=8, bound=epoch, at_ms=5, reports={})
    return BatchCommitted(now_ms=9, batch=batch, workers=2)


def asked(name: str = "r1", **changes: Any) -> MovesAsked:
    request = RebalanceRequest(
        id=name, query="q", moves=(MoveRequest(sender=0, receiver=1, groups=(0,)),), strategy="ptlb", by="me", at_ms=4
    )
    happening = MovesAsked(now_ms=9, request=request, text="text", situation=situation(), snapshot=None)
    return replace(happening, **changes)


def writes(instructions: list[Instruction]) -> list[Write]:
    return [each for each in instructions if isinstance(each, Write)]


def test_what_happens_is_known() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Unknown(Happening):
        pass

    with pytest.raises(NotSteered):
        steering().handle(Unknown(now_ms=0))


def test_nothing_is_believed_before_it_is_durable() -> None:
    """`handle` changes nothing; the steering that follows is in the instruction."""
    before = steering()
    instructions = before.handle(asked())
    (write,) = writes(instructions)
    assert instructions == [write]
    assert before.migrations == () and before.rebalances == ()
    assert [each.id for each in write.then.migrations] == ["r1-1"]
    assert write.migrations == write.then.migrations and write.rebalances == write.then.rebalances
    assert (write.request, write.point, write.events[0].kind) == ("text", "rebalance", "rebalance")


def test_each_step_rests_on_the_write_before() -> None:
    begun, published = steering(migration("m1"), migration("m2", State.CHOOSING, 1)).handle(ends())
    assert isinstance(begun, Write) and begun.point == "ptlb:1"
    assert isinstance(published, PublishEpoch)
    assert published.then == begun.then
    assert published.epoch.fence == 3
    assert [question.migration for question in published.epoch.questions] == ["m1", "m2"]


def test_a_duplicate_request_is_only_taken_off_the_list() -> None:
    known = replace(requested(asked().request), state="running")
    (write,) = steering().handle(asked(known=known))
    assert write == Write(then=steering(), request="text")


def test_a_refused_request_changes_nothing_but_its_record() -> None:
    busy = steering(migration("m1"))
    (write,) = writes(busy.handle(asked()))
    assert write.then == busy
    (record,) = write.rebalances
    assert (record.state, record.refusal and record.refusal["field"]) == ("refused", "moves[0].groups")
    assert "m1" in write.events[0].text


@pytest.mark.parametrize("text", ["{", ""])
def test_a_request_that_cannot_be_read_is_refused_and_an_alarm_is_raised(text: str) -> None:
    refused, alarm = writes(steering().handle(RequestFailed(now_ms=9, name="x", text=text, problem="bad")))
    assert refused.request == text
    assert operations_of(refused, 9)[:3] == ["request", "", text], "else it would stop all that come after it"
    assert [each.kind for each in alarm.alarms] == ["request"]


def test_endings_are_told_under_their_own_names() -> None:
    """One reconciliation may end several migrations."""
    anew = first_epoch("q", "another life", (0, 0, 1))
    first, second = migration("m1", State.DUPLICATING, 0), migration("m2", State.DUPLICATING, 1)
    ended = writes(steering(first, second).handle(committed(anew)))
    told = [(notice.kind, notice.data["migration"]) for write in ended for notice in write.events]
    assert told == [("step", "m1"), ("finished", "m1"), ("step", "m2"), ("finished", "m2")]
    assert [[each.id for each in write.migrations] for write in ended] == [["m1"], ["m2"]]


def test_a_move_that_nobody_knows_is_adopted_and_the_rest_reconciled() -> None:
    known = migration("m1", State.DUPLICATING, 0)
    moves = (
        Move(id="m1.w1", kind=Kind.DUPLICATE, groups=(0,), sender=0, receiver=1, epoch=2),
        Move(id="m2.w1", kind=Kind.TRANSFER, groups=(1,), sender=0, receiver=1, epoch=2, way=Way.THERE),
    )
    bound = FIRST.successor((0, 0, 1), moves=moves)
    after = writes(steering(known).handle(committed(bound)))[-1].then
    assert [(each.id, each.adopted) for each in after.migrations] == [("m1", False), ("m2", True)]


@pytest.mark.parametrize("state", [State.NEW, State.CHOOSING, State.DUPLICATING])
def test_a_cancel_answers_its_request_in_the_same_write(state: State) -> None:
    """In any state, before the beginning, too: it is a row of the table."""
    request = CancelRequest(id="c", query="q", rebalance="r", by="me")
    found = steering(migration("m1", state), migration("m2", state, 1))
    instructions = writes(found.handle(CancelAsked(now_ms=9, request=request, text="text")))
    assert [(write.migrations[0].id, write.request) for write in instructions] == [("m1", None), ("m2", "text")]


def test_a_cancel_of_nothing_is_answered() -> None:
    request = CancelRequest(id="c", query="q", migration="m9", by="me")
    (write,) = steering().handle(CancelAsked(now_ms=9, request=request, text="text"))
    notice = Notice(kind="refused", text="m9 is not under way", data={"cancel": "m9"})
    assert write == Write(then=steering(), request="text", events=(notice,))


def test_an_epoch_is_published_only_when_the_newest_one_is_bound() -> None:
    asking = steering(migration("m1", State.CHOOSING))
    newer = FIRST.successor((0, 0, 1))
    waiting = TurnEnds(now_ms=9, situation=situation(newer), bound=FIRST, snapshot=None)
    assert asking.handle(waiting) == []
    assert [type(each) for each in asking.handle(ends())] == [PublishEpoch]


def test_a_new_leader_knows_nothing_until_the_journal_is_read() -> None:
    (write,) = steering(migration("m1")).handle(Led(now_ms=9, holder="h", fence=5))
    assert (write.then.fence, write.then.migrations) == (5, ())
    kept, gone = migration("m1"), migration("m2", outcome="committed")
    bound = FIRST.successor((0, 0, 1))
    loaded = Loaded(now_ms=9, bound=bound, migrations={"m1": kept, "m2": gone}, rebalances={})
    (hold,) = write.then.handle(loaded)
    assert isinstance(hold, Hold)
    assert hold.then.migrations == (kept,)


def test_of_what_has_ended_only_what_still_counts_is_loaded() -> None:
    """What the epoch still shows, what a rebalance is judged by, and what the audit still watches."""
    move = Move(id="shown.w1", kind=Kind.DUPLICATE, groups=(0,), sender=0, receiver=1, epoch=2)
    watching = MigrationAudit(watched=(WatchedMove(move=replace(move, id="watched.w1"), first_batch=7),))
    ended = [migration(name, outcome="committed") for name in ("shown", "judged", "watched", "old")]
    ended[2] = replace(ended[2], audit=watching)
    records = {each.id: each for each in (*ended, migration("under way", State.CHOOSING))}
    running = replace(requested(asked().request), state="running", migrations=("judged", "under way"))
    loaded = Loaded(
        now_ms=9, bound=FIRST.successor((0, 0, 1), moves=(move,)), migrations=records, rebalances={"r1": running}
    )
    now = steering().handle(loaded)[-1].then
    assert [each.id for each in now.migrations] == ["under way"]
    assert [each.id for each in now.ended] == ["shown", "judged", "watched"]


def test_what_redis_lost_is_written_again() -> None:
    kept, lost = migration("m1"), migration("m2")
    again, alarm = writes(steering(kept, lost).handle(RecordsLost(now_ms=9, migrations={"m1": kept}, rebalances={})))
    assert again.migrations == (lost,)
    assert alarm.alarms[0].kind == "journal-lost" and "m2" in alarm.alarms[0].text


def test_a_query_that_stops_parks_its_migrations_once() -> None:
    (parked,) = steering().handle(QueryStopped(now_ms=1))
    assert parked.then.handle(QueryStopped(now_ms=2)) == []
    (resumed,) = parked.then.handle(QueryRuns(now_ms=3))
    assert resumed.then == steering()
    assert steering().handle(QueryRuns(now_ms=4)) == []


@pytest.mark.parametrize(
    "state", [State.DEACTIVATING, State.DEACTIVATED, State.SENDING, State.RECEIVING, State.RECEIVED]
)
def test_what_is_shipped_takes_up_the_room_of_other_waves(state: State) -> None:
    """Until it has arrived: batches pack and take in."""
    load = snapshot((0, 0, 1), (1, 1, 1), ("a", "b"), batch_ms=1000.0)
    room = load.wave_bytes(None)
    assert room is not None
    load = replace(load, group_bytes=(0.6 * room,) * 3)
    shipped = migration("m1", state, 0, strategy="mslb")
    next_one = migration(
        "m2", State.CHOOSING, 1, strategy="mslb", first_state=State.CHOSEN, chosen=(1,), remaining=(1,)
    )
    opened = [each.point for each in writes(steering(shipped, next_one).handle(ends(load=load)))]
    assert opened == (["mslb:3"] if state == State.RECEIVED else [])


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [((), "rolled-back"), (("committed", "committed"), "committed"), (("committed", ""), None), (("",), None)],
)
def test_a_rebalance_is_over_with_the_last_of_its_migrations(outcomes: tuple[str, ...], state: str | None) -> None:
    parts = {f"m{index}": migration(f"m{index}", outcome=outcome) for index, outcome in enumerate(outcomes)}
    running = replace(requested(asked().request), state="running", migrations=("m0", "m1"))
    loaded = Loaded(now_ms=9, bound=FIRST, migrations=parts, rebalances={"r1": running})
    found = steering().handle(loaded)
    closed = [record.state for write in writes(found) for record in write.rebalances]
    assert closed == ([] if state is None else [state])
    assert [each.id for each in found[-1].then.rebalances] == (["r1"] if state is None else [])


def test_a_rebalance_goes_on_while_one_of_its_migrations_does() -> None:
    running = replace(requested(asked().request), state="running", migrations=("m1", "m2"))
    mine: dict[str, Any] = {"rebalance": running.id}
    both = steering(migration("m1", State.NEW, **mine), migration("m2", State.NEW, 1, **mine), rebalances=(running,))

    def cancelled(steered: Steering, name: str) -> Write:
        request = CancelRequest(id="c", query="q", migration=name, by="me")
        return writes(steered.handle(CancelAsked(now_ms=9, request=request, text="text")))[-1]

    first = cancelled(both, "m1")
    assert (first.rebalances, first.then.rebalances) == ((), (running,))
    last = cancelled(first.then, "m2")
    assert ([each.state for each in last.rebalances], last.then.rebalances) == (["rolled-back"], ())


def test_batches_that_were_missed_are_audited() -> None:
    move = Move(id="m1.w1", kind=Kind.DUPLICATE, groups=(0,), sender=0, receiver=1, epoch=2)
    batch = CommittedBatch(batch=8, bound=FIRST.successor((0, 0, 1), moves=(move,)), at_ms=5, reports={})
    missed = BatchesMissed(now_ms=9, batches=(batch,), workers=2)
    (write,) = writes(steering(migration("m1", State.DUPLICATING)).handle(missed))
    assert write.migrations[0].audit.opened


def test_an_audit_that_is_finished_is_not_written_again_with_every_batch() -> None:
    ended = migration("m1", State.COMMITTED, outcome="committed")
    assert ended.audit.finished
    before = CommittedBatch(batch=8, bound=FIRST, at_ms=5, reports={})
    batch = CommittedBatch(batch=9, bound=FIRST, at_ms=6, reports={}, previous=before)
    assert writes(steering(ended=(ended,)).handle(BatchCommitted(now_ms=9, batch=batch, workers=2))) == []


def test_a_wave_is_not_allowed_beside_one_that_is_under_way() -> None:
    """Though groups remain and there is room for them."""
    load = snapshot((0, 0, 1), (1, 1, 1), ("a", "b"), batch_ms=1000.0)
    half = migration("m1", State.RECEIVING, 0, strategy="mslb", chosen=(0, 1), remaining=(1,))
    bound = FIRST.successor(
        (0, 0, 1), moves=(Move(id="m1.w1", kind=Kind.TRANSFER, groups=(0,), sender=0, receiver=1, epoch=2),)
    )
    assert steering(half).handle(ends(bound, load)) == []


# -- the balancer's own moves

AUTOMATIC = Settings(auto=True, start_ratio=1.2, stop_ratio=1.1, min_batches=5)
UNEVEN = snapshot([0] * 10 + [1] * 10, [7.5e7] * 10 + [2.5e7] * 10, ["a", "b"])


def proposed(**changes: Any) -> Proposed:
    (propose,) = steering().handle(LoadWeighed(now_ms=9, settings=AUTOMATIC, snapshot=UNEVEN))
    assert isinstance(propose, Propose)
    owned = replace(first_epoch("q", "i", UNEVEN.owners), number=UNEVEN.epoch)
    return Proposed(
        now_ms=9,
        decision=propose.decision,
        proposal=make_proposal(UNEVEN, Level(), AUTOMATIC, id="p"),
        settings=AUTOMATIC,
        situation=situation(owned, **changes),
        snapshot=UNEVEN,
        request_id="auto-1",
    )


def test_the_balancer_acts_on_its_proposal() -> None:
    (write,) = writes(steering().handle(proposed()))
    assert (write.point, [each.id for each in write.rebalances]) == ("rebalance", ["auto-1"])


@pytest.mark.parametrize("changes", [{"stopped": True}, {"rules": Rules(excluded=frozenset({1}))}])
def test_the_balancer_is_refused_like_everybody(changes: dict[str, Any]) -> None:
    (write,) = writes(steering().handle(proposed(**changes)))
    assert ([notice.kind for notice in write.events], write.then.migrations) == (["refused"], ())


def test_nothing_follows_from_a_load_that_was_not_measured() -> None:
    assert steering().handle(LoadWeighed(now_ms=9, settings=AUTOMATIC, snapshot=None)) == []


def test_a_proposal_that_nobody_knows_is_refused() -> None:
    request = replace(asked().request, proposal="p")
    (write,) = writes(steering().handle(asked(request=request)))
    assert (write.rebalances[0].state, write.then.migrations) == ("refused", ())
