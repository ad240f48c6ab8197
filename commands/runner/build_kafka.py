"""From `format: kafka` in a job's file to Spark. Kafka is asked first, so that nothing starts that cannot work."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from commands.runner.explaining import explained
from commands.runner.job import JobFile, SourcePart
from commands.runner.kafka_part import KafkaSinkPart, KafkaSourcePart
from commands.runner.yaml_part import option_texts
from split_union.kafka.broker import Broker
from split_union.kafka.formats import AVRO, JSON, TEXT, RecordFormat
from split_union.kafka.identity import Identity
from split_union.kafka.options import PREFIX, SERVERS
from split_union.kafka.sink import KafkaSink, dead_letters, records
from split_union.kafka.source import ROW_ID, KafkaSource, KafkaStream, stream_of
from trimtab.errors import InvalidInput
from trimtab.keys import PROBLEM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PACKAGE: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:{}"
_AVRO: Final = "org.apache.spark:spark-avro_2.13:{}"
_SCHEMA_REMEDY: Final = {
    JSON: 'Write the columns as in SQL: "user long, price double, at timestamp".',
    TEXT: 'Write one column as in SQL: "user long".',
    AVRO: "Write an Avro record that Spark can read.",
}


def build_stream(spark: SparkSession, job: JobFile, name: str, part: KafkaSourcePart, *, fresh: bool) -> KafkaStream:
    """One stream's rows and its bad records."""
    field = f"query.streams.{name}.source"
    stream = job.query.streams[name]
    options = option_texts(part.options)
    broker = Broker(spark, field, str(part.servers), options)
    _check_connector(spark, f"{field}.format")
    broker.check_options("source")
    topics = list(part.topics)
    if part.pattern is not None:
        topics = broker.check_pattern(f"{field}.pattern", part.pattern)
    else:
        broker.check_topics(f"{field}.topics", topics)
    source = KafkaSource(
        servers=str(part.servers),
        topics=topics if part.pattern is None else (),
        pattern=part.pattern,
        value=_format(spark, f"{field}.value", part.value.resolved(f"{field}.value")),
        key=None if part.key is None else _format(spark, f"{field}.key", part.key.resolved(f"{field}.key")),
        select=part.select,
        options=options,
    )
    reader = spark.readStream.format("kafka").options(**source.reader_options)
    remedy = "Check the options."
    read = explained(field, f"kafka at {part.servers}", remedy, reader.load, part.secrets())
    key = (stream.key,) if isinstance(stream.key, str) else tuple(stream.key)

    def made(of: DataFrame) -> KafkaStream:
        remedy = "Use columns of key and value, and _topic, _partition, _offset and _timestamp."
        with_id = isinstance(job.sink, KafkaSinkPart) and not part.id
        try:
            return explained(
                f"{field}.select",
                part.select,
                remedy,
                lambda: stream_of(spark, source, of, key=key, time=stream.time, with_id=with_id),
            )
        except InvalidInput as error:
            raise error if error.field.startswith(field) else error.at(f"{field}.{error.field}") from None

    found = made(read)
    if fresh and part.sample:
        _look_at_records(spark, broker, source, topics, part, made, field)
    return found


def check_sink(spark: SparkSession, job: JobFile, part: KafkaSinkPart) -> None:
    """Kafka at the sink: there, with its topics, those for dead letters included."""
    for field, form in (("sink.key", part.key), ("sink.value", part.value)):
        if form.format == AVRO:
            _check_avro(spark, f"{field}.format")
    broker = Broker(spark, "sink", str(part.servers), option_texts(part.options))
    _check_connector(spark, "sink.format")
    broker.check_options("sink")
    broker.check_topics("sink.topic", [part.topic])
    for name, stream in job.query.streams.items():
        if isinstance(stream.source, KafkaSourcePart) and stream.source.dead_letters is not None:
            broker.check_topics(f"query.streams.{name}.source.dead_letters", [stream.source.dead_letters])


def build_records(
    joined: DataFrame, columns_of: Mapping[str, Sequence[str]], letters: list[DataFrame], job: JobFile
) -> DataFrame:
    """Everything that the sink writes. `columns_of`: the columns of each stream."""
    part = job.sink
    assert isinstance(part, KafkaSinkPart)
    first = job.join_query().streams[0]
    columns = part.key.columns or [f"{first.name}_{name}" for name in first.key_columns]
    for place, names in (("sink.key.columns", columns), *_id_columns(job)):
        for name in names:
            if name not in joined.columns:
                known = ", ".join(each for each in joined.columns if not each.endswith(f"_{ROW_ID}"))
                raise InvalidInput(place, name, "is not a column of the result", f"It has: {known}.")
    key = part.key.resolved("sink.key")
    if len(columns) > 1 and key.kind == TEXT:
        if part.key.columns and "format" in part.key.model_fields_set:
            raise InvalidInput("sink.key.format", TEXT, "holds one column", "Use json for several.")
        key = RecordFormat(JSON)
    sink = KafkaSink(
        topic=part.topic,
        key_columns=columns,
        key=key,
        value=part.value.resolved("sink.value"),
        select=part.select,
        id_field=part.id_field,
    )
    try:
        written = explained(
            "sink.select",
            part.select,
            f"The result has: {', '.join(joined.columns)}.",
            lambda: records(joined, sink, job.query.name, identities(job, columns_of)),
        )
    except InvalidInput as error:
        raise error if error.field.startswith("sink.") else error.at(f"sink.{error.field}") from None
    for frame in letters:
        written = written.unionByName(frame)
    return written


