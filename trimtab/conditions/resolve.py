"""Which stream and column a name in a condition means."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trimtab.conditions.errors import ConditionError

Schemas = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Reference:
    """A dotted name as written, with the place of each part in the text.

    `optional` marks a bare word that may be something else than a column (the unit of a date function).
    """

    parts: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    nested: bool
    optional: bool

    @property
    def start(self) -> int:
        """Where the name begins; identifies the reference within its text."""
        return self.spans[0][0]


@dataclass(frozen=True)
class Resolved:
    """A reference with its meaning; `start:end` covers stream and column but not fields of a struct."""

    start: int
    end: int
    stream: str
    column: str
    type: str
    nested: bool


class Names:
    """The names of all streams and columns, looked up with the session's rule about case."""

    def __init__(self, schemas: Schemas, *, case_sensitive: bool) -> None:
        self._schemas = schemas
        self._fold = _same if case_sensitive else str.lower

    def knows(self, stream: str, column: str) -> bool:
        """Whether `stream.column` means something."""
        return any(self._match(column, self._schemas[name]) for name in self._match(stream, self._schemas))

    def resolve(self, reference: Reference, field: str, value: str) -> Resolved | None:
        """The column a reference means; None for a bare word that is not a column; else ConditionError.

        As in Spark a qualified reading wins: `a.b` is column b of stream a if there is such a stream, and
        otherwise field b of a struct column a.
        """
        parts = reference.parts
        streams = self._match(parts[0], self._schemas)
        owners = [
            (stream, name)
            for stream, columns_of in self._schemas.items()
            for name in self._match(parts[0], columns_of)
            if len(parts) == 1 or _has_fields(columns_of[name])
        ]
        if len(parts) > 1 and streams and (len(streams) == 1 or not owners):
            if len(streams) > 1:
                raise self._ambiguous(field, value, "stream", parts[0], streams)
            columns = self._match(parts[1], self._schemas[streams[0]])
            if len(columns) == 1:
                return self._found(reference, 2, streams[0], columns[0])
            if columns:
                raise self._ambiguous(field, value, "column", ".".join(parts[:2]), columns)
            if not owners:
                raise self._unknown_column(field, value, parts[1], streams)
        if len(owners) == 1:
            return self._found(reference, 1, *owners[0])
        if owners:
            candidates = [f"{stream}.{name}" for stream, name in owners]
            raise self._ambiguous(field, value, "column", parts[0], candidates)
        if reference.optional:
            return None
        if len(parts) > 1:
            raise self._unknown_stream(field, value, parts[0])
        raise self._unknown_column(field, value, parts[0], list(self._schemas))

    def _found(self, reference: Reference, used: int, stream: str, column: str) -> Resolved:
        nested = reference.nested or len(reference.parts) > used
        end = reference.spans[used - 1][1]
        return Resolved(reference.start, end, stream, column, self._schemas[stream][column], nested)

    def _match(self, name: str, candidates: Iterable[str]) -> list[str]:
        folded = self._fold(name)
        return [candidate for candidate in candidates if self._fold(candidate) == folded]

    def _unknown_stream(self, field: str, value: str, name: str) -> ConditionError:
        known = list(self._schemas)
        remedy = _suggestion(name, known) or f"The streams are {', '.join(known) or 'none'}."
        return ConditionError(field, value, f"unknown stream {name!r}", remedy)

    def _unknown_column(self, field: str, value: str, name: str, streams: list[str]) -> ConditionError:
        if len(streams) == 1:
            stream = streams[0]
            problem, known = f"unknown column {name!r} in stream {stream!r}", list(self._schemas[stream])
            fallback = f"The columns of {stream} are {', '.join(known) or 'none'}."
        else:
            problem = f"unknown column {name!r}: no stream has it"
            known = [column for stream in streams for column in self._schemas[stream]]
            fallback = f"Write Stream.column; the streams are {', '.join(streams) or 'none'}."
        return ConditionError(field, value, problem, _suggestion(name, known) or fallback)

    def _ambiguous(self, field: str, value: str, what: str, name: str, candidates: list[str]) -> ConditionError:
        problem = f"ambiguous {what} {name!r}: it may be {' or '.join(candidates)}"
        if what == "column" and all("." in candidate for candidate in candidates):
            return ConditionError(field, value, problem, f"Qualify it, for example {candidates[0]}.")
        remedy = "The names differ only in case; use a case-sensitive session or rename one of them."
        return ConditionError(field, value, problem, remedy)


def _has_fields(type_: str) -> bool:
    return type_.strip().lower().startswith(("struct", "map", "array", "variant"))


def _same(name: str) -> str:
    return name


def _suggestion(name: str, known: Iterable[str]) -> str | None:
    """Close matches without regard to case, in the spelling of the schema."""
    spellings = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), list(spellings))
    return f"Did you mean {' or '.join(spellings[match] for match in close)}?" if close else None
