"""What any instance reads about a query: the leader's snapshot, and migrations without those that have ended."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from balancing.load import Snapshot
from manager.snapshots import SNAPSHOT_TTL_S, load_snapshot, parse_snapshot, snapshot_text
from manager.store import ManagerStore
from tests.checkers.migrations import parallel_track
from tests.checkers.served import Served, measured
from tests.simulation.data_plane import DataPlane
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis


@pytest.fixture
def plane(server: EmbeddedRedis) -> DataPlane:
    plane = DataPlane(server.url)
    plane.store.client.flushall()
    plane.define()
    for _ in range(4):
        plane.step()
    measured(server.url)
    return plane


def test_a_snapshot_comes_back_as_it_was(plane: DataPlane) -> None:
    loaded = _load(plane.store.url)
    assert loaded is not None
    assert loaded.owners == plane.owners and sum(loaded.group_rows) > 0
    full = replace(loaded, moving={3: 1}, plans={0: "mjoin"}, pinned=frozenset({2}), excluded=frozenset({1}))
    assert parse_snapshot(snapshot_text(full)) == full
    ttl_s = plane.store.client.ttl(redis_keys.snapshot("orders"))
    assert SNAPSHOT_TTL_S - 60 < ttl_s <= SNAPSHOT_TTL_S


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"moving": {}}', '{"moving": []}'])
def test_a_snapshot_of_another_version_is_none(plane: DataPlane, text: str) -> None:
    plane.store.client.set(redis_keys.snapshot("orders"), text)
    assert _load(plane.store.url) is None
    plane.store.client.delete(redis_keys.snapshot("orders"))
    assert _load(plane.store.url) is None


@pytest.mark.parametrize(
    ("key", "text", "known"),
    [
        (redis_keys.definition("other"), "[]", True),
        (redis_keys.definition("other"), "nonsense", True),
        (redis_keys.definition("other"), '{"streams": 5}', True),
        (redis_keys.definition("other"), '{"window": "long"}', True),
        (redis_keys.definition("other"), '{"workers": "many"}', True),
        (redis_keys.lease("other"), "somebody", True),
        (redis_keys.current("other"), "newest", False),
    ],
)
def test_a_query_that_cannot_be_read_does_not_hide_the_others(
    plane: DataPlane, key: str, text: str, known: bool
) -> None:
    other = DataPlane(plane.store.url, query="other")
    other.define()
    other.step()
    plane.store.client.set(key, text)
    with Served(plane.store.url) as served:
        client = served.client("read")
        answer = client.get("/v1/queries")
        assert answer.status_code == 200
        assert [each["name"] for each in answer.json()["queries"]] == ["orders", *(["other"] if known else [])]
        for path in ("", "/front", "/workers", "/partitions"):
            assert client.get(f"/v1/queries/other{path}").status_code == (200 if known else 404), path


def test_an_outcome_that_cannot_be_read_is_not_there(plane: DataPlane) -> None:
    plane.store.client.hset(redis_keys.outcomes("orders"), mapping={"r:forecast": "{", "r:measured": '{"bytes": 1}'})

    async def read() -> dict[str, dict[str, object]]:
        store = ManagerStore(plane.store.url)
        outcomes = await store.outcomes("orders", ["r"])
        await store.close()
        return outcomes

    assert asyncio.run(read()) == {"r": {"measured": {"bytes": 1}}}


def test_open_migrations_are_those_that_have_not_ended(plane: DataPlane) -> None:
    client = plane.store.client
    for name in ("m-1", "m-2", "m-3"):
        record = replace(parallel_track(), id=name)
        client.hset(redis_keys.migrations("orders"), name, json.dumps(record.to_json()))
    client.zadd(redis_keys.closed("orders"), {"migration:m-2": 5, "rebalance:m-3": 6})

    async def read() -> tuple[list[str], list[str]]:
        store = ManagerStore(plane.store.url)
        still_open = await store.open_migrations("orders")
        named = await store.migrations_named("orders", ["m-2", "m-9"])
        assert await store.migrations_named("orders", []) == {}
        await store.close()
        return sorted(still_open), sorted(named)

    assert asyncio.run(read()) == (["m-1", "m-3"], ["m-2"])


def _load(url: str) -> Snapshot | None:
    async def read() -> Snapshot | None:
        store = ManagerStore(url)
        try:
            return await load_snapshot(store.client, "orders")
        finally:
            await store.close()

    return asyncio.run(read())
