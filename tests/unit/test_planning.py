"""A worker follows the plan that its epoch orders: what it decides, what it does, what it says of it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkers.cluster import Cluster
from tests.checkers.feed import WINDOW, Feed, go, record
from tests.checkers.plan_changes import order, wrong_states
from trimtab.errors import CorruptState
from trimtab.moves import Way
from trimtab.plan_orders import PlanOrder, PlanReport, PlanState, PlanStrategy
from worker import background
from worker.durable import parse_record
from worker.engine import Engine
from worker.planning import Deed, PlanRecord, deed, is_paced, plan_to_build, report_of, waits_for

OLD, NEW = "((A B) C)", "(A (B C))"
ORDER = PlanOrder(id="r.1", worker=0, plan=NEW, strategy=PlanStrategy.HYBMIG, budget_ms=5, epoch=3)
KNOWN = PlanRecord("r.1", NEW, OLD, PlanStrategy.HYBMIG, since_batch=7, done=3, total=9, waits_for="C")


def test_an_order_is_a_level() -> None:
    settled = replace(KNOWN, settled=True)
    assert deed(None, None) == Deed.NOTHING
    assert deed(None, ORDER) == deed(replace(KNOWN, id="r.0"), ORDER) == Deed.BEGIN
    assert deed(replace(settled, id="r.0"), ORDER) == Deed.BEGIN
    assert deed(KNOWN, ORDER) == deed(KNOWN, replace(ORDER, strategy=PlanStrategy.MS)) == Deed.GO_ON
    assert deed(settled, ORDER) == Deed.NOTHING


def test_what_is_made_of_leaves_has_the_plan_that_is_to_come() -> None:
    assert plan_to_build(None, None, OLD, first=True) == OLD
    assert plan_to_build(None, ORDER, OLD, first=True) == NEW
    assert plan_to_build(None, ORDER, OLD, first=False) == OLD
    assert plan_to_build(KNOWN, ORDER, OLD, first=False) == NEW
    assert plan_to_build(replace(KNOWN, settled=True, plan="(A B C)"), ORDER, NEW, first=False) == NEW


def test_only_hybmig_without_a_budget_waits() -> None:
    assert is_paced(ORDER) and not is_paced(replace(ORDER, budget_ms=0))
    assert is_paced(replace(ORDER, strategy=PlanStrategy.MS, budget_ms=0))


def test_the_report_is_the_record() -> None:
    assert report_of(None, OLD) == PlanReport(order="", state=PlanState.SETTLED, plan=OLD)
    told = report_of(KNOWN, OLD)
    assert (told.state, told.plan, told.former, told.since_batch) == (PlanState.MIGRATING, NEW, OLD, 7)
    assert (told.done, told.total, told.waits_for) == (3, 9, "C")
    assert report_of(replace(KNOWN, settled=True), NEW).former == ""


def test_the_stream_that_is_furthest_behind_is_waited_for_unless_it_goes_on() -> None:
    newest = {"A": 30, "B": 10, "C": 20}
    assert waits_for(newest, {"A", "C"}) == "B"
    assert waits_for(newest, {"B"}) == ""


# -- in a worker


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece reads one tuple or two."""
    for name in ("PAIRS_FIRST", "PAIRS_MIN", "PAIRS_MAX"):
        monkeypatch.setattr(background, name, 3)


def running(directory: Path, plans: tuple[str, ...] = (OLD,), names: str = "ABC") -> tuple[Cluster, Feed]:
    cluster, feed = Cluster(directory, names, WINDOW, 4, plans), Feed(3, names)
    cluster.checking = False
    go(cluster, feed, 5)
    return cluster, feed


def begin(cluster: Cluster, strategy: str, plan: str = NEW, name: str = "r.1", budget_ms: int = 0) -> None:
    cluster.publish(cluster.moves, plans=[order(cluster, name, 0, plan, strategy, budget_ms)])


def told(cluster: Cluster) -> PlanReport:
    report = cluster.last[0].order
    assert report is not None
    return report


def test_moving_state_does_a_little_in_every_batch_and_says_how_far_it_is(tmp_path: Path) -> None:
    cluster, feed = running(tmp_path)
    begin(cluster, "ms")
    go(cluster, feed)
    assert (told(cluster).state, told(cluster).order, cluster.last[0].plan) == (PlanState.SETTLED, "", OLD)
    before = 0
    go(cluster, feed)
    while told(cluster).state == PlanState.MIGRATING:
        report = told(cluster)
        assert (report.order, report.plan, report.former, report.since_batch) == ("r.1", NEW, OLD, 5)
        assert report.total >= report.done
        before = max(before, report.done)
        go(cluster, feed)
        assert cluster.batch < 40
    assert cluster.batch > 9 and before > 3
    assert (told(cluster).plan, told(cluster).former, cluster.last[0].plan) == (NEW, "", NEW)
    assert set(cluster.last[0].plan_states) == {"A", "B", "C", "B C"}
    go(cluster, feed, 3)
    cluster.check()


