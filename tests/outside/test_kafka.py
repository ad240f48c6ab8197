"""A real Kafka: results are exact through a rebalance and a killed driver; bad records, Avro, bad input."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from balancing.requests import MoveRequest, RebalanceRequest, Refused
from commands.runner.build import build_join, build_writer
from commands.runner.job import load_job
from examples.kafka.broker import EmbeddedKafka
from manager.embedded import EmbeddedManager
from manager.settings import ManagerSettings
from manager.store import now_ms
from tests.checkers.cases import START_US
from tests.checkers.registry import RegistryServer
from tests.checkers.sessions import make_session
from tests.outside.kafka_pipe import Driver, Pipe, connector, decoded
from tests.outside.kafka_topics import Topics
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis
from trimtab.errors import InvalidInput
from trimtab.offset_log import Checkpoint
from trimtab.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENT = ManagerSettings(lease_ttl_s=60.0, lease_renew_s=5.0)
START_MS = START_US // 1000


@pytest.fixture(scope="module")
def topics() -> Iterator[Topics]:
    with EmbeddedKafka() as kafka:
        yield Topics(kafka.servers)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with EmbeddedRedis() as server:
        yield server.url


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    started: list[Driver] = []
    yield started
    for driver in started:
        driver.end()


def test_exact_through_a_rebalance_and_a_killed_driver(
    topics: Topics, redis_url: str, tmp_path: Path, drivers: list[Driver]
) -> None:
    """The driver dies when all results of a batch are in the topic and the batch is not committed.

    A dead letter of that batch waits at a gate, so that Spark cannot commit it however long the results take.
    """
    pipe = Pipe(tmp_path, topics, redis_url, f"pipe-{secrets.token_hex(3)}")
    gate = tmp_path / "gate"
    gate.mkdir()
    job = str(pipe.write_job())
    pipe.wave(bad=1)
    drivers.append(driver := pipe.start("-m", "tests.outside.kafka_driver", job, str(gate)))
    driver.until(pipe.caught_up, "the first wave")
    _move_groups(pipe, driver)

    before = pipe.committed()
    (gate / "shut").touch()
    pipe.wave(bad=1)
    driver.until((gate / "reached").exists, "a dead letter at the gate")
    killed = max(pipe.batches())
    wanted = pipe.expected().total()
    driver.until(lambda: topics.size(f"{pipe.name}-out") == wanted, "all results of the batch in the topic")
    assert pipe.committed() < killed
    driver.kill()
    (gate / "shut").unlink()
    assert before < killed and not (pipe.checkpoint / "commits" / str(killed)).exists()

    drivers.append(again := pipe.start("-m", "commands.cli", "run", job, "--json"))
    again.until(lambda: pipe.committed() >= killed, "the batch that was run again")
    pipe.wave(bad=2)
    again.until(pipe.caught_up, "the last wave")
    store = Store(redis_url)

    def driver_said() -> dict[str, str]:
        return {str(name): str(value) for name, value in store.client.hgetall(redis_keys.driver(pipe.name)).items()}

    # Spark tells listeners of a batch some time after its commit, and of a batch that is run again no newest offset.
    again.until(lambda: json.loads(driver_said().get("lags", "{}")) == {"A": 0, "B": 0}, "the lag of the last wave")
    again.stop()

    results, _ = pipe.check()
    recorded = pipe.recorded()
    assert set(recorded.batch_of) == {*pipe.sent["A"], *pipe.sent["B"], *pipe.bad}, "no offset is skipped"
    copies = {name: len(rows) for name, rows in results.items()}
    of_killed = {name for name, rows in results.items() if pipe.batch_of_result(rows[0], recorded) == killed}
    assert of_killed, "a test that proves little: the batch had no results"
    assert {name: count for name, count in copies.items() if count > 1} == dict.fromkeys(of_killed, 2)
    counted = driver.rows() | again.rows()
    assert counted.total() == len(recorded.batch_of), "each record is counted once"
    letters = {letter.headers["trimtab-record"]: letter for letter in pipe.dead()}
    assert {place: letter.value for place, letter in letters.items()} == pipe.bad
    # Reports of older batches may have left Redis on a slow machine.
    told = [store.reports(pipe.name, batch) for batch in pipe.batches() if batch > killed]
    late = [place for place in pipe.bad if recorded.batch_of[place] > killed]
    assert sum(sum(r.bad_rows.values()) for reports in told for r in reports.values()) == len(late) == 2


def _move_groups(pipe: Pipe, driver: Driver) -> None:
    """Ship some groups of worker 0 to worker 1, while rows arrive."""
    with EmbeddedManager(pipe.redis, PATIENT) as manager:
        move = MoveRequest(sender=0, receiver=1, groups=(0, 3))
        asked = RebalanceRequest(id="t-1", query=pipe.name, moves=(move,), strategy="mslb", at_ms=now_ms())

        def taken() -> bool:
            # On a busy machine the query may count as stopped for a while.
            if pipe.caught_up():
                pipe.wave()
            try:
                manager.rebalance(asked)
            except Refused as error:
                if "is not running" not in error.problem:
                    raise
                return False
            return True

        def ended() -> bool:
            outcome = manager.outcome(pipe.name, asked.id)
            if outcome is not None and not outcome.open:
                assert outcome.state == "committed", outcome
                return True
            if pipe.caught_up():
                pipe.wave()
            return False

        driver.until(taken, "the request to be taken")
        driver.until(ended, "the end of the rebalance")
    driver.until(pipe.caught_up, "what arrived meanwhile")
    owners = Checkpoint(str(pipe.checkpoint)).bound_epoch(pipe.committed()).owners
    assert (owners[0], owners[3]) == (1, 1)


# -- formats

V1 = {"type": "record", "name": "o", "fields": [{"name": "price", "type": "double"}, {"name": "id", "type": "long"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
OUT = {
    "type": "record",
    "name": "joined",
    "fields": [{"name": "user", "type": ["null", "long"]}, {"name": "ids", "type": ["null", "string"]}],
}
FORMATS = """
spark:
  master: local[2]
  config: {{spark.jars: "{jars}", spark.sql.session.timeZone: UTC}}
