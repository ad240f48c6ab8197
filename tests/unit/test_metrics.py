"""What a scrape says is what happened: counted once, by the leader, from reports that Spark has committed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from balancing.audit import MigrationAudit
from balancing.instructions import Write
from balancing.protocols.migration import StoryLine
from balancing.replans.replan import Replan
from balancing.replans.table import State as ReplanState
from balancing.requests import MoveRequest, RebalanceRequest
from balancing.steering import Steering
from manager import metrics
from manager.collecting import ManagerCollector
from manager.metrics import FAMILIES, Family, series_budget
from manager.observing import Observed
from manager.requests import enqueue
from manager.runner import QueryRunner, make_runner
from manager.service import ManagerService
from manager.settings import ManagerSettings
from manager.store import ManagerStore, now_ms
from manager.tally import Distribution
from tests.checkers.clock import ManualClock
from tests.checkers.migrations import parallel_track
from tests.checkers.scraped import Scraped
from tests.simulation.data_plane import DataPlane
from trimtab import __version__
from trimtab.driver_progress import DriverProgress
from trimtab.embedded import EmbeddedRedis
from trimtab.plan_orders import PlanStrategy
from trimtab.store import Store

pytestmark = pytest.mark.redis

WEIGHTS = (5, 1, 1, 1, 1, 1)
ROWS_PER_BATCH = sum(WEIGHTS) + len(WEIGHTS)
SETTINGS = ManagerSettings(warm_up_batches=5, lease_ttl_s=600.0)
"""A lease ends by the clock of Redis; the tests' own clock stands, and the machine may be slow."""


@dataclasses.dataclass
class Instance:
    """One manager of the query, moved on by hand."""

    runner: QueryRunner
    plane: DataPlane
    clock: ManualClock
    problem: str = ""

    @property
    def runners(self) -> Mapping[str, QueryRunner]:
        return {self.runner.query: self.runner}

    def not_ready(self) -> str:
        return self.problem

    async def batches(self, count: int, **how: bool) -> None:
        for _ in range(count):
            self.plane.step(**how)
            await self.runner.turn()

    async def ask(self, name: str, strategy: str, sender: int, receiver: int, groups: tuple[int, ...]) -> None:
        move = MoveRequest(sender=sender, receiver=receiver, groups=groups)
        request = RebalanceRequest(id=name, query="orders", moves=(move,), strategy=strategy, at_ms=now_ms())  # type: ignore[arg-type]
        await enqueue(self.runner.store.client, request)

    def scrape(self) -> Scraped:
        registry = CollectorRegistry()
        registry.register(ManagerCollector(self))
        return Scraped(generate_latest(registry).decode())


@pytest.fixture
def plane(server: EmbeddedRedis) -> DataPlane:
    with_data = DataPlane(server.url, weights=WEIGHTS)
    with_data.store.client.flushall()
    with_data.define()
    return with_data


def play(plane: DataPlane, scenario: Callable[[Instance], Awaitable[None]]) -> None:
    async def whole() -> None:
        store = ManagerStore(plane.store.url)
        try:
            await scenario(instance_of(store, plane))
        finally:
            await store.close()

    asyncio.run(whole())


def instance_of(store: ManagerStore, plane: DataPlane, holder: str = "me") -> Instance:
    clock = ManualClock()
    return Instance(make_runner(store, "orders", holder, SETTINGS, clock=clock), plane, clock)


