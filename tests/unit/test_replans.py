"""The machine of plan changes: its table, what batches say to it, orders in epochs, and a journal that is behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from balancing.committed import CommittedBatch
from balancing.compose import compose
from balancing.replans import table
from balancing.replans.events import (
    CancelRequested,
    Event,
    Migrating,
    OrderAllowed,
    Proceed,
    RanAlone,
    Returned,
    Settled,
    StoodStill,
)
from balancing.replans.observe import observe
from balancing.replans.reconcile import adopt, reconcile
from balancing.replans.replan import JournalStep, Replan, ReplanError, Tell, order_id, parse_order_id, parse_replan
from balancing.replans.requests import ReplanRequest, accepted, check_replan, parse_plan_request
from balancing.replans.table import FINAL, TABLE, State
from balancing.replans.waits import look
from balancing.requests import Refused
from balancing.rules import Rules
from balancing.situation import Situation
from plans.orders import check_orders
from tests.simulation.leading import report_of
from trimtab.epochs import Epoch, first_epoch
from trimtab.errors import CorruptState
from trimtab.plan_orders import PlanOrder, PlanReport, PlanState, PlanStrategy

FIRST = first_epoch("q", "i", (0, 1))
OLD, NEW = "((A B) C)", "((A C) B)"
EVENTS: list[type[Event]] = [OrderAllowed, Migrating, StoodStill, Settled, Proceed, RanAlone, Returned, CancelRequested]


def replan(state: State = State.WAITING, **changes: Any) -> Replan:
    made = Replan(
        id="r1", query="q", worker=0, plan=NEW, former=OLD, strategy=PlanStrategy.HYBMIG, budget_ms=50,
        incarnation="i", state=state, since=1, created_ms=3,
    )  # fmt: skip
    return replace(made, **changes)


def event(kind: type[Event], **more: Any) -> Event:
    fields: dict[str, Any] = {"replan": "r1", "now_ms": 9, **more}
    return StoodStill(stream="B", **fields) if kind is StoodStill else kind(**fields)


def after(before: Replan, happening: Event) -> Replan:
    step = before.handle(happening)[0]
    assert isinstance(step, JournalStep)
    return step.replan


def order(name: str = "r1.p1", **changes: Any) -> PlanOrder:
    made = PlanOrder(id=name, worker=0, plan=NEW, strategy=PlanStrategy.HYBMIG, budget_ms=50, epoch=2)
    return replace(made, **changes)


def bound(*orders: PlanOrder, number: int = 2) -> Epoch:
    return replace(FIRST, number=number, plans=orders)


def batch(epoch: Epoch, said: PlanReport | None, number: int = 7, **report: Any) -> CommittedBatch:
    spoken = replace(report_of(0, number, epoch, ()), order=said, plan=OLD, **report)
    return CommittedBatch(batch=number, bound=epoch, at_ms=5, reports={0: spoken})


def saying(state: PlanState, name: str = "r1.p1", **more: Any) -> PlanReport:
    return PlanReport(order=name, state=state, plan=NEW, former=OLD, **more)


def test_the_table_is_whole() -> None:
    assert list(table.check(TABLE)) == []
    broken = replace(TABLE, rows=(*TABLE.rows, TABLE.rows[0], replace(TABLE.rows[0], next=State.REQUESTED)))
    assert len(list(table.check(broken))) == 3


@pytest.mark.parametrize("state", [each for each in State if each not in FINAL and each != State.REQUESTED])
@pytest.mark.parametrize("kind", EVENTS)
def test_each_event_in_each_state(state: State, kind: type[Event]) -> None:
    """It goes on by the table, changes nothing because it is a repeated one, or is refused."""
    row, before = TABLE.find(state, kind), replan(state)
    if row is not None:
        assert after(before, event(kind)).state == row.next
    elif kind is CancelRequested and state in TABLE.refusing:
        (tell,) = before.handle(event(kind))
        assert isinstance(tell, Tell) and tell.kind == "refused"
    else:
        assert before.handle(event(kind)) == []


def test_an_event_of_another_replan_is_a_bug() -> None:
    with pytest.raises(ReplanError, match="is for replan r2"):
        replan().handle(OrderAllowed(replan="r2"))
    with pytest.raises(ReplanError, match="cannot happen in state waiting"):
        replan().handle(Event(replan="r1"))


def test_the_whole_way_and_its_story() -> None:
    now = replan()
    for happening in (
        event(OrderAllowed),
        event(Migrating, epoch=2, batch=5),
        event(Settled, epoch=2, batch=8),
        event(Proceed),
        event(RanAlone, epoch=2, batch=9),
    ):
        now = after(now, happening)
    assert (now.state, now.done, now.closed_ms, now.settled_batch, now.seen) == (State.COMMITTED, True, 9, 8, 2)
    assert [line.message for line in now.story] == ["OrderPlan", "Migrating", "Settled", "Close", "RanAlone"]
    assert parse_replan(now.to_json()) == now


def test_a_record_outlives_its_version() -> None:
    body = replan(State.MIGRATING).to_json()
    assert parse_replan({**body, "later": 1, "format": 2}) == replan(State.MIGRATING)
    with pytest.raises(ValueError, match="newer version"):
        parse_replan({**body, "format": 2, "oldest_reader": 2})


def test_who_cancels_is_in_the_record() -> None:
    cancelled = after(replan(State.MIGRATING), event(CancelRequested, by="me", cause="too slow"))
    assert (cancelled.state, cancelled.problem) == (State.RETURNING, "cancelled by me: too slow")
    assert (cancelled.order_id, cancelled.wanted_plan) == ("r1.p2", OLD)
    step, tell = replan().handle(event(CancelRequested))
    assert isinstance(step, JournalStep) and step.replan.state == State.CANCELLED
    assert isinstance(tell, Tell) and tell.kind == "finished"


def test_names_of_orders() -> None:
    assert parse_order_id(order_id("a.p1.x", back=False)) == ("a.p1.x", False)
    assert parse_order_id(order_id("r", back=True)) == ("r", True)
    assert parse_order_id("r.p3") is None


# -- orders


def test_an_order_is_a_level() -> None:
    assert compose(FIRST, (), 1, [replan(State.WAITING)]) is None
    ordered = compose(FIRST, (), 1, [replan(State.ORDERED)])
    assert ordered is not None and ordered.plans == (order(),)
    for state in (State.ORDERED, State.MIGRATING, State.SETTLED, State.CLOSING, State.COMMITTED):
        assert compose(ordered, (), 1, [replan(state)]) is None
    back = compose(ordered, (), 1, [replan(State.RETURNING)])
    assert back is not None and back.plans == (order("r1.p2", plan=OLD, strategy=PlanStrategy.MS, epoch=3),)
    assert compose(back, (), 1, [replan(State.RETURNING)]) is None
    assert compose(back, (), 1, [replan(State.MIGRATING)]) is None, "a journal that is behind orders nothing again"


def test_a_stream_that_stands_still_falls_back_to_moving_state() -> None:
    ordered = compose(FIRST, (), 1, [replan(State.ORDERED)])
    assert ordered is not None
    fallen = after(replan(State.MIGRATING), event(StoodStill, epoch=2))
    assert fallen.strategy == PlanStrategy.MS and fallen.state == State.MIGRATING
    assert fallen.handle(event(StoodStill)) == []
    following = compose(ordered, (), 1, [fallen])
    assert following is not None and following.plans == (order(strategy=PlanStrategy.MS),)


def test_orders_of_several_workers_stand_in_the_order_of_workers() -> None:
    other = replan(State.ORDERED, id="r0", worker=1, created_ms=1)
    epoch = compose(FIRST, (), 1, [replan(State.ORDERED), other])
    assert epoch is not None and [each.worker for each in epoch.plans] == [0, 1]
    assert compose(FIRST, (), 1, [replan(State.ORDERED, incarnation="another life")]) is None


def test_a_younger_order_of_another_stays() -> None:
    younger = bound(order("r9.p1", epoch=2))
    assert compose(younger, (), 1, [replan(State.ORDERED, since=1)]) is None
    taken = compose(younger, (), 1, [replan(State.ORDERED, since=2)])
    assert taken is not None and taken.plans[0].id == "r1.p1"


# -- what batches say


@pytest.mark.parametrize(
    ("now", "said", "events"),
    [
        (replan(State.WAITING), saying(PlanState.SETTLED), []),
        (replan(State.ORDERED), None, []),
        (replan(State.ORDERED), saying(PlanState.SETTLED, "r0.p1"), []),
        (replan(State.ORDERED), saying(PlanState.MIGRATING), [Migrating]),
        (replan(State.ORDERED), saying(PlanState.SETTLED), [Settled, Proceed]),
        (replan(State.CLOSING, settled_batch=7), saying(PlanState.SETTLED), [Settled, Proceed]),
        (replan(State.CLOSING, settled_batch=6), saying(PlanState.SETTLED), [Settled, Proceed, RanAlone]),
        (replan(State.SETTLED, settled_batch=6), saying(PlanState.SETTLED), [Settled, Proceed, RanAlone]),
        (replan(State.RETURNING), saying(PlanState.SETTLED), []),
        (replan(State.ORDERED, incarnation="other"), saying(PlanState.SETTLED), []),
        (replan(State.COMMITTED), saying(PlanState.SETTLED), []),
    ],
)
def test_what_a_batch_says(now: Replan, said: PlanReport | None, events: list[type[Event]]) -> None:
    assert [type(each) for each in observe(now, batch(bound(order()), said), 9)] == events


def test_the_way_back_is_followed_until_the_worker_has_settled() -> None:
    back = bound(order("r1.p2", plan=OLD))
    now = replan(State.RETURNING)
    assert observe(now, batch(back, saying(PlanState.MIGRATING, "r1.p2")), 9) == []
    assert observe(now, batch(back, saying(PlanState.SETTLED, "r1.p1")), 9) == []
    (returned,) = observe(now, batch(back, saying(PlanState.SETTLED, "r1.p2")), 9)
    assert after(now, returned).state == State.CANCELLED


def test_a_report_of_another_batch_proves_nothing() -> None:
    committed = batch(bound(order()), saying(PlanState.SETTLED))
    assert observe(replan(State.ORDERED), replace(committed, batch=8), 9) == []


def test_hybmig_that_waits_for_an_idle_stream() -> None:
    """HybMig section 3.5: it ends at the latest after a window of event time, and that may stand still."""
    epoch, now = bound(order()), replan(State.MIGRATING)

    def at(ms: int, waits: Any, **said: Any) -> Any:
        told = saying(PlanState.MIGRATING, waits_for="B", **said)
        return look(waits, [now], batch(epoch, told, watermark_us=ms // 10_000), 30_000, ms)

    waits, events = at(0, {})
    assert events == []
    waits, events = at(9_999, waits)
    assert events == []
    waits, events = at(29_999, waits)
    assert events == [] and waits["r1"].since_ms == 29_999, "event time goes on"
    waits, events = look(
        waits, [now], batch(epoch, saying(PlanState.MIGRATING, waits_for="B"), watermark_us=2), 30_000, 59_998
    )
    assert events == []
    waits, events = look(waits, [now], batch(epoch, None), 30_000, 59_998)
    assert events == [] and "r1" in waits, "a silent worker has not gone on"
    told = saying(PlanState.MIGRATING, waits_for="B")
    _, events = look(waits, [now], batch(epoch, told, watermark_us=2), 30_000, 59_999)
    assert [each.stream for each in events] == ["B"]
    _, events = look(waits, [now], batch(epoch, replace(told, done=1), watermark_us=2), 30_000, 59_999)
    assert events == [], "a state is being computed"
    waits, events = look(waits, [replace(now, strategy=PlanStrategy.MS)], batch(epoch, told), 30_000, 99_999)
    assert (waits, events) == ({}, [])


# -- a journal that is behind


@pytest.mark.parametrize(
    ("now", "epoch", "state"),
    [
        (replan(State.WAITING), bound(order()), State.ORDERED),
        (replan(State.ORDERED), bound(order("r1.p2", plan=OLD)), State.RETURNING),
        (replan(State.WAITING), bound(order("r9.p1", epoch=2)), State.SUPERSEDED),
        (replan(State.MIGRATING, incarnation="other"), bound(), State.SUPERSEDED),
        (replan(State.WAITING, since=3), bound(order("r9.p1", epoch=2), number=3), None),
        (replan(State.WAITING, since=3), bound(order()), None),
        (replan(State.MIGRATING), bound(order()), None),
        (replan(State.RETURNING), bound(order()), None),
        (replan(State.ORDERED), bound(), None),
        (replan(State.COMMITTED, incarnation="other"), bound(), None),
    ],
)
def test_the_bound_epoch_is_right(now: Replan, epoch: Epoch, state: State | None) -> None:
    steps = [each for each in reconcile([now], epoch, 9) if isinstance(each, JournalStep)]
    assert [each.replan.state for each in steps] == ([] if state is None else [state])
    if state in (State.RETURNING, State.SUPERSEDED):
        assert steps[0].replan.problem


def test_a_fallback_that_was_forgotten() -> None:
    fallen = bound(order(strategy=PlanStrategy.MS))
    (step,) = reconcile([replan(State.MIGRATING)], fallen, 9)
    assert isinstance(step, JournalStep) and step.replan.strategy == PlanStrategy.MS


@pytest.mark.parametrize(
    ("name", "said", "state", "former"),
    [
        ("r1.p1", saying(PlanState.MIGRATING), State.MIGRATING, OLD),
        ("r1.p1", PlanReport(order="", state=PlanState.SETTLED, plan=OLD), State.ORDERED, OLD),
        ("r1.p2", saying(PlanState.MIGRATING, "r1.p2"), State.RETURNING, NEW),
        ("r1.p1", saying(PlanState.SETTLED), None, ""),
        ("r1.p1", None, None, ""),
        ("another", saying(PlanState.MIGRATING, "another"), None, ""),
    ],
)
def test_an_order_that_nobody_follows_is_adopted(
    name: str, said: PlanReport | None, state: State | None, former: str
) -> None:
    steps = [each for each in adopt(batch(bound(order(name)), said), [], 9) if isinstance(each, JournalStep)]
    assert [each.replan.state for each in steps] == ([] if state is None else [state])
    if state is not None:
        made = steps[0].replan
        assert (made.id, made.worker, made.former, made.adopted) == ("r1", 0, former, True)
        assert adopt(batch(bound(order(name)), said), [made], 9) == []


@pytest.mark.parametrize(
    ("known", "name", "adopted"),
    [
        (replan(State.COMMITTED), "r1.p1", False),
        (replan(State.CANCELLED), "r1.p2", False),
        (replan(State.CANCELLED, seen=2), "r1.p1", False),
        (replan(State.CANCELLED, seen=1), "r1.p1", True),
        (replan(State.COMMITTED, seen=1), "r1.p2", True),
    ],
)
def test_an_order_outlives_its_replan(known: Replan, name: str, *, adopted: bool) -> None:
    said = saying(PlanState.MIGRATING, name)
    assert bool(adopt(batch(bound(order(name)), said), [known], 9)) == adopted


def test_a_cancel_whose_journal_had_forgotten_the_order_is_carried_out() -> None:
    """Also where the worker has settled on the new plan meanwhile."""
    known = replan(State.CANCELLED, problem="cancelled by me")
    for said in (saying(PlanState.SETTLED), saying(PlanState.MIGRATING)):
        (step,) = adopt(batch(bound(order()), said), [known], 9)
        assert isinstance(step, JournalStep)
        assert (step.replan.state, step.replan.former, step.replan.problem) == (State.RETURNING, OLD, known.problem)
        assert step.replan.closed_ms is None


# -- requests

SITUATION = Situation(
    query="q",
    workers=2,
    epoch=FIRST,
    up=frozenset({0, 1}),
    streams=("A", "B", "C"),
    plans={0: OLD, 1: "(A B C)"},
    follow=frozenset({0, 1}),
)
ASKED = ReplanRequest(id="r1", query="q", worker=0, plan="((A C) B)", strategy="hybmig", by="me", reason="why")


def test_a_request_becomes_a_replan() -> None:
    check_replan(ASKED, SITUATION)
    made = accepted(replace(ASKED, plan="(A C) B"), SITUATION)
    assert (made.state, made.plan, made.former, made.since) == (State.WAITING, NEW, OLD, 1)
    assert parse_plan_request(ASKED.to_json()) == ASKED
    assert parse_plan_request({"kind": "rebalance"}) is None
    with pytest.raises(ValueError, match="not a request"):
        parse_plan_request({"kind": "replan", "id": "x"})


@pytest.mark.parametrize(
    ("request_", "situation", "field", "status"),
    [
        (replace(ASKED, id="a/b"), SITUATION, "id", 422),
        (replace(ASKED, strategy="auto"), SITUATION, "strategy", 422),
        (replace(ASKED, budget_ms=0), SITUATION, "budget", 422),
        (replace(ASKED, worker=2), SITUATION, "worker", 422),
        (ASKED, replace(SITUATION, up=frozenset({1})), "worker", 409),
        (ASKED, replace(SITUATION, stopped=True), "query", 409),
        (replace(ASKED, expected_epoch=2), SITUATION, "expected_epoch", 409),
        (replace(ASKED, plan="((A B) A)"), SITUATION, "plan", 422),
        (replace(ASKED, plan="(A B)"), SITUATION, "plan", 422),
        (replace(ASKED, plan="((A X) (B C))"), SITUATION, "plan", 422),
        (replace(ASKED, plan="((A C) B"), SITUATION, "plan", 422),
        (replace(ASKED, plan="(C (B A))"), SITUATION, "plan", 409),
        (ASKED, replace(SITUATION, streams=()), "query", 409),
        (ASKED, replace(SITUATION, follow=frozenset()), "worker", 409),
        (ASKED, replace(SITUATION, rules=Rules(plans=frozenset({0}))), "worker", 409),
        (ASKED, replace(SITUATION, replans=(replan(State.MIGRATING, id="r0"),)), "worker", 409),
        (replace(ASKED, needed_bytes=1001), SITUATION, "plan", 409),
    ],
)
def test_what_is_refused(request_: ReplanRequest, situation: Situation, field: str, status: int) -> None:
    with pytest.raises(Refused) as caught:
        check_replan(request_, situation, memory_max=1000)
    assert (caught.value.field, caught.value.status) == (field, status)
    assert caught.value.remedy


def test_an_epoch_with_a_plan_that_is_none_is_not_bound() -> None:
    check_orders(bound(order()), ("A", "B", "C"))
    for plan in ("((A C) D)", "((A C)", "(A C) B", "left-deep"):
        with pytest.raises(CorruptState, match=r"plan order r1\.p1 of worker 0"):
            check_orders(bound(order(plan=plan)), ("A", "B", "C"))
