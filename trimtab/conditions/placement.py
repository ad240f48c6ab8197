"""Where each conjunct is evaluated: before the streams are split up, inside the join, or on its result.

The earlier the better, for what a condition drops need not be sorted, shipped or combined; the result of the
join is where any condition is right, since there it is Spark that evaluates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from sqlglot import exp

from trimtab.conditions import functions
from trimtab.conditions import types as t
from trimtab.conditions.compile import NotCompiled, compile_conjunct
from trimtab.conditions.parse import Conjunct, parse
from trimtab.conditions.resolve import Names, Resolved, Schemas
from trimtab.conditions.tree import Tree


class Placement(Enum):
    """The three places of evaluation."""

    BEFORE_SPLIT = "before_split"
    IN_JOIN = "in_join"
    AFTER_UNION = "after_union"


@dataclass(frozen=True)
class InJoin:
    """A conjunct over several streams that workers evaluate on Arrow columns."""

    text: str
    streams: frozenset[str]
    columns: frozenset[tuple[str, str]]
    tree: Tree


@dataclass(frozen=True)
class PlacedConditions:
    """All conjuncts by place; each entry is a conjunct of its own, they hold together by AND."""

    before_split: dict[str, list[str]] = field(default_factory=dict)
    in_join: list[InJoin] = field(default_factory=list)
    after_union: list[str] = field(default_factory=list)


def place(where: Sequence[str], schemas: Schemas, *, ansi: bool, case_sensitive: bool = False) -> PlacedConditions:
    """Parse the conditions and give each conjunct its place; ConditionError for what cannot be accepted."""
    placed = PlacedConditions()
    for conjunct in parse(where, Names(schemas, case_sensitive=case_sensitive)):
        tree = _compiled(conjunct, ansi=ansi)
        _check_boolean(conjunct, tree)
        match _placement(conjunct, tree):
            case Placement.BEFORE_SPLIT:
                (stream,) = conjunct.streams
                placed.before_split.setdefault(stream, []).append(conjunct.render(_plain_name))
            case Placement.IN_JOIN if tree is not None:
                columns = frozenset((item.stream, item.column) for item in conjunct.references)
                placed.in_join.append(InJoin(conjunct.text, conjunct.streams, columns, tree))
            case _:
                placed.after_union.append(conjunct.render(_result_name))
    return placed


def _compiled(conjunct: Conjunct, *, ansi: bool) -> Tree | None:
    try:
        return compile_conjunct(conjunct, ansi=ansi)
    except NotCompiled:
        return None


def _placement(conjunct: Conjunct, tree: Tree | None) -> Placement:
    if len(conjunct.streams) == 1:
        return Placement.AFTER_UNION if _must_wait(conjunct) else Placement.BEFORE_SPLIT
    if len(conjunct.streams) > 1 and tree is not None:
        return Placement.IN_JOIN
    return Placement.AFTER_UNION


def _must_wait(conjunct: Conjunct) -> bool:
    """Whether a one-stream conjunct would change its meaning on the stream itself.

    Either it is drawn at random per evaluation, or a lambda's variable would catch the bare column name.
    """
    names = {reference.column.lower() for reference in conjunct.references}
    return bool(conjunct.functions & functions.NONDETERMINISTIC or conjunct.lambda_names & names)


def quote(name: str) -> str:
    """A name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def _plain_name(reference: Resolved) -> str:
    return quote(reference.column)


def _result_name(reference: Resolved) -> str:
    return quote(f"{reference.stream}_{reference.column}")


def _check_boolean(conjunct: Conjunct, tree: Tree | None) -> None:
    type_ = tree.root.type if tree is not None else _type_of(conjunct, conjunct.syntax)
    if type_ is not None and type_ not in (t.BOOLEAN, t.VOID):
        problem = f"the condition {conjunct.text!r} is not boolean but {type_}"
        raise conjunct.error(problem, "Compare it with something, for example by '=' or '<'.")


def _type_of(conjunct: Conjunct, syntax: exp.Expr) -> str | None:
    """The type of an expression that was not compiled, where it is plain to see; None if not."""
    match syntax:
        case exp.Paren():
            return _type_of(conjunct, syntax.this)
        case exp.Neg() | exp.Add() | exp.Sub() | exp.Mul() | exp.Div() | exp.Mod() | exp.IntDiv():
            return "a number or an interval"
        case exp.Literal():
            return t.STRING if syntax.is_string else "a number"
        case exp.DPipe():
            return t.STRING
        case exp.Interval():
            return "an interval"
        case exp.Column():
            whole = [item for item in conjunct.references if not item.nested]
            starts = {item.start: item.type for item in whole}
            return starts.get(int(syntax.parts[0].meta.get("start", -1)))
    return None
