"""The content of a query.yaml: sources, sink, query, Spark. Checked as far as possible without Spark."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from commands.runner.kafka_part import (
    KafkaSinkPart,
    KafkaSourcePart,
    ReadFormatPart,
    RegistryPart,
    WrittenKeyPart,
    WrittenValuePart,
    check_no_circle,
    is_kafka,
)
from commands.runner.trigger import trigger_arguments
from commands.runner.yaml_part import Option, Part
from commands.runner.yaml_text import fill_in, read_yaml
from split_union.kafka.options import HIDDEN
from split_union.query import JoinQuery, Stream
from trimtab.defaults import REDIS_VARIABLE
from trimtab.durations import parse_us
from trimtab.errors import InvalidInput

_KAFKA, _OTHER = "<kafka>", "<other>"
"""Tags of formats. Pydantic puts them into the places of errors, where nobody has written them."""


def _tag(part: Any) -> str:
    return _KAFKA if is_kafka(part) else _OTHER


class SparkPart(Part):
    """`spark:`"""

    master: str | None = None
    app_name: str | None = None
    config: dict[str, Option] = Field(default_factory=dict)


class SourcePart(Part):
    """`source:` of a stream: the arguments of spark.readStream."""

    format: str
    data_schema: str | None = Field(None, alias="schema")
    options: dict[str, Option] = Field(default_factory=dict)
    path: str | None = None
    select: list[str] = Field(default_factory=list)
    """SQL expressions that make the stream's columns from the source's columns."""
    id: list[str] = Field(default_factory=list)
    """Columns that identify a row, for the ids of results in Kafka."""


class StreamPart(Part):
    """One entry of `streams:`"""

    key: str | list[str]
    time: str
    source: Annotated[Annotated[KafkaSourcePart, Tag(_KAFKA)] | Annotated[SourcePart, Tag(_OTHER)], Discriminator(_tag)]
    watermark: str | None = None
    """This stream's own delay; then the query has no `lateness`."""

    @field_validator("watermark")
    @classmethod
    def _check_watermark(cls, text: str | None) -> str | None:
        if text is not None and parse_us(text, "watermark") < 0:
            raise InvalidInput("watermark", text, "is negative", 'Use "0 seconds" to wait for no late rows.')
        return text


class QueryPart(Part):
    """`query:`, with the defaults of `JoinQuery`."""

    name: str
    window: str
    lateness: str | None = None
    partitions: int = JoinQuery.model_fields["partitions"].default
    workers: int = JoinQuery.model_fields["workers"].default
    where: str | list[str] = Field(default_factory=list)
    ordered: bool = False
    plan: str | dict[int, str] = JoinQuery.model_fields["plan"].default
    owners: dict[Any, Any] = Field(default_factory=dict)
    streams: dict[str, StreamPart]

    @field_validator("partitions", "workers", mode="before")
    @classmethod
    def _take_digits(cls, value: Any) -> Any:
        """A number from an environment variable arrives as a text."""
        return int(value) if isinstance(value, str) and value.isdecimal() else value

    @field_validator("plan", mode="before")
    @classmethod
    def _take_worker_numbers(cls, plan: Any) -> Any:
        return {cls._take_digits(key): value for key, value in plan.items()} if isinstance(plan, dict) else plan


class SinkPart(Part):
    """`sink:`: the arguments of writeStream."""

    format: str
    path: str | None = None
    options: dict[str, Option] = Field(default_factory=dict)
    mode: Literal["append"] = "append"
    trigger: str | None = None
    """ "processing 1 second", "available now" or "once"; without it batches follow each other at once."""

    @field_validator("trigger")
    @classmethod
    def _check_trigger(cls, text: str | None) -> str | None:
        trigger_arguments(text)
        return text


class JobFile(Part):
    """The whole file."""

    spark: SparkPart = SparkPart()
    redis: str | None = None
    checkpoint: str
    query: QueryPart
    sink: Annotated[Annotated[KafkaSinkPart, Tag(_KAFKA)] | Annotated[SinkPart, Tag(_OTHER)], Discriminator(_tag)]

    @model_validator(mode="after")
    def _check_kafka(self) -> JobFile:
        """What no part can see by itself."""
        if isinstance(self.sink, KafkaSinkPart):
            sources = {name: stream.source for name, stream in self.query.streams.items()}
            check_no_circle(
                self.sink, {name: each for name, each in sources.items() if isinstance(each, KafkaSourcePart)}
            )
            return self
        for name, stream in self.query.streams.items():
            if isinstance(stream.source, KafkaSourcePart) and stream.source.dead_letters is not None:
                raise InvalidInput(
                    f"query.streams.{name}.source.dead_letters",
                    stream.source.dead_letters,
                    f"needs a sink of format kafka, and sink.format is {self.sink.format}",
                    "Dead letters are written by the sink, with the results. Leave it out: bad records are counted.",
                )
        return self

    def secrets(self) -> tuple[str, ...]:
        """Texts that must not be printed, whoever quotes them."""
        parts = [self.sink, *(stream.source for stream in self.query.streams.values())]
        return tuple(text for part in parts if not isinstance(part, SinkPart | SourcePart) for text in part.secrets())

    def join_query(self) -> JoinQuery:
        """The query, as a program would define it; its errors name the field in the file."""
        part = self.query
        streams = []
        for name, stream in part.streams.items():
            key = stream.key if isinstance(stream.key, str) else tuple(stream.key)
            try:
                streams.append(Stream(name, key=key, time=stream.time))
            except InvalidInput as error:
                where = f"query.streams.{name}"
                raise error.at(where if error.field == "name" else f"{where}.{error.field}") from None
        try:
            return JoinQuery(
                name=part.name,
                window=part.window,
                lateness=part.lateness,
                partitions=part.partitions,
                workers=part.workers,
                where=(part.where,) if isinstance(part.where, str) else tuple(part.where),
                ordered=part.ordered,
                plan=part.plan,
                owners=part.owners,
                streams=tuple(streams),
            )
        except InvalidInput as error:
            raise error.at(f"query.{error.field}") from None


