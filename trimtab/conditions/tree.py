"""The typed expression tree of a compiled condition, and its JSON form.

The tree is what travels to the workers, so it holds nothing but plain values: every implicit conversion of
Spark is already spelt out as a Cast, and it carries the ANSI setting of the session that planned the query.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from trimtab.conditions import types as t

JSON_VERSION = 1

# None, or a value that JSON holds exactly; doubles, decimals and dates are kept as their text.
LiteralValue: TypeAlias = bool | int | str | None


@dataclass(frozen=True)
class Column:
    """A column of one stream, by the spelling of its schema."""

    stream: str
    name: str
    type: str


@dataclass(frozen=True)
class Literal:
    """A constant. Fractions and decimals are text: JSON numbers would not keep NaN or every digit."""

    value: LiteralValue
    type: str


@dataclass(frozen=True)
class Cast:
    """A conversion, written by the user or implied by Spark's coercion."""

    arg: Node
    type: str


@dataclass(frozen=True)
class Negate:
    """Unary minus."""

    arg: Node
    type: str


@dataclass(frozen=True)
class Arithmetic:
    """`+ - * / %` over operands already brought to `type`."""

    op: str
    left: Node
    right: Node
    type: str


@dataclass(frozen=True)
class Compare:
    """`= <> < <= > >= <=>` over operands of one type."""

    op: str
    left: Node
    right: Node
    type: str = t.BOOLEAN


@dataclass(frozen=True)
class Logical:
    """A chain of `and` or `or`; kept flat so that long chains do not become deep trees."""

    op: str
    args: tuple[Node, ...]
    type: str = t.BOOLEAN


@dataclass(frozen=True)
class Not:
    """Three-valued negation."""

    arg: Node
    type: str = t.BOOLEAN


@dataclass(frozen=True)
class IsNull:
    """`IS NULL`; the negated form is Not of it."""

    arg: Node
    type: str = t.BOOLEAN


@dataclass(frozen=True)
class In:
    """Membership in a list, value and options of one type."""

    arg: Node
    options: tuple[Node, ...]
    type: str = t.BOOLEAN


@dataclass(frozen=True)
class Like:
    """`LIKE` with a constant pattern."""

    arg: Node
    pattern: str
    escape: str
    type: str = t.BOOLEAN


Node: TypeAlias = Column | Literal | Cast | Negate | Arithmetic | Compare | Logical | Not | IsNull | In | Like


@dataclass(frozen=True)
class Tree:
    """A whole condition with the ANSI setting under which it was planned."""

    root: Node
    ansi: bool


def children(node: Node) -> tuple[Node, ...]:
    """The direct operands of a node."""
    match node:
        case Column() | Literal():
            return ()
        case Arithmetic() | Compare():
            return (node.left, node.right)
        case Logical():
            return node.args
        case In():
            return (node.arg, *node.options)
        case _:
            return (node.arg,)


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(children(current))


def can_raise(node: Node, *, ansi: bool) -> bool:
    """Whether some value could make this subtree fail: only checked arithmetic and casts under ANSI do."""
    return ansi and any(_is_checked(item) for item in walk(node))


def _is_checked(node: Node) -> bool:
    match node:
        case Arithmetic():
            return node.op in "/%" or node.type in t.INTEGRAL
        case Negate():
            return node.type in t.INTEGRAL
        case Cast():
            source = node.arg.type
            if node.type not in t.INTEGRAL:
                return False
            return source in t.FRACTIONAL or t.INTEGRAL_BITS.get(source, 0) > t.INTEGRAL_BITS[node.type]
        case _:
            return False


def to_json(tree: Tree) -> str:
    """The tree as compact JSON text."""
    document = {"version": JSON_VERSION, "ansi": tree.ansi, "root": _encode(tree.root)}
    return json.dumps(document, ensure_ascii=True, separators=(",", ":"))


def from_json(text: str | bytes) -> Tree:
    """The tree that `to_json` wrote; ValueError for anything else."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("version") != JSON_VERSION:
        raise ValueError(f"not a condition tree of version {JSON_VERSION}")
    try:
        return Tree(_decode(document["root"]), bool(document["ansi"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"malformed condition tree: {error!r}") from error


def _encode(node: Node) -> dict[str, Any]:
    match node:
        case Column():
            return {"k": "col", "s": node.stream, "n": node.name, "t": node.type}
        case Literal():
            return {"k": "lit", "v": node.value, "t": node.type}
        case Cast():
            return {"k": "cast", "a": _encode(node.arg), "t": node.type}
        case Negate():
            return {"k": "neg", "a": _encode(node.arg), "t": node.type}
        case Arithmetic():
            operands = {"l": _encode(node.left), "r": _encode(node.right)}
            return {"k": "arith", "o": node.op, **operands, "t": node.type}
        case Compare():
            return {"k": "cmp", "o": node.op, "l": _encode(node.left), "r": _encode(node.right)}
        case Logical():
            return {"k": node.op, "a": [_encode(arg) for arg in node.args]}
        case Not():
            return {"k": "not", "a": _encode(node.arg)}
        case IsNull():
            return {"k": "null", "a": _encode(node.arg)}
        case In():
            return {"k": "in", "a": _encode(node.arg), "i": [_encode(option) for option in node.options]}
        case Like():
            return {"k": "like", "a": _encode(node.arg), "p": node.pattern, "e": node.escape}


def _decode(data: dict[str, Any]) -> Node:
    kind = data["k"]
    match kind:
        case "col":
            return Column(data["s"], data["n"], data["t"])
        case "lit":
            return Literal(data["v"], data["t"])
        case "cast":
            return Cast(_decode(data["a"]), data["t"])
        case "neg":
            return Negate(_decode(data["a"]), data["t"])
        case "arith":
            return Arithmetic(data["o"], _decode(data["l"]), _decode(data["r"]), data["t"])
        case "cmp":
            return Compare(data["o"], _decode(data["l"]), _decode(data["r"]))
        case "and" | "or":
            return Logical(kind, tuple(_decode(arg) for arg in data["a"]))
        case "not":
            return Not(_decode(data["a"]))
        case "null":
            return IsNull(_decode(data["a"]))
        case "in":
            return In(_decode(data["a"]), tuple(_decode(option) for option in data["i"]))
        case "like":
            return Like(_decode(data["a"]), data["p"], data["e"])
    raise ValueError(f"unknown node {kind!r} in a condition tree")
