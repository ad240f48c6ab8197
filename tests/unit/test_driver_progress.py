"""What Spark's progress says, and how it gets to Redis: of joins only, under the right name, never failing a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from split_union.progress import QUIET_S, ProgressListener
from tests.checkers.clock import ManualClock
from trimtab.driver_progress import (
    LAGS_MAX,
    DriverProgress,
    Sources,
    backlog_of,
    bound_entry,
    parse_driver_progress,
)
from trimtab.embedded import EmbeddedRedis
from trimtab.epochs import Epoch, dealt_in_turn, first_epoch
from trimtab.offset_log import TEXT_INLINE_MAX, epoch_file
from trimtab.offset_mark import MARK
from trimtab.store import Store

KAFKA = {"endOffset": '{"orders":{"0":40,"1":70}}', "latestOffset": '{"orders":{"0":45,"1":70,"2":9}}'}
FILES = {"endOffset": '{"logOffset":3}', "latestOffset": "null"}


def control(epoch: Epoch, *, inline: bool = True) -> dict[str, Any]:
    entry: dict[str, Any] = {"epoch": epoch.number, "digest": epoch.digest, "tick": 1}
    if inline:
        entry["text"] = epoch.to_text()
    return {**source({"endOffset": json.dumps({MARK: entry}), "latestOffset": "null"}), "numInputRows": 4}


def source(offsets: dict[str, str], rate: float = 250.0) -> dict[str, Any]:
    return {**offsets, "inputRowsPerSecond": rate, "numInputRows": 100}


def progress(*sources: dict[str, Any], **durations: int) -> dict[str, Any]:
    spent = durations or {"addBatch": 600, "triggerExecution": 750}
    return {"batchId": 7, "runId": "run-1", "durationMs": spent, "sources": sources}


def epoch_of(query: str, partitions: int = 8) -> Epoch:
    return first_epoch(query, "abc", dealt_in_turn(partitions, 2))


def test_a_batch() -> None:
    body = progress(source(KAFKA), control(epoch_of("orders")), source(FILES, 50.0))
    told = DriverProgress(batch=7, batch_ms=750, rows_per_s=300.0, backlog=5, lags={"A": 5})
    assert parse_driver_progress(body, Sources(("A", "B"))) == told
    entry = bound_entry(body)
    assert entry is not None and entry["epoch"] == 1


def test_sources_are_streams_unless_their_numbers_differ() -> None:
    described = {**source(KAFKA), "description": "KafkaV2[Subscribe[orders]]"}
    body = progress(control(epoch_of("orders")), described, described)
    told = parse_driver_progress(body, Sources(("A", "B", "C")))
    assert told is not None and told.lags == {"KafkaV2[Subscribe[orders]]": 10}, "two of one name count together"
    many = progress(*({**source(KAFKA), "description": str(number)} for number in range(20)))
    told = parse_driver_progress(many)
    assert told is not None and len(told.lags) == LAGS_MAX and told.backlog == 100


def test_a_source_that_the_plan_reads_twice_counts_once() -> None:
    """Spark counts the rows of each branch."""
    sources = Sources(("A", "B"), {"A": 2})
    body = progress(control(epoch_of("orders")), source(KAFKA, 500.0), source(FILES, 50.0))
    told = parse_driver_progress(body, sources)
    assert told is not None and told.rows_per_s == 300.0
    assert sources.rows(body) == 150


def test_an_idle_query_has_no_new_batch() -> None:
    assert parse_driver_progress(progress(source(KAFKA), triggerExecution=3)) is None


def test_rates_that_are_no_numbers_count_as_nothing() -> None:
    """Spark divides by the time since the last trigger, which may be zero."""
    parsed = parse_driver_progress(progress(source(FILES, float("nan")), source(FILES, float("inf")), source(FILES)))
    assert parsed is not None and parsed.rows_per_s == 250.0


@pytest.mark.parametrize(
    ("end", "latest", "rows"),
    [
        ('{"t":{"0":4}}', '{"t":{"0":4}}', 0),
        ('{"t":{"0":4}}', '{"t":{"0":3}}', 0),
        ('{"t":{"0":4},"u":{"0":1}}', '{"t":{"0":14},"u":{"0":2}}', 11),
        ('{"t":{"0":4}}', "null", None),
        ("null", '{"t":{"0":4}}', None),
        ("3", "5", None),
        ('{"t":3}', '{"t":5}', None),
        ("not json", "{}", None),
    ],
)
def test_backlog_where_offsets_are_like_those_of_kafka(end: str, latest: str, rows: int | None) -> None:
    assert backlog_of({"endOffset": end, "latestOffset": latest}) == rows


class Heard:
    """Redis's part, as the listener uses it."""

    def __init__(self) -> None:
        self.told: list[tuple[str, DriverProgress]] = []
        self.signs: list[tuple[str, str]] = []
        self.error: Exception | None = None

    def progress(self, query: str, progress: DriverProgress) -> None:
        if self.error is not None:
            raise self.error
        self.told.append((query, progress))

    def pulse(self, query: str) -> None:
        self.signs.append(("pulse", query))

    def ended(self, query: str) -> None:
        self.signs.append(("ended", query))


