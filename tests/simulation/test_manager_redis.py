"""Redis flushed, gone back, killed, slow, or cut off from a manager in mid-migration.

The data plane goes on with the epoch it has; migrations pause, then go on from what the bound epoch says; each ends
committed or rolled back, with nothing lost and nothing doubled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
import redis

from manager.runner import make_runner
from tests.simulation.managers import QUICK, Proxy, World, move
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis

PTLB = [f"{when}:ptlb:{step}" for step in range(1, 6) for when in ("before", "after")]
MSLB = [f"{when}:mslb:{step}" for step in range(1, 9) for when in ("before", "after")]


def once(point: str, then: Callable[[], object]) -> Callable[[str], None]:
    """Does something when a crash point is passed for the first time."""
    left = [True]

    def hook(passed: str) -> None:
        if passed == point and left:
            left.clear()
            then()

    return hook


async def settle(world: World, restored: bool = True) -> None:
    """Wait until whatever was going on has ended, as far as the data plane and the manager can tell."""
    if restored:
        await world.until(lambda: world.plane.restored, "the driver putting the bound epoch back")
    await world.until(
        lambda: (
            any(each.leading and each.watch.settled and not each.steering.migrations for each in world.runners.values())
            and not world.plane.bound.moves
            and not world.plane.bound.questions
        ),
        "quiet",
    )
    committed = world.plane.committed
    await world.until(lambda: world.plane.committed > committed + 3, "three more batches")


def check_ended(world: World) -> None:
    """All of the groups have moved, or none."""
    owners = world.plane.owners
    assert {owners[0], owners[3]} in ({0}, {1})
    world.check()


@pytest.mark.parametrize("point", [*PTLB, *MSLB])
def test_redis_loses_everything(server: EmbeddedRedis, raw: redis.Redis, point: str) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            flushed: list[str] = []

            def flush() -> None:
                raw.flushall()
                flushed.append(point)

            world.manager("m", once(point, flush))
            await world.ask(move(), strategy=point.split(":")[1])
            await world.until(lambda: flushed, f"{point} being passed")
            await settle(world)
            check_ended(world)
            assert any(each["kind"] == "redis-went-back" for each in await world.store.alarms(world.query))
            # It works again: the definition is back, and a request is taken up.
            sender = world.plane.owners[0]
            await world.ask(move(sender=sender, receiver=2), id="r2")
            assert (await world.ended("r2")).state == "committed"
            world.check()

    asyncio.run(scenario())


def test_another_manager_after_redis_lost_everything(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """Its token must exceed that of the bound epoch, which Redis does not count any more: else no batch would bind."""

    async def scenario() -> None:
        async with World(server, window=30) as world:
            for name in ("first", "second", "third"):
                world.manager(name)
                await world.until(lambda: any(each.leading for each in world.runners.values()), f"{name} leading")
                if name != "third":
                    await world.stop(name)
            await world.ask(move(), strategy="ptlb")
            await world.until(lambda: world.plane.bound.moves, "the move being open")
            fence = world.plane.bound.fence
            assert fence >= 3
            world.tasks["third"].cancel()
            await asyncio.gather(world.tasks["third"], return_exceptions=True)
            raw.flushall()
            await world.until(lambda: world.plane.restored, "the driver putting the bound epoch back")
            fourth = world.manager("fourth")
            await world.until(lambda: fourth.leading, "the fourth leading")
            await settle(world)
            assert world.plane.bound.fence == fourth.lease.fence > fence
            check_ended(world)

    asyncio.run(scenario())


def test_a_standby_that_never_led_does_not_lead_with_too_small_a_token(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """Redis lost everything during a long batch: the standby's turn comes before the driver has put the epoch back."""

    async def scenario() -> None:
        async with World(server) as world:
            for name in ("first", "second"):
                world.manager(name)
                await world.until(lambda: any(each.leading for each in world.runners.values()), f"{name} leading")
                await world.stop(name)
            third = world.manager("third")
            await world.ask(move())
            assert (await world.ended()).state == "committed" and world.plane.bound.fence == 3
            standby = make_runner(world.store, world.query, "standby", QUICK)
            await standby.turn()
            world.running = False
            world.tasks["third"].cancel()
            await asyncio.gather(world.tasks["third"], return_exceptions=True)
            raw.flushall()
            await standby.turn()
            assert not standby.lease.held
            world.running = True
            await world.until(lambda: world.plane.restored, "the driver putting the bound epoch back")
            await standby.turn()
            assert standby.leading and standby.lease.fence > third.lease.fence

    asyncio.run(scenario())


