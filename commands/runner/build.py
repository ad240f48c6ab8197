"""From a job's file to Spark: sources, join and writer. Nothing is started here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commands.runner import build_kafka
from commands.runner.explaining import explained
from commands.runner.job import JobFile, SinkPart, SourcePart, StreamPart
from commands.runner.kafka_part import KafkaSinkPart
from commands.runner.progress import observed
from commands.runner.trigger import trigger_arguments
from commands.runner.yaml_part import option_texts
from split_union import progress
from trimtab.conditions.placement import quote
from trimtab.driver_progress import Sources
from trimtab.keys import PROBLEM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True)
class Joined:
    """The join's result, and what is to be written beside it."""

    result: DataFrame
    columns: dict[str, list[str]]
    """Of each stream."""
    dead_letters: list[DataFrame]
    sources: Sources


def build_join(spark: SparkSession, job: JobFile, *, checkpoint: str, redis: str | None, fresh: bool = True) -> Joined:
    """`fresh`: the query has not run yet, so records of its topics are looked at."""
    inputs, bad = {}, {}
    for name, stream in job.query.streams.items():
        if isinstance(stream.source, SourcePart):
            frame = _input(spark, name, stream, stream.source)
        else:
            found = build_kafka.build_stream(spark, job, name, stream.source, fresh=fresh)
            frame = found.rows
            if stream.source.dead_letters is not None:
                bad[name] = found.bad
        inputs[name] = _watermarked(frame, name, stream)
    if isinstance(job.sink, KafkaSinkPart):
        build_kafka.check_sink(spark, job, job.sink)
    result = job.join_query().join(spark, inputs, checkpoint=checkpoint, redis=redis)
    # Dead letters are a branch of their own in the plan.
    sources = Sources(tuple(job.query.streams), dict.fromkeys(bad, 2))
    progress.reads(spark, job.query.name, sources.reads)
    columns = {name: [each for each in frame.columns if each != PROBLEM] for name, frame in inputs.items()}
    return Joined(result, columns, build_kafka.build_dead_letters(job, bad), sources)


def build_writer(joined: Joined, job: JobFile) -> DataStreamWriter:
    sink = job.sink
    frame = observed(joined.result)
    if isinstance(sink, KafkaSinkPart):
        frame = build_kafka.build_records(frame, joined.columns, joined.dead_letters, job)
        options = build_kafka.writer_options(sink)
    else:
        options = option_texts(sink.options)
        if sink.path is not None:
            options["path"] = sink.path
    writer = frame.writeStream.format(sink.format).queryName(job.query.name).outputMode(sink.mode).options(**options)
    arguments = trigger_arguments(sink.trigger)
    if arguments:
        writer = writer.trigger(**arguments)
    return writer.option("checkpointLocation", job.checkpoint)


def check_sink(spark: SparkSession, sink: SinkPart | KafkaSinkPart) -> None:
    """Refuse a sink that Spark does not know, without starting a query on it."""
    jvm = spark.sparkContext._jvm
    session = spark._jsparkSession
    data_source = getattr(jvm, "org.apache.spark.sql.execution.datasources.DataSource")
    explained(
        "sink.format",
        sink.format,
        "Use a format that this Spark has, or add its package to spark.config (spark.jars.packages).",
        lambda: data_source.lookupDataSource(sink.format, session.sessionState().conf()),
    )


def _input(spark: SparkSession, name: str, stream: StreamPart, source: SourcePart) -> DataFrame:
    field = f"query.streams.{name}.source"
    reader = spark.readStream.format(source.format)
    if source.data_schema is not None:
        text = source.data_schema
        remedy = 'Write it as in SQL: "user long, price double, at timestamp".'
        reader = explained(f"{field}.schema", text, remedy, lambda: reader.schema(text))
    reader = reader.options(**option_texts(source.options))
    shown = source.format if source.path is None else f"{source.format} at {source.path}"
    remedy = "Check format, path, schema and options; a format's package goes into spark.config."
    frame = explained(field, shown, remedy, lambda: reader.load(source.path) if source.path else reader.load())
    if source.select:
        remedy = f"The source has these columns: {', '.join(frame.columns)}."
        frame = explained(f"{field}.select", source.select, remedy, lambda: frame.selectExpr(*source.select))
    return frame


def _watermarked(frame: DataFrame, name: str, stream: StreamPart) -> DataFrame:
    if stream.watermark is None:
        return frame
    delay = stream.watermark
    remedy = f"Name a timestamp column in `time`; there are: {', '.join(frame.columns)}."
    frame = explained(
        f"query.streams.{name}.time", stream.time, remedy, lambda: frame.withWatermark(quote(stream.time), delay)
    )
    explained(f"query.streams.{name}.time", stream.time, remedy, lambda: frame.schema)
    return frame
