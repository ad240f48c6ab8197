"""What the user writes: streams, window, conditions. Checked as far as it can be without a Spark session."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from plans.tree import parse_plan
from trimtab import redis_keys
from trimtab.durations import parse_us
from trimtab.errors import InvalidInput
from trimtab.owners import FirstOwners, first_owners, parse_first_owners

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
STREAMS_MAX: Final = 8
PARTITIONS_MAX: Final = 32_767
DURATION_MAX_US: Final = 1000 * 365 * 86_400_000_000
"""A thousand years: times and their differences must fit into 64 bits with room to spare."""


class _Checked(BaseModel):
    """A model whose errors are ours: one field, its value, what is wrong, what to do."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    takes: ClassVar[dict[str, str]]
    """What a field takes, in words."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise self._explained(error) from None

    @classmethod
    def _explained(cls, error: ValidationError) -> InvalidInput:
        """Pydantic's first complaint in our words."""
        first = error.errors()[0]
        place = [part for part in first["loc"] if part != "str" and not str(part).startswith(("tuple[", "dict["))]
        field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InvalidInput):
            # Of a stream that was given as a dictionary: say which.
            return cause.at(f"{field}.{cause.field}") if field.endswith("]") else cause
        name = str(place[-1]) if place else cls.__name__
        known = {**Stream.takes, **JoinQuery.takes}
        if first["type"] == "missing":
            return InvalidInput(field, None, "is missing", f"Give {known[name]}.")
        if name in known:
            return InvalidInput(field, first["input"], first["msg"].lower(), f"Give {known[name]}.")
        return InvalidInput(
            field or name, first["input"], first["msg"].lower(), f"{cls.__name__} takes: {', '.join(cls.model_fields)}."
        )


class Stream(_Checked):
    """One input: its name, its join key (one or more columns) and its event-time column."""

    takes: ClassVar[dict[str, str]] = {
        "name": "a name for the stream",
        "key": "the name of the key column, or a list of them",
        "time": "the name of the event-time column",
    }

    name: str
    key: str | tuple[str, ...]
    time: str

    def __init__(self, name: str | None = None, **values: Any) -> None:
        super().__init__(**({"name": name} if name is not None else {}), **values)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise InvalidInput("name", name, "is not a name for a stream", "Use letters, digits and _, a letter first.")
        return name

    @field_validator("key")
    @classmethod
    def _check_key(cls, key: str | tuple[str, ...]) -> str | tuple[str, ...]:
        columns = (key,) if isinstance(key, str) else key
        if not columns or not all(columns) or len(set(columns)) != len(columns):
            raise InvalidInput("key", key, "is not a list of different columns", "Name each key column once.")
        return key

    @field_validator("time")
    @classmethod
    def _check_time(cls, time: str) -> str:
        if not time:
            raise InvalidInput("time", time, "is not a column", "Name the column that holds the event time.")
        return time

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else self.key


