"""The balancer acts by itself where it is told to, and only then; the service finds queries and lets go of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import redis

from balancing.rules import Rules
from balancing.settings import Settings
from manager.service import ManagerService, holder_name
from manager.snapshots import load_snapshot
from manager.store import ManagerStore
from tests.simulation.data_plane import DataPlane
from tests.simulation.managers import QUICK, World, move, reached
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis

EAGER = Settings(auto=True, cool_down_s=0.0, min_batches=3, min_busy=0.0, max_pause_ms=1000.0)
SKEWED = (8, 1, 8, 1, 8, 1, 8, 1)
"""Rows by group. Even groups belong to worker 0 of two."""


def skewed(server: EmbeddedRedis, **shape: Any) -> World:
    return World(server, **{"partitions": 8, "workers": 2, "weights": SKEWED, "window": 2, **shape})


def loads(plane: DataPlane) -> list[int]:
    return [
        sum(weight for weight, owner in zip(plane.weights, plane.owners, strict=True) if owner == worker)
        for worker in range(plane.workers)
    ]


def leads(service: ManagerService, query: str) -> bool:
    return query in service.runners and service.runners[query].leading


async def automatic(world: World) -> list[str]:
    """States of the rebalances that nobody asked for, oldest first."""
    found = list((await world.store.rebalances(world.query)).values())
    return [each.state for each in sorted(found, key=lambda each: each.created_ms) if each.automatic]


@pytest.mark.parametrize("strategy", ["auto", "ptlb", "mslb"])
def test_it_levels_a_skewed_load(server: EmbeddedRedis, raw: redis.Redis, strategy: str) -> None:
    async def scenario() -> None:
        async with skewed(server) as world:
            world.manager("m")
            await world.store.set_auto(world.query, replace(EAGER, strategy=strategy))
            assert loads(world.plane) == [32, 4]
            await world.until(lambda: max(loads(world.plane)) <= 20, "a level load")
            await world.until(lambda: not world.plane.bound.moves, "its end")
            rebalances = await world.store.rebalances(world.query)
            first = min(rebalances.values(), key=lambda each: each.created_ms)
            assert first.by == "balancer" and "times the mean" in first.reason
            proposal = await world.store.proposal(world.query, first.request["proposal"])
            assert proposal is not None and proposal.forecast
            world.check()

    asyncio.run(scenario())


def test_pairwise_levels_executors_that_tie(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """The paper's policy by itself: two executors with the largest load have their turns one after the other."""

    async def scenario() -> None:
        async with skewed(server, workers=4, executors=4, weights=(8, 8, 1, 1, 8, 8, 1, 1)) as world:
            world.manager("m")
            await world.store.set_auto(world.query, replace(EAGER, policy="pairwise", strategy="mslb"))
            assert loads(world.plane) == [16, 16, 2, 2]
            await world.until(lambda: max(loads(world.plane)) <= 10, "a level load")
            await world.until(lambda: not world.plane.bound.moves, "its end")
            assert len(await automatic(world)) >= 2
            world.check()

    asyncio.run(scenario())