def test_rows_are_counted_once_they_are_certain(plane: DataPlane) -> None:
    """Batch N is counted with batch N + 1; an attempt that was lost is not counted at all."""

    async def scenario(mine: Instance) -> None:
        await mine.batches(3)
        assert mine.scrape().sum("trimtab_worker_rows_total") == 2 * ROWS_PER_BATCH
        plane.step(crash=True)  # all workers report, and nothing of it is committed
        await mine.runner.turn()
        await mine.batches(2)
        page = mine.scrape()
        assert page.sum("trimtab_worker_rows_total") == 4 * ROWS_PER_BATCH
        assert page.sum("trimtab_worker_batches_total") == 4 * plane.workers
        assert page.sum("trimtab_worker_cpu_seconds_total") == pytest.approx(4 * ROWS_PER_BATCH / 1000)
        assert page.sum("trimtab_worker_results_total") > 0
        assert page.value("trimtab_query_committed_batch", query="orders") == 4
        assert page.value("trimtab_query_up", query="orders") == 1
        assert page.sum("trimtab_worker_groups") == len(WEIGHTS)
        assert page.value("trimtab_worker_info", query="orders", worker=1, executor="1") == 1
        assert page.value("trimtab_worker_plan_info", query="orders", worker=0, plan="(A B)") == 1

    play(plane, scenario)


def test_batches_of_a_time_without_redis_are_counted_too(plane: DataPlane) -> None:
    """A leader that has to read its journal again acts on the newest batch only, and counts all."""

    async def scenario(mine: Instance) -> None:
        await mine.batches(2)
        mine.runner.doubt("Redis does not answer")
        assert mine.scrape().value("trimtab_manager_failing", query="orders") == 1
        for _ in range(4):
            plane.step()
        await mine.runner.turn()
        assert mine.scrape().sum("trimtab_worker_rows_total") == 5 * ROWS_PER_BATCH

    play(plane, scenario)


def test_only_the_leader_speaks_for_a_query(plane: DataPlane) -> None:
    async def scenario(mine: Instance) -> None:
        other = instance_of(mine.runner.store, plane, "other")
        await mine.batches(3)
        await other.runner.turn()
        assert set(mine.scrape().about("orders"))
        standby = other.scrape()
        assert not set(standby.about("orders"))
        assert standby.value("trimtab_manager_leading", query="orders") == 0
        assert standby.value("trimtab_build_info", version=__version__) == 1
        # The leader goes; the other begins at zero, and does not count what the first has counted.
        await mine.runner.lease.release()
        assert not set(mine.scrape().about("orders")), "its series are gone with the lease"
        await other.runner.turn()
        await other.batches(2)
        page = other.scrape()
        assert page.value("trimtab_manager_leader_changes_total", query="orders") == 1
        assert page.sum("trimtab_worker_rows_total") == 2 * ROWS_PER_BATCH
        assert page.value("trimtab_query_fence", query="orders") == 2

    play(plane, scenario)


def test_series_vanish_when_the_query_stops_and_come_back_with_it(plane: DataPlane) -> None:
    async def scenario(mine: Instance) -> None:
        await mine.batches(3)
        for _ in range(8):
            mine.clock.now_s += 4.0  # the lease is renewed, and the driver is silent
            await mine.runner.turn()
        page = mine.scrape()
        assert not set(page.about("orders"))
        assert page.value("trimtab_manager_leading", query="orders") == 1
        await mine.batches(1)
        assert mine.scrape().sum("trimtab_worker_rows_total") == 3 * ROWS_PER_BATCH

    play(plane, scenario)


@pytest.mark.parametrize("strategy", ["mslb", "ptlb"])
def test_a_migration_with_its_steps(plane: DataPlane, strategy: str) -> None:
    async def scenario(mine: Instance) -> None:
        await mine.batches(4)
        await mine.ask("r1", strategy, 0, 2, (0,))
        await mine.batches(1)
        page = mine.scrape()
        assert page.value("trimtab_migrations_open", query="orders", strategy=strategy) == 1
        await mine.batches(16)
        page = mine.scrape()
        assert plane.owners[0] == 2
        assert page.value("trimtab_migrations_open", query="orders", strategy=strategy) == 0
        ends = page.all("trimtab_migrations_total", strategy=strategy)
        assert sum(ends.values()) == 1
        assert page.value("trimtab_migrations_total", query="orders", strategy=strategy, outcome="committed") == 1
        assert page.value("trimtab_rebalances_total", query="orders", by="operator", state="committed") == 1
        for step in metrics.STEPS[strategy].values():
            found = page.value("trimtab_migration_step_seconds_count", query="orders", strategy=strategy, step=step)
            assert found == (0 if step.startswith("back") else 1), step
        packed = page.value("trimtab_migration_bytes_total", query="orders", side="packed")
        duplicated = page.value("trimtab_migration_duplicated_rows_total", query="orders")
        assert (packed > 0, duplicated > 0) == ((True, False) if strategy == "mslb" else (False, True))
        assert page.value("trimtab_audit_checked_rows_total", query="orders") > 0
        assert page.value("trimtab_audit_problems_total", query="orders") == 0
        assert page.value("trimtab_events_total", query="orders", kind="step") >= 5
        assert page.value("trimtab_events_total", query="orders", kind="other") == 0

    play(plane, scenario)


