"""A manager is killed before and after the durable write of every step of both protocols; the next one ends the move.

On a real Redis with a simulated data plane, whose verdict counts lost and doubled results. The 26 points are the 5
steps of PTLB and the 8 of MSLB, twice each.
"""

from __future__ import annotations

import asyncio

import pytest
import redis

from tests.simulation.managers import Killer, World, move
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis

STEPS = [("ptlb", step) for step in range(1, 6)] + [("mslb", step) for step in range(1, 9)]
POINTS = [f"{when}:{name}:{step}" for name, step in STEPS for when in ("before", "after")]


@pytest.fixture(autouse=True)
def _empty(server: EmbeddedRedis) -> None:
    redis.Redis.from_url(server.url).flushall()


def test_there_are_26_points() -> None:
    assert len(POINTS) == 26


@pytest.mark.parametrize("point", POINTS)
def test_the_next_manager_resumes(server: EmbeddedRedis, point: str) -> None:
    async def scenario() -> None:
        async with World(server) as world:
            killer = Killer(point)
            world.manager("first", killer)
            await world.ask(move(), strategy=point.split(":")[1])
            await world.until(world.tasks["first"].done, f"the first manager's end at {point}")
            assert killer.passed[-1] == point
            second = world.manager("second")
            rebalance = await world.ended()
            assert second.leading
            assert rebalance.state == "committed"
            await world.until(world.is_audited, "the end of its audit")
            migration = await world.migration()
            assert migration.verdict().clean
            assert [entry.step for entry in migration.story if entry.step] == list(
                range(1, 9 if migration.strategy == "mslb" else 6)
            )
            assert world.plane.owners == (1, 1, 2, 1, 1, 2)
            world.check()

    asyncio.run(scenario())
