"""`format: kafka` in a query.yaml, for sources and sinks. Checked as far as possible without Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from commands.runner.trigger import trigger_arguments
from commands.runner.yaml_part import Option, Part, option_texts
from split_union.kafka.formats import AVRO, RecordFormat, check_avro_schema
from split_union.kafka.options import check_sink_options, check_source_options, secrets_of
from split_union.kafka.registry import Registry, versions_of
from trimtab.errors import InvalidInput

SAMPLE: int = 20


class RegistryPart(Part):
    """`registry:` of an Avro format."""

    url: str
    subject: str
    username: str | None = None
    password: str | None = None

    def registry(self) -> Registry:
        return Registry(self.url, self.username, self.password)


class FormatPart(Part):
    """`key:` or `value:`: how the bytes are written."""

    format: Literal["json", "avro", "text"]
    data_schema: str | None = Field(None, alias="schema")
    schema_file: str | None = None
    registry: RegistryPart | None = None

    @model_validator(mode="after")
    def _check(self) -> FormatPart:
        given = [name for name in ("schema", "schema_file", "registry") if self._given(name)]
        if len(given) > 1:
            raise InvalidInput(given[1], self._given(given[1]), f"cannot be combined with {given[0]}", "Give one.")
        if self.registry is not None and self.format != AVRO:
            raise InvalidInput("registry", self.registry.url, f"is for Avro, not for {self.format}", "Leave it out.")
        return self

    def _given(self, name: str) -> object:
        value = self.data_schema if name == "schema" else getattr(self, name)
        return value.url if isinstance(value, RegistryPart) else value

    def resolved(self, field: str) -> RecordFormat:
        """With the schema from its file or from the registry."""
        if self.registry is not None:
            versions = versions_of(self.registry.registry(), self.registry.subject, f"{field}.registry")
            return RecordFormat(self.format, versions[-1].schema, versions)
        schema, where = self.data_schema, f"{field}.schema"
        if self.schema_file is not None:
            where = f"{field}.schema_file"
            try:
                schema = Path(self.schema_file).expanduser().read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
                raise InvalidInput(
                    where, self.schema_file, f"cannot be read ({reason})", "Give the path of a schema."
                ) from None
        if self.format == AVRO and schema is not None:
            check_avro_schema(where, schema)
        return RecordFormat(self.format, schema)


class ReadFormatPart(FormatPart):
    """A source has to be told what its bytes hold."""

    @model_validator(mode="after")
    def _needs_schema(self) -> ReadFormatPart:
        if self.data_schema is None and self.schema_file is None and self.registry is None:
            remedy = 'Write the columns as in SQL: schema: "user long, price double, at timestamp".'
            if self.format == AVRO:
                remedy = "Write the Avro schema in `schema`, name its file in `schema_file`, or name a `registry`."
            raise InvalidInput("schema", None, "is missing", remedy)
        return self


class WrittenKeyPart(FormatPart):
    """`key:` of a sink."""

    columns: list[str] = Field(default_factory=list)
    """Columns of the result; by default the join key of the first stream."""
    format: Literal["json", "avro", "text"] = "text"


class WrittenValuePart(FormatPart):
    """`value:` of a sink."""

    format: Literal["json", "avro"] = "json"


def _servers(servers: str | list[str]) -> str:
    names = servers.split(",") if isinstance(servers, str) else servers
    names = [name.strip() for name in names]
    for name in names:
        host, colon, port = name.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536) or "/" in host:
            raise InvalidInput("servers", servers, f"has no host and port in {name!r}", "Write host:9092.")
    return ",".join(names)


Servers = Annotated[str | list[str], AfterValidator(_servers)]
"""Written as one text or as a list; kept as Kafka takes it."""


class KafkaSourcePart(Part):
    """`source:` of a stream, `format: kafka`."""

    format: Literal["kafka"]
    servers: Servers
    topics: str | list[str] = Field(default_factory=list)
    pattern: str | None = None
    """A regular expression for the names of topics, in place of `topics`."""
    value: ReadFormatPart
    key: ReadFormatPart | None = None
    select: list[str] = Field(default_factory=list)
    """SQL expressions that make the stream's columns; also from _topic, _partition, _offset and _timestamp."""
    id: list[str] = Field(default_factory=list)
    """Columns that identify a row, for the ids of results; by default topic, partition and offset."""
    dead_letters: str | None = None
    """A topic of the sink's servers for records that cannot be used."""
    sample: int = SAMPLE
    """A new query looks at so many of the newest records first, and does not start if none of them fits."""
    options: dict[str, Option] = Field(default_factory=dict)

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: str | list[str]) -> list[str]:
        names = [name.strip() for name in (topics.split(",") if isinstance(topics, str) else topics)]
        if not names or not all(names):
            raise InvalidInput("topics", topics, "names no topic", "Write one topic, or a list of them.")
        return names

    @field_validator("dead_letters")
    @classmethod
    def _check_dead_letters(cls, topic: str | None) -> str | None:
        if topic is not None and not topic.strip():
            raise InvalidInput("dead_letters", topic, "names no topic", "Write a topic, or leave it out.")
        return topic

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Option]) -> dict[str, Option]:
        check_source_options(option_texts(options))
        return options

    @field_validator("sample")
    @classmethod
    def _check_sample(cls, sample: int) -> int:
        if sample < 0:
            raise InvalidInput("sample", sample, "is not a number of records", "Write 0 to look at none.")
        return sample

    @model_validator(mode="after")
    def _check(self) -> KafkaSourcePart:
        if not self.topics and self.pattern is None:
            raise InvalidInput("topics", None, "is missing", "Name the topic to read, or give a `pattern`.")
        if self.topics and self.pattern is not None:
            raise InvalidInput("pattern", self.pattern, "cannot be combined with topics", "Leave one of them out.")
        return self

    def secrets(self) -> tuple[str, ...]:
        return (*secrets_of(option_texts(self.options)), *_registry_secrets(self.value, self.key))


