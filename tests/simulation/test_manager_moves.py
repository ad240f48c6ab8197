"""How moves go: there and back, side by side, in waves, audited, cancelled at any step, rolled back."""

from __future__ import annotations

import asyncio
import functools
import json

import pytest
import redis

from balancing.protocols.table import State
from balancing.requests import CancelRequest, MoveRequest
from tests.simulation.managers import Killer, World, move
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis

BEFORE = (0, 1, 2, 0, 1, 2)
AFTER = (1, 1, 2, 1, 1, 2)


@pytest.mark.parametrize("strategy", ["mslb", "ptlb"])
def test_there_and_back(server: EmbeddedRedis, raw: redis.Redis, strategy: str) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            runner = world.manager("m")
            await world.ask(move(), strategy=strategy)
            assert (await world.ended()).state == "committed"
            assert world.plane.owners == AFTER
            await world.ask(move(sender=1, receiver=0), id="r2", strategy=strategy)
            assert (await world.ended("r2")).state == "committed"
            assert world.plane.owners == BEFORE
            world.check()
            for name in ("r1-1", "r2-1"):
                await world.until(functools.partial(world.is_audited, name), "the end of its audit")
                verdict = (await world.migration(name)).audit.verdict()
                assert verdict.clean and verdict.checked_rows > 0
            assert runner.pen.publish_s < 0.05
            kinds = [event.kind for event in await world.store.newest_events(world.query, 1000)]
            assert {"leader", "rebalance", "step", "epoch", "finished"} <= set(kinds)
            closed = [name for name, _ in await world.store.history(world.query)]
            assert set(closed) == {"migration:r1-1", "rebalance:r1", "migration:r2-1", "rebalance:r2"}

    asyncio.run(scenario())


