"""What is asked of a manager: granted once, refused with a reason, cancelled at any step; two managers, one leader."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from balancing.load import Snapshot
from balancing.policies import SuggestedMove
from balancing.policies.policy import Suggestion
from balancing.proposal import make_proposal
from balancing.protocols.table import State
from balancing.settings import Settings
from manager.lease import Fenced
from manager.requests import CancelRequest, RebalanceRequest, requested, view
from manager.runner import QueryRunner
from manager.settings import Rules
from manager.store import ManagerStore
from tests.simulation.managers import QUICK, Killer, World, move
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis

BEFORE = (0, 1, 2, 0, 1, 2)
AFTER = (1, 1, 2, 1, 1, 2)


@pytest.fixture
def raw(server: EmbeddedRedis) -> redis.Redis:
    client = redis.Redis.from_url(server.url)
    client.flushall()
    return client


@dataclass(frozen=True)
class Named:
    """Moves that somebody named, as a policy."""

    moves: tuple[SuggestedMove, ...]
    name: str = "named"

    def suggest(self, snapshot: Snapshot, settings: Settings) -> Suggestion:
        return Suggestion(moves=self.moves)


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
                verdict = (await world.migration(name)).audit.verdict()
                assert verdict.clean and verdict.checked_rows > 0
            assert runner.publish_s < 0.05
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
            first = [each for each in world.plane.offsets if len(each.migrations) == 4]
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
                if epoch.migrations and before.migrations and epoch.owners != before.owners
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
            on_their_way = [sum(len(each["groups"]) for each in epoch.migrations) for epoch in world.plane.offsets]
            assert max(on_their_way) == 1
            world.check()

    asyncio.run(scenario())


def test_a_rebalance_is_judged_by_all_of_its_migrations(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """Also by one that had ended before another manager took over."""

    async def scenario() -> None:
        async with World(server, window=30) as world:
            world.manager("first")
            await world.ask(move(0, 1, (0,)), move(1, 2, (1,)), strategy="ptlb")
            await world.until(lambda: len(world.plane.bound.migrations) == 2, "both moves open")
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
            lost = [batch for batch, epoch in enumerate(world.plane.offsets) if epoch.migrations][1:4]
            for batch in lost:
                raw.delete(redis_keys.report(world.query, batch))
            world.manager("second")
            assert (await world.ended()).state == "committed"
            verdict = (await world.migration()).audit.verdict()
            moving = sum(bool(epoch.migrations) for epoch in world.plane.offsets)
            assert (verdict.checked_batches, verdict.unchecked_batches) == (moving - 3, 3)
            assert verdict.clean
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
            verdict = (await world.migration()).audit.verdict()
            assert verdict.clean and not verdict.unchecked_batches, verdict
            assert verdict.checked_batches == sum(bool(epoch.migrations) for epoch in world.plane.offsets)
            world.check()

    asyncio.run(scenario())


def test_a_manager_that_starts_later_leaves_ended_migrations_alone(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """It reads old batches to know the load; what moved in them is over."""

    async def scenario() -> None:
        async with World(server) as world:
            first = world.manager("first")
            await world.ask(move())
            await world.ended()
            record = await world.migration()
            await world.stop("first")
            second = world.manager("second")
            await world.until(lambda: second.leading and second.watch.load is not None, "the second manager leading")
            await world.until(lambda: not second.problem and second.watch.settled, "its first turns")
            committed = world.plane.committed
            await world.until(lambda: world.plane.committed > committed + 3, "three more batches")
            assert await world.migration() == record
            assert not second.migrations and second.lease.fence == first.lease.fence + 1
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
            await world.until(lambda: len(world.plane.bound.migrations) == 2, "both moves open")
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
            await world.until(lambda: world.plane.bound.migrations, "the move being open")
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


def test_a_full_transfer_store_rolls_back(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            world.plane.exports_fail = True
            world.manager("m")
            await world.ask(move())
            await world.until(lambda: len(world.plane.bound.migrations) == 2, "the way back")
            world.plane.exports_fail = False
            assert (await world.ended()).state == "rolled-back"
            assert "transfer store full" in (await world.migration()).problem
            assert world.plane.owners == BEFORE
            world.check()

    asyncio.run(scenario())


def test_a_doubled_request_is_answered_once(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            await world.ask(move())
            await world.ask(move())
            assert raw.llen(redis_keys.requests(world.query)) == 1
            text = raw.lindex(redis_keys.requests(world.query), 0)
            assert isinstance(text, bytes)
            raw.rpush(redis_keys.requests(world.query), text)
            world.manager("m")
            assert (await world.ended()).state == "committed"
            raw.rpush(redis_keys.requests(world.query), text)
            await world.until(lambda: not raw.llen(redis_keys.requests(world.query)), "the request being taken off")
            assert (await world.rebalance()).state == "committed"
            assert list(await world.store.migrations(world.query)) == ["r1-1"]
            world.check()

    asyncio.run(scenario())


@pytest.mark.parametrize("point", ["before:rebalance", "after:rebalance", "before:publish", "after:publish"])
def test_killed_between_request_and_first_epoch(server: EmbeddedRedis, raw: redis.Redis, point: str) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            world.manager("first", Killer(point))
            await world.ask(move())
            await world.until(world.tasks["first"].done, "the first manager's end")
            world.manager("second")
            assert (await world.ended()).state == "committed"
            assert list(await world.store.migrations(world.query)) == ["r1-1"]
            world.check()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("asked", "changes", "field", "status"),
    [
        (move(groups=(0, 1)), {}, "moves[0].groups", 409),
        (move(receiver=7), {}, "moves[0].receiver", 422),
        (move(receiver=0), {}, "moves[0].receiver", 422),
        (move(), {"expected_epoch": 99}, "expected_epoch", 409),
        (move(), {"proposal": "p-unknown"}, "proposal", 409),
    ],
)
def test_refusals_are_recorded(
    server: EmbeddedRedis, raw: redis.Redis, asked: Any, changes: dict[str, Any], field: str, status: int
) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            world.manager("m")
            await world.ask(asked, **changes)
            await world.until(world.is_closed, "the refusal")
            rebalance = await world.rebalance()
            assert rebalance.state == "refused" and rebalance.refusal is not None
            assert (rebalance.refusal["field"], rebalance.refusal["status"]) == (field, status)
            assert rebalance.refusal["remedy"]
            assert world.plane.owners == BEFORE and world.plane.bound.number == 1

    asyncio.run(scenario())


def record(text: dict[str, Any]) -> str:
    return json.dumps(requested(RebalanceRequest(id=text["id"], query="orders", moves=())).to_json())


ASKED = RebalanceRequest(id="odd", query="orders", moves=(move(1, 2, (1,)),)).to_json()


@pytest.mark.parametrize(
    "body",
    [
        [],
        3,
        {"kind": "rebalance"},
        {**ASKED, "priority": 1},
        {**ASKED, "max_pause_ms": 1e305},
        {**ASKED, "max_pause_ms": "soon"},
        {**ASKED, "moves": [{**ASKED["moves"][0], "sender": "x"}]},
        {**ASKED, "proposal": ["p"]},
    ],
)
def test_a_request_that_cannot_be_dealt_with_stops_nobody(server: EmbeddedRedis, raw: redis.Redis, body: Any) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            has_record = isinstance(body, dict) and "id" in body
            if has_record:
                raw.hset(redis_keys.rebalances(world.query), "odd", record(body))
            raw.rpush(redis_keys.requests(world.query), json.dumps(body))
            await world.ask(move())
            runner = world.manager("m")
            assert (await world.ended()).state == "committed"
            assert not runner.problem and not raw.llen(redis_keys.requests(world.query))
            if has_record:
                refused = await world.rebalance("odd")
                assert refused.state == "refused" and refused.refusal is not None and refused.refusal["remedy"]
            kinds = [event.kind for event in await world.store.newest_events(world.query, 1000)]
            assert kinds.count("refused") == 1
            world.check()

    asyncio.run(scenario())


def test_what_another_version_wrote_is_left_alone(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            text = json.dumps({**json.loads(record({"id": "new"})), "state": "running", "priority": 1})
            raw.hset(redis_keys.rebalances(world.query), "new", text)
            world.manager("m")
            await world.ask(move())
            assert (await world.ended()).state == "committed"
            assert raw.hget(redis_keys.rebalances(world.query), "new") == text.encode()
            alarms = [each["text"] for each in await world.store.alarms(world.query)]
            assert len(alarms) == 1 and "rebalance new cannot be read" in alarms[0]

    asyncio.run(scenario())


def test_a_driver_with_a_wrong_clock_counts_as_running(
    server: EmbeddedRedis, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who leads knows better than who compares clocks; without a leader nobody does."""
    monkeypatch.setattr("trimtab.store.time", SimpleNamespace(time=lambda: time.time() - 60))

    async def scenario() -> None:
        async with World(server) as world:

            async def stopped() -> bool:
                return (await view(world.store, world.query, 300)).stopped

            assert await stopped()
            world.manager("m")

            async def runs() -> bool:
                return not await stopped()

            await world.until(runs, "the leader's word")
            world.running = False
            await world.until(stopped, "the leader's silence")
            world.running = True
            await world.until(runs, "the leader's word")
            await world.stop("m")
            assert await stopped()

    asyncio.run(scenario())