def test_a_transfer_store_that_fails_and_a_request_that_is_refused(plane: DataPlane) -> None:
    async def scenario(mine: Instance) -> None:
        await mine.batches(4)
        plane.transfers.broken = True
        await mine.ask("r1", "mslb", 0, 2, (0,))
        await mine.batches(6)
        await mine.ask("r2", "mslb", 0, 2, (1,))  # not a group of worker 0
        await mine.batches(1)
        page = mine.scrape()
        assert page.value("trimtab_transfer_store_failures_total", query="orders", failure="refused") == 1
        outcome = {"query": "orders", "strategy": "mslb", "outcome": "rolled-back"}
        assert page.value("trimtab_migrations_total", **outcome) == 1
        assert page.value("trimtab_rebalances_total", query="orders", by="operator", state="refused") == 1
        assert page.value("trimtab_rebalances_refused_total", query="orders", field="groups") == 1

    play(plane, scenario)


def test_alarms_are_counted_whoever_raised_them(plane: DataPlane) -> None:
    async def scenario(mine: Instance) -> None:
        store = mine.runner.store
        old = {"at_ms": now_ms() - metrics.ALARMS_RECENT_MS - 1, "kind": "protocol", "text": "long ago"}
        plane.store.client.lpush("trimtab:{orders}:alarms", json.dumps(old))
        plane.store.alarm("orders", "redis-away", "while nobody led")
        await asyncio.sleep(0.002)
        await mine.batches(2)
        observed = mine.runner.observed
        observed.alarmed(await store.alarms("orders"))
        assert mine.scrape().value("trimtab_alarms_recent", query="orders", kind="redis-away") == 1
        plane.store.alarm("orders", "redis-went-back", "from the driver")
        plane.store.alarm("orders", "<b>unheard of</b>", "from somebody")
        for _ in range(2):
            observed.alarmed(await store.alarms("orders"))
        page = mine.scrape()
        assert page.sum("trimtab_alarms_recent") == 3
        assert page.value("trimtab_alarms_recent", query="orders", kind="redis-went-back") == 1
        assert page.value("trimtab_alarms_recent", query="orders", kind="other") == 1
        # Another leader says the same.
        await mine.runner.lease.release()
        other = instance_of(store, plane, "other")
        await other.batches(1)
        other.runner.observed.alarmed(await store.alarms("orders"))
        assert other.scrape().sum("trimtab_alarms_recent") == 3

    play(plane, scenario)


def test_a_query_whose_epochs_are_gone_is_missed_by_nobody(plane: DataPlane) -> None:
    """Nobody can lead it: an alert about that would never end."""

    async def scenario(mine: Instance) -> None:
        await mine.batches(2)
        assert mine.scrape().value("trimtab_manager_leading", query="orders") == 1
        await mine.runner.lease.release()
        standby = instance_of(mine.runner.store, plane, "other")
        await standby.runner.watch.look()
        assert standby.scrape().value("trimtab_manager_leading", query="orders") == 0
        for name in plane.store.client.scan_iter("trimtab:{orders}:*"):
            plane.store.client.delete(name)
        plane.store.define("orders", {"workers": 2})
        await standby.runner.turn()
        assert "trimtab_manager_leading" not in standby.scrape().names()

    play(plane, scenario)


