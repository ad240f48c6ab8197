"""The watch sees every committed batch once, and takes nothing for committed that is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from balancing.protocols.migration import Migration, Request
from balancing.rules import Rules
from manager.settings import ManagerSettings
from manager.store import ManagerStore
from manager.watch import Watch
from tests.checkers.clock import ManualClock
from tests.simulation.data_plane import DataPlane
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis

SETTINGS = ManagerSettings(warm_up_batches=5)


@pytest.fixture
def plane(server: EmbeddedRedis) -> DataPlane:
    plane = DataPlane(server.url, weights=(5, 1, 1, 1, 1, 1))
    plane.store.client.flushall()
    plane.define()
    return plane


def runs(watch: Watch) -> bool:
    return watch.running


def settled(watch: Watch) -> bool:
    return watch.settled


def play(
    server: EmbeddedRedis,
    scenario: Callable[[ManagerStore, Watch, ManualClock], Awaitable[None]],
    query: str = "orders",
) -> None:
    async def whole() -> None:
        store, clock = ManagerStore(server.url), ManualClock()
        try:
            await scenario(store, Watch(store, query, SETTINGS, clock), clock)
        finally:
            await store.close()

    asyncio.run(whole())


def test_every_batch_is_seen_once_even_if_several_passed(server: EmbeddedRedis, plane: DataPlane) -> None:
    async def scenario(store: ManagerStore, watch: Watch, clock: ManualClock) -> None:
        assert await watch.look() == [] and not runs(watch) and not settled(watch)
        plane.step()
        assert [each.batch for each in await watch.look()] == [0]
        assert runs(watch) and settled(watch)
        for _ in range(3):
            plane.step()
        batches = await watch.look()
        assert [each.batch for each in batches] == [1, 2, 3]
        assert all(len(each.reports) == 3 and each.bound == plane.bound for each in batches)
        assert await watch.look() == []
        plane.step(crash=True)
        assert await watch.look() == [], "reported, but not committed"
        plane.step()
        assert [each.batch for each in await watch.look()] == [4]

    play(server, scenario)


def test_a_watch_that_could_not_look_for_long_sees_them_all(server: EmbeddedRedis, plane: DataPlane) -> None:
    """Only whoever begins is content with the newest ones."""

    async def scenario(store: ManagerStore, watch: Watch, clock: ManualClock) -> None:
        plane.step()
        await watch.look()
        for _ in range(3 * SETTINGS.warm_up_batches):
            plane.step()
        assert [each.batch for each in await watch.look()] == list(range(1, 3 * SETTINGS.warm_up_batches + 1))

    play(server, scenario)


def test_batches_in_between_have_the_epoch_that_their_reports_tell(server: EmbeddedRedis, plane: DataPlane) -> None:
    async def scenario(store: ManagerStore, watch: Watch, clock: ManualClock) -> None:
        plane.step()
        await watch.look()
        plane.step()
        plane.store.publish(plane.bound.successor(plane.owners, fence=1))
        await watch.look()
        assert not settled(watch), "published, but not bound"
        plane.step()
        plane.store.publish(plane.bound.successor(plane.owners, fence=2))
        plane.step()
        batches = await watch.look()
        assert [each.bound.number for each in batches] == [2, 3]
        assert settled(watch)

    play(server, scenario)


def test_a_late_starter_knows_the_load_at_once(server: EmbeddedRedis, plane: DataPlane) -> None:
    async def scenario(store: ManagerStore, watch: Watch, clock: ManualClock) -> None:
        for batch in range(12):
            plane.step()
            for worker, report in plane.store.reports("orders", batch).items():
                # As if batches took a second each.
                spaced = replace(report, at_ms=1_700_000_000_000 + 1000 * batch)
                key, field = redis_keys.report("orders", batch), f"{worker}:{report.stamp}"
                plane.store.client.hset(key, field, spaced.to_text())
        assert [each.batch for each in await watch.look()] == [7, 8, 9, 10, 11]
        snapshot = watch.snapshot({}, Rules(pinned=frozenset({4})))
        assert snapshot is not None
        # Stream A has as many rows of a group as its weight, stream B one.
        assert snapshot.group_rows[0] == pytest.approx(6, rel=0.1)
        assert snapshot.group_rows[1] == pytest.approx(2, rel=0.1)
        assert snapshot.pinned == {4} and snapshot.window_s == 3.0
        assert [each.alive for each in snapshot.workers] == [True] * 3
        assert [each.batch for each in await watch.past(3)] == list(range(3, 12))

    play(server, scenario)


def test_a_silent_worker_is_down_after_some_batches(server: EmbeddedRedis, plane: DataPlane) -> None:
    async def scenario(store: ManagerStore, watch: Watch, clock: ManualClock) -> None:
        plane.step()
        await watch.look()
        plane.silent = {1}
        for _ in range(2):
            plane.step()
        await watch.look()
        assert watch.up == {0, 1, 2}
        plane.step()
        await watch.look()
        assert watch.up == {0, 2}

    play(server, scenario)


def test_a_driver_is_judged_by_our_own_clock(server: EmbeddedRedis, plane: DataPlane) -> None:
    async def scenario(store: ManagerStore, watch: Watch, clock: ManualClock) -> None:
        plane.step()
        plane.store.client.hset(redis_keys.driver("orders"), "at_ms", "5")
        await watch.look()
        assert not runs(watch), "an old heartbeat, as far as one can tell"
        plane.store.client.hset(redis_keys.driver("orders"), "at_ms", "6")
        await watch.look()
        assert runs(watch), "its clock is wrong, but it is alive"
        clock.now_s += 29
        await watch.look()
        assert runs(watch)
        clock.now_s += 2
        await watch.look()
        assert not runs(watch)
        plane.step()
        await watch.look()
        assert runs(watch)

    play(server, scenario)


def test_an_epoch_that_redis_mixed_up_is_not_the_bound_one(server: EmbeddedRedis, plane: DataPlane) -> None:
    async def scenario(store: ManagerStore, watch: Watch, clock: ManualClock) -> None:
        plane.step()
        other = replace(plane.bound, owners=(1, 1, 1, 1, 1, 1))
        plane.store.restore(other)
        assert await watch.look() == [] and watch.bound is None and not settled(watch)
        plane.step()
        assert [each.batch for each in await watch.look()] == [0, 1]
        assert settled(watch)

    play(server, scenario)


def test_a_lost_definition_is_put_back(server: EmbeddedRedis, plane: DataPlane) -> None:
    async def scenario(store: ManagerStore, watch: Watch, clock: ManualClock) -> None:
        plane.step()
        await watch.look()
        known = await store.definition("orders")
        plane.store.client.delete(redis_keys.definition("orders"))
        await watch.look()
        assert await store.definition("orders") == known
        # But not that of an earlier life.
        plane.store.client.delete(redis_keys.definition("orders"))
        plane.store.restore(replace(plane.first, incarnation="another"))
        await watch.look()
        assert await store.definition("orders") is None

    play(server, scenario)


def test_a_query_that_begins_anew_is_measured_anew(server: EmbeddedRedis, plane: DataPlane) -> None:
    async def scenario(store: ManagerStore, watch: Watch, clock: ManualClock) -> None:
        for _ in range(6):
            plane.step()
        await watch.look()
        before = watch.load
        again = DataPlane(server.url, incarnation="another", partitions=4)
        again.step()
        assert [each.batch for each in await watch.look()] == [0]
        assert watch.load is not before
        snapshot = watch.snapshot({}, Rules())
        assert snapshot is not None and len(snapshot.owners) == 4

    play(server, scenario)


def test_each_batch_comes_with_the_confirmed_reports_of_the_one_before(server: EmbeddedRedis, plane: DataPlane) -> None:
    """An attempt that was never committed is among the attempts, and never among the confirmed reports."""

    async def scenario(store: ManagerStore, watch: Watch, clock: ManualClock) -> None:
        plane.step()
        (first,) = await watch.look()
        assert first.previous is None, "nothing was before it"
        plane.step(crash=True)
        plane.step()
        assert len(await store.attempts("orders", 1)) == 6
        plane.step()
        second, third = await watch.look()
        assert second.previous is not None and second.previous.batch == 0 and second.previous.previous is None
        assert second.previous.reports == first.reports
        assert third.previous is not None and third.previous.batch == 1
        committed = {report.stamp_before for report in third.reports.values()}
        assert {report.stamp for report in third.previous.reports.values()} == committed
        assert [each.previous for each in await watch.past(1)] == [second.previous, third.previous]

    play(server, scenario)


def test_a_worker_that_does_not_report_confirms_nothing(server: EmbeddedRedis, plane: DataPlane) -> None:
    async def scenario(store: ManagerStore, watch: Watch, clock: ManualClock) -> None:
        plane.step()
        plane.silent = {1}
        plane.step()
        (_, second) = await watch.look()
        assert second.previous is not None and set(second.previous.reports) == {0, 2}
        plane.silent = {0, 1, 2}
        plane.step()
        (third,) = await watch.look()
        assert third.previous is None and third.reports == {}

    play(server, scenario)


def test_a_previous_batch_has_the_epoch_that_it_was_bound_to(server: EmbeddedRedis, plane: DataPlane) -> None:
    async def scenario(store: ManagerStore, watch: Watch, clock: ManualClock) -> None:
        plane.step()
        plane.step()
        plane.store.publish(plane.bound.successor(plane.owners, fence=1))
        plane.step()
        newest = (await watch.look())[-1]
        assert newest.bound.number == 2 and newest.previous is not None and newest.previous.bound == plane.first

    play(server, scenario)


def test_the_situation_is_the_newest_epoch_with_what_is_under_way(server: EmbeddedRedis, plane: DataPlane) -> None:
    async def scenario(store: ManagerStore, watch: Watch, clock: ManualClock) -> None:
        rules = Rules(pinned=frozenset({4}))
        request = Request(groups=(0,))
        migration = Migration(
            id="m", query="orders", incarnation="abc", strategy="mslb", sender=0, receiver=1, request=request
        )
        assert watch.situation([migration], rules) is None, "nothing is known yet"
        plane.step()
        await watch.look()
        situation = watch.situation([migration], rules)
        assert situation is not None
        assert (situation.query, situation.workers, situation.epoch) == ("orders", 3, plane.bound)
        assert situation.moving == {0: "m"} and situation.rules == rules
        assert situation.up == {0, 1, 2} and not situation.stopped
        clock.now_s += 31
        await watch.look()
        stopped = watch.situation([], rules)
        assert stopped is not None and stopped.stopped

    play(server, scenario)