def test_disjoint_moves_share_epochs(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            world.manager("m")
            moves = (move(0, 1, (0,)), move(1, 2, (1,)), move(2, 0, (2,), strategy="ptlb"), move(0, 2, (3,)))
            await world.ask(*moves)
            await world.ended()
            assert world.plane.owners == (1, 2, 0, 2, 1, 2)
            world.check()
            first = [each for each in world.plane.offsets if len(each.moves) == 4]
            assert first, "all four moves in one epoch"
            assert world.plane.bound.number < 10

    asyncio.run(scenario())


def test_an_epoch_is_published_only_when_the_one_before_is_bound(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            world.manager("m")
            await world.until(lambda: world.plane.committed > 5, "some batches")
            world.running = False
            await world.ask(move(groups=(0,)))
            await world.until(lambda: world.plane.store.current_number(world.query) == 2, "the question")
            await world.ask(move(groups=(3,)), id="r2")
            await world.until(lambda: world.was_begun("r2-1"), "the second question")
            turns = raw.xlen(redis_keys.events(world.query))
            await world.cancel(migration="nobody")
            await world.until(lambda: raw.xlen(redis_keys.events(world.query)) > turns, "another turn")
            assert world.plane.store.current_number(world.query) == 2 and world.plane.bound.number == 1
            world.running = True
            assert (await world.ended()).state == (await world.ended("r2")).state == "committed"
            world.check()

    asyncio.run(scenario())


def test_a_share_is_the_senders_choice(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """Two shares of one worker at once: the sender never names a group twice."""

    async def scenario() -> None:
        async with World(server, partitions=12, workers=3) as world:
            world.manager("m")
            await world.ask(move(0, 1, (), share=0.5), move(0, 2, (), share=0.25))
            assert (await world.ended()).state == "committed"
            first, second = await world.migration("r1-1"), await world.migration("r1-2")
            assert len(first.chosen) == 2 and not set(first.chosen) & set(second.chosen)
            world.check()

    asyncio.run(scenario())


def test_a_paced_move_goes_in_waves(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """Step 3 of a wave shares its epoch with step 8 of the one before; the manager is killed in the second wave."""

    async def scenario() -> None:
        async with World(server, partitions=12, workers=2) as world:
            world.manager("first", Killer("after:mslb:7", times=2))
            await world.ask(move(0, 1, (0, 2, 4, 6)), max_pause_ms=0.001)
            await world.until(world.tasks["first"].done, "the first manager's end")
            world.manager("second")
            assert (await world.ended()).state == "committed"
            migration = await world.migration()
            assert len(migration.waves) >= 3
            assert all(world.plane.owners[group] == 1 for group in (0, 2, 4, 6))
            shared = [
                epoch
                for before, epoch in zip(world.plane.offsets, world.plane.offsets[1:], strict=False)
                if epoch.moves and before.moves and epoch.owners != before.owners
            ]
            assert shared
            world.check()

    asyncio.run(scenario())


def test_waves_under_way_together_share_an_executors_budget(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """Workers 0 and 2 are on one executor: with room for one group only, one group is on its way at a time."""

    async def scenario() -> None:
        async with World(server, partitions=12, workers=3) as world:
            world.manager("m")
            await world.ask(move(0, 1, (0, 3)), move(0, 2, (6,)), move(2, 1, (2, 5)), max_pause_ms=0.001)
            assert (await world.ended()).state == "committed"
            waves = [len((await world.migration(f"r1-{number}")).waves) for number in (1, 2, 3)]
            assert waves == [2, 1, 2]
            on_their_way = [sum(len(each.groups) for each in epoch.moves) for epoch in world.plane.offsets]
            assert max(on_their_way) == 1
            world.check()

    asyncio.run(scenario())


def test_a_rebalance_is_judged_by_all_of_its_migrations(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """Also by one that had ended before another manager took over."""

    async def scenario() -> None:
        async with World(server, window=30) as world:
            world.manager("first")
            await world.ask(move(0, 1, (0,)), move(1, 2, (1,)), strategy="ptlb")
            await world.until(lambda: len(world.plane.bound.moves) == 2, "both moves open")
            await world.cancel(migration="r1-1")

            async def is_back() -> bool:
                return (await world.migration("r1-1")).done

            await world.until(is_back, "the first one being back")
            await world.stop("first")
            world.manager("second")
            assert (await world.ended()).state == "partly-committed"
            outcomes = [(await world.migration(name)).outcome for name in ("r1-1", "r1-2")]
            assert outcomes == ["rolled-back", "committed"]
            world.check()

    asyncio.run(scenario())


def test_an_audit_begins_with_the_move_whoever_led_then(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """The manager that opened the move saw no batch of it; nor can the next one see those whose reports are gone."""

    async def scenario() -> None:
        async with World(server, window=2) as world:
            world.manager("first", Killer("after:publish", times=2))
            await world.ask(move())
            await world.until(world.tasks["first"].done, "the first manager's end")
            committed = world.plane.committed
            await world.until(lambda: world.plane.committed > committed + 6, "some batches")
            lost = [batch for batch, epoch in enumerate(world.plane.offsets) if epoch.moves][1:4]
            for batch in lost:
                raw.delete(redis_keys.report(world.query, batch))
            world.manager("second")
            assert (await world.ended()).state == "committed"
            verdict = (await world.migration()).audit.verdict()
            moving = sum(bool(epoch.moves) for epoch in world.plane.offsets)
            # Nobody confirms the batch before the three, either; some batches after the close are looked at, too.
            assert verdict.unchecked_batches == 4 and verdict.checked_batches >= moving - 4
            assert (verdict.lost, verdict.doubled, verdict.problems) == (0, 0, ())
            assert not verdict.clean, "not every batch was checked"
            world.check()

    asyncio.run(scenario())


def test_a_manager_that_was_away_for_a_wave_audits_it_all_the_same(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """Killed right after publishing the epoch that opens the second wave; the wave is received before another leads."""

    async def scenario() -> None:
        async with World(server, partitions=12, workers=2) as world:
            # Epochs: question, wave 1, wave 2.
            world.manager("first", Killer("after:publish", times=3))
            await world.ask(move(0, 1, (0, 2, 4)), max_pause_ms=0.001)
            await world.until(world.tasks["first"].done, "the first manager's end")
            committed = world.plane.committed
            await world.until(lambda: world.plane.committed > committed + 5, "five batches without a manager")
            world.manager("second")
            assert (await world.ended()).state == "committed"
            await world.until(world.is_audited, "the end of its audit")
            verdict = (await world.migration()).audit.verdict()
            assert verdict.clean and not verdict.unchecked_batches, verdict
            # Those with an open move, and some after it.
            assert verdict.checked_batches >= sum(bool(epoch.moves) for epoch in world.plane.offsets)
            world.check()

    asyncio.run(scenario())


def test_a_manager_that_starts_later_leaves_ended_migrations_alone(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """It reads old batches to know the load; what moved in them is over."""

    async def scenario() -> None:
        async with World(server) as world:
            first = world.manager("first")
            await world.ask(move())
            await world.ended()
            await world.until(world.is_audited, "the end of its audit")
            record = await world.migration()
            await world.stop("first")
            second = world.manager("second")
            await world.until(lambda: second.leading and second.watch.load is not None, "the second manager leading")
            await world.until(lambda: not second.problem and second.watch.settled, "its first turns")
            committed = world.plane.committed
            await world.until(lambda: world.plane.committed > committed + 3, "three more batches")
            assert await world.migration() == record
            assert not second.steering.migrations and second.lease.fence == first.lease.fence + 1
            world.check()

    asyncio.run(scenario())


CANCELS = [("ptlb", step) for step in range(1, 6)] + [("mslb", step) for step in range(1, 9)]


@pytest.mark.parametrize(("strategy", "step"), CANCELS)
def test_cancel_at_every_step(server: EmbeddedRedis, raw: redis.Redis, strategy: str, step: int) -> None:
    """Before the point of no return (journaling the last step) it goes back; after it the cancel is refused."""

    async def scenario() -> None:
        async with World(server) as world:
            request = json.dumps(CancelRequest(id="c", query=world.query, migration="r1-1", by="ops").to_json())

            def hook(point: str) -> None:
                if point == f"after:{strategy}:{step}":
                    raw.rpush(redis_keys.requests(world.query), request)

            world.manager("m", hook)
            # A window so long that PTLB waits in step 3.
            await world.ask(move(), strategy=strategy)
            rebalance = await world.ended()
            too_late = (strategy, step) in (("ptlb", 4), ("ptlb", 5), ("mslb", 7), ("mslb", 8))
            migration = await world.migration()
            if too_late:
                # Steps 4 and 5 (7 and 8) follow from one batch: the cancel is looked at after both.
                assert rebalance.state == "committed" and world.plane.owners == AFTER
            else:
                assert rebalance.state == "rolled-back" and world.plane.owners == BEFORE
                assert "cancelled by ops" in migration.problem
            await world.until(lambda: not raw.llen(redis_keys.requests(world.query)), "the request's answer")
            world.check()

    asyncio.run(scenario())


def test_cancelling_a_rebalance_cancels_all_of_it(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with World(server, window=50) as world:
            world.manager("m")
            await world.ask(move(0, 1, (0,)), move(1, 2, (1,)), strategy="ptlb")
            await world.until(lambda: len(world.plane.bound.moves) == 2, "both moves open")
            await world.cancel(rebalance="r1")
            assert (await world.ended()).state == "rolled-back"
            assert world.plane.owners == BEFORE
            world.check()

    asyncio.run(scenario())


def test_a_stalled_watermark_is_told_and_can_be_cancelled(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """An idle stream holds the parallel track open: said once, said again when it goes on, and there is a way back."""

    async def scenario() -> None:
        async with World(server, window=50) as world:

            async def told(kind: str) -> list[str]:
                return [each.text for each in await world.store.newest_events(world.query, 1000) if each.kind == kind]

            world.manager("m", stalled_s=0.05)
            await world.ask(move(), strategy="ptlb")
            await world.until(lambda: world.plane.bound.moves, "the move being open")
            world.plane.watermark_stalls = True
            await world.until(lambda: told("stalled"), "word of it")
            world.plane.watermark_stalls = False
            await world.until(lambda: told("goes-on"), "word that it goes on")
            world.plane.watermark_stalls = True

            async def twice() -> bool:
                return len(await told("stalled")) == 2

            await world.until(twice, "word of the second time")
            committed = world.plane.committed
            await world.until(lambda: world.plane.committed > committed + 10, "ten batches")
            stalled = await told("stalled")
            assert len(stalled) == 2, "once each time"
            assert "r1-1: event time has stood still" in stalled[0] and "trimtab cancel r1-1" in stalled[0]
            assert (await world.migration()).state == State.DUPLICATING
            await world.cancel(migration="r1-1")
            assert (await world.ended()).state == "rolled-back"
            world.check()

    asyncio.run(scenario())


@pytest.mark.parametrize("moves", [(move(),), (move(groups=(0,)), move(groups=(3,)))], ids=["one", "two"])
def test_a_full_transfer_store_rolls_back(
    server: EmbeddedRedis, raw: redis.Redis, moves: tuple[MoveRequest, ...]
) -> None:
    """It stays full: the way back needs the two workers and nothing else."""

    async def scenario() -> None:
        async with World(server) as world:
            world.plane.exports_fail = True
            world.manager("m")
            await world.ask(*moves)
            assert (await world.ended()).state == "rolled-back"
            assert "transfer store full" in (await world.migration()).problem
            assert world.plane.owners == BEFORE
            world.check()
            await world.until(world.is_audited, "the end of its audit")
            assert (await world.migration()).audit.verdict().clean

    asyncio.run(scenario())


def test_a_broken_transfer_store_is_refused_before_anything_is_opened(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            world.plane.transfers.broken = True
            world.manager("m")
            await world.ask(move())
            assert (await world.ended()).state == "rolled-back"
            assert "cannot use the transfer store: transfer store full" in (await world.migration()).problem
            assert not any(epoch.moves for epoch in world.plane.offsets)
            events = await world.store.newest_events(world.query, 1000)
            assert [event.data["migration"] for event in events if event.kind == "refused"] == ["r1-1"]
            # PTLB needs no store.
            await world.ask(move(), id="r2", strategy="ptlb")
            assert (await world.ended("r2")).state == "committed"
            world.check()

    asyncio.run(scenario())