def identities(job: JobFile, columns: Mapping[str, Sequence[str]]) -> list[Identity]:
    """What tells the rows of each stream apart; `columns` are the streams' own."""
    found = []
    for name, stream in job.query.streams.items():
        own: Sequence[str] = stream.source.id
        exact = bool(own)
        if not own and not isinstance(stream.source, SourcePart):
            own, exact = [ROW_ID], True
        found.append(Identity(name, tuple(f"{name}_{column}" for column in own or columns[name]), exact))
    return found


def build_dead_letters(job: JobFile, bad: dict[str, DataFrame]) -> list[DataFrame]:
    found = []
    for name, frame in bad.items():
        source = job.query.streams[name].source
        assert isinstance(source, KafkaSourcePart) and source.dead_letters is not None
        found.append(dead_letters(frame, source.dead_letters, job.query.name, name))
    return found


def writer_options(part: KafkaSinkPart) -> dict[str, str]:
    return {**option_texts(part.options), SERVERS: str(part.servers)}


def _id_columns(job: JobFile) -> list[tuple[str, list[str]]]:
    return [
        (f"query.streams.{name}.source.id", [f"{name}_{column}" for column in stream.source.id])
        for name, stream in job.query.streams.items()
    ]


def _format(spark: SparkSession, field: str, form: RecordFormat) -> RecordFormat:
    """The same, once Spark has read its schema."""
    from split_union.kafka.decoding import schema_of

    if form.kind == AVRO:
        _check_avro(spark, f"{field}.format")
    explained(f"{field}.schema", form.schema, _SCHEMA_REMEDY[form.kind], lambda: schema_of(spark, form))
    return form


def _check_avro(spark: SparkSession, field: str) -> None:
    from pyspark.sql.avro.functions import to_avro

    remedy = f"Add the package of your Spark to spark.config: spark.jars.packages: {_AVRO.format(spark.version)}"
    explained(field, AVRO, remedy, lambda: spark.range(0).select(to_avro("id")))


def _check_connector(spark: SparkSession, field: str) -> None:
    jvm = spark.sparkContext._jvm
    data_source = getattr(jvm, "org.apache.spark.sql.execution.datasources.DataSource")
    explained(
        field,
        "kafka",
        f"Add the connector of your Spark to spark.config: spark.jars.packages: {_PACKAGE.format(spark.version)}",
        lambda: data_source.lookupDataSource("kafka", spark._jsparkSession.sessionState().conf()),
    )


def _look_at_records(
    spark: SparkSession,
    broker: Broker,
    source: KafkaSource,
    topics: Sequence[str],
    part: KafkaSourcePart,
    made: Callable[[DataFrame], KafkaStream],
    field: str,
) -> None:
    """Refuse a schema that none of the newest records fits: the query would run, and count bad records only."""
    from pyspark.sql import functions as F

    newest = broker.newest(topics, part.sample)
    if not newest:
        return
    where = {
        "assign": {topic: [int(partition) for partition in found] for topic, found in newest.items()},
        "startingOffsets": {t: {p: first for p, (first, _) in found.items()} for t, found in newest.items()},
        "endingOffsets": {t: {p: end for p, (_, end) in found.items()} for t, found in newest.items()},
    }
    options = {name: value for name, value in source.reader_options.items() if name.startswith(PREFIX)}
    options |= {name: json.dumps(value) for name, value in where.items()}
    table = spark.read.format("kafka").options(**options).load()
    counts = made(table).rows.agg(F.count(F.lit(1)), F.count(PROBLEM), F.first(PROBLEM, ignorenulls=True))
    remedy = "Look at the topic, and its options."
    total, bad, reason = explained(field, f"kafka at {part.servers}", remedy, counts.collect, part.secrets())[0]
    if total and bad == total:
        raise InvalidInput(
            f"{field}.value.schema",
            source.value.schema,
            f"fits none of the newest {total} records of {', '.join(topics)}: {reason}",
            "Correct schema, key and time. To start all the same: sample: 0.",
        )