checkpoint: {base}/checkpoint
query:
  name: {name}
  window: 2 seconds
  lateness: 1 second
  partitions: 4
  workers: 2
  streams:
    A:
      key: user
      time: _timestamp
      source:
        format: kafka
        servers: {servers}
        topics: {name}-a
        key: {{format: text, schema: user long}}
        value: {{format: avro, registry: {{url: "{registry}", subject: orders-value}}}}
        dead_letters: {name}-dead
        options: {{startingOffsets: earliest}}
    B:
      key: user
      time: at
      source:
        format: kafka
        servers: {servers}
        pattern: {name}-b.*
        value: {{format: avro, schema_file: {base}/b.avsc}}
        select: [user, timestamp_millis(ms) AS at, _partition AS part]
        dead_letters: {name}-dead
        options: {{startingOffsets: earliest}}
sink:
  format: kafka
  servers: {servers}
  topic: {name}-out
  key: {{columns: [A_user, B_part]}}
  value: {{format: avro, registry: {{url: "{registry}", subject: joined-value}}}}
  select: [A_user AS user, "concat_ws(' ', A_id, A_note, A_price, B_part) AS ids"]
  trigger: available now
"""
B_SCHEMA = {"type": "record", "name": "b", "fields": [{"name": "user", "type": "long"}, {"name": "ms", "type": "long"}]}


def _long(number: int) -> bytes:
    """Avro's zigzag."""
    number = (number << 1) ^ (number >> 63)
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def _double(number: float) -> bytes:
    import struct

    return struct.pack("<d", number)


