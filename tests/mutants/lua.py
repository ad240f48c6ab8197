"""Guards inside Lua scripts, which Redis runs: conditions that never or always hold, or lose a part.

A condition is still evaluated, since it may do something (`table.remove(ARGV)`). No Lua parser is needed: a condition
stands between `if` and `then` on one line, and only its parts outside of brackets are told apart.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.mutants.edits import Change, Place

_CONDITION: Final = re.compile(r"\b(?:if|elseif)\s+(?P<condition>\S[^\n]*?)\s+then\b")
_BOUNDARY: Final = re.compile(r" (<=|>=|<|>) ")
_OTHER: Final = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


def is_script(node: ast.AST) -> bool:
    return bool(_script(node))


def _script(node: ast.AST) -> str:
    text = node.value if isinstance(node, ast.Constant) else None
    return text if isinstance(text, str) and "redis.call" in text else ""


def scripts(node: ast.AST, place: Place, _top: bool) -> Iterator[Change]:
    """An operator as those in `operators.py`, for a text that is a script or a piece of one."""
    script = _script(node)
    for match in _CONDITION.finditer(script):
        for operator, text, condition in _other_conditions(match["condition"]):
            start, end = match.span("condition")
            yield Change(operator, text, place.put(ast.Constant(script[:start] + condition + script[end:])))


def _other_conditions(condition: str) -> Iterator[tuple[str, str, str]]:
    """Operator, what it changes, and the condition afterwards."""
    yield "lua-if-true", condition, f"({condition}) or true"
    yield "lua-if-false", condition, f"({condition}) and false"
    word, parts = _parts(condition)
    for index, part in enumerate(parts if word else ()):
        yield "lua-operand-dropped", part, f" {word} ".join([*parts[:index], *parts[index + 1 :]])
    for match in _BOUNDARY.finditer(condition):
        yield "lua-flipped", condition, condition[: match.start(1)] + _OTHER[match[1]] + condition[match.end(1) :]


def _parts(condition: str) -> tuple[str, list[str]]:
    """Operands of the outermost `or`, or else `and`; no word where there is neither."""
    for word in ("or", "and"):
        parts, depth, start = [], 0, 0
        for index, character in enumerate(condition):
            depth += (character in "([{") - (character in ")]}")
            if depth == 0 and condition.startswith(f" {word} ", index):
                parts.append(condition[start:index])
                start = index + len(word) + 2
        if parts:
            return word, [*parts, condition[start:]]
    return "", [condition]
