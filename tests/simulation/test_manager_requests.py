"""What is asked of a manager: granted once, refused with a reason, parked with its query; two managers, one leader."""

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
from balancing.requests import RebalanceRequest, requested
from balancing.rules import Rules
from balancing.settings import Settings
from manager.lease import Fenced
from manager.requests import situation
from manager.runner import make_runner
from manager.store import ManagerStore
from tests.simulation.managers import QUICK, Killer, World, move
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis

BEFORE = (0, 1, 2, 0, 1, 2)
AFTER = (1, 1, 2, 1, 1, 2)


@dataclass(frozen=True)
class Named:
    """Moves that somebody named, as a policy."""

    moves: tuple[SuggestedMove, ...]
    name: str = "named"

    def suggest(self, snapshot: Snapshot, settings: Settings) -> Suggestion:
        return Suggestion(moves=self.moves)


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


def test_what_cannot_be_read_is_left_alone(server: EmbeddedRedis, raw: redis.Redis) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            text = json.dumps({**json.loads(record({"id": "new"})), "state": "running", "migrations": None})
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
                return (await situation(world.store, world.query, 300)).stopped

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
                await world.store.save_proposal(proposal)
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
            await world.store.save_proposal(make_proposal(current, policy, Settings(), id="p3"))
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

            runner = world.manager("m", hook, heartbeat_max_ms=600)
            await world.ask(move(), strategy=point.split(":")[1])
            await world.until(parked, "parking")
            assert runner.leading and not runner.problem
            assert not (await world.migration()).done
            assert world.plane.verdict() == (0, 0) or world.plane.bound.moves
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
            await world.until(lambda: world.plane.bound.moves, "the move being open")
            world.begin_anew()
            await world.until(world.is_closed, "the end of r1")
            assert (await world.rebalance()).state == "rolled-back"
            assert "started again" in (await world.migration()).problem
            await world.ask(move(), id="r2")
            assert (await world.ended("r2")).state == "committed"
            world.check()

    asyncio.run(scenario())


def test_two_managers_at_once(server: EmbeddedRedis, raw: redis.Redis) -> None:
    """One that slept through the end of its lease wakes up, believes it still leads, and is refused by every write."""

    async def scenario() -> None:
        async with World(server, window=20) as world:
            store = ManagerStore(server.url)
            sleeper = make_runner(store, world.query, "sleeper", QUICK, clock=lambda: 0.0)
            await world.ask(move(), strategy="ptlb")

            async def has_begun() -> bool:
                await sleeper.turn()
                return bool(world.plane.bound.moves)

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
