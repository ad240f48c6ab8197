"""All that can be wrong with a join is told before it starts: field, value, remedy; and trying changes nothing."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from split_union.session import REQUIRED
from tests.checkers.cases import Theme, make_case
from tests.checkers.harness import Run
from trimtab import JoinQuery, Stream
from trimtab.embedded import EmbeddedRedis
from trimtab.embedded.redis_server import free_port
from trimtab.reports import WorkerReport
from trimtab.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS = "value AS user, timestamp AS at, value * 0.5 AS price, cast(value AS string) AS name"


def definition(**changes: Any) -> dict[str, Any]:
    streams = [Stream(name, key="user", time="at") for name in "AB"]
    return {"name": "bad", "window": "1 second", "lateness": "1 second", "workers": 2, "streams": streams, **changes}


def rate(spark: SparkSession, columns: str = ROWS) -> DataFrame:
    return spark.readStream.format("rate").load().selectExpr(*re.split(r", (?![^(]*\))", columns))


@dataclass
class Place:
    """Where a join is tried: afterwards nothing of it may have changed."""

    spark: SparkSession
    redis: str
    checkpoint: Path

    def join(
        self, query: JoinQuery, inputs: Mapping[str, DataFrame] | None = None, redis: str | None = None
    ) -> DataFrame:
        frames = {name: rate(self.spark) for name in query.stream_names} | dict(inputs or {})
        return query.join(self.spark, frames, checkpoint=str(self.checkpoint), redis=redis or self.redis)

    def state(self) -> tuple[object, ...]:
        client = Store(self.redis).client
        keys = sorted(client.scan_iter("*"))
        files = sorted(str(path) for path in self.checkpoint.parent.rglob("*"))
        return dict(self.spark.conf.getAll), keys, files, len(self.spark.streams.active)


@pytest.fixture
def place(spark: SparkSession, redis_server: EmbeddedRedis, tmp_path: Path) -> Place:
    return Place(spark, redis_server.url, tmp_path / "checkpoint")


@contextmanager
def refused(field: str, value: object, *words: str, place: Place | None = None) -> Iterator[None]:
    """The error names the field, the value and a remedy, which has the words in it; and nothing has changed."""
    before = place.state() if place else None
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (our errors are ValueErrors, looked at below)
        yield
    error: Any = caught.value
    assert error.field == field
    assert error.value == value
    text = str(error)
    assert field in text
    assert error.remedy in text and len(error.remedy) > 10
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"
    if place:
        assert place.state() == before


def streams(*names: str, **changes: Any) -> list[Stream]:
    return [Stream(name, **{"key": "user", "time": "at", **changes}) for name in names]


@pytest.mark.parametrize(
    ("changes", "field", "value", "words"),
    [
        ({"window": "0 seconds"}, "window", "0 seconds", ["positive"]),
        ({"window": "-3 seconds"}, "window", "-3 seconds", ["positive"]),
        ({"window": "soon"}, "window", "soon", ["10 seconds"]),
        ({"window": "1 month"}, "window", "1 month", ["month", "weeks"]),
        ({"lateness": "-1 second"}, "lateness", "-1 second", ["0 seconds"]),
        ({"streams": streams("A")}, "streams", 1, ["2 to 8"]),
        ({"streams": streams(*"ABCDEFGHI")}, "streams", 9, ["2 to 8"]),
        ({"streams": streams("A", "B", "A")}, "streams[2].name", "A", ["twice"]),
        ({"streams": streams("orders", "Orders")}, "streams[1].name", "Orders", ["twice"]),
        ({"partitions": 4, "workers": 5}, "workers", 5, ["4 partitions", "raise partitions"]),
        ({"workers": 0}, "workers", 0, ["1 or more"]),
        ({"partitions": 0}, "partitions", 0, ["1 to 32767"]),
        ({"partitions": 40_000}, "partitions", 40_000, ["1 to 32767"]),
        ({"name": "a/b"}, "name", "a/b", ["letters"]),
        ({"plan": "((A B) C)"}, "plan", "((A B) C)", ["A, B"]),
        ({"plan": "((A B"}, "plan", "((A B", ["left-deep"]),
        ({"widnow": "1 second"}, "widnow", "1 second", ["window"]),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_definition(changes: dict[str, Any], field: str, value: object, words: Sequence[str]) -> None:
    with refused(field, value, *words):
        JoinQuery(**definition(**changes))


def test_keys_of_different_lengths() -> None:
    pair = [*streams("A"), *streams("B", key=("user", "name"))]
    with refused("streams.key", {"A": ("user",), "B": ("user", "name")}, "same number"):
        JoinQuery(**definition(streams=pair))


def test_unknown_columns(place: Place) -> None:
    with refused("streams['B'].key", "usr", "Did you mean 'user'", "price", place=place):
        place.join(JoinQuery(**definition(streams=[*streams("A"), *streams("B", key="usr")])))
    with refused("streams['A'].time", "when", "price", place=place):
        place.join(JoinQuery(**definition(streams=[*streams("A", time="when"), *streams("B")])))


def test_unsuitable_columns(place: Place) -> None:
    with refused("streams['A'].time", "price double", "timestamp", place=place):
        place.join(
            JoinQuery(**definition(streams=[*streams("A", time="price"), *streams("B")])),
            {"A": rate(place.spark, ROWS.replace("0.5", "0.5D"))},
        )
    zoneless = rate(place.spark, ROWS.replace("timestamp AS", "cast(timestamp AS timestamp_ntz) AS"))
    with refused("streams['A'].time", "at timestamp_ntz", "Cast", place=place):
        place.join(JoinQuery(**definition()), {"A": zoneless})
    types = {"A": "bigint", "B": "string"}
    with refused("streams.key", types, "different types", "Cast", place=place):
        place.join(JoinQuery(**definition(streams=[*streams("A"), *streams("B", key="name")])))
    maps = {name: rate(place.spark, "map(value, value) AS user, timestamp AS at") for name in "AB"}
    with refused("streams.key", dict.fromkeys("AB", "map<bigint,bigint>"), "compared", place=place):
        place.join(JoinQuery(**definition()), maps)


def test_inputs_that_are_none(place: Place) -> None:
    query = JoinQuery(**definition())
    with refused("inputs", ["A", "B", "C"], "unknown ['C']", place=place):
        place.join(query, {"C": rate(place.spark)})
    with refused("inputs", ["A"], "missing ['B']", place=place):
        query.join(place.spark, {"A": rate(place.spark)}, checkpoint=str(place.checkpoint), redis=place.redis)
    table = place.spark.range(3).selectExpr("id AS user", "now() AS at")
    with refused("inputs['A']", ["user", "at"], "readStream", place=place):
        place.join(query, {"A": table})


def test_watermarks(place: Place) -> None:
    with refused("lateness", None, "withWatermark", place=place):
        place.join(JoinQuery(**definition(lateness=None)))
    marked = rate(place.spark).withWatermark("at", "1 second")
    with refused("lateness", "1 second", "Leave", place=place):
        place.join(JoinQuery(**definition()), {"A": marked})


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("A.price <", ["A.price <"]),
        ("A.price < B.price) OR (1 = 1", ["A.price"]),
        ("A.nope = B.price", ["nope"]),
        ("C.price = B.price", ["C"]),
        ("price > 1", ["price"]),
        ("A.price + B.price", ["boolean"]),
        ("nosuchfunction(A.price, B.price) > 1", ["nosuchfunction"]),
        ("A.at > B.price", ["at"]),
        ("sum(A.price) > B.price", ["sum"]),
        ("", []),
    ],
)
def test_condition(condition: str, words: Sequence[str], place: Place) -> None:
    with refused("where[1]", condition, *words, place=place):
        place.join(JoinQuery(**definition(where=["A.price < B.price", condition])))


def test_redis_unreachable(place: Place) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    with refused("redis", url, "does not answer", "Start a Redis", place=place):
        place.join(JoinQuery(**definition()), redis=url)
    hidden = url.replace("//", "//:canary@")
    with refused("redis", url.replace("//", "//***@"), place=place) as told:
        place.join(JoinQuery(**definition()), redis=hidden)
    assert "canary" not in repr(told)
    with refused("redis", "localhost:6379", "redis://", place=place):
        place.join(JoinQuery(**definition()), redis="localhost:6379")


@pytest.mark.parametrize("name", [*REQUIRED, "spark.sql.shuffle.partitions"])
def test_conflicting_setting(name: str, place: Place) -> None:
    others = {"true": "false", "false": "true", "avro": "unsaferow"}
    value = others.get(REQUIRED.get(name, ("",))[0], "7")
    place.spark.conf.set(name, value)
    with refused(name, value, "Set it to", "leave it unset", place=place):
        place.join(JoinQuery(**definition()))


def test_name_of_a_running_query(place: Place) -> None:
    store = Store(place.redis)
    store.define("bad", {"checkpoint": "/elsewhere"})
    empty: dict[str, Any] = {"int": 0, "str": "", "dict[str, int]": {}}
    needed = [field for field in dataclasses.fields(WorkerReport) if field.default is field.default_factory]
    nothing = {field.name: empty[str(field.type)] for field in needed}
    now = int(time.time() * 1000)
    store.report(WorkerReport(**{**nothing, "query": "bad", "at_ms": now}))
    try:
        with refused("name", "bad", "/elsewhere", "another name", place=place):
            place.join(JoinQuery(**definition()))
    finally:
        store.client.flushall()


@pytest.fixture(scope="module")
def finished(spark_cluster: SparkSession, redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A query that has run and left its checkpoint."""
    case = make_case(41, Theme(key="int", streams=2, conditions=(), rows=20), "finished")
    run = Run(tmp_path_factory.mktemp("finished"), case.query, case.schemas)
    for name in "AB":
        run.write(name, case.phases[0][name][0])
    run.run(spark_cluster.newSession(), redis_server.url)
    return run


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "other"}, ["name was 'finished' and is now 'other'"]),
        ({"workers": 1}, ["workers was 2 and is now 1"]),
        ({"partitions": 33}, ["partitions", "33"]),
        ({"window": "9 seconds"}, ["window", "9000000"]),
        ({"where": ("A.n < B.n",)}, ["where", "A.n < B.n"]),
    ],
    ids=["name", "workers", "partitions", "window", "where"],
)
def test_checkpoint_of_another_query(
    changes: dict[str, Any], words: Sequence[str], finished: Run, spark: SparkSession, redis_server: EmbeddedRedis
) -> None:
    place = Place(spark, redis_server.url, finished.checkpoint)
    query = JoinQuery(**{**finished.query.model_dump(), **changes})
    with refused("checkpoint", str(finished.checkpoint), *words, "new checkpoint", place=place):
        place.join(query, finished.inputs(spark))


