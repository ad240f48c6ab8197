"""Kafka in, Kafka out, in one command: `make kafka`, or `python -m examples.kafka`.

A broker, a Redis and a manager run as long as this does. `trimtab run examples/kafka/query.yaml` joins orders with
payments; groups are moved meanwhile, and the driver is killed and started again. At the end a consumer drops repeats by
their ids, and DuckDB says whether every result is there, once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from api.embedded import EmbeddedServer
from balancing.requests import CLOSED_STATES
from commands.remote.client import Client, Refusal
from commands.runner.spark_session import make_session, stop_session
from examples.kafka.broker import BrokerFailed, EmbeddedKafka
from examples.kafka.consumer import consume
from examples.kafka.jars import JarsMissing, jars
from examples.kafka.workload import Record, Workload, verdict
from trimtab.embedded import EmbeddedRedis
from trimtab.offset_log import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY: Final = Path(__file__).with_name("query.yaml")
NAME: Final = "kafka"
TOPICS: Final = {"orders": 2, "payments": 2, "joined": 2, "orders-dead": 1}
PATIENCE_S: Final = 900.0


def say(text: str) -> None:
    print(f"-- {text}", flush=True)


class Driver:
    """`trimtab run` in a process of its own, whose lines are printed as they come."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "commands.cli", "run", str(QUERY)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self._printing = threading.Thread(target=self._print, daemon=True)
        self._printing.start()

    def _print(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            print(f"   {line.rstrip()}", flush=True)

    def until(self, done: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"The query ended, or took more than {PATIENCE_S:g} s, before {what}.")
            time.sleep(0.1)

    def kill(self) -> None:
        """With its executors, as a machine that loses power would."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()


class Feed:
    """Sends waves, and knows whether the query has committed all of them."""

    def __init__(self, spark: SparkSession, servers: str, checkpoint: str) -> None:
        self.load = Workload()
        self._checkpoint = Checkpoint(checkpoint)
        jvm: Any = spark._jvm
        settings = jvm.java.util.HashMap()
        settings.put("bootstrap.servers", servers)
        for side in ("key", "value"):
            settings.put(f"{side}.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer")
        self._producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(settings)
        self._record = jvm.org.apache.kafka.clients.producer.ProducerRecord
        self._sent: dict[str, int] = {"orders": 0, "payments": 0}

    def wave(self) -> None:
        for topic, records in zip(("orders", "payments"), self.load.wave(), strict=True):
            self._send(topic, records)

    def _send(self, topic: str, records: list[Record]) -> None:
        for key, value, at_ms in records:
            # Through the JVM, since Spark's sink cannot set a record's timestamp.
            self._producer.send(self._record(topic, None, at_ms, key, value))
        self._producer.flush()
        self._sent[topic] += len(records)

    def committed(self) -> bool:
        batch = self._checkpoint.last_commit()
        text = self._checkpoint.read(f"offsets/{batch}") if batch >= 0 else None
        read: dict[str, int] = {}
        for line in (text or "").splitlines()[2:]:
            body = json.loads(line) if line.startswith("{") else {}
            read |= {topic: sum(ends.values()) for topic, ends in body.items() if topic in self._sent}
        return read == self._sent


def run() -> bool:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trimtab-example-")))
        say("Kafka's jars (fetched by Maven the first time, some minutes) and a broker")
        kafka = stack.enter_context(EmbeddedKafka())
        redis = stack.enter_context(EmbeddedRedis())
        api = stack.enter_context(EmbeddedServer(redis.url))
        connector = ",".join(map(str, jars("connector")))
        say(f"Kafka at {kafka.servers}; a Spark of our own to send and to read")
        config = {"spark.jars": connector, "spark.sql.session.timeZone": "UTC"}
        spark = make_session(master="local[1]", app_name="trimtab example", config=config, scratch=scratch)
        stack.callback(stop_session, spark)
        create_topics(spark, kafka.servers)
        checkpoint = str(scratch / "checkpoint")
        feed = Feed(spark, kafka.servers, checkpoint)
        environment = {
            "KAFKA": kafka.servers,
            "JARS": connector,
            "REDIS_URL": redis.url,
            "CHECKPOINT": checkpoint,
        }
        feed.wave()
        say("trimtab run examples/kafka/query.yaml")
        with Driver(environment) as driver:
            driver.until(feed.committed, "it had joined the first wave")
            move_groups(Client(api.url, api.key("operate", "example")), feed, driver)
            feed.wave()
            driver.until(feed.committed, "it had joined the next wave")
            say("The driver is killed.")
            driver.kill()
        take_back_newest_commit(Path(checkpoint))
        say("The driver is started again; the batch that was not committed is written a second time.")
        with Driver(environment) as driver:
            feed.wave()
            driver.until(feed.committed, "it had joined the last wave")
            driver.stop()
        consumed = consume(spark, kafka.servers, "joined")
        letters = consume(spark, kafka.servers, "orders-dead")
    pairs = [(int(str(each["order_number"])), int(str(each["payment_number"]))) for each in consumed.values]
    judged = verdict(feed.load, pairs)
    say(f"dead letters: expected {feed.load.bad}, got {len(letters.values)} ({letters.duplicates} duplicates removed)")
    say(f"results: {consumed.duplicates:,} duplicates removed; DuckDB's verdict on the rest: {judged}")
    return judged.good and len(letters.values) == feed.load.bad


def move_groups(client: Client, feed: Feed, driver: Driver) -> None:
    """Two of worker 0's groups go to worker 1, while records arrive."""
    say("Partition groups 0 and 4 move from worker 0 to worker 1.")
    place = f"/v1/queries/{NAME}/rebalances"
    asked: dict[str, Any] = {}
    seen = {"state": ""}

    def taken() -> bool:
        if feed.committed():
            feed.wave()
        try:
            asked.update(client.post(place, {"from": 0, "to": 1, "groups": [0, 4], "strategy": "mslb"}))
        except Refusal as error:
            # On a busy machine a query may count as stopped for a while.
            if "is not running" not in error.problem:
                raise
        return bool(asked)

    def ended() -> bool:
        if feed.committed():
            feed.wave()
        seen.update(client.get(f"{place}/{asked['id']}"))
        return seen["state"] in CLOSED_STATES

    driver.until(taken, "the move was accepted")
    driver.until(ended, "the move had ended")
    say(f"The move is {seen['state']}.")
    driver.until(feed.committed, "it had joined what arrived meanwhile")


def take_back_newest_commit(checkpoint: Path) -> None:
    """If the driver died after a commit, leave what one leaves that dies a moment earlier: results and no commit."""
    commits = sorted(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    offsets = sorted(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
    if commits[-1] == offsets[-1]:
        (checkpoint / "commits" / str(commits[-1])).unlink()
        (checkpoint / "commits" / f".{commits[-1]}.crc").unlink(missing_ok=True)


def create_topics(spark: SparkSession, servers: str) -> None:
    jvm: Any = spark._jvm
    settings = jvm.java.util.HashMap()
    settings.put("bootstrap.servers", servers)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    wanted = jvm.java.util.ArrayList()
    for name, partitions in TOPICS.items():
        wanted.add(jvm.org.apache.kafka.clients.admin.NewTopic(name, partitions, 1))
    admin.createTopics(wanted).all().get()
    admin.close()


def main() -> int:
    argparse.ArgumentParser(prog="python -m examples.kafka", description=__doc__).parse_args()
    try:
        return 0 if run() else 1
    except (JarsMissing, BrokerFailed) as error:
        print(f"examples.kafka: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