class JoinQuery(_Checked):
    """A windowed equi-join of 2 to 8 streams.

    Result: all combinations, one row from each stream, with equal key, all conditions true and
    max time - min time <= window; each exactly once.
    """

    takes: ClassVar[dict[str, str]] = {
        "name": "a name for the query",
        "streams": "a list of 2 to 8 streams, each a Stream(name, key=..., time=...)",
        "window": 'a duration such as "10 seconds"',
        "lateness": 'a duration such as "5 seconds", or None where the inputs have watermarks',
        "partitions": "a whole number",
        "workers": "a whole number",
        "where": "a list of SQL conditions",
        "ordered": "True or False",
        "plan": "a join tree, or one for each of some workers by number",
        "owners": 'a dictionary such as {0: "50%", 2: [4, 9, 17]}: worker -> share or list of partition groups',
    }

    name: str
    streams: tuple[Stream, ...]
    window: str
    lateness: str | None = None
    """How long a stream waits for late rows (its watermark's delay); left out where the inputs have watermarks."""
    partitions: int = 64
    workers: int = 4
    where: tuple[str, ...] = ()
    ordered: bool = False
    """Sort each worker's output of a batch by result time."""
    plan: str | dict[int, str] = "left-deep"
    """The join tree: left-deep, mjoin (one multi-way operator), or a tree such as "((B C) A)"; or one for each of some
    workers by number, the others then being left-deep. A worker keeps the plan that it started with."""
    owners: FirstOwners = {}
    """Who owns which partition groups at first: worker -> share such as "50%", or list of groups. The remaining groups
    are dealt in turn among the workers that are not named. A checkpoint keeps the mapping that it has."""

    @property
    def window_us(self) -> int:
        return parse_us(self.window, "window")

    @property
    def stream_names(self) -> tuple[str, ...]:
        return tuple(stream.name for stream in self.streams)

    @property
    def plans(self) -> tuple[str, ...]:
        """The plan that each worker starts with."""
        if isinstance(self.plan, str):
            return (self.plan,) * self.workers
        return tuple(self.plan.get(worker, "left-deep") for worker in range(self.workers))

    @property
    def first_owners(self) -> tuple[int, ...]:
        """The owner of each partition group in the first epoch."""
        return first_owners(self.owners, self.partitions, self.workers)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not re.fullmatch(redis_keys.QUERY_NAME, name):
            raise InvalidInput("name", name, "is not a name for a query", "Use up to 100 letters, digits, _, . and -.")
        return name

    @field_validator("where", mode="before")
    @classmethod
    def _one_condition_is_a_list(cls, where: Any) -> Any:
        return (where,) if isinstance(where, str) else where

    @field_validator("owners", mode="before")
    @classmethod
    def _parse_owners(cls, owners: Any) -> FirstOwners:
        return parse_first_owners(owners)

    @model_validator(mode="after")
    def _check(self) -> JoinQuery:
        names = self.stream_names
        if not 2 <= len(names) <= STREAMS_MAX:
            raise InvalidInput("streams", len(names), "is not a number of streams that join", "Give 2 to 8 streams.")
        folded = [name.lower() for name in names]
        for index, name in enumerate(folded):
            if name in folded[:index]:
                raise InvalidInput(
                    f"streams[{index}].name", names[index], "is used twice", "Give every stream a name of its own."
                )
        widths = {len(stream.key_columns) for stream in self.streams}
        if len(widths) > 1:
            told = {stream.name: stream.key_columns for stream in self.streams}
            raise InvalidInput(
                "streams.key", told, "have different numbers of columns", "Give all keys the same number."
            )
        if self.window_us <= 0:
            raise InvalidInput(
                "window", self.window, "is not positive", 'Give a positive duration such as "10 seconds".'
            )
        if self.lateness is not None and parse_us(self.lateness, "lateness") < 0:
            raise InvalidInput("lateness", self.lateness, "is negative", 'Use "0 seconds" to wait for nobody.')
        for field, text in (("window", self.window), ("lateness", self.lateness)):
            if text is not None and parse_us(text, field) > DURATION_MAX_US:
                raise InvalidInput(field, text, "is longer than a thousand years", "Give a shorter duration.")
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise InvalidInput("partitions", self.partitions, "is out of range", f"Use 1 to {PARTITIONS_MAX}.")
        if self.workers < 1:
            raise InvalidInput("workers", self.workers, "is not a number of workers", "Use 1 or more.")
        if self.workers > self.partitions:
            raise InvalidInput(
                "workers",
                self.workers,
                f"is more than the {self.partitions} partitions, so some could never own one",
                "Lower workers or raise partitions.",
            )
        if isinstance(self.plan, str):
            parse_plan(self.plan, names)
        else:
            for worker, plan in self.plan.items():
                if not 0 <= worker < self.workers:
                    raise InvalidInput(
                        "plan", worker, "is not a worker of this query", f"Use a number from 0 to {self.workers - 1}."
                    )
                parse_plan(plan, names, f"plan[{worker}]")
        first_owners(self.owners, self.partitions, self.workers)
        return self

    def join(
        self,
        spark: SparkSession,
        inputs: Mapping[str, DataFrame],
        *,
        checkpoint: str,
        redis: str | None = None,
        rebuild: bool = False,
    ) -> DataFrame:
        """The join as an ordinary streaming DataFrame; start it with `checkpointLocation` set to `checkpoint`.

        Without `redis` a server is started for the life of this process. With `rebuild` every batch makes its
        resident state anew from the durable one: slow, and good for finding what resident state could hide.
        """
        from split_union.join import build_join

        return build_join(self, spark, inputs, checkpoint=checkpoint, redis=redis, rebuild=rebuild)