def test_it_does_nothing_unless_told(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with skewed(server) as world:
            world.manager("m")

            async def decided() -> bool:
                return (await world.store.decision(world.query) or {}).get("code") == "off"

            await world.until(decided, "a decision")
            committed = world.plane.committed
            await world.until(lambda: world.plane.committed > committed + 20, "twenty batches")
            assert await world.store.rebalances(world.query) == {}
            assert world.plane.bound.number == 1
            snapshot = await load_snapshot(world.store.client, world.query)
            assert snapshot is not None and snapshot.group_rows[0] > 4 * snapshot.group_rows[1] > 0

    asyncio.run(scenario())


def test_it_waits_for_a_rebalance_that_is_under_way(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with skewed(server, window=20, weights=(12, 1, 12, 1, 12, 1, 12, 1)) as world:
            world.manager("m")
            await world.ask(move(0, 1, (0,)), strategy="ptlb")
            await world.until(lambda: world.plane.bound.moves, "the move being open")
            await world.store.set_auto(world.query, replace(EAGER, strategy="mslb"))
            committed = world.plane.committed
            await world.until(lambda: world.plane.committed > committed + 10, "ten batches")
            assert await automatic(world) == [] and not await world.is_closed()
            await world.until(world.is_closed, "the end of what was asked for")

            async def has_acted() -> bool:
                return "committed" in await automatic(world)

            await world.until(has_acted, "its turn")
            world.check()

    asyncio.run(scenario())


def test_it_honours_pins_and_exclusions(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with skewed(server, workers=4) as world:
            world.manager("m")
            await world.store.set_rules(world.query, Rules(pinned=frozenset({0}), excluded=frozenset({3})))
            await world.store.set_auto(world.query, replace(EAGER, strategy="mslb"))

            async def has_acted() -> bool:
                return "committed" in await automatic(world)

            await world.until(has_acted, "a rebalance")
            assert world.plane.owners[0] == 0 and world.plane.owners[3] == 3 and world.plane.owners[7] == 3
            assert world.plane.owners.count(3) == 2
            world.check()

    asyncio.run(scenario())


def test_the_next_leader_keeps_the_rest(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """The cool-down is the query's, not a manager's: a take-over is no reason to act again."""

    async def scenario() -> None:
        async with skewed(server) as world:
            world.manager("first")
            await world.store.set_auto(
                world.query, replace(EAGER, cool_down_s=3600.0, start_ratio=1.01, stop_ratio=1.0)
            )

            async def resting() -> bool:
                decision = await world.store.decision(world.query) or {}
                return decision.get("code") == "cooling-down" and bool(await world.store.migrations(world.query))

            await world.until(resting, "the rest after a rebalance")
            count = len(await automatic(world))
            await world.stop("first")
            second = world.manager("second")
            await world.until(lambda: second.leading, "the second manager leading")
            committed = world.plane.committed
            await world.until(lambda: world.plane.committed > committed + 10, "ten batches")
            assert len(await automatic(world)) == count
            assert (await world.store.decision(world.query) or {})["code"] == "cooling-down"

    asyncio.run(scenario())


def test_the_service_finds_queries_and_lets_go_of_them(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        store = ManagerStore(server.url)
        service = ManagerService(store, QUICK)
        assert service.not_ready()
        await service.start()
        async with World(server) as orders:
            await orders.until(lambda: leads(service, "orders"), "the first query being led")
            assert not service.not_ready()
            async with World(server, query="clicks", incarnation="other") as clicks:
                await clicks.until(lambda: leads(service, "clicks"), "the second query being led")
                await orders.ask(move())
                await clicks.ask(move(0, 2, (3,)), strategy="ptlb")
                assert (await orders.ended()).state == (await clicks.ended()).state == "committed"
                orders.check()
                clicks.check()
                await service.stop()
                assert await store.leader("orders") is None and await store.leader("clicks") is None
        await store.close()

    asyncio.run(scenario())


def test_a_bug_in_a_turn_does_not_end_the_manager(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        store = ManagerStore(server.url)
        service = ManagerService(store, QUICK)
        await service.start()
        async with World(server) as world:
            await world.until(lambda: leads(service, "orders"), "the query being led")
            first = service.runners["orders"]
            first.watch.look = None  # type: ignore[method-assign, assignment]
            await world.until(lambda: first.problem, "the bug being noticed")

            async def told() -> bool:
                return any(each["kind"] == "manager" for each in await world.store.alarms("orders"))

            await world.until(told, "people being told")
            del first.watch.look
            await world.ask(move())
            assert (await world.ended()).state == "committed"
            assert service.runners["orders"] is first and not first.problem
            assert len([each for each in await world.store.alarms("orders") if each["kind"] == "manager"]) == 1
        await service.stop()
        await store.close()

    asyncio.run(scenario())


def test_a_service_without_redis_waits_for_it() -> None:
    async def scenario() -> None:
        own = EmbeddedRedis().start()
        own.kill()
        store = ManagerStore(own.url, 0.1)
        service = ManagerService(store, QUICK)
        await service.start()
        await reached(lambda: "does not answer" in service.not_ready())
        own.start()
        await reached(lambda: not service.not_ready())
        await service.stop()
        await store.close()
        own.stop()

    asyncio.run(scenario())


def test_names_of_holders_are_unique_and_plain() -> None:
    assert holder_name() != holder_name()
    assert " " not in holder_name()