def test_the_series_of_a_query_vanish_when_it_ends_or_its_driver_is_gone(plane: DataPlane) -> None:
    """However long its batches take: its process says that it is alive, or that Spark has ended it."""

    async def scenario(mine: Instance) -> None:
        plane.step()
        plane.store.client.hset("trimtab:{orders}:driver", "gap_ms", "600000")
        plane.store.pulse("orders")
        await mine.runner.turn()
        assert "trimtab_query_up" in mine.scrape().names()
        mine.clock.now_s += 29
        await asyncio.sleep(0.002)
        plane.store.pulse("orders")  # in the middle of a batch
        await mine.runner.turn()
        mine.clock.now_s += 29
        await mine.runner.turn()
        assert "trimtab_query_up" in mine.scrape().names()
        mine.clock.now_s += 2
        await mine.runner.turn()
        assert "trimtab_query_up" not in mine.scrape().names(), "killed"
        await mine.batches(1)
        assert "trimtab_query_up" in mine.scrape().names()
        plane.store.ended("orders")
        await mine.runner.turn()
        assert "trimtab_query_up" not in mine.scrape().names(), "ended"
        await mine.batches(1)
        assert "trimtab_query_up" in mine.scrape().names(), "started again"

    play(plane, scenario)


def test_alarms_that_are_none_stop_nobody(plane: DataPlane) -> None:
    """Whoever can write to Redis can write anything."""

    async def scenario(mine: Instance) -> None:
        service = ManagerService(mine.runner.store, SETTINGS, runner_for=lambda _: mine.runner)
        await mine.batches(1)
        service.runners["orders"] = mine.runner
        for text in ("not json", '["no object"]', '{"at_ms": "soon", "kind": [], "text": 1}'):
            plane.store.client.lpush("trimtab:{orders}:alarms", text)
            await service._count_alarms()
        assert mine.scrape().sum("trimtab_alarms_recent") == 0

    play(plane, scenario)


def test_what_the_driver_says(plane: DataPlane) -> None:
    async def scenario(mine: Instance) -> None:
        await mine.batches(1)
        page = mine.scrape()
        assert "trimtab_query_input_rows_per_second" not in page.names(), "nothing is known yet"
        plane.store.progress("orders", DriverProgress(batch=0, batch_ms=700, rows_per_s=12.5, backlog=None))
        await mine.batches(2)  # heard twice, one batch
        page = mine.scrape()
        assert page.value("trimtab_query_last_batch_duration_seconds", query="orders") == 0.7
        assert page.value("trimtab_query_batch_duration_seconds_count", query="orders") == 1
        assert page.value("trimtab_query_batch_duration_seconds_bucket", query="orders", le="1.0") == 1
        assert page.value("trimtab_query_batch_duration_seconds_bucket", query="orders", le="0.5") == 0
        assert page.value("trimtab_query_input_rows_per_second", query="orders") == 12.5
        assert "trimtab_query_source_backlog_rows" not in page.names(), "no source tells"
        lags = {"A": 4700, "B": 11}
        plane.store.progress("orders", DriverProgress(batch=2, batch_ms=900, rows_per_s=1.0, backlog=4711, lags=lags))
        await mine.batches(1)
        page = mine.scrape()
        assert page.value("trimtab_query_source_backlog_rows", query="orders") == 4711
        assert page.value("trimtab_query_stream_lag_rows", query="orders", stream="B") == 11
        assert page.value("trimtab_query_batch_duration_seconds_sum", query="orders") == pytest.approx(1.6)

    play(plane, scenario)


