"""Store, lease and journal against a real server: every write of a leader is checked, records are kept and trimmed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import redis

from balancing.settings import Settings
from manager import journal as journal_module
from manager.journal import Entry, Journal, Overtaken, WentBack
from manager.lease import Fenced, Lease
from manager.settings import Rules
from manager.store import ManagerStore
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis
from trimtab.epochs import first_epoch
from trimtab.errors import InvalidInput
from trimtab.store import Store

pytestmark = pytest.mark.redis

FIRST = first_epoch("orders", "abc", (0, 1, 0, 1))


@pytest.fixture
def plain(server: EmbeddedRedis) -> Store:
    store = Store(server.url)
    store.client.flushall()
    store.restore(FIRST)
    return store


def play(server: EmbeddedRedis, scenario: Callable[[ManagerStore], Awaitable[None]]) -> None:
    async def whole() -> None:
        store = ManagerStore(server.url)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(whole())


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def lease(store: ManagerStore, holder: str, clock: Callable[[], float] = time.monotonic) -> Lease:
    return Lease(store.client, "orders", holder, ttl_s=6.0, renew_s=2.0, clock=clock)


def test_one_leads_and_tokens_grow(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        one, other = lease(store, "one"), lease(store, "other")
        assert await one.acquire() and not await other.acquire()
        leader = await store.leader("orders")
        assert leader is not None and (leader.holder, leader.fence) == ("one", 1)
        await one.release()
        assert not one.held
        assert await other.acquire() and other.fence == 2
        # Longer names that begin alike are other holders.
        assert not await lease(store, "oth").acquire() and not await lease(store, "other-one").acquire()

    play(server, scenario)


def test_tokens_grow_even_if_redis_lost_the_counter(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one")
        assert await one.acquire(floor=41) and one.fence == 42
        plain.client.flushall()
        assert await one.acquire() and one.fence == 43

    play(server, scenario)


def test_a_lease_is_renewed_in_time_and_lost_by_ones_own_clock(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        clock = Clock()
        one = lease(store, "one", clock)
        assert await one.acquire()
        plain.client.pexpire(redis_keys.lease("orders"), 1000)
        clock.now += 1.9
        await one.keep()
        assert 0 < int(str(plain.client.pttl(redis_keys.lease("orders")))) <= 1000, "not yet"
        clock.now += 0.2
        await one.keep()
        assert int(str(plain.client.pttl(redis_keys.lease("orders")))) > 5000
        clock.now += 6.1
        assert not one.held
        with pytest.raises(Fenced):
            await one.keep()

    play(server, scenario)


def test_a_lease_that_was_taken_is_not_renewed(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        clock = Clock()
        one = lease(store, "one", clock)
        assert await one.acquire()
        plain.client.delete(redis_keys.lease("orders"))
        assert await lease(store, "other").acquire()
        clock.now += 3
        with pytest.raises(Fenced):
            await one.keep()
        assert not one.held
        await one.release()
        leader = await store.leader("orders")
        assert leader is not None and leader.holder == "other"

    play(server, scenario)


def test_whoever_does_not_lead_writes_nothing(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        clock = Clock()
        stale = lease(store, "stale", clock)
        assert await stale.acquire()
        journal = Journal(store.client, "orders", stale)
        plain.client.delete(redis_keys.lease("orders"))
        with pytest.raises(Fenced):
            await journal.write(Entry(migrations={"m": {"id": "m"}}), 1)
        assert not stale.held
        clock.now += 100
        with pytest.raises(Fenced):
            await journal.publish(FIRST.successor((1, 1, 1, 1), fence=1))
        assert await store.migrations("orders") == {}
        assert plain.current_number("orders") == 1

    play(server, scenario)


def test_an_epoch_is_refused_once_the_lease_has_ended(server: EmbeddedRedis, plain: Store) -> None:
    """Even if nobody has taken over yet, and whatever the holder's own clock says."""

    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one", Clock())
        assert await one.acquire()
        plain.client.delete(redis_keys.lease("orders"))
        with pytest.raises(Fenced):
            await Journal(store.client, "orders", one).publish(FIRST.successor((1, 1, 1, 1), fence=1))
        assert not one.held
        assert plain.current_number("orders") == 1

    play(server, scenario)