class KafkaSinkPart(Part):
    """`sink:`, `format: kafka`."""

    format: Literal["kafka"]
    servers: Servers
    topic: str
    key: WrittenKeyPart = WrittenKeyPart()
    value: WrittenValuePart = WrittenValuePart()
    select: list[str] = Field(default_factory=list)
    """SQL expressions over the result's columns that make the value's fields; all columns without it."""
    id_field: str | None = None
    """A field of the value that has the result's id, too; the header trimtab-id always has it."""
    options: dict[str, Option] = Field(default_factory=dict)
    mode: Literal["append"] = "append"
    trigger: str | None = None

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, topic: str) -> str:
        if not topic.strip():
            raise InvalidInput("topic", topic, "names no topic", "Write the topic that results go to.")
        return topic.strip()

    @field_validator("trigger")
    @classmethod
    def _check_trigger(cls, text: str | None) -> str | None:
        trigger_arguments(text)
        return text

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Option]) -> dict[str, Option]:
        check_sink_options(option_texts(options))
        return options

    def secrets(self) -> tuple[str, ...]:
        return (*secrets_of(option_texts(self.options)), *_registry_secrets(self.value, self.key))


def check_no_circle(sink: KafkaSinkPart, sources: Mapping[str, KafkaSourcePart]) -> None:
    """Refuse a query that reads what it writes: each bad record would be written, read and found bad for ever."""
    written = {"sink.topic": sink.topic}
    for name, source in sources.items():
        if source.dead_letters is not None:
            field = f"query.streams.{name}.source.dead_letters"
            if source.dead_letters == sink.topic:
                raise InvalidInput(field, sink.topic, "is sink.topic, too", "Give bad records a topic of their own.")
            written[field] = source.dead_letters
    for field, topic in written.items():
        for name, source in sources.items():
            same = set(str(source.servers).split(",")) & set(str(sink.servers).split(","))
            if same and _reads(source, topic):
                problem = f"is read by the stream {name}, so the query would read what it writes"
                raise InvalidInput(field, topic, problem, "Name another topic, or read fewer.")


def _reads(source: KafkaSourcePart, topic: str) -> bool:
    if source.pattern is None:
        return topic in source.topics
    try:
        return re.fullmatch(source.pattern, topic) is not None
    except re.error:
        return False  # said when Kafka is asked for its topics


def _registry_secrets(*parts: FormatPart | None) -> tuple[str, ...]:
    found = (part.registry.password for part in parts if part is not None and part.registry is not None)
    return tuple(password for password in found if password)


def is_kafka(part: Any) -> bool:
    """Whether what is written under `source` or `sink` is one of these."""
    return isinstance(part, KafkaSourcePart | KafkaSinkPart) or (
        isinstance(part, dict) and part.get("format") == "kafka"
    )