def test_a_token_that_proves_too_small_is_given_back(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """Redis went back to when there were no tokens, and was put right after somebody had taken the lease."""

    async def scenario() -> None:
        async with World(server) as world:
            leader = world.manager("m")
            await world.until(lambda: leader.leading, "the manager leading")
            bound = world.plane.bound
            world.plane.offsets[-1] = replace(bound, fence=7)
            world.plane.store.restore(world.plane.bound)
            await world.until(lambda: leader.leading and leader.lease.fence == 8, "another token")
            await world.ask(move())
            assert (await world.ended()).state == "committed"
            world.check()

    asyncio.run(scenario())


async def check_records(world: World) -> None:
    """What Redis says at the end is what happened."""
    migration, rebalance = await world.migration(), await world.rebalance()
    assert rebalance.state == migration.outcome == ("committed" if world.plane.owners[0] == 1 else "rolled-back")
    assert {name for name, _ in await world.store.history(world.query)} == {"migration:r1-1", "rebalance:r1"}


class Memory:
    """Redis as it was at some moment, to go back to."""

    def __init__(self, raw: redis.Redis) -> None:
        self._raw = raw
        self._kept: dict[bytes, tuple[bytes, int]] = {}

    def keep(self) -> None:
        kept = {key: (self._raw.dump(key), max(0, self._raw.pttl(key))) for key in self._raw.scan_iter()}
        # Without those that have gone since they were listed.
        self._kept = {key: value for key, value in kept.items() if value[0] is not None}  # type: ignore[misc]

    def go_back(self) -> None:
        # At once: batches go on meanwhile, and write.
        with self._raw.pipeline(transaction=True) as pipe:
            pipe.flushall()
            for key, (value, ttl_ms) in self._kept.items():
                pipe.restore(key, ttl_ms, value)
            pipe.execute()


@pytest.mark.parametrize("writes", [1, 4])
@pytest.mark.parametrize("point", [*PTLB[4:], *MSLB[4:]])
def test_redis_goes_back(server: EmbeddedRedis, raw: redis.Redis, point: str, writes: int) -> None:
    """What a crash of Redis loses with appendfsync everysec: its last writes, the manager going on unawares."""

    async def scenario() -> None:
        async with World(server) as world:
            memories: list[Memory] = []
            gone: list[str] = []

            def hook(passed: str) -> None:
                if gone:
                    return
                if passed == point:
                    gone.append(point)
                    memories[max(0, len(memories) - writes)].go_back()
                elif not passed.startswith("before:rebalance"):
                    memories.append(Memory(raw))
                    memories[-1].keep()

            world.manager("m", hook)
            await world.ask(move(), strategy=point.split(":")[1])
            await world.until(lambda: gone, f"{point} being passed")
            await settle(world, restored=False)
            check_ended(world)
            await world.until(world.is_closed, "the record of its end")
            await check_records(world)

    asyncio.run(scenario())


@pytest.mark.parametrize("point", ["after:rebalance", "after:mslb:1", "after:mslb:4"])
def test_redis_goes_back_after_all_is_done(server: EmbeddedRedis, raw: redis.Redis, point: str) -> None:
    """A failover to a replica that lagged: the manager keeps its connection, and has nothing to write any more."""

    async def scenario() -> None:
        async with World(server) as world:
            memory = Memory(raw)
            leader = world.manager("m", once(point, memory.keep))
            await world.ask(move())
            assert (await world.ended()).state == "committed"
            number = world.plane.bound.number
            memory.go_back()
            await world.until(world.is_closed, "the record of its end")
            await world.until(lambda: leader.watch.settled, "the bound epoch being back")
            committed = world.plane.committed
            await world.until(lambda: world.plane.committed > committed + 5, "five more batches")
            await check_records(world)
            assert world.plane.bound.number == number, "nothing was done again"
            assert not await world.store.open_migrations(world.query)
            assert any(each["kind"] == "journal-lost" for each in await world.store.alarms(world.query))
            world.check()

    asyncio.run(scenario())


@pytest.mark.parametrize("appendonly", [True, False], ids=["with its data", "empty"])
@pytest.mark.parametrize("point", ["after:mslb:3", "before:mslb:7", "after:mslb:8", "after:ptlb:3", "before:ptlb:5"])
def test_redis_is_killed_and_comes_back(point: str, appendonly: bool) -> None:
    async def scenario() -> None:
        with EmbeddedRedis(appendonly=appendonly) as own:
            async with World(own) as world:
                runner = world.manager("m", once(point, own.kill))
                await world.ask(move(), strategy=point.split(":")[1])
                await world.until(lambda: not own.running, f"{point} being passed")
                await world.until(lambda: "does not answer" in runner.problem, "the manager noticing")
                committed = world.plane.committed
                await world.until(lambda: world.plane.committed > committed + 5, "the query going on")
                own.start()
                await world.until(lambda: not runner.problem, "the manager being well again")
                await settle(world, restored=False)
                check_ended(world)

    asyncio.run(scenario())


def test_redis_is_slow(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """Slower than the manager's patience: it pauses, and neither loses nor repeats a step."""

    async def scenario() -> None:
        async with World(server) as world:
            pause = once("before:mslb:4", lambda: raw.client_pause(400))
            world.manager("m", pause, redis_timeout_s=0.05)
            await world.ask(move())
            assert (await world.ended()).state == "committed"
            steps = [entry.step for entry in (await world.migration()).story if entry.step]
            assert steps == list(range(1, 9))
            world.check()

    asyncio.run(scenario())


def test_a_manager_that_is_cut_off_gives_up_leading(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with World(server) as world, Proxy(server.port) as proxy:
            cut: list[bool] = []

            def cut_off() -> None:
                cut.append(True)
                proxy.cut()

            short = {"lease_ttl_s": 0.5, "lease_renew_s": 0.1}
            first = world.manager("first", once("after:mslb:3", cut_off), url=proxy.url, **short)
            await world.ask(move())
            await world.until(lambda: cut, "the cut")
            second = world.manager("second")
            await world.until(lambda: second.leading, "the second manager leading")
            assert not first.leading
            fence = second.lease.fence
            assert (await world.ended()).state == "committed"
            proxy.heal()
            await world.until(lambda: not first.problem, "the first manager being back")
            assert second.leading and not first.leading
            assert second.lease.fence == fence
            world.check()

    asyncio.run(scenario())