def test_epochs_are_published_in_order_and_strays_do_not_stop_it(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one")
        assert await one.acquire()
        journal = Journal(store.client, "orders", one)
        second = FIRST.successor((1, 1, 1, 1), fence=1)
        plain.client.set(redis_keys.epoch("orders", 2), "left over from a life before")
        await journal.publish(second)
        await journal.publish(second)
        assert await store.current_epoch("orders") == second
        with pytest.raises(Overtaken):
            await journal.publish(replace(second, owners=(0, 0, 0, 0)))
        with pytest.raises(Overtaken):
            await journal.publish(replace(second, number=9))
        assert await store.current_epoch("orders") == second

    play(server, scenario)


def test_an_entry_is_one_write(server: EmbeddedRedis, plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "CLOSED_KEPT", 3)

    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one")
        assert await one.acquire()
        journal = Journal(store.client, "orders", one)
        plain.client.rpush(redis_keys.requests("orders"), "first", "second")
        event = {"at_ms": 7, "kind": "step", "text": "a step", "data": {"step": 1}}
        await journal.write(
            Entry(
                migrations={"m": {"id": "m"}},
                rebalances={"r": {"id": "r"}},
                closed=("migration:m",),
                request="first",
                events=(event,),
            ),
            7,
        )
        assert await store.migration("orders", "m") == {"id": "m"} and await store.rebalance("orders", "r") == {
            "id": "r"
        }
        assert await store.next_request("orders") == "second"
        found = (await store.events("orders"))[0]
        assert (found.at_ms, found.kind, found.text, found.data) == (7, "step", "a step", {"step": 1})
        assert await store.events("orders", after=found.id) == []
        await journal.write(Entry(), 8)
        for number in range(4):
            closed = (f"rebalance:r{number}",)
            await journal.write(Entry(rebalances={f"r{number}": {}}, closed=closed), 10 + number)
        assert await store.history("orders") == [("rebalance:r3", 13), ("rebalance:r2", 12), ("rebalance:r1", 11)]
        assert set(await store.rebalances("orders")) == {"r", "r1", "r2", "r3"}
        assert await store.migrations("orders") == {}

    play(server, scenario)


def test_events_are_followed(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one")
        assert await one.acquire()
        journal = Journal(store.client, "orders", one)

        async def say(text: str) -> None:
            await journal.write(Entry(events=({"at_ms": 1, "kind": "k", "text": text},)), 1)

        await say("before")
        stream = store.follow("orders", wait_ms=20)
        assert await anext(stream) is None
        await say("after")
        found = await anext(stream)
        assert found is not None and found.text == "after"
        assert [event.text for event in await store.newest_events("orders")] == ["before", "after"]

    play(server, scenario)


def test_settings_rules_and_proposals(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        assert await store.auto("orders") == Settings() and not (await store.auto("orders")).auto
        await store.set_auto("orders", Settings(auto=True, start_ratio=1.5))
        assert (await store.auto("orders")).start_ratio == 1.5
        plain.client.set(redis_keys.auto("orders"), '{"auto": true, "of another version": 1}')
        assert not (await store.auto("orders")).auto
        await store.set_rules("orders", Rules(pinned=frozenset({3, 1})))
        assert await store.rules("orders") == Rules(pinned=frozenset({1, 3}))
        await store.save_proposal("orders", "p1", {"id": "p1"})
        await store.save_proposal("orders", "p2", {"id": "p2"})
        assert [each["id"] for each in await store.proposals("orders")] == ["p2", "p1"]
        plain.client.delete(redis_keys.proposal("orders", "p2"))
        assert [each["id"] for each in await store.proposals("orders")] == ["p1"]
        assert 0 < int(str(plain.client.ttl(redis_keys.proposal("orders", "p1")))) <= 3600

    play(server, scenario)


def test_what_cannot_be_read_is_not_there(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        assert await store.heartbeat("orders") is None
        plain.client.hset(redis_keys.driver("orders"), "committed", "7")
        assert await store.heartbeat("orders") is None
        plain.client.set(redis_keys.epoch("orders", 1), "rubbish")
        assert await store.current_epoch("orders") is None
        plain.client.hset(redis_keys.report("orders", 1), "0", '{"of": "another version"}')
        assert await store.reports("orders", 1) == {}

    play(server, scenario)


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput):
        ManagerStore("localhost")


def test_nobody_there_is_a_redis_error_at_once() -> None:
    async def scenario() -> None:
        store = ManagerStore("redis://127.0.0.1:1/0", 0.2)
        with pytest.raises(redis.RedisError):
            await store.queries()
        await store.close()

    asyncio.run(scenario())


def test_snapshot_decision_and_alarms_are_the_leaders_alone(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one")
        assert await one.acquire()
        pen = Journal(store.client, "orders", one)
        said = Entry(snapshot="{}", decision={"code": "off"}, alarms=({"at_ms": 1, "kind": "audit", "text": "x"},))
        await pen.write(said, 1)
        assert plain.client.get(redis_keys.snapshot("orders")) == "{}"
        assert await store.decision("orders") == {"code": "off"}
        assert [each["text"] for each in await store.alarms("orders")] == ["x"]
        plain.client.delete(redis_keys.lease("orders"))
        assert await lease(store, "other").acquire()
        with pytest.raises(Fenced):
            await pen.write(replace(said, snapshot="[]", decision={}), 2)
        assert plain.client.get(redis_keys.snapshot("orders")) == "{}"
        assert await store.decision("orders") == {"code": "off"} and len(await store.alarms("orders")) == 1

    play(server, scenario)


def test_a_migration_that_is_opened_again_is_not_closed(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one")
        assert await one.acquire()
        pen = Journal(store.client, "orders", one)
        await pen.write(Entry(migrations={"m": {"outcome": "rolled-back"}}, closed=("migration:m",)), 1)
        assert await store.open_migrations("orders") == {} and await store.history("orders")
        await pen.write(Entry(migrations={"m": {"outcome": ""}}), 2)
        assert await store.open_migrations("orders") == {"m": {"outcome": ""}}
        assert await store.history("orders") == []

    play(server, scenario)


def test_nothing_is_written_on_top_of_what_redis_lost(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one")
        assert await one.acquire()
        pen = Journal(store.client, "orders", one)
        assert not await pen.went_back()
        await pen.write(Entry(events=({"at_ms": 1, "kind": "first", "text": ""},)), 1)
        await pen.write(Entry(events=({"at_ms": 1, "kind": "second", "text": ""},)), 1)
        assert not await pen.went_back()
        plain.client.xdel(redis_keys.events("orders"), (await store.newest_events("orders"))[-1].id)
        assert await pen.went_back()
        with pytest.raises(WentBack):
            await pen.write(Entry(migrations={"m": {}}), 2)
        assert await store.migrations("orders") == {}
        await pen.begin()
        assert not await pen.went_back()
        await pen.write(Entry(migrations={"m": {}}), 2)

    play(server, scenario)