def test_a_group_moves_once_at_a_time(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with World(server, window=20) as world:
            world.manager("m")
            await world.ask(move(groups=(0,)), strategy="ptlb")
            await world.ask(move(receiver=2, groups=(0,)), id="r2")
            await world.ask(move(receiver=2, groups=(3,)), id="r3")
            await world.until(lambda: world.is_closed("r2"), "the refusal")
            refusal = (await world.rebalance("r2")).refusal
            assert refusal is not None and refusal["status"] == 409 and "r1-1" in refusal["problem"]
            assert (await world.ended("r3")).state == "committed"
            assert (await world.ended("r1")).state == "committed"
            assert world.plane.owners == (1, 1, 2, 2, 1, 2)
            world.check()

    asyncio.run(scenario())


def test_a_stale_proposal_is_refused(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            runner = world.manager("m")
            await world.until(lambda: runner.watch.load is not None, "a measured load")
            snapshot = runner.watch.snapshot({}, runner.rules)
            assert snapshot is not None
            for name, group in (("p1", 0), ("p2", 3)):
                policy = Named((SuggestedMove(sender=0, receiver=1, groups=(group,)),))
                proposal = make_proposal(snapshot, policy, Settings(), id=name)
                await world.store.save_proposal(world.query, name, proposal.to_json())
            await world.ask(move(0, 2, (0,)))
            await world.ended()
            await world.ask(move(2, 1, (0,)), id="r2", proposal="p1")
            await world.until(lambda: world.is_closed("r2"), "the refusal")
            refusal = (await world.rebalance("r2")).refusal
            assert refusal is not None and "stale" in refusal["problem"] and refusal["status"] == 409
            # The other one touches a group that has not changed since.
            await world.ask(move(0, 1, (3,)), id="r3", proposal="p2")
            assert (await world.ended("r3")).state == "committed"
            # And one onto a worker that was excluded since.
            policy = Named((SuggestedMove(sender=1, receiver=2, groups=(1,)),))
            current = runner.watch.snapshot({}, runner.rules)
            assert current is not None
            await world.store.save_proposal(
                world.query, "p3", make_proposal(current, policy, Settings(), id="p3").to_json()
            )
            await world.store.set_rules(world.query, Rules(excluded=frozenset({2})))
            await world.until(lambda: runner.rules.excluded, "the new rules")
            await world.ask(move(1, 2, (1,)), id="r4", proposal="p3")
            await world.until(lambda: world.is_closed("r4"), "the refusal")
            refusal = (await world.rebalance("r4")).refusal
            assert refusal is not None and "Worker 2 is excluded" in refusal["problem"] and refusal["status"] == 409
            world.check()

    asyncio.run(scenario())


@pytest.mark.parametrize("point", ["after:mslb:3", "after:mslb:5", "after:mslb:8", "after:ptlb:3"])
def test_a_stopped_query_parks_its_migrations(server: EmbeddedRedis, raw: redis.Redis, point: str) -> None:
    async def scenario() -> None:
        async with World(server) as world:

            def hook(passed: str) -> None:
                if passed == point:
                    world.running = False

            async def parked() -> bool:
                return any(event.kind == "parked" for event in await world.store.newest_events(world.query))

            runner = world.manager("m", hook, heartbeat_max_ms=100)
            await world.ask(move(), strategy=point.split(":")[1])
            await world.until(parked, "parking")
            assert runner.leading and not runner.problem
            assert not (await world.migration()).done
            assert world.plane.verdict() == (0, 0) or world.plane.bound.migrations
            world.running = True
            assert (await world.ended()).state == "committed"
            world.check()

    asyncio.run(scenario())


def test_a_manager_that_starts_with_the_query_stopped_waits(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            world.manager("first", Killer("after:mslb:4"))
            await world.ask(move())
            await world.until(world.tasks["first"].done, "the first manager's end")
            world.running = False
            stopped_at = world.plane.committed
            second = world.manager("second", heartbeat_max_ms=20)
            await world.until(lambda: second.leading and not second.watch.running, "parking")
            assert world.plane.committed <= stopped_at + 1
            world.running = True
            assert (await world.ended()).state == "committed"
            world.check()

    asyncio.run(scenario())


def test_a_query_that_begins_anew_ends_the_old_ones_migrations(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """Another checkpoint under the same name: its epochs begin again, and nothing of the old life is done to it."""

    async def scenario() -> None:
        async with World(server, window=40) as world:
            world.manager("m")
            await world.ask(move(), strategy="ptlb")
            await world.until(lambda: world.plane.bound.migrations, "the move being open")
            world.begin_anew()
            await world.until(world.is_closed, "the end of r1")
            assert (await world.rebalance()).state == "rolled-back"
            assert "anew" in (await world.migration()).problem
            await world.ask(move(), id="r2")
            assert (await world.ended("r2")).state == "committed"
            world.check()

    asyncio.run(scenario())


def test_two_managers_at_once(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """One that slept through the end of its lease wakes up, believes it still leads, and is refused by every write."""

    async def scenario() -> None:
        async with World(server, window=20) as world:
            store = ManagerStore(server.url)
            sleeper = QueryRunner(store, world.query, "sleeper", QUICK, clock=lambda: 0.0)
            await world.ask(move(), strategy="ptlb")

            async def has_begun() -> bool:
                await sleeper.turn()
                return bool(world.plane.bound.migrations)

            await world.until(has_begun, "the move being open")
            world.end_lease(sleeper)
            other = world.manager("other")
            await world.until(lambda: other.leading, "the other manager leading")
            assert sleeper.leading, "by its own clock, which stands still"
            assert (await world.ended()).state == "committed"
            epoch = world.plane.bound
            with pytest.raises(Fenced):
                await sleeper.turn()
            assert not sleeper.lease.held
            assert other.leading and other.lease.fence == sleeper.lease.fence + 1
            assert world.plane.bound == epoch and epoch.fence == other.lease.fence
            world.check()
            await store.close()

    asyncio.run(scenario())


def test_many_managers_one_leader(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            managers = [world.manager(f"m{number}") for number in range(4)]
            await world.ask(move())
            assert (await world.ended()).state == "committed"
            assert sum(each.leading for each in managers) == 1
            world.check()

    asyncio.run(scenario())