def test_avro_with_and_without_a_registry(topics: Topics, tmp_path: Path) -> None:
    name = f"avro-{secrets.token_hex(3)}"
    for topic in ("a", "b1", "b2", "out", "dead"):
        topics.create(f"{name}-{topic}")
    (tmp_path / "b.avsc").write_text(json.dumps(B_SCHEMA))
    head_1, head_2 = b"\0\0\0\0\x0b", b"\0\0\0\0\x0c"
    good_1 = head_1 + _double(1.5) + _long(41)
    good_2 = head_2 + _double(2.5) + _long(-42) + _long(1) + _long(2) + b"hi"
    bad = [b"\1" + good_1[1:], b"\0\0\0\0\x63" + good_1[5:], head_2 + b"\x01", None]
    sent = [(0, b"1", good_1, START_MS), (1, b"2", good_2, START_MS), (0, b"one", good_1, START_MS)]
    topics.send(f"{name}-a", sent + [(0, b"1", value, START_MS) for value in bad])
    rows = [_long(1) + _long(START_MS + 500), _long(2) + _long(START_MS + 900), _long(1) + _long(START_MS + 9_000)]
    topics.send(f"{name}-b1", [(1, None, rows[0], 0), (0, None, b"", 0)])
    topics.send(f"{name}-b2", [(0, None, rows[1], 0), (0, None, rows[2], 0)])
    subjects = {
        "orders-value": [
            {"id": 11, "version": 1, "schema": json.dumps(V1)},
            {"id": 12, "version": 2, "schema": json.dumps(V2)},
        ],
        "joined-value": [{"id": 300, "version": 1, "schema": json.dumps(OUT)}],
    }
    with RegistryServer(subjects) as registry:
        job = tmp_path / "query.yaml"
        job.write_text(
            FORMATS.format(jars=connector(), base=tmp_path, name=name, servers=topics.servers, registry=registry.url)
        )
        assert _run(job) == 0
    got = {(record.key, record.value) for record in topics.read(f"{name}-out")}
    head = b"\0\0\0\x01\x2c"
    assert got == {
        (b'{"A_user":1,"B_part":1}', head + _long(1) + _long(1) + _long(1) + _text("41 1.5 1")),
        (b'{"A_user":2,"B_part":0}', head + _long(1) + _long(2) + _long(1) + _text("-42 hi 2.5 0")),
    }
    reasons = Counter(
        (letter.headers["trimtab-stream"], letter.headers["trimtab-reason"]) for letter in topics.read(f"{name}-dead")
    )
    assert reasons == Counter(
        {
            ("A", "the key is not a text that holds bigint"): 1,
            ("A", "the value does not begin as records with a schema registry do"): 1,
            ("A", "schema 99 was not in the registry when the query started"): 1,
            ("A", "the value is not Avro of the schema"): 1,
            ("A", "the value is missing"): 1,
            ("B", "the value is not Avro of the schema"): 1,
        }
    )


def _text(text: str) -> bytes:
    return _long(len(text)) + text.encode()


def _run(job: Path) -> int:
    """In a process of its own, as a user does."""
    driver = Driver(("-m", "commands.cli", "run", str(job)), job.parent)
    try:
        code = driver.process.wait(900)
    finally:
        driver.end()
    assert code == 0, driver.said()
    return code


FILES = """
spark: {{master: "local[2]", config: {{spark.jars: "{jars}", spark.sql.session.timeZone: UTC}}}}
checkpoint: {base}/checkpoint
query:
  name: {name}
  window: 2 seconds
  lateness: 1 second
  partitions: 4
  workers: 2
  streams:
    A: {{key: user, time: at, source: {{format: parquet, path: {base}/in, schema: "user long, at timestamp"}}}}
    B: {{key: user, time: at, source: {{format: parquet, path: {base}/in, schema: "user long, at timestamp"}}}}
sink: {{format: kafka, servers: "{servers}", topic: {name}, trigger: available now}}
"""


def test_equal_rows_of_files_have_results_of_their_own(topics: Topics, tmp_path: Path) -> None:
    """Two rows are equal, so four results are; each is there once after repeats are dropped by id."""
    name = topics.create(f"files-{secrets.token_hex(3)}")
    (tmp_path / "in").mkdir()
    at = pa.array([START_US, START_US, START_US + 1], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"user": pa.array([1, 1, 2], pa.int64()), "at": at}), tmp_path / "in" / "0.parquet")
    job = tmp_path / "query.yaml"
    job.write_text(FILES.format(jars=connector(), base=tmp_path, name=name, servers=topics.servers))
    _run(job)
    assert not (tmp_path / "checkpoint" / "offsets" / "1").exists(), "all of it is one batch"
    (tmp_path / "checkpoint" / "commits" / "0").unlink()  # as if the driver had died before it wrote this
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    _run(job)
    records = topics.read(name)
    by_id: dict[str, list[Any]] = {}
    for record in records:
        by_id.setdefault(record.headers["trimtab-id"], []).append(decoded(record))
    assert all(len(copies) == 2 and copies[0] == copies[1] for copies in by_id.values())
    assert Counter(copies[0]["A_user"] for copies in by_id.values()) == Counter({1: 4, 2: 1})
    assert next(copies[0]["A_at"].microsecond for copies in by_id.values() if copies[0]["A_user"] == 2) == 1


# -- bad input

