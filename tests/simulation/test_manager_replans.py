"""How a worker comes to another plan: there and back, beside moves, with managers that die and a Redis that forgets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import redis

from balancing.replans.replan import Replan
from balancing.replans.requests import CancelReplan, ReplanRequest
from balancing.replans.table import State
from balancing.rules import Rules
from balancing.settings import Settings
from manager.requests import enqueue
from tests.simulation.managers import Killer, World, move
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis

OLD, NEW = "((A B) C)", "((A C) B)"
POINTS = ("replan", "replan:orderplan", "replan:migrating", "replan:settled", "replan:close", "replan:ranalone")


class Planned(World):
    """Three streams, so that there is more than one plan."""

    def __init__(self, server: EmbeddedRedis, **shape: Any) -> None:
        super().__init__(server, streams="ABC", **shape)

    async def replan(self, id: str = "p1", **changes: Any) -> str:
        fields = {"worker": 1, "plan": NEW, "strategy": "ms", "reason": "test", "by": "tester", **changes}
        await enqueue(self.store.client, ReplanRequest(id=id, query=self.query, **fields))
        return id

    async def take_back(self, id: str = "p1") -> None:
        await enqueue(self.store.client, CancelReplan(id="c", query=self.query, replan=id, by="tester"))

    async def record(self, id: str = "p1") -> Replan:
        record = await self.store.replan(self.query, id)
        assert record is not None
        return record

    async def is_in(self, *states: State, id: str = "p1") -> bool:
        record = await self.store.replan(self.query, id)
        return record is not None and record.state in states

    async def replanned(self, id: str = "p1") -> Replan:
        async def is_done() -> bool:
            record = await self.store.replan(self.query, id)
            return record is not None and record.done

        await self.until(is_done, f"the end of {id}")
        return await self.record(id)

    def follow(self, worker: int = 1, **changes: Any) -> None:
        """Change what a worker's record says."""
        self.plane.plays_orders = True
        self.plane.followers[worker] = replace(self.plane.followers[worker], **changes)

    def plan(self, worker: int = 1) -> str:
        return self.plane.followers[worker].plan


@pytest.mark.parametrize("strategy", ["ms", "hybmig"])
def test_there_and_back(server: EmbeddedRedis, raw: redis.Redis, strategy: str) -> None:
    async def scenario() -> None:
        async with Planned(server) as world:
            world.manager("m")
            await world.replan(strategy=strategy)
            record = await world.replanned()
            assert (record.state, record.former, record.plan) == (State.COMMITTED, OLD, NEW)
            assert [line.message for line in record.story if line.message != "Migrating"] == [
                "Accept", "OrderPlan", "Settled", "Close", "RanAlone",
            ]  # fmt: skip
            await world.replan("p2", plan=OLD)
            assert (await world.replanned("p2")).state == State.COMMITTED
            assert world.plan() == OLD
            world.check()
            closed = [name for name, _ in await world.store.history(world.query)]
            assert set(closed) == {"replan:p1", "replan:p2"}
            kinds = [event.kind for event in await world.store.newest_events(world.query, 1000)]
            assert {"replan", "finished"} <= set(kinds)

    asyncio.run(scenario())