def load_job(path: Path, environ: Mapping[str, str] = os.environ) -> JobFile:
    """The file's content, or an error that names one field, its value, what is wrong and what to do."""
    written = read_yaml(path)
    filled = fill_in(written, environ)
    try:
        job = JobFile.model_validate(filled)
    except ValidationError as error:
        raise _explained(error, written) from None
    job.join_query()
    if not job.checkpoint.strip():
        raise InvalidInput("checkpoint", job.checkpoint, "is not a directory", "Name one that only this query uses.")
    # Where the environment names the Redis of `trimtab serve`, the query uses that one too.
    redis = job.redis if job.redis is not None else environ.get(REDIS_VARIABLE) or None
    return job.model_copy(update={"checkpoint": absolute(job.checkpoint), "redis": redis})


def absolute(location: str) -> str:
    """A local path as executors can use it: they have other working directories. URIs stay as they are."""
    if "://" in location or location.startswith("file:"):
        return location
    return str(Path(location).expanduser().absolute())


def _explained(error: ValidationError, written: dict[Any, Any]) -> InvalidInput:
    """Pydantic's first complaint in our words. Values are shown as written, since variables may contain passwords."""
    first = error.errors()[0]
    location = [part for part in first["loc"] if part not in _UNION_TAGS]
    if location and location[-1] == "[key]":
        location.pop()
    field = ".".join(map(str, location))
    value = _short(_at(written, location))
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InvalidInput):
        return _within(location, cause, written)
    part = _part_of(location[:-1] if first["type"] in ("missing", "extra_forbidden") else location, written)
    known = _keys(part)
    if first["type"] == "missing":
        return InvalidInput(field, None, "is missing", f"{_owner(location)} has: {', '.join(known)}.")
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(location[-1]), known, 1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        return InvalidInput(field, value, "is not a known field", f"{hint}{_owner(location)} has: {', '.join(known)}.")
    remedy = "Words such as yes, no, on and 1 are not texts in YAML: put them in quotes."
    if first["input"] is None:
        remedy = "Give it a value, or leave the line out."
    elif first["type"] in ("int_type", "int_parsing"):
        remedy = "Write a whole number."
    elif first["type"] == "bool_type":
        remedy = "Write true or false."
    elif first["type"] in ("model_type", "dict_type"):
        remedy = f"Write one line for each of: {', '.join(known)}." if known else "Write `name: value` lines."
    elif first["type"] == "literal_error" and location[-1] == "mode":
        remedy = "Leave it out, or use `append`: a join only adds results."
    elif first["type"] == "literal_error":
        remedy = f"Use {first['ctx']['expected']}."
    return InvalidInput(field, value, first["msg"][:1].lower() + first["msg"][1:], remedy)


_UNION_TAGS = ("str", "bool", "int", "float", "list[str]", _KAFKA, _OTHER)


def _within(location: list[int | str], cause: InvalidInput, written: dict[Any, Any]) -> InvalidInput:
    """A complaint of our own: about the field at `location`, about something in it, or about the whole file."""
    head, _, rest = cause.field.partition(".")
    inside: list[int | str] = [*location, cause.field] if location else [*cause.field.split(".")]
    if location and location[-1] == head:
        inside = [*location, rest] if rest else location
    value = cause.value if cause.value == HIDDEN else _short(_at(written, inside))
    return InvalidInput(".".join(map(str, inside)), value, cause.problem, cause.remedy)


def _at(value: Any, location: list[int | str]) -> Any:
    for part in location:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return f"{{{', '.join(map(str, value))}}}"
    text = str(value)
    return value if len(text) <= 100 else f"{text[:97]}..."


def _owner(location: list[int | str]) -> str:
    return ".".join(map(str, location[:-1])) or "The file"


def _part_of(location: list[int | str], written: dict[Any, Any]) -> type[BaseModel] | None:
    """The model for a place in the file."""
    names = tuple(map(str, location))
    kafka = is_kafka(_at(written, location[:1] if names[:1] == ("sink",) else location[:4]))
    if names[:2] == ("query", "streams"):
        of_stream: dict[tuple[str, ...], type[BaseModel]] = {
            (): StreamPart,
            ("source",): KafkaSourcePart if kafka else SourcePart,
            **_formats(("source",), ReadFormatPart, ReadFormatPart),
        }
        return of_stream.get(names[3:]) if len(names) >= 3 else None
    fixed: dict[tuple[str, ...], type[BaseModel]] = {
        (): JobFile,
        ("spark",): SparkPart,
        ("query",): QueryPart,
        ("sink",): KafkaSinkPart if kafka else SinkPart,
        **_formats(("sink",), WrittenKeyPart, WrittenValuePart),
    }
    return fixed.get(names)


def _formats(
    above: tuple[str, ...], key: type[BaseModel], value: type[BaseModel]
) -> dict[tuple[str, ...], type[BaseModel]]:
    parts = {(*above, "key"): key, (*above, "value"): value}
    return {**parts, **{(*place, "registry"): RegistryPart for place in parts}}


def _keys(part: type[BaseModel] | None) -> list[str]:
    return [] if part is None else [field.alias or name for name, field in part.model_fields.items()]