GOOD = """
checkpoint: {base}/checkpoint
query:
  name: bad
  window: 2 seconds
  lateness: 1 second
  partitions: 4
  workers: 2
  streams:
    A: &stream
      key: user
      time: at
      source:
        format: kafka
        servers: {servers}
        topics: bad-in
        value: {{format: json, schema: "user long, price double, at timestamp"}}
        options: {{startingOffsets: earliest}}
    B: *stream
sink:
  format: kafka
  servers: {servers}
  topic: bad-out
"""
AVRO_SINK = '{{"type": "record", "name": "r", "fields": [{{"name": "A_user", "type": "string"}}]}}'
"""Braces doubled, as in the text that it is put into."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = make_session("local[2]", **{"spark.jars": connector()})
    yield session
    session.stop()


@pytest.fixture(scope="module")
def bad_topics(topics: Topics) -> Topics:
    for name in ("bad-in", "bad-out"):
        topics.create(name)
    value = {"user": 1, "price": 2.0, "at": "2026-01-01T00:00:00Z"}
    topics.send("bad-in", [(n % 2, None, json.dumps(value).encode(), START_MS) for n in range(5)])
    return topics


@pytest.mark.parametrize(
    ("old", "new", "field", "words"),
    [
        ("topics: bad-in", "topics: bad-inn", "query.streams.A.source.topics", "Did you mean 'bad-in'?"),
        ("topics: bad-in", "pattern: no.*", "query.streams.A.source.pattern", "matches no topic"),
        (
            "servers: {servers}\n        topics",
            "servers: 127.0.0.1:1\n        topics",
            ".source.servers",
            "does not answer",
        ),
        ("topic: bad-out", "topic: bad-output", "sink.topic", "is not a topic at"),
        (
            "startingOffsets",
            "kafka.securty.protocol: SSL, startingOffsets",
            "securty.protocol",
            "kafka.security.protocol",
        ),
        ("price double, at", "price doubel, at", "query.streams.A.source.value.schema", "as in SQL"),
        (
            "user long, price double, at timestamp",
            "user date, at timestamp",
            ".value.schema",
            "none of the newest 5 records",
        ),
        ("user long", "usr long", "streams['A'].key", "Did you mean 'usr'?"),
        ("at timestamp", "at string", "streams['A'].time", "not a timestamp"),
        ("        options:", "        select: [usr AS user]\n        options:", ".source.select", "usr"),
        ("        options:", "        id: [nothing]\n        options:", "query.streams.A.source.id", "A_user"),
        ("topic: bad-out", "topic: bad-out\n  key: {{columns: [A_usr]}}", "sink.key.columns", "A_user"),
        ("topic: bad-out", "topic: bad-out\n  select: [A_usr]", "sink.select", "A_usr"),
        (
            "topic: bad-out",
            f"topic: bad-out\n  value: {{{{format: avro, schema: '{AVRO_SINK}'}}}}",
            "sink.value.schema",
            "does not fit the Avro schema",
        ),
    ],
)
def test_bad_input_is_told_before_anything_starts(
    spark: SparkSession, bad_topics: Topics, tmp_path: Path, old: str, new: str, field: str, words: str
) -> None:
    assert old in GOOD
    path = tmp_path / "query.yaml"
    path.write_text(GOOD.replace(old, new, 1).format(base=tmp_path, servers=bad_topics.servers))
    job = load_job(path)
    with pytest.raises(InvalidInput) as caught, EmbeddedRedis() as server:
        build_writer(build_join(spark.newSession(), job, checkpoint=job.checkpoint, redis=server.url), job)
    assert field in caught.value.field, caught.value
    assert words in str(caught.value)
    assert caught.value.remedy
    assert not (tmp_path / "checkpoint" / "offsets").exists()


def test_without_the_connector(tmp_path: Path) -> None:
    """Spark's own message names no version; ours names this Spark's."""
    path = tmp_path / "query.yaml"
    path.write_text("spark: {master: 'local[1]'}\n" + GOOD.format(base=tmp_path, servers="127.0.0.1:1"))
    driver = Driver(("-m", "commands.cli", "run", str(path), "--check"), tmp_path)
    try:
        assert driver.process.wait(600) == 2, driver.said()
    finally:
        driver.end()
    assert "query.streams.A.source.format = 'kafka'" in driver.said()
    assert "spark.jars.packages: org.apache.spark:spark-sql-kafka-0-10_2.13:4." in driver.said()
