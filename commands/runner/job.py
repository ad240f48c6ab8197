"""The content of a query.yaml: sources, sink, query, Spark. Checked as far as possible without Spark."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from commands.runner.yaml_text import fill_in, read_yaml
from split_union.query import JoinQuery, Stream
from trimtab.defaults import REDIS_VARIABLE
from trimtab.durations import parse_us
from trimtab.errors import InvalidInput

Option = str | bool | int | float
_PROCESSING = re.compile(r"processing\s+(.+)")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SparkPart(_Part):
    """`spark:`"""

    master: str | None = None
    app_name: str | None = None
    config: dict[str, Option] = {}


class SourcePart(_Part):
    """`source:` of a stream: the arguments of spark.readStream."""

    format: str
    data_schema: str | None = Field(None, alias="schema")
    options: dict[str, Option] = {}
    path: str | None = None
    select: list[str] = []
    """SQL expressions that make the stream's columns from the source's columns."""


class StreamPart(_Part):
    """One entry of `streams:`"""

    key: str | list[str]
    time: str
    source: SourcePart
    watermark: str | None = None
    """This stream's own delay; then the query has no `lateness`."""

    @field_validator("watermark")
    @classmethod
    def _check_watermark(cls, text: str | None) -> str | None:
        if text is not None and parse_us(text, "watermark") < 0:
            raise InvalidInput("watermark", text, "is negative", 'Use "0 seconds" to wait for no late rows.')
        return text


class QueryPart(_Part):
    """`query:`, with the defaults of `JoinQuery`."""

    name: str
    window: str
    lateness: str | None = None
    partitions: int = JoinQuery.model_fields["partitions"].default
    workers: int = JoinQuery.model_fields["workers"].default
    where: str | list[str] = []
    ordered: bool = False
    plan: str | dict[int, str] = JoinQuery.model_fields["plan"].default
    owners: dict[Any, Any] = {}
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


class SinkPart(_Part):
    """`sink:`: the arguments of writeStream."""

    format: str
    path: str | None = None
    options: dict[str, Option] = {}
    mode: Literal["append"] = "append"
    trigger: str | None = None
    """ "processing 1 second", "available now" or "once"; without it batches follow each other at once."""

    @field_validator("trigger")
    @classmethod
    def _check_trigger(cls, text: str | None) -> str | None:
        trigger_arguments(text)
        return text


class JobFile(_Part):
    """The whole file."""

    spark: SparkPart = SparkPart()
    redis: str | None = None
    checkpoint: str
    query: QueryPart
    sink: SinkPart

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


def trigger_arguments(text: str | None) -> dict[str, Any]:
    """The keyword arguments of DataStreamWriter.trigger; none if batches follow each other at once."""
    if text is None:
        return {}
    words = " ".join(text.lower().split())
    if words == "available now":
        return {"availableNow": True}
    if words == "once":
        return {"once": True}
    interval = _PROCESSING.fullmatch(words)
    if interval is None:
        raise InvalidInput(
            "trigger",
            text,
            "is not a trigger",
            'Use "processing 1 second" (or another interval), "available now" or "once".',
        )
    interval_us = parse_us(interval.group(1), "trigger")
    if interval_us < 0:
        raise InvalidInput("trigger", text, "is negative", 'Use "processing 0 seconds" for batches without a pause.')
    return {"processingTime": f"{interval_us // 1000} milliseconds"}


def option_text(value: Option) -> str:
    """An option as Spark reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


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
        return InvalidInput(field, value, cause.problem, cause.remedy)
    part = _part_of(location[:-1] if first["type"] in ("missing", "extra_forbidden") else location)
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
    elif first["type"] == "literal_error":
        remedy = "Leave it out, or use `append`: a join only adds results."
    return InvalidInput(field, value, first["msg"][:1].lower() + first["msg"][1:], remedy)


_UNION_TAGS = ("str", "bool", "int", "float", "list[str]")


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


def _part_of(location: list[int | str]) -> type[BaseModel] | None:
    """The model for a place in the file."""
    fixed: dict[tuple[str, ...], type[BaseModel]] = {
        (): JobFile,
        ("spark",): SparkPart,
        ("query",): QueryPart,
        ("sink",): SinkPart,
    }
    names = tuple(map(str, location))
    if names[:2] == ("query", "streams") and len(names) >= 3:
        return {3: StreamPart, 4: SourcePart if names[-1] == "source" else None}.get(len(names))
    return fixed.get(names)


def _keys(part: type[BaseModel] | None) -> list[str]:
    return [] if part is None else [field.alias or name for name, field in part.model_fields.items()]
