"""The store against a real server: lineage is kept, reports expire, nothing hangs when nobody answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import redis

from split_union.definition import check_name_is_free
from trimtab import redis_keys
from trimtab.defaults import REDIS_VARIABLE
from trimtab.embedded import EmbeddedRedis
from trimtab.epochs import first_epoch
from trimtab.errors import CorruptState, InvalidInput, RedisUnreachable
from trimtab.moves import Kind, Move
from trimtab.redis_access import USER, redacted
from trimtab.reports import REPORT_TTL_S, WorkerReport, likely, parse_report, winners
from trimtab.store import Store, successor


@pytest.fixture
def store(server: EmbeddedRedis) -> Store:
    store = Store(server.url)
    store.client.flushall()
    return store


FIRST = first_epoch("orders", "abc", (0, 1, 0, 1))
MOVE = Move(id="m.w1", kind=Kind.TRANSFER, groups=(2,), sender=0, receiver=1, epoch=2)
SECOND = FIRST.successor(FIRST.owners, moves=(MOVE,))
THIRD = SECOND.successor((0, 1, 1, 1))
REPORT = WorkerReport(
    query="orders", batch=7, epoch=1, worker=0, attempt=3, executor="1", process=42, at_ms=1, rows={"A": 5},
    late_rows={}, bad_rows={"A": 1}, results=2, state_rows=9,
    combined_rows=0, state_bytes=100, index_bytes=50, watermark_us=0,
    cpu_ns=10, resident="hit",
)  # fmt: skip


def test_what_is_published_can_be_read(store: Store) -> None:
    store.publish(FIRST)
    store.publish(SECOND)
    store.publish(THIRD)
    assert store.current_number("orders") == 3
    assert store.epoch("orders", 2) == SECOND
    assert store.client.hgetall(redis_keys.mapping("orders")) == {"0": "0", "1": "1", "2": "1", "3": "1"}
    assert successor(store, "orders", FIRST, 2) == SECOND
    assert successor(store, "orders", SECOND, 2) == THIRD
    assert successor(store, "orders", THIRD, 2) is None


def test_publishing_twice_is_the_same_as_once(store: Store) -> None:
    store.publish(FIRST)
    store.publish(SECOND)
    store.publish(FIRST)
    assert store.current_number("orders") == 2


def test_an_epoch_is_immutable_and_numbers_have_no_gaps(store: Store) -> None:
    store.publish(FIRST)
    with pytest.raises(redis.ResponseError, match="EPOCHTAKEN"):
        store.publish(replace(FIRST, owners=(1, 1, 1, 1)))
    with pytest.raises(redis.ResponseError, match="EPOCHGAP"):
        store.publish(replace(SECOND, number=5))
    assert store.epoch("orders", 1) == FIRST


def test_a_redis_that_forgot_everything_takes_the_epoch_that_follows(store: Store) -> None:
    store.publish(SECOND)
    assert store.current_number("orders") == 2


def test_only_a_true_successor_follows(store: Store) -> None:
    store.publish(FIRST)
    store.publish(replace(SECOND, predecessor="somebody else's"))
    with pytest.raises(CorruptState, match="does not follow"):
        successor(store, "orders", FIRST, 2)
    store.restore(FIRST)
    store.publish(replace(SECOND, owners=(0,)))
    with pytest.raises(CorruptState, match="1 groups instead of 4"):
        successor(store, "orders", FIRST, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"owners": (0, 1, 2, 1)},
        {"owners": (0, 1, -1, 1)},
        {"owners": (1, 1, 0, 1)},
        {"fence": -1},
        {"moves": (replace(MOVE, groups=(4,)),)},
        {"moves": (replace(MOVE, receiver=2),)},
        {"moves": (replace(MOVE, id="a/b"),)},
        {"moves": (replace(MOVE, id="../../etc"),)},
        {"moves": (MOVE, replace(MOVE, id="n.w1"))},
    ],
)
def test_an_epoch_that_cannot_be_run_is_never_bound(store: Store, changes: dict[str, Any]) -> None:
    """A group that changes hands without a move is among them."""
    store.publish(FIRST)
    store.client.set(redis_keys.epoch("orders", 2), replace(SECOND, **changes).to_text())
    with pytest.raises(CorruptState):
        successor(store, "orders", FIRST, 2)


def test_an_epoch_for_workers_that_the_query_does_not_have_is_never_bound(store: Store) -> None:
    """Not even where the epoch before has them, too."""
    store.publish(FIRST)
    store.publish(FIRST.successor(FIRST.owners))
    with pytest.raises(CorruptState, match=r"owners\[1\]"):
        successor(store, "orders", FIRST, 1)


@pytest.mark.parametrize("text", ["rubbish", '{"questions":[{"migration":"m","worker":0,"drop":"table"}]}'])
def test_a_corrupt_successor_is_left_alone(store: Store, text: str) -> None:
    store.publish(FIRST)
    store.client.set(redis_keys.epoch("orders", 2), text)
    with pytest.raises(CorruptState):
        successor(store, "orders", FIRST, 2)


def test_restoring_puts_right_what_redis_mixed_up(store: Store) -> None:
    store.publish(FIRST)
    store.publish(SECOND)
    store.restore(FIRST)
    assert store.current_number("orders") == 1
    assert store.epoch("orders", 2) is None


def test_reports_are_kept_by_batch_and_expire(store: Store) -> None:
    store.report(REPORT)
    store.report(replace(REPORT, batch=8, worker=1))
    assert store.reports("orders", 7) == {0: REPORT}
    assert set(store.reports("orders")) == {0, 1}
    for key in (redis_keys.report("orders", 7), redis_keys.latest_reports("orders")):
        assert 0 < int(str(store.client.ttl(key))) <= REPORT_TTL_S
    assert parse_report(REPORT.to_text()) == REPORT


def test_a_report_of_an_attempt_that_spark_gave_up_comes_too_late(store: Store) -> None:
    store.report(replace(REPORT, stamp="a", run="r1", attempt=9, results=9))
    store.report(replace(REPORT, stamp="b", run="r1", attempt=4, results=4))
    assert store.reports("orders", 7)[0].results == 9
    # A restarted query counts anew, and repeats the batch.
    store.report(replace(REPORT, stamp="c", run="r2", attempt=1, results=1, at_ms=2))
    assert store.reports("orders", 7)[0].results == 1


def test_within_a_run_the_attempt_counts_and_not_the_clocks_of_the_executors() -> None:
    first, second = replace(REPORT, run="r1", attempt=1, at_ms=9), replace(REPORT, run="r1", attempt=2, at_ms=5)
    assert likely([first, second]) == likely([second, first]) == {0: second}
    restarted = replace(REPORT, run="r2", attempt=0, at_ms=10)
    assert likely([restarted, second]) == likely([second, restarted]) == {0: restarted}


def test_no_attempt_overwrites_the_report_of_another(store: Store) -> None:
    """A zombie of an earlier run may speak last: the next batch says which attempt was committed."""
    winner = replace(REPORT, stamp="winner", run="r2", at_ms=2)
    zombie = replace(REPORT, stamp="zombie", run="r1", at_ms=9)
    store.report(winner)
    store.report(zombie)
    attempts = [parse_report(text) for text in store.client.hgetall(redis_keys.report("orders", 7)).values()]
    following = [replace(REPORT, batch=8, stamp="next", stamp_before="winner")]
    assert winners(attempts, following) == {0: winner}


def test_an_old_batch_never_becomes_the_newest_report(store: Store) -> None:
    store.report(replace(REPORT, batch=9, stamp="new"))
    store.report(replace(REPORT, batch=7, stamp="old"))
    assert store.reports("orders")[0].batch == 9


def test_the_name_of_a_running_query_is_taken_however_long_its_batches(store: Store) -> None:
    store.define("orders", {"checkpoint": "/there"})
    check_name_is_free("orders", "/here", store)
    store.beat("orders", 3, 1, "digest", gap_ms=20_000)
    silent_ms = store.last_seen("orders")[0] - 45_000
    store.client.hset(redis_keys.driver("orders"), "at_ms", silent_ms)
    with pytest.raises(InvalidInput, match="belongs to a query that runs with checkpoint '/there'"):
        check_name_is_free("orders", "/here", store)
    check_name_is_free("orders", "/there", store)
    store.client.hset(redis_keys.driver("orders"), "at_ms", silent_ms - 60_000)
    check_name_is_free("orders", "/here", store)


def test_alarms_are_kept_newest_first(store: Store) -> None:
    for number in range(3):
        store.alarm("orders", "test", f"alarm {number}")
    assert [alarm["text"] for alarm in store.alarms("orders")] == ["alarm 2", "alarm 1", "alarm 0"]


def test_nobody_there_is_told_without_the_password() -> None:
    with pytest.raises(RedisUnreachable) as caught:
        Store("redis://user:secret@localhost:1/0").check()
    assert "secret" not in str(caught.value)
    assert "localhost:1" in str(caught.value)
    assert caught.value.field == "redis"


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput):
        Store("localhost")


def test_what_is_wrong_with_the_environment_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REDIS_VARIABLE, "redis://localhost:1/0")
    monkeypatch.setenv(USER, "somebody")
    with pytest.raises(InvalidInput) as refused:
        Store("redis://localhost:1/0")
    assert refused.value.field == USER


def test_redaction() -> None:
    assert redacted("redis://a:b@h:1/0") == "redis://***@h:1/0"
    assert redacted("redis://h:1/0") == "redis://h:1/0"
