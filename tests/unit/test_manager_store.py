"""Store, lease and journal against a real server: every write of a leader is checked, records are kept and trimmed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from balancing.instructions import Notice, Write
from balancing.policies import Level
from balancing.proposal import Proposal, make_proposal
from balancing.protocols.migration import Migration, Request
from balancing.requests import Rebalance
from balancing.rules import Rules
from balancing.settings import Settings
from balancing.steering import Steering
from balancing.triggers import Decision, TriggerState
from manager import journal as journal_module
from manager.chronicle import Entries
from manager.history import COARSE_S, FINE_S, BatchRow, Column
from manager.journal import LeaderJournal, Overtaken, WentBack
from manager.lease import Fenced, Lease
from manager.outcomes import Outcome, OutcomeNote
from manager.store import ManagerStore, UnreadableRecord, readable_columns
from tests.checkers.clock import ManualClock
from tests.unit.balancing_snapshots import snapshot
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


MIGRATION = Migration(
    id="m", query="orders", incarnation="abc", strategy="mslb", sender=0, receiver=1, request=Request(groups=(0,))
)
REBALANCE = Rebalance(
    id="r", query="orders", state="running", request={}, by="me", reason="why", created_ms=5, migrations=("m",)
)
DECISION = Decision(act=False, code="off", why="it is off", ratio=1.0, level="executor", state=TriggerState())


def written(**parts: Any) -> Write:
    return Write(then=Steering(query="orders"), **parts)


def notice(text: str, kind: str = "step", **data: Any) -> Notice:
    return Notice(kind=kind, text=text, data=data)


def proposal(name: str) -> Proposal:
    return make_proposal(
        replace(snapshot([0, 0, 1], [1e6] * 3, ["a", "b"]), query="orders"), Level(), Settings(), id=name
    )


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
        clock = ManualClock()
        one = lease(store, "one", clock)
        assert await one.acquire()
        plain.client.pexpire(redis_keys.lease("orders"), 1000)
        clock.now_s += 1.9
        await one.keep()
        assert 0 < int(str(plain.client.pttl(redis_keys.lease("orders")))) <= 1000, "not yet"
        clock.now_s += 0.2
        await one.keep()
        assert int(str(plain.client.pttl(redis_keys.lease("orders")))) > 5000
        clock.now_s += 6.1
        assert not one.held
        with pytest.raises(Fenced):
            await one.keep()

    play(server, scenario)


def test_a_lease_that_was_taken_is_not_renewed(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        clock = ManualClock()
        one = lease(store, "one", clock)
        assert await one.acquire()
        plain.client.delete(redis_keys.lease("orders"))
        assert await lease(store, "other").acquire()
        clock.now_s += 3
        with pytest.raises(Fenced):
            await one.keep()
        assert not one.held
        await one.release()
        leader = await store.leader("orders")
        assert leader is not None and leader.holder == "other"

    play(server, scenario)


def test_nobody_releases_the_lease_of_another(server: EmbeddedRedis, plain: Store) -> None:
    """Redis lost it, and by its own clock the first one still leads."""

    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one")
        assert await one.acquire()
        plain.client.delete(redis_keys.lease("orders"))
        assert await lease(store, "other").acquire()
        assert one.held
        await one.release()
        leader = await store.leader("orders")
        assert leader is not None and leader.holder == "other"

    play(server, scenario)


def test_what_redis_says_beside_that_is_an_error(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one")
        assert await one.acquire()
        journal = LeaderJournal(store.client, "orders", one)
        plain.client.set(redis_keys.migrations("orders"), "not a hash")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await journal.write(written(migrations=(MIGRATION,)), 1)
        plain.client.delete(redis_keys.lease("orders"))
        await journal.write(written(), 2)  # nothing to write: nobody is asked

    play(server, scenario)


def test_whoever_does_not_lead_writes_nothing(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        clock = ManualClock()
        stale = lease(store, "stale", clock)
        assert await stale.acquire()
        journal = LeaderJournal(store.client, "orders", stale)
        plain.client.delete(redis_keys.lease("orders"))
        with pytest.raises(Fenced):
            await journal.write(written(migrations=(MIGRATION,)), 1)
        assert not stale.held
        clock.now_s += 100
        with pytest.raises(Fenced):
            await journal.publish(FIRST.successor((1, 1, 1, 1), fence=1))
        assert await store.migrations("orders") == {}
        assert plain.current_number("orders") == 1

    play(server, scenario)


def test_whoever_was_cut_off_for_longer_than_its_lease_does_not_ask_redis(server: EmbeddedRedis, plain: Store) -> None:
    """A write may be on its way for longer than one thinks. By its own clock the lease has ended, and that counts."""

    async def scenario(store: ManagerStore) -> None:
        clock = ManualClock()
        one = lease(store, "one", clock)
        assert await one.acquire()
        clock.now_s += 100
        with pytest.raises(Fenced):
            await LeaderJournal(store.client, "orders", one).write(written(migrations=(MIGRATION,)), 1)
        assert plain.client.get(redis_keys.lease("orders")) == one.value, "Redis would have let it through"
        assert await store.migrations("orders") == {}

    play(server, scenario)


def test_an_epoch_is_refused_once_the_lease_has_ended(server: EmbeddedRedis, plain: Store) -> None:
    """Even if nobody has taken over yet, and whatever the holder's own clock says."""

    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one", ManualClock())
        assert await one.acquire()
        plain.client.delete(redis_keys.lease("orders"))
        with pytest.raises(Fenced):
            await LeaderJournal(store.client, "orders", one).publish(FIRST.successor((1, 1, 1, 1), fence=1))
        assert not one.held
        assert plain.current_number("orders") == 1

    play(server, scenario)