def test_the_load_as_the_triggers_see_it(plane: DataPlane) -> None:
    async def scenario(mine: Instance) -> None:
        for _ in range(8):
            plane.step()
            await asyncio.sleep(0.005)  # a batch takes time, or it has no rate
            await mine.runner.turn()
        page = mine.scrape()
        ratio = page.value("trimtab_query_imbalance_ratio", query="orders")
        picture = mine.runner.observed.load
        assert picture is not None and ratio == picture.ratio > 1.0
        buckets = page.all("trimtab_query_group_load_ratio_bucket")
        assert max(buckets.values()) == len(WEIGHTS) and len(buckets) == len(metrics.GROUP_LOAD_BUCKETS) + 1
        assert page.value("trimtab_query_group_load_ratio_sum", query="orders") == pytest.approx(len(WEIGHTS))
        # One group has more than twice the mean load, the others have less.
        assert page.value("trimtab_query_group_load_ratio_bucket", query="orders", le="2.0") == len(WEIGHTS) - 1
        assert page.sum("trimtab_worker_load_ratio") == pytest.approx(plane.workers)
        assert page.value("trimtab_query_auto", query="orders") == 0
        assert page.value("trimtab_balancer_decision", query="orders", code="off") == 1
        assert page.value("trimtab_balancer_decisions_total", query="orders", code="off") > 0
        assert page.value("trimtab_balancer_decisions_total", query="orders", code="act") == 0

    play(plane, scenario)


def test_forecast_against_outcome(plane: DataPlane) -> None:
    async def scenario(mine: Instance) -> None:
        store = mine.runner.store
        settings = dataclasses.replace(await store.auto("orders"), auto=True, cool_down_s=0.0, min_busy=0.0)
        await store.set_auto("orders", settings)
        for batch in range(40):
            plane.store.progress("orders", DriverProgress(batch=batch, batch_ms=1000, rows_per_s=1.0, backlog=None))
            plane.step()
            await asyncio.sleep(0.005)
            mine.clock.now_s += 0.5  # what was measured is written about once a second
            await mine.runner.turn()
        page = mine.scrape()
        assert page.value("trimtab_rebalances_total", query="orders", by="balancer", state="committed") > 0
        for name in ("seconds", "pause_seconds", "bytes", "imbalance_ratio"):
            for of in ("forecast", "outcome"):
                assert page.value(f"trimtab_rebalance_last_{name}", query="orders", of=of) >= 0

    play(plane, scenario)


def test_every_series_is_in_the_table_and_none_is_beyond_the_budget(plane: DataPlane) -> None:
    async def scenario(mine: Instance) -> None:
        plane.store.progress("orders", DriverProgress(batch=0, batch_ms=700, rows_per_s=12.5, backlog=1))
        await mine.batches(6)
        page = mine.scrape()
        known = {sample for family in FAMILIES.values() for sample in family.sample_names}
        assert page.names() <= known
        budget = series_budget()
        assert len(list(page.about("orders"))) <= budget.of_query(plane.workers)
        by_family = dict.fromkeys(FAMILIES, 0)
        for name, _ in page.about("orders"):
            family = next(each for each in FAMILIES.values() if name in each.sample_names)
            by_family[family.name] += 1
        for name, count in by_family.items():
            per = plane.workers if FAMILIES[name].scope == "worker" else 1
            assert count <= budget.families[name] * per, name

    play(plane, scenario)


def test_hostile_names_are_text(server: EmbeddedRedis) -> None:
    """Query and executor names that were written straight into Redis: markup, line ends, direction marks, ESC."""
    name = 'x"} 1\ntrimtab_forged_total{a="\\\u202e\x1b[31m<b>'
    plane = DataPlane(server.url, query=name, incarnation="abc")

    async def scenario() -> None:
        store = ManagerStore(plane.store.url)
        runner = make_runner(store, name, "me", SETTINGS)
        mine = Instance(runner, plane, ManualClock())
        await mine.batches(3)
        page = mine.scrape()
        shown = 'x"} 1\\x0atrimtab_forged_total{a="\\\\u202e\\x1b[31m<b>'
        assert page.value("trimtab_query_up", query=shown) == 1
        assert "trimtab_forged_total" not in page.names()
        await store.close()

    asyncio.run(scenario())