def listening(heard: Any, directory: Path, *queries: str) -> tuple[ProgressListener, ManualClock]:
    clock = ManualClock()
    listener = ProgressListener(clock)
    for query in queries:
        listener.add(query, heard, str(directory / query), ("A", "B"))
    return listener, clock


def test_a_join_is_known_by_its_epoch(tmp_path: Path) -> None:
    heard = Heard()
    listener, _ = listening(heard, tmp_path, "orders", "clicks")
    listener.tell(progress(source(FILES), control(epoch_of("clicks"))))
    listener.tell(progress(source(FILES), control(epoch_of("orders"))))
    listener.tell(progress(source(FILES)))  # another query of the same session
    listener.tell(progress(source(FILES), control(epoch_of("of another session"))))
    assert [name for name, _ in heard.told] == ["clicks", "orders"]


def test_large_epochs_are_known_by_their_file(tmp_path: Path) -> None:
    heard = Heard()
    large = epoch_of("large", 9_000)
    assert len(large.to_text()) > TEXT_INLINE_MAX
    path = tmp_path / "large" / epoch_file(large.number, large.digest)
    path.parent.mkdir(parents=True)
    path.write_text(large.to_text())
    listener, _ = listening(heard, tmp_path, "orders", "large")
    listener.tell(progress(source(FILES), control(large, inline=False)))
    listener.tell(progress(source(FILES), control(epoch_of("unknown"), inline=False)))
    assert [name for name, _ in heard.told] == ["large"]


def test_nothing_fails_the_query_and_redis_is_left_alone_for_a_while(tmp_path: Path) -> None:
    heard = Heard()
    listener, clock = listening(heard, tmp_path, "orders")
    body = progress(source(FILES), control(epoch_of("orders")))
    for broken in ({}, {"sources": None}, {**body, "batchId": "?"}, progress({"endOffset": None})):
        listener.tell(broken)
    heard.error = ConnectionError("away")
    listener.tell(body)
    heard.error = None
    listener.tell(body)
    assert heard.told == [], "Redis did not answer a moment ago"
    clock.now_s += QUIET_S
    listener.tell(body)
    assert len(heard.told) == 1


def test_signs_of_life_from_the_first_batch_to_the_end_of_that_run(tmp_path: Path) -> None:
    heard = Heard()
    listener, _ = listening(heard, tmp_path, "orders", "clicks")
    listener.pulse()
    assert heard.signs == [], "nothing is known to run yet"
    listener.tell(progress(source(FILES), control(epoch_of("orders"))))
    listener.pulse()
    assert heard.signs == [("pulse", "orders")]
    listener.tell(progress(source(FILES), control(epoch_of("orders"))) | {"runId": "run-2"})
    listener.end("run-1")
    assert heard.signs == [("pulse", "orders")], "it was started again before Spark told of the end"
    listener.end("run-2")
    listener.pulse()
    assert heard.signs == [("pulse", "orders"), ("ended", "orders")]
    listener.tell(progress(source(FILES), control(epoch_of("orders"))) | {"runId": "run-3"})
    listener.forget("orders")
    listener.end("run-3")
    listener.pulse()
    assert len(heard.signs) == 2, "its Redis may be gone"


@pytest.mark.redis
def test_it_is_beside_the_sign_of_life_in_redis(server: EmbeddedRedis, tmp_path: Path) -> None:
    store = Store(server.url)
    listener, _ = listening(store, tmp_path, "orders")
    caught_up = {**KAFKA, "latestOffset": KAFKA["endOffset"]}
    listener.tell(progress(source(KAFKA), control(epoch_of("orders")), source(caught_up)))
    assert store.client.hgetall("trimtab:{orders}:driver") == {
        "progress_batch": "7",
        "batch_ms": "750",
        "rows_per_s": "500.0",
        "backlog": "5",
        "lags": '{"A": 5, "B": 0}',
    }
    listener.forget("orders")
