"""LIKE patterns: Spark's rules about escapes, and the cheapest Arrow kernel for each shape of pattern."""

from __future__ import annotations

import re
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc


class Wildcard(Enum):
    """The two special characters of a pattern."""

    ONE = "_"
    ANY = "%"


def split_pattern(pattern: str, escape: str) -> list[str | Wildcard] | None:
    """Literal stretches and wildcards in order; None where Spark refuses the pattern.

    An escape may only stand before a wildcard or itself.
    """
    parts: list[str | Wildcard] = []
    literal: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None or escaped not in ("_", "%", escape):
                return None
            literal.append(escaped)
        elif character in "_%":
            if literal:
                parts.append("".join(literal))
                literal = []
            if character == "_" or not parts or parts[-1] is not Wildcard.ANY:
                parts.append(Wildcard(character))
        else:
            literal.append(character)
    if literal:
        parts.append("".join(literal))
    return parts


def match_like(values: pa.Array | pa.Scalar, pattern: str, escape: str) -> pa.Array | pa.Scalar:
    """Whether each value matches; null for null."""
    parts = split_pattern(pattern, escape)
    if parts is None:
        raise ValueError(f"malformed LIKE pattern {pattern!r}")
    match parts:
        case []:
            return pc.equal(values, pa.scalar(""))
        case [str(text)]:
            return pc.equal(values, pa.scalar(text))
        case [str(text), Wildcard.ANY]:
            return pc.starts_with(values, text)
        case [Wildcard.ANY, str(text)]:
            return pc.ends_with(values, text)
        case [Wildcard.ANY, str(text), Wildcard.ANY]:
            return pc.match_substring(values, text)
    return pc.match_substring_regex(values, _regex(parts))


def _regex(parts: list[str | Wildcard]) -> str:
    """RE2 syntax; (?s) because the wildcards match line breaks too."""
    pieces = {Wildcard.ONE: ".", Wildcard.ANY: ".*"}
    body = "".join(_quote(part) if isinstance(part, str) else pieces[part] for part in parts)
    return rf"(?s)\A{body}\z"


def _quote(text: str) -> str:
    """Escape only what is special: RE2 refuses a backslash before letters and some other characters."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)