def test_what_is_written_again_does_not_count_again() -> None:
    """Redis went back, and the leader writes its records again; or another leader reads them."""
    begun = StoryLine(at_ms=1_000, wave=0, step=1, message="ComputePartitionsToMove", state="choosing")
    ended = StoryLine(at_ms=3_500, wave=0, step=0, message="StoreRefused", state="rolled-back")
    first = dataclasses.replace(parallel_track(), strategy="mslb", waves=(), story=(begun,), outcome="")
    last = dataclasses.replace(first, story=(begun, ended), outcome="rolled-back", audit=MigrationAudit(lost=2))
    observed = Observed()
    for migration in (first, last, last):
        observed.did(Write(then=Steering(query="orders"), migrations=(migration,)))
    observed.knows(Steering(query="orders", ended=(last,)))
    assert observed.steps.value(("mslb", "1 choosing")) == (1, 2.5)
    assert observed.tally.value(metrics.MIGRATIONS, "mslb", "rolled-back") == 1
    assert observed.tally.value(metrics.STORE_FAILED, "refused") == 1
    assert observed.tally.value(metrics.AUDIT_LOST) == 2
    successor = Observed()
    successor.knows(Steering(query="orders", ended=(last,)))
    successor.did(Write(then=Steering(query="orders"), migrations=(last,)))
    assert successor.tally.value(metrics.MIGRATIONS, "mslb", "rolled-back") == 0
    assert successor.tally.value(metrics.AUDIT_LOST) == 0


def test_changes_of_plans_are_counted_once_with_their_time() -> None:
    observed = Observed()
    done = Replan(
        id="p1", query="orders", worker=0, plan="b", strategy=PlanStrategy.HYBMIG, state=ReplanState.COMMITTED,
        created_ms=1_000, closed_ms=5_500,
    )  # fmt: skip
    known = Steering(query="orders")
    observed.did(Write(then=known, replans=(dataclasses.replace(done, state=ReplanState.MIGRATING, closed_ms=None),)))
    for _ in range(2):
        observed.did(Write(then=known, replans=(done,)))
    assert observed.tally.value(metrics.REPLANS, "hybmig", "committed") == 1
    assert observed.tally.value(metrics.REPLAN_SECONDS, "hybmig", "committed") == 4.5
    successor = Observed()
    successor.knows(Steering(query="orders", ended_replans=(done,)))
    successor.did(Write(then=known, replans=(done,)))
    assert successor.tally.value(metrics.REPLANS, "hybmig", "committed") == 0


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: str(family.name))
def test_names_tell_type_and_unit(family: Family) -> None:
    assert family.name.startswith("trimtab_")
    assert (family.kind == "counter") == family.name.endswith("_total")
    assert family.help.endswith(".")
    if family.unit:
        assert f"_{family.unit}" in family.name, "a unit belongs in the name"
    if family.labels and family.choices:
        assert all(len(combination) == len(family.labels) for combination in family.choices)
        assert len(set(family.choices)) == len(family.choices)


def test_a_distribution_counts_up_to_each_limit() -> None:
    seconds = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 7.0):
        seconds.add(value)
    assert (seconds.cumulative(), seconds.sum) == ([2, 3, 4], 10.0)


def test_the_heartbeat_ignores_what_is_not_a_number(plane: DataPlane) -> None:
    async def scenario(mine: Instance) -> None:
        plane.step()
        for rate in ("many", "nan", "inf", "-1e999"):
            plane.store.client.hset(
                "trimtab:{orders}:driver",
                mapping={"batch_ms": "soon", "backlog": "<b>", "lags": "[3]", "rows_per_s": rate},
            )
            heard = await mine.runner.store.heartbeat("orders")
            assert heard is not None and (heard.batch_ms, heard.backlog, heard.rows_per_s) == (None, None, None)
            assert heard.lags == {}

    play(plane, scenario)


def test_progress_stays_beside_the_signs_of_life(plane: DataPlane) -> None:
    """Both write to one hash, from two processes; neither takes away what the other wrote."""
    plane.step()
    Store(plane.store.url).progress("orders", DriverProgress(batch=0, batch_ms=5, rows_per_s=2.0, backlog=None))
    plane.step()
    fields = plane.store.client.hgetall("trimtab:{orders}:driver")
    assert (fields["committed"], fields["batch_ms"], fields["backlog"]) == ("1", "5", "")