def test_a_budget_is_spent_and_not_overstepped_by_more_than_a_piece(tmp_path: Path) -> None:
    cluster, feed = running(tmp_path)
    looked: list[int] = []

    def clock() -> int:
        looked.append(len(looked) * 1_000_000)
        return looked[-1]

    cluster.clock = clock
    begin(cluster, "ms", budget_ms=4)
    go(cluster, feed)
    # Once at the beginning, and after each piece: a fifth one would not have been over in time.
    assert len(looked) == 1 + 4


def test_a_rebuild_in_mid_change_builds_the_new_plan_whole(tmp_path: Path) -> None:
    cluster, feed = running(tmp_path)
    begin(cluster, "ms")
    go(cluster, feed, 2)
    cluster.step(feed.rows(), feed.watermark, rebuild=[0])
    assert told(cluster).state == PlanState.MIGRATING and cluster.last[0].plan == NEW
    go(cluster, feed, 2)
    assert (told(cluster).state, told(cluster).since_batch) == (PlanState.SETTLED, 5)
    cluster.check()


@pytest.mark.parametrize("strategy", ["ms", "hybmig"])
def test_the_old_plan_is_put_back_at_once(tmp_path: Path, strategy: str) -> None:
    cluster, feed = running(tmp_path)
    begin(cluster, strategy)
    go(cluster, feed, 3)
    begin(cluster, "ms", OLD, "r.2")
    go(cluster, feed)
    known = record(cluster, 0).order
    assert known is not None and (known.id, known.settled, known.plan) == ("r.2", True, OLD)
    assert set(cluster.last[0].plan_states) == {"A", "B", "C", "A B"}
    go(cluster, feed, 3)
    cluster.check()


def test_a_plan_that_is_only_written_otherwise_is_settled_at_once(tmp_path: Path) -> None:
    cluster, feed = running(tmp_path)
    begin(cluster, "hybmig", "(C (B A))")
    go(cluster, feed)
    assert cluster.last[0].plan == "(C (B A))"
    go(cluster, feed, 3)
    assert told(cluster).state == PlanState.SETTLED
    cluster.check()


def test_a_worker_begins_with_the_plan_that_is_ordered(tmp_path: Path) -> None:
    cluster, feed = Cluster(tmp_path, "ABC", WINDOW, 4, (OLD,)), Feed(3)
    begin(cluster, "ms")
    go(cluster, feed)
    assert cluster.last[0].plan == NEW
    go(cluster, feed)
    assert (told(cluster).order, told(cluster).state) == ("r.1", PlanState.SETTLED)


def test_hybmig_without_a_budget_ends_when_what_was_old_has_expired(tmp_path: Path) -> None:
    cluster, feed = running(tmp_path)
    begin(cluster, "hybmig")
    go(cluster, feed)
    newest_old = max(row[1] for rows in (cluster.on_time["B"], cluster.on_time["C"]) for row in rows)
    idle = {"A": [(1, feed.now, 10_000)], "B": [], "C": [(1, feed.now, 10_001)]}
    cluster.step(idle, cluster.watermark)
    cluster.step(idle, cluster.watermark)
    assert (told(cluster).state, told(cluster).waits_for) == (PlanState.MIGRATING, "B")
    while told(cluster).state == PlanState.MIGRATING:
        assert cluster.watermark - WINDOW <= newest_old + 6
        go(cluster, feed)
    cluster.check()


def test_hybmig_gives_way_to_moving_state_within_one_order(tmp_path: Path) -> None:
    cluster, feed = running(tmp_path)
    begin(cluster, "hybmig")
    go(cluster, feed, 2)
    (now,) = cluster.epoch.plans
    cluster.publish([], plans=[replace(now, strategy=PlanStrategy.MS)])
    rows: dict[str, list[tuple[int, int, int]]] = {name: [] for name in "ABC"}
    for _ in range(60):
        cluster.step(rows, cluster.watermark)  # nothing comes, so nothing expires
    assert (told(cluster).state, told(cluster).strategy) == (PlanState.SETTLED, "ms")
    go(cluster, feed, 4)
    cluster.check()


@pytest.mark.parametrize("way", [Way.JOINED, Way.HELD])
def test_groups_that_are_frozen_do_not_hold_a_change_back(tmp_path: Path, way: Way) -> None:
    """They come back with rows that have expired for all others, and the new plan has them."""
    cluster, feed = running(tmp_path, (OLD, OLD))
    begin(cluster, "hybmig")
    go(cluster, feed)
    cluster.publish([cluster.move("m.0", "transfer", [0, 2], 0, 1)])
    go(cluster, feed)
    if way == Way.HELD:
        for path in (cluster.checkpoint / "trimtab" / "transfers" / "m.0").iterdir():
            path.unlink()
        cluster.step(feed.rows(), feed.watermark, order=[1, 0])
    else:
        go(cluster, feed)
    cluster.go_way("m.0", Way.RECALLED)
    for _ in range(9):
        cluster.step(feed.rows(), feed.watermark, order=[1, 0])
    assert told(cluster).state == PlanState.SETTLED, "one window has gone by"
    assert record(cluster, 0).roles[0].state.startswith("export")
    cluster.go_way("m.0", way)
    go(cluster, feed)
    cluster.publish([])
    go(cluster, feed, 4)
    cluster.check()


