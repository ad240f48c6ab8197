"""From a job's file to Spark: sources, join and writer. Nothing is started here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pyspark.errors import PySparkException

from commands.runner.failures import root_cause
from commands.runner.job import JobFile, SinkPart, StreamPart, option_text, trigger_arguments
from commands.runner.progress import observed
from trimtab.conditions.placement import quote
from trimtab.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_Result = TypeVar("_Result")


def build_inputs(spark: SparkSession, job: JobFile) -> dict[str, DataFrame]:
    """One streaming DataFrame for each stream of the query."""
    return {name: _input(spark, name, stream) for name, stream in job.query.streams.items()}


def build_join(spark: SparkSession, job: JobFile, *, checkpoint: str, redis: str | None) -> DataFrame:
    return job.join_query().join(spark, build_inputs(spark, job), checkpoint=checkpoint, redis=redis)


def build_writer(result: DataFrame, job: JobFile) -> DataStreamWriter:
    sink = job.sink
    writer = observed(result).writeStream.format(sink.format).queryName(job.query.name).outputMode(sink.mode)
    writer = writer.options(**{name: option_text(value) for name, value in sink.options.items()})
    if sink.path is not None:
        writer = writer.option("path", sink.path)
    arguments = trigger_arguments(sink.trigger)
    if arguments:
        writer = writer.trigger(**arguments)
    return writer.option("checkpointLocation", job.checkpoint)


def check_sink(spark: SparkSession, sink: SinkPart) -> None:
    """Refuse a sink that Spark does not know, without starting a query on it."""
    jvm = spark.sparkContext._jvm
    session = spark._jsparkSession
    data_source = getattr(jvm, "org.apache.spark.sql.execution.datasources.DataSource")
    _explained(
        "sink.format",
        sink.format,
        "Use a format that this Spark has, or add its package to spark.config (spark.jars.packages).",
        lambda: data_source.lookupDataSource(sink.format, session.sessionState().conf()),
    )


def _input(spark: SparkSession, name: str, stream: StreamPart) -> DataFrame:
    source = stream.source
    field = f"query.streams.{name}.source"
    reader = spark.readStream.format(source.format)
    if source.data_schema is not None:
        text = source.data_schema
        remedy = 'Write it as in SQL: "user long, price double, at timestamp".'
        reader = _explained(f"{field}.schema", text, remedy, lambda: reader.schema(text))
    reader = reader.options(**{key: option_text(value) for key, value in source.options.items()})
    shown = source.format if source.path is None else f"{source.format} at {source.path}"
    remedy = "Check format, path, schema and options; a format's package goes into spark.config."
    frame = _explained(field, shown, remedy, lambda: reader.load(source.path) if source.path else reader.load())
    if source.select:
        remedy = f"The source has these columns: {', '.join(frame.columns)}."
        frame = _explained(f"{field}.select", source.select, remedy, lambda: frame.selectExpr(*source.select))
    if stream.watermark is not None:
        delay = stream.watermark
        remedy = f"Name a timestamp column in `time`; there are: {', '.join(frame.columns)}."
        frame = _explained(
            f"query.streams.{name}.time", stream.time, remedy, lambda: frame.withWatermark(quote(stream.time), delay)
        )
        _explained(f"query.streams.{name}.time", stream.time, remedy, lambda: frame.schema)
    return frame


def _explained(field: str, value: object, remedy: str, make: Callable[[], _Result]) -> _Result:
    """Run `make`; what Spark refuses while a plan is built is a mistake in the file."""
    from py4j.protocol import Py4JJavaError

    try:
        return make()
    except (PySparkException, Py4JJavaError) as error:
        problem = " ".join(root_cause(error).split()).rstrip(".")
        raise InvalidInput(field, value, f"is refused by Spark: {problem}", remedy) from None
