"""Builds the join's dataflow: source -> split -> worker -> union."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from split_union import control_source, progress, session, shipping, transport
from split_union.definition import claim_checkpoint
from split_union.filters import Placed, filtered, place_conditions
from split_union.query import JoinQuery
from split_union.schema import Input, arrow_type, check_inputs, replace_type, result_type
from split_union.split import SplitTask, tick_every_worker
from split_union.union import unpack
from trimtab import __version__, conditions
from trimtab.conditions.placement import quote
from trimtab.durations import parse_us, spark_interval
from trimtab.embedded import shared_redis
from trimtab.epochs import Epoch
from trimtab.errors import InvalidInput
from trimtab.keys import CODE, GROUP, PROBLEM
from trimtab.store import Store
from worker.arriving import WORKER_KEY
from worker.spark import FRAMES_OUTPUT, INPUT, JoinWorker, WorkerTask
from worker.spec import ConditionSpec, JoinSpec, StreamSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"
TICK_SECONDS = 10.0
"""How often an idle query runs a batch, so that it can take commands."""


def build_join(
    query: JoinQuery,
    spark: SparkSession,
    inputs: Mapping[str, DataFrame],
    *,
    checkpoint: str,
    redis: str | None,
    rebuild: bool,
) -> DataFrame:
    """Check everything, then claim the checkpoint, set the session up, publish the first epoch and build the plan."""
    if not hasattr(spark, "sparkContext") or type(spark).__module__.startswith("pyspark.sql.connect"):
        raise InvalidInput("spark", type(spark).__name__, "is a Spark Connect session", "Use a classic SparkSession.")
    if not checkpoint.strip():
        raise InvalidInput(
            "checkpoint", checkpoint, "is not a directory", "Name the one that checkpointLocation is set to."
        )
    if "://" not in checkpoint and not checkpoint.startswith("file:"):
        # Executors have working directories of their own; Spark, too, reads a relative path from the driver's.
        checkpoint = os.path.abspath(checkpoint)
    given = check_inputs(query, inputs, case_sensitive=session.flag(spark, "spark.sql.caseSensitive"))
    placed = place_conditions(query.where, spark, given)
    session.check(spark, query.workers)
    store = Store(redis or shared_redis().url)
    store.check()
    epoch, transfer_key = claim_checkpoint(query, _shape(query, spark, given), checkpoint, store)
    session.prepare(spark, query.workers, checkpoint)
    shipping.ship_packages(spark)

    spec = _join_spec(query, given, placed)
    result = result_type(given)
    travelling = T.StructType([replace_type(f, transport.travelling_type(f.dataType)) for f in result.fields])
    keys = session.worker_keys(query.workers)
    splits = [_split(query, index, each, placed, checkpoint, keys) for index, each in enumerate(given)]
    routed = _control(query, spark, epoch, checkpoint, store.url, keys)
    for frame in splits:
        routed = routed.unionByName(frame)
    task = WorkerTask(
        query=query.name,
        spec=spec,
        plans=query.plans,
        checkpoint=checkpoint,
        redis_url=store.url,
        worker_keys=keys,
        transfer_key=transfer_key,
        result_schema=_arrow_schema(spark, travelling).serialize().to_pybytes(),
        version=__version__,
        frames_out=not transport.leaves_as_rows(travelling),
        attempts=session.task_attempts(spark),
        rebuild=rebuild,
    )
    output = FRAMES_OUTPUT if task.frames_out else travelling
    joined = routed.groupBy(WORKER_KEY).transformWithStateInPandas(JoinWorker(task), output, "Append", "None")
    if task.frames_out:
        joined = joined.mapInArrow(unpack, travelling)
    joined = transport.arrived(joined, result)
    progress.listen(spark, query.name, store, checkpoint, query.stream_names)
    return filtered(joined, given, placed)


def _split(
    query: JoinQuery,
    index: int,
    given: Input,
    placed: Placed,
    checkpoint: str,
    keys: tuple[int, ...],
) -> DataFrame:
    frame = given.frame
    if not given.has_watermark:
        assert query.lateness is not None
        frame = frame.withWatermark(quote(given.time), spark_interval(parse_us(query.lateness, "lateness")))
    for condition in placed.before_split(given.stream.name):
        holds = F.expr(condition)
        frame = frame.filter(holds | F.col(PROBLEM).isNotNull() if PROBLEM in frame.columns else holds)
    parts = transport.key_parts([frame.schema[name] for name in given.key.columns])
    code = F.xxhash64(*(value for _, value in parts))
    extra: list[Column] = [F.pmod(code, F.lit(query.partitions)).cast("smallint").alias(GROUP)]
    if given.key.kind != "exact":
        extra.append(code.alias(CODE))
    extra += [value.alias(name) for name, value in parts if name not in given.columns]
    selected = frame.select(*(transport.travelling(frame.schema[name]) for name in given.columns), *extra)
    task = SplitTask(
        stream=index,
        name=given.stream.name,
        arriving=tuple(selected.columns),
        key=given.key,
        time=given.time,
        key_source=tuple(name for name, _ in parts),
        columns=given.columns,
        checkpoint=checkpoint,
        worker_keys=keys,
        version=__version__,
    )
    # Under plain names: PySpark looks the columns up as expressions, and would read a dot or backtick as part of one.
    plain = [f"c{number}" for number in range(len(task.arriving))]
    return selected.toDF(*plain).mapInArrow(_caller(task), INPUT)


def _control(
    query: JoinQuery, spark: SparkSession, epoch: Epoch, checkpoint: str, redis: str, keys: tuple[int, ...]
) -> DataFrame:
    # Makes this session the active one. Spark asks that one whether the name is taken, and in a session where another
    # query runs it is (DATA_SOURCE_ALREADY_EXISTS).
    spark.createDataFrame([], control_source.SCHEMA)
    spark.dataSource.register(control_source.ControlSource)
    return (
        spark.readStream.format(control_source.NAME)
        .options(query=query.name, checkpoint=checkpoint, redis=redis, first=epoch.to_text())
        .options(workers=len(keys), streams=",".join(query.stream_names), tickseconds=TICK_SECONDS)
        .load()
        .mapInArrow(partial(tick_every_worker, keys), INPUT)
    )


def _caller(task: SplitTask) -> Any:
    # PySpark looks at the function's signature, which a callable object hides.
    def split(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    return split


def _join_spec(query: JoinQuery, given: list[Input], placed: Placed) -> JoinSpec:
    return JoinSpec(
        streams=tuple(StreamSpec(each.stream.name, each.time, each.key, each.columns) for each in given),
        window_us=query.window_us,
        partitions=query.partitions,
        conditions=tuple(
            ConditionSpec(each.streams, tuple(sorted(each.columns)), conditions.to_json(each.tree))
            for each in placed.in_join()
        ),
        ordered=query.ordered,
    )


def _shape(query: JoinQuery, spark: SparkSession, given: list[Input]) -> dict[str, Any]:
    """All that a checkpoint depends on: none of it may change under one."""
    return {
        "window": query.window_us,
        "lateness": None if query.lateness is None else parse_us(query.lateness, "lateness"),
        "partitions": query.partitions,
        "workers": query.workers,
        "where": list(query.where),
        # In order: Spark knows sources by their place, and stored rows have their columns in this one.
        "streams": [
            {
                "name": each.stream.name,
                "key": list(each.key.columns),
                "time": each.time,
                "columns": [f"{field.name} {field.dataType.simpleString()}" for field in each.fields],
            }
            for each in given
        ],
        # Part of the type that stored rows have in Arrow.
        **{name: spark.conf.get(name) for name in ("spark.sql.session.timeZone", _LARGE_TYPES)},
    }


def _arrow_schema(spark: SparkSession, result: T.StructType) -> pa.Schema:
    timezone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    large = session.flag(spark, _LARGE_TYPES)
    return pa.schema([pa.field(f.name, arrow_type(f.dataType, timezone, large), True) for f in result.fields])