def test_checkpoint_of_other_columns(finished: Run, spark: SparkSession, redis_server: EmbeddedRedis) -> None:
    place = Place(spark, redis_server.url, finished.checkpoint)
    frames = finished.inputs(spark)
    frames["A"] = frames["A"].selectExpr("*", "1 AS more")
    with refused("checkpoint", str(finished.checkpoint), "streams", "more", place=place):
        place.join(finished.query, frames)


def test_checkpoint_that_is_not_ours(place: Place) -> None:
    (place.checkpoint / "offsets").mkdir(parents=True)
    (place.checkpoint / "offsets" / "0").write_text("v1\n{}\n0")
    with refused("checkpoint", str(place.checkpoint), "not Trimtab's", "directory of its own", place=place):
        place.join(JoinQuery(**definition()))


def test_started_on_another_checkpoint(place: Place, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    result = place.join(JoinQuery(**definition(name="elsewhere")))
    writer = result.writeStream.format("parquet").option("path", str(tmp_path / "output"))
    running = writer.option("checkpointLocation", str(tmp_path / "elsewhere")).start()
    with pytest.raises(StreamingQueryException, match="checkpointLocation") as caught:
        running.awaitTermination(120)
    assert str(place.checkpoint) in str(caught.value)
    assert not (place.checkpoint / "offsets").exists()
    assert not (place.checkpoint / "commits").exists()
    # Refused on the driver: no task ever ran.
    assert not list((tmp_path / "output").glob("*.parquet"))
    assert Store(place.redis).reports("elsewhere") == {}
