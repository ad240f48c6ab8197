"""The driver's progress reaches Redis from a real query: durations, rates, and the backlog of sources that tell it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from split_union import progress
from tests.checkers import topic
from tests.checkers.harness import poll
from trimtab import JoinQuery, Stream, redis_keys
from trimtab.embedded import EmbeddedRedis
from trimtab.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


NAME = "lagging"


def stream_of(spark: SparkSession, name: str) -> DataFrame:
    spark.dataSource.register(topic.TopicSource)
    options = {"topic": name, "rowspersecond": "400", "rowsperbatch": "50", "begun": str(time.time() - 5), "seed": "1"}
    return spark.readStream.format(topic.NAME).options(**options).load()


def test_durations_rates_backlog_and_signs_of_life(
    spark: SparkSession, redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PULSE_S", 0.2)
    store = Store(redis_server.url)
    query = JoinQuery(
        name=NAME,
        streams=tuple(Stream(each, key="k", time="at") for each in "AB"),
        window="1 second",
        lateness="1 second",
        partitions=8,
        workers=2,
    )
    source = stream_of(spark, "rows")
    for _ in range(2):  # joined twice: it must not be listened to twice
        joined = query.join(spark, {"A": source, "B": source}, checkpoint=str(tmp_path), redis=redis_server.url)
    running = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:

        def told() -> dict[Any, Any]:
            fields: dict[Any, Any] = store.client.hgetall(redis_keys.driver(NAME))
            return fields if int(fields.get("progress_batch", -1)) >= 2 and "pulse_ms" in fields else {}

        fields = poll(told, "the progress of three batches", 300)
    finally:
        running.stop()
    ended = poll(lambda: store.client.hget(redis_keys.driver(NAME), "ended"), "Spark's word that it has ended", 60)
    assert (fields["ended"], ended) == ("", "1")
    assert int(fields["batch_ms"]) > 0
    assert float(fields["rows_per_s"]) > 0
    assert int(fields["backlog"]) > 0, "rows come faster than batches read them"
    assert int(fields["committed"]) >= 1, "the sign of life is beside it"
    assert [session for session in progress._LISTENERS if session is spark] == [spark]