def test_cancelled_in_mid_migration(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """The epoch orders the old plan, and that is followed until the worker has settled on it."""

    async def scenario() -> None:
        async with Planned(server) as world:
            world.manager("m")
            world.follow(stands=True)
            await world.replan(strategy="hybmig")
            await world.until(lambda: world.is_in(State.MIGRATING), "the migration")
            await world.take_back()
            record = await world.replanned()
            assert (record.state, record.problem) == (State.CANCELLED, "cancelled by tester")
            order = world.plane.bound.order(1)
            assert order is not None and (order.id, order.plan) == ("p1.p2", OLD)
            assert world.plan() == OLD
            await world.take_back()
            await world.take_back("nobody")
            await world.replan("p2")
            assert (await world.replanned("p2")).state == State.COMMITTED

    asyncio.run(scenario())


def test_an_idle_stream_falls_back_to_moving_state(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with Planned(server) as world:
            world.manager("m", stalled_s=0.05)
            world.plane.watermark_stalls = True
            world.follow(stands=True)
            await world.replan(strategy="hybmig")
            record = await world.replanned()
            assert (record.state, record.strategy) == (State.COMMITTED, "ms")
            assert "FallBack" in [line.message for line in record.story]
            order = world.plane.bound.order(1)
            assert order is not None and (order.id, order.strategy) == ("p1.p1", "ms")

    asyncio.run(scenario())


def test_refused_and_nothing_changes(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with Planned(server) as world:
            world.manager("m")
            await world.store.set_rules(world.query, Rules(plans=frozenset({2})))
            world.follow(stands=True)
            await world.replan(strategy="hybmig")
            await world.until(lambda: world.is_in(State.MIGRATING), "the migration")
            epoch = world.plane.bound
            for name, fields, said in (
                ("p2", {}, "is in replan p1"),
                ("p3", {"worker": 2}, "pinned"),
                ("p4", {"worker": 0, "plan": "((A B) D)"}, "joins A, B, D"),
                ("p5", {"worker": 0, "plan": OLD}, "has already"),
            ):
                await world.replan(name, **fields)
                record = await world.replanned(name)
                assert record.state == State.REFUSED and said in record.problem
            assert world.plane.bound == epoch
            await world.replan()  # a duplicate
            await world.take_back()
            assert (await world.replanned()).state == State.CANCELLED

    asyncio.run(scenario())


@pytest.mark.parametrize("strategy", ["mslb", "ptlb"])
def test_beside_a_move(server: EmbeddedRedis, raw: redis.Redis, strategy: str) -> None:
    """Under PTLB no restriction; with MSLB an order waits for the wave that is open."""

    async def scenario() -> None:
        async with Planned(server) as world:
            world.manager("m")
            await world.ask(move(), strategy=strategy)
            await world.until(lambda: world.plane.bound.moves, "an open move")
            await world.replan()
            await world.replan("p2", worker=2)
            assert (await world.ended()).state == "committed"
            assert (await world.replanned()).state == (await world.replanned("p2")).state == State.COMMITTED
            world.check()
            first = next(epoch for epoch in world.plane.offsets if epoch.order(1))
            assert not any(each.kind == "transfer" for each in first.moves)
            other = next(epoch for epoch in world.plane.offsets if epoch.order(2))
            assert other.moves, "worker 2 has no part in it"

    asyncio.run(scenario())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", POINTS)
def test_a_manager_dies_at_each_step(server: EmbeddedRedis, raw: redis.Redis, point: str, when: str) -> None:
    async def scenario() -> None:
        async with Planned(server) as world:
            world.plane.plays_orders = True
            killer = Killer(f"{when}:{point}")
            world.manager("first", killer)
            await world.replan()
            await world.until(lambda: world.tasks["first"].done(), "its death")
            world.manager("second")
            assert (await world.replanned()).state == State.COMMITTED
            assert world.plan() == NEW and world.plane.bound.number == 2

    asyncio.run(scenario())


def test_a_journal_that_is_gone(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """The bound epoch is enough: forward, and back."""

    async def scenario() -> None:
        async with Planned(server) as world:
            world.manager("m")
            world.follow(stands=True)
            await world.replan(strategy="hybmig")
            await world.until(lambda: world.is_in(State.MIGRATING), "the migration")
            await world.stop("m")
            raw.flushall()
            world.plane.define()
            world.manager("n")
            await world.until(lambda: world.is_in(State.MIGRATING), "its adoption")
            assert (await world.record()).adopted
            await world.take_back()
            record = await world.replanned()
            assert record.state == State.CANCELLED and world.plan() == OLD

    asyncio.run(scenario())


def test_redis_forgets_under_a_leader(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with Planned(server) as world:
            world.manager("m")
            world.follow(stands=True)
            await world.replan(strategy="hybmig")
            await world.until(lambda: world.is_in(State.MIGRATING), "the migration")
            record = await world.record()
            raw.delete(f"trimtab:{{{world.query}}}:replans", f"trimtab:{{{world.query}}}:events")
            await world.until(lambda: world.is_in(State.MIGRATING), "the record, written again")
            assert await world.record() == record
            world.follow(stands=False)
            assert (await world.replanned()).state == State.COMMITTED

    asyncio.run(scenario())


def test_the_query_begins_anew(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with Planned(server) as world:
            world.manager("m")
            world.follow(stands=True)
            await world.replan(strategy="hybmig")
            await world.until(lambda: world.is_in(State.MIGRATING), "the migration")
            world.begin_anew()
            record = await world.replanned()
            assert (record.state, record.problem) == (
                State.SUPERSEDED,
                "the query was started again with another checkpoint",
            )
            assert not world.plane.bound.plans

    asyncio.run(scenario())


def test_the_optimiser_acts_by_itself_and_comes_to_rest(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """Plans of all workers before groups move; then what follows is measured anew."""

    async def scenario() -> None:
        async with Planned(server, window=2) as world:
            world.plane.rates |= {"B": 6}
            world.plane.one_in = 100_000
            world.manager("m", advise_s=0.0)
            eager = Settings(plans=True, plan_hold_s=0.0, plan_horizon_s=1e6, plan_memory_bytes=10**12)
            await world.store.set_auto(world.query, eager)

            async def all_have_changed() -> bool:
                ended = await world.store.replans(world.query)
                return sum(each.state == State.COMMITTED for each in ended.values()) >= 3

            await world.until(all_have_changed, "changes of all plans")
            made = list((await world.store.replans(world.query)).values())
            assert {each.worker for each in made} == {0, 1, 2} and all(each.by == "optimiser" for each in made)
            assert all(each.forecast and each.forecast["saves"] > 0 for each in made)
            batch = world.plane.committed
            await world.until(lambda: world.plane.committed > batch + 20, "some batches more")
            assert len(await world.store.replans(world.query)) == 3, "it rests"
            world.check()

    asyncio.run(scenario())
