"""Plan orders in epochs, and what workers report of plans: written, read, checked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trimtab.epochs import Epoch, breaks_between, check_epoch, first_epoch, parse_epoch
from trimtab.errors import CorruptState
from trimtab.plan_orders import KeySample, PlanOrder, PlanReport, PlanState, PlanStrategy, StepCount
from trimtab.reports import WorkerReport, parse_report

FIRST = first_epoch("orders", "i1", (0, 1, 0, 1))
ORDER = PlanOrder(id="p-1", worker=1, plan="((B C) A)", strategy=PlanStrategy.HYBMIG, budget_ms=50, epoch=2)


def followed(*plans: PlanOrder, by: Epoch = FIRST) -> Epoch:
    return by.successor(by.owners, plans=plans)


def test_an_epoch_with_orders_reads_as_written() -> None:
    epoch = followed(ORDER)
    assert parse_epoch(epoch.to_text(), epoch.digest) == epoch
    assert epoch.order(1) == ORDER
    assert epoch.order(0) is None


def test_an_epoch_without_orders_is_written_as_the_version_before_reads_it() -> None:
    assert '"format":2' in FIRST.to_text()
    assert "plans" not in FIRST.to_text()
    assert '"format":3' in followed(ORDER).to_text()


def test_an_order_stays_until_another_takes_its_place() -> None:
    second = followed(ORDER)
    third = second.successor(second.owners)
    assert third.plans == (ORDER,)
    assert not list(breaks_between(second, third))
    assert list(breaks_between(second, second.successor(second.owners, plans=()))) == [
        "the plan order of worker 1 is gone: an order ends by another one only"
    ]
    other = replace(ORDER, id="p-2", plan="((A B) C)", epoch=3)
    assert not list(breaks_between(second, second.successor(second.owners, plans=(other,))))


def test_only_the_strategy_of_an_order_changes_and_only_to_moving_state() -> None:
    second = followed(ORDER)
    for changed, problem in (
        (replace(ORDER, strategy=PlanStrategy.MS), None),
        (replace(ORDER, plan="((A C) B)"), "plan order p-1 changes from one epoch to the next"),
        (replace(ORDER, budget_ms=60), "plan order p-1 changes from one epoch to the next"),
        (replace(ORDER, id="p-2"), "plan order p-2 begins in the middle: epoch 2"),
    ):
        found = list(breaks_between(second, second.successor(second.owners, plans=(changed,))))
        assert found == ([] if problem is None else [problem])
    settled = followed(replace(ORDER, strategy=PlanStrategy.MS))
    back = settled.successor(settled.owners, plans=(ORDER,))
    assert list(breaks_between(settled, back)) == ["plan order p-1 goes from ms to hybmig"]


@pytest.mark.parametrize(
    "plans",
    [(replace(ORDER, worker=2),), (ORDER, replace(ORDER, id="p-2")), (ORDER, replace(ORDER, id="p-2", worker=0))],
    ids=["no-such-worker", "two-for-one-worker", "out-of-order"],
)
def test_orders_that_nobody_could_follow_are_never_bound(plans: tuple[PlanOrder, ...]) -> None:
    check_epoch(followed(ORDER), 4, 2)
    with pytest.raises(CorruptState, match="plan order"):
        check_epoch(followed(*plans), 4, 2)


@pytest.mark.parametrize(("field", "value"), [("id", "../p"), ("worker", -1), ("strategy", "pt"), ("budget_ms", 1.5)])
def test_an_order_that_cannot_be_read_is_refused(field: str, value: object) -> None:
    body = json.loads(followed(ORDER).to_text())
    body["plans"][0][field] = value
    with pytest.raises(CorruptState, match="plan order"):
        parse_epoch(json.dumps(body))


def test_a_report_says_where_a_plan_is() -> None:
    report = WorkerReport(
        query="orders", batch=3, epoch=2, worker=1, attempt=0, executor="e", process=1, at_ms=5, rows={}, late_rows={},
        bad_rows={}, results=0, state_rows=0, combined_rows=0, state_bytes=0, index_bytes=0, watermark_us=0, cpu_ns=0,
        order=PlanReport(order="p-1", state=PlanState.MIGRATING, plan="((B C) A)", former="((A B) C)", done=3, total=9),
        steps=[StepCount(stream="A", other=("B", "C"), tuples=4, candidates=9, matched=5, passed=(2,))],
        keys=KeySample(one_in=64, counts={"A": (3, 0), "B": (1, 1)}),
    )  # fmt: skip
    assert parse_report(report.to_text()) == report


def test_a_report_of_the_version_before_says_nothing_of_plans() -> None:
    report = WorkerReport(
        query="orders", batch=3, epoch=2, worker=1, attempt=0, executor="e", process=1, at_ms=5, rows={}, late_rows={},
        bad_rows={}, results=0, state_rows=0, combined_rows=0, state_bytes=0, index_bytes=0, watermark_us=0, cpu_ns=0,
    )  # fmt: skip
    old = report.to_text().replace(',"order":null,"steps":[],"keys":null', "")
    assert "order" not in old.replace("orders", "")
    assert parse_report(old) == report