def test_a_package_has_complete_states_only(tmp_path: Path) -> None:
    cluster, feed = running(tmp_path, (OLD, NEW))
    begin(cluster, "hybmig")
    go(cluster, feed, 2)
    assert cluster.last[0].plan_states.keys() >= {"A B", "B C"}
    cluster.publish([cluster.move("m.0", "transfer", [0], 0, 1)])
    rows = feed.rows()
    cluster.step({name: [*rows[name], (0, feed.now, 10_000)] for name in "ABC"}, feed.watermark)
    (package,) = cluster.transfers.packages("m.0")
    assert {frozenset(streams) for streams in package.combined} == {frozenset("AB")}
    go(cluster, feed)
    cluster.publish([], {0: 1})
    go(cluster, feed, 3)
    cluster.check()


def test_an_order_for_another_query_stops_the_worker(tmp_path: Path) -> None:
    cluster, feed = running(tmp_path)
    begin(cluster, "ms", "(A (B D))")
    with pytest.raises(CorruptState, match=r"plan order r\.1 is for another query"):
        go(cluster, feed)


def test_a_record_without_an_order_is_as_versions_before_have_it(tmp_path: Path) -> None:
    cluster, feed = running(tmp_path)
    text = cluster.durable[0].text
    assert text is not None and "order" not in json.loads(text)
    assert parse_record(text).order is None
    begin(cluster, "ms")
    go(cluster, feed)
    known = record(cluster, 0).order
    assert (
        known is not None
        and known.strategy is PlanStrategy.MS
        and parse_record(record(cluster, 0).to_text()).order == known
    )


def test_row_numbers_that_cuts_are_compared_with_run_out_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that nobody ends keeps the distance to its cuts."""
    cluster, feed = running(tmp_path)
    begin(cluster, "hybmig")
    go(cluster, feed)
    seen: list[tuple[bool, dict[str, int]]] = []
    original = Engine.worn.fget  # type: ignore[attr-defined]

    def worn(engine: Engine) -> bool:
        assert engine.migration is not None
        cuts = engine.migration.oldest_cut
        engine.migration.growing[frozenset("BC")].lacks = [{name: cut - 2**30 for name, cut in cuts.items()}]
        seen.append((original(engine), cuts))
        return seen[-1][0]

    monkeypatch.setattr(Engine, "worn", property(worn))
    go(cluster, feed)
    assert seen and seen[0][0] and set(seen[0][1]) == {"B", "C"}


@pytest.mark.parametrize("strategy", ["ms", "hybmig"])
def test_states_above_others_and_a_shared_one_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """ABC is in both plans: below it and above it lie tasks of their own (HybMig section 3.1)."""
    cluster, feed = running(tmp_path, ("((((A B) C) D) E)",), "ABCDE")
    original = Engine.saved

    def saved(engine: Engine) -> dict[str, object]:
        assert list(wrong_states(engine, [])) == []
        return original(engine)

    monkeypatch.setattr(Engine, "saved", saved)
    begin(cluster, strategy, "((D E) (A (B C)))", budget_ms=1)
    luck = random.Random(1)
    for _ in range(12):
        rows = {name: [row for row in each if luck.random() < 0.6] for name, each in feed.rows().items()}
        cluster.step(rows, feed.watermark)


def test_groups_that_were_made_whole_are_the_new_plans_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two growing states one has nothing old but in a frozen group; the other is computed while that comes back."""
    cluster = Cluster(tmp_path, "ABCD", WINDOW, 4, ("(((A B) C) D)",) * 2)
    cluster.checking = False
    cluster.clock = iter(range(0, 10**12, 10**8)).__next__  # one piece in a batch
    original = Engine.saved

    def saved(engine: Engine) -> dict[str, object]:
        assert list(wrong_states(engine, [])) == []
        return original(engine)

    monkeypatch.setattr(Engine, "saved", saved)
    numbers = iter(range(1000))

    def step(**rows: list[int]) -> None:
        cluster.step({name: [(key, 100, next(numbers)) for key in rows.get(name, [])] for name in "ABCD"}, 90)

    step(A=[0], B=[0] + 8 * [2], C=[0, 2], D=[0] + 8 * [2])
    cluster.publish([cluster.move("m.0", "transfer", [0], 0, 1)])
    step()
    begin(cluster, "hybmig", "((A C) (B D))", budget_ms=1)
    step(A=[0])
    go_through: list[set[str]] = []
    for way in (None, Way.RECALLED, Way.JOINED):
        if way is not None:
            cluster.go_way("m.0", way)
        step(C=[0])
        go_through.append(set(cluster.last[0].plan_states))
    cluster.publish([])
    step(A=[0, 2], C=[0, 2])
    assert all({"A B", "B D"} <= states for states in go_through)
    report = told(cluster)
    assert report.state == PlanState.MIGRATING and report.done > 0
    assert cluster.last[0].results > 3 and cluster.last[0].hit
    for _ in range(20):
        step(A=[0])
    assert told(cluster).state == PlanState.SETTLED
    cluster.check()