def test_epochs_are_published_in_order_and_strays_do_not_stop_it(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one")
        assert await one.acquire()
        journal = LeaderJournal(store.client, "orders", one)
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
        journal = LeaderJournal(store.client, "orders", one)
        plain.client.rpush(redis_keys.requests("orders"), "first", "second")
        ended = replace(MIGRATION, outcome="committed")
        await journal.write(
            written(
                migrations=(ended,),
                rebalances=(REBALANCE,),
                request="first",
                events=(notice("a step", step=1),),
            ),
            7,
        )
        assert await store.migration("orders", "m") == ended and await store.rebalance("orders", "r") == REBALANCE
        assert await store.history("orders") == [("migration:m", 7)]
        assert await store.next_request("orders") == "second"
        event = (await store.events("orders"))[0]
        assert (event.at_ms, event.kind, event.text, event.data) == (7, "step", "a step", {"step": 1})
        assert await store.events("orders", after=event.id) == []
        await journal.write(written(), 8)
        for number in range(4):
            closed = replace(REBALANCE, id=f"r{number}", state="committed")
            await journal.write(written(rebalances=(closed,)), 10 + number)
        assert await store.history("orders") == [("rebalance:r3", 13), ("rebalance:r2", 12), ("rebalance:r1", 11)]
        assert set(await store.rebalances("orders")) == {"r", "r1", "r2", "r3"}
        assert await store.migrations("orders") == {}

    play(server, scenario)


def test_events_are_followed(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one")
        assert await one.acquire()
        journal = LeaderJournal(store.client, "orders", one)

        async def say(text: str) -> None:
            await journal.write(written(events=(notice(text),)), 1)

        await say("before")
        (before,) = await store.newest_events("orders", 1)
        assert await store.events("orders", before.id, block_ms=20) == []
        await say("after")
        (event,) = await store.events("orders", before.id, block_ms=20)
        assert event.text == "after"
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
        first, second = proposal("p1"), replace(proposal("p2"), by="me", order="hot-last", max_pause_ms=5.0)
        await store.save_proposal(first)
        await store.save_proposal(second)
        assert await store.proposals("orders", 9) == [second, first]
        assert await store.proposals("orders", 1) == [second]
        assert await store.proposal("orders", "p2") == second
        plain.client.set(redis_keys.proposal("orders", "p2"), '{"format": 0}')
        assert await store.proposals("orders", 9) == [first] and await store.proposal("orders", "p2") is None
        plain.client.delete(redis_keys.proposal("orders", "p2"))
        assert await store.proposals("orders", 9) == [first] and await store.proposal("orders", "p2") is None
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


def test_entries_of_somebody_else_do_not_hide_the_others(server: EmbeddedRedis, plain: Store) -> None:
    plain.client.sadd(redis_keys.QUERIES, b"caf\xe9", "orders")
    alarms = ["not JSON", '{"at_ms": 1e20, "kind": "k", "text": "t"}', '{"at_ms": 5, "kind": "k", "text": "t"}', "[]"]
    plain.client.rpush(redis_keys.alarms("orders"), *alarms)
    plain.client.set(redis_keys.decision("orders"), "[1")
    plain.client.xadd(redis_keys.events("orders"), {"event": '{"at_ms": 9000000000000000, "kind": "k", "text": "t"}'})

    async def scenario(store: ManagerStore) -> None:
        assert "orders" in await store.queries()
        assert await store.alarms("orders") == [{"at_ms": 5, "kind": "k", "text": "t"}]
        assert await store.decision("orders") is None
        (event,) = await store.newest_events("orders")
        assert event.kind == "unreadable"

    play(server, scenario)


def test_records_are_read_at_one_moment_and_unreadable_ones_are_named(server: EmbeddedRedis, plain: Store) -> None:
    """The leader raises an alarm for those that nobody will look after; readers do without them."""

    async def scenario(store: ManagerStore) -> None:
        ended = replace(MIGRATION, id="ended", outcome="committed")
        plain.client.hset(
            redis_keys.migrations("orders"),
            mapping={
                "m": json.dumps(MIGRATION.to_json()),
                "ended": json.dumps(ended.to_json()),
                "old": '{"format": 1, "id": "old"}',
                "rubbish": "[]",
                "long-ago": '{"format": 1}',
            },
        )
        plain.client.hset(
            redis_keys.rebalances("orders"), mapping={"r": json.dumps(REBALANCE.to_json()), "half": '{"id": "half"}'}
        )
        plain.client.zadd(redis_keys.closed("orders"), {"migration:ended": 1, "migration:long-ago": 1})
        records = await store.records("orders")
        assert (records.migrations, records.rebalances) == ({"m": MIGRATION, "ended": ended}, {"r": REBALANCE})
        assert {(each.kind, each.name) for each in records.unreadable} == {
            ("migration", "old"),
            ("migration", "rubbish"),
            ("rebalance", "half"),
        }
        assert all(isinstance(each, UnreadableRecord) and each.problem for each in records.unreadable)
        assert "format 1" in next(each.problem for each in records.unreadable if each.name == "old")
        assert await store.migrations("orders") == {"m": MIGRATION, "ended": ended}
        assert await store.open_migrations("orders") == {"m": MIGRATION}
        assert await store.migrations_named("orders", ["m", "old", "nowhere"]) == {"m": MIGRATION}
        assert await store.migration("orders", "old") is None and await store.migration("orders", "m") == MIGRATION
        assert await store.rebalances("orders") == {"r": REBALANCE}
        assert await store.rebalance("orders", "half") is None and await store.rebalance("orders", "no") is None

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
        journal = LeaderJournal(store.client, "orders", one)
        write = written(decision=DECISION, alarms=(notice("x", kind="audit"),))
        await journal.write(write, 1)
        await journal.write_snapshot("{}", Entries(), "{}", 1)
        assert plain.client.get(redis_keys.snapshot("orders")) == "{}"
        assert await store.decision("orders") == {**DECISION.to_json(), "at_ms": 1}
        assert [each["text"] for each in await store.alarms("orders")] == ["x"]
        plain.client.delete(redis_keys.lease("orders"))
        assert await lease(store, "other").acquire()
        with pytest.raises(Fenced):
            await journal.write(replace(write, decision=replace(DECISION, code="idle")), 2)
        with pytest.raises(Fenced):
            await journal.write_snapshot("[]", Entries(), None, 2)
        assert plain.client.get(redis_keys.snapshot("orders")) == "{}"
        assert await store.decision("orders") == {**DECISION.to_json(), "at_ms": 1}
        assert len(await store.alarms("orders")) == 1

    play(server, scenario)


def test_the_history_goes_to_its_lists_and_the_first_forecast_stays(server: EmbeddedRedis, plain: Store) -> None:
    column = Column(at_ms=1, epoch=1, ratio=1.0, batch_ms=1.0, rows_per_s=1.0, loads=b"\0\0\0\0", owners=FIRST.owners)
    first, second = (
        Outcome(ratio_before=ratio, ratio_after=1.0, pause_ms=None, bytes=1, seconds=None) for ratio in (1.5, 1.6)
    )

    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one")
        assert await one.acquire()
        journal = LeaderJournal(store.client, "orders", one)
        entries = Entries(
            batches=(BatchRow(1, 7, 1.0, 1.0, 1.0, 1.0),),
            fine=replace(column, at_ms=2),
            coarse=replace(column, at_ms=3),
            outcomes=(OutcomeNote("forecast", "r", first), OutcomeNote("measured", "r", first)),
        )
        await journal.write_snapshot("{}", entries, None, 1)
        assert [row.batch for row in await store.batches("orders")] == [7]
        for step_s, at_ms in ((FINE_S, 2), (COARSE_S, 3)):
            columns = readable_columns(await store.column_texts("orders", step_s))
            assert [each.at_ms for each in columns] == [at_ms]
        again = (OutcomeNote("forecast", "r", second), OutcomeNote("measured", "r", second))
        await journal.write_snapshot("{}", Entries(outcomes=again), None, 2)
        found = (await store.outcomes("orders", ["r"]))["r"]
        assert (found["forecast"]["ratio_before"], found["measured"]["ratio_before"]) == (1.5, 1.6)

    play(server, scenario)


def test_a_migration_that_is_opened_again_is_not_closed(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one")
        assert await one.acquire()
        journal = LeaderJournal(store.client, "orders", one)
        await journal.write(written(migrations=(replace(MIGRATION, outcome="rolled-back"),)), 1)
        assert await store.open_migrations("orders") == {} and await store.history("orders")
        await journal.write(written(migrations=(MIGRATION,)), 2)
        assert await store.open_migrations("orders") == {"m": MIGRATION}
        assert await store.history("orders") == []

    play(server, scenario)


def test_nothing_is_written_on_top_of_what_redis_lost(server: EmbeddedRedis, plain: Store) -> None:
    async def scenario(store: ManagerStore) -> None:
        one = lease(store, "one")
        assert await one.acquire()
        journal = LeaderJournal(store.client, "orders", one)
        assert not await journal.went_back()
        await journal.write(written(events=(notice("first"),)), 1)
        await journal.write(written(events=(notice("second"),)), 1)
        assert not await journal.went_back()
        plain.client.xdel(redis_keys.events("orders"), (await store.newest_events("orders"))[-1].id)
        assert await journal.went_back()
        with pytest.raises(WentBack):
            await journal.write(written(migrations=(MIGRATION,)), 2)
        assert await store.migrations("orders") == {}
        await journal.begin()
        assert not await journal.went_back()
        await journal.write(written(migrations=(MIGRATION,)), 2)

    play(server, scenario)
