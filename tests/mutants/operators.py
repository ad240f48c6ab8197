"""What can be done to Python code: each operator looks at one node and yields the changes it knows for it. Which of
them take away a guard is in `guards.py`.

A change that another one implies is left out, since every mutant costs a run of tests: `==` is not flipped where it is
a condition as a whole, because a test that tells the condition from True and from False would see that too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Final

from tests.mutants.edits import Change, Edit, Place, text_of

Operator = Callable[[ast.AST, Place, bool], Iterator[Change]]
"""Node, its place, and whether it stands at the top of the module: a declared table or constant."""

_TESTS: Final = {(ast.If, "test"), (ast.IfExp, "test"), (ast.While, "test"), (ast.match_case, "guard")}

_BOUNDARIES: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_OPPOSITES: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_SWAPS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}

_CHECKING: Final = frozenset({"_equal", "_known", "_wrong"})
"""Functions that check, beside those whose names say so."""

_COLLECTING: Final = frozenset({"frozenset", "isinstance", "startswith", "endswith"})
"""Functions whose argument is a set of cases."""


def _is_test(place: Place) -> bool:
    return (type(place.parent), place.field) in _TESTS


def _is_checked_elsewhere(place: Place) -> bool:
    """Whether the value as a whole is taken for True and for False by another operator."""
    return _is_test(place) or isinstance(place.parent, ast.BoolOp) or place.field == "ifs"


def _forced(test: ast.expr, value: bool) -> ast.expr:
    """The test is evaluated as before, since it may do something or bind a name, and then always comes out so."""
    return ast.BoolOp(ast.Or() if value else ast.And(), [test, ast.Constant(value)])


def conditions(node: ast.AST, place: Place, _top: bool) -> Iterator[Change]:
    """A condition that always or never holds; a filter of a comprehension that lets all pass."""
    if not isinstance(node, ast.expr) or isinstance(node, ast.Constant):
        return
    if place.field == "ifs":
        yield Change("filter-dropped", text_of(node), place.removed())
    elif _is_test(place):
        # Without one operand `a and b` comes out true where b alone does: whoever sees that sees if-true too.
        implied = {ast.And: True, ast.Or: False}.get(type(node.op)) if isinstance(node, ast.BoolOp) else None
        if implied is not True and not isinstance(place.parent, ast.While):  # that would not end
            yield Change("if-true", text_of(node), place.put(_forced(node, True)))
        if implied is not False:
            yield Change("if-false", text_of(node), place.put(_forced(node, False)))


def operands(node: ast.AST, place: Place, _top: bool) -> Iterator[Change]:
    """`a and b` without a, and without b; `or` likewise."""
    if not isinstance(node, ast.BoolOp):
        return
    for index, operand in enumerate(node.values):
        rest = [*node.values[:index], *node.values[index + 1 :]]
        if any(isinstance(part, ast.NamedExpr) for part in ast.walk(operand)):
            edit = Place(node, "values", index).put(_forced(operand, isinstance(node.op, ast.And)))
        else:
            edit = place.put(rest[0]) if len(rest) == 1 else Edit(node, "values", rest)
        yield Change("operand-dropped", text_of(operand), edit)


def comparisons(node: ast.AST, place: Place, _top: bool) -> Iterator[Change]:
    """`<` and `<=`, `>` and `>=` everywhere; opposites where they are values."""
    if not isinstance(node, ast.Compare):
        return
    for index, each in enumerate(node.ops):
        other = _BOUNDARIES.get(type(each))
        if other is None and not (_is_checked_elsewhere(place) and len(node.ops) == 1):
            other = _OPPOSITES[type(each)]
        if other is not None:
            yield Change("flipped", text_of(node), Place(node, "ops", index).put(other()))


def negations(node: ast.AST, place: Place, _top: bool) -> Iterator[Change]:
    """`not x` that is a value."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and not _is_checked_elsewhere(place):
        yield Change("flipped", text_of(node), place.put(node.operand))


def exits(node: ast.AST, place: Place, _top: bool) -> Iterator[Change]:
    """A refusal or an early exit that does not happen. One that is all that an `if` does: see `conditions`."""
    if isinstance(place.parent, ast.If) and len(place.siblings) == 1 and place.field == "body":
        return
    if isinstance(node, ast.Raise):
        yield Change("exit-dropped", f"raise {_raised(node)}".strip(), place.removed())
    elif isinstance(node, ast.Assert) or (
        isinstance(node, ast.Return | ast.Continue | ast.Break)
        and isinstance(place.parent, ast.If | ast.For | ast.While | ast.With | ast.ExceptHandler)
        and len(place.siblings) > 1
    ):
        yield Change("exit-dropped", text_of(node), place.removed())


def _raised(node: ast.Raise) -> str:
    """Without the message: an id must not depend on wording."""
    return text_of(node.exc.func if isinstance(node.exc, ast.Call) else node.exc) if node.exc else ""


def checks(node: ast.AST, place: Place, _top: bool) -> Iterator[Change]:
    """A check that is not made. It has no answer: what it finds it raises or keeps, so it is known by its name."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        name = _function(node.value)
        if name.lstrip("_").startswith("check") or name in _CHECKING:
            yield Change("check-dropped", text_of(node), place.removed())


def elements(node: ast.AST, place: Place, top: bool) -> Iterator[Change]:
    """A row of a table, a member of a set of cases, an alternative of a pattern that is not there."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set) and len(node.elts) > 1 and _is_table(node, place, top):
        for index, element in enumerate(node.elts):
            yield Change("element-dropped", text_of(element), Place(node, "elts", index).removed())
    elif isinstance(node, ast.Call) and top:
        rows = [index for index, argument in enumerate(node.args) if isinstance(argument, ast.Tuple)]
        for index in rows if len(rows) > 1 else ():
            yield Change("element-dropped", text_of(node.args[index]), Place(node, "args", index).removed())
    elif isinstance(node, ast.Dict) and len(node.keys) > 1 and (top or _is_looked_up(place)):
        for index, key in enumerate(node.keys):
            if key is not None:
                keys, values = list(node.keys), list(node.values)
                del keys[index], values[index]
                yield Change("element-dropped", text_of(key), place.put(ast.Dict(keys, values)))
    elif isinstance(node, ast.MatchOr):
        for index, pattern in enumerate(node.patterns):
            rest = [*node.patterns[:index], *node.patterns[index + 1 :]]
            yield Change(
                "element-dropped", text_of(pattern), place.put(rest[0] if len(rest) == 1 else ast.MatchOr(rest))
            )


def _is_table(node: ast.Tuple | ast.List | ast.Set, place: Place, top: bool) -> bool:
    parent = place.parent
    if isinstance(parent, ast.Compare):
        return place.index is not None and isinstance(parent.ops[place.index], ast.In | ast.NotIn)
    if isinstance(parent, ast.Call) and _function(parent) in _COLLECTING:
        return True
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple):
        return False  # several names for several values
    if any(isinstance(element, ast.Starred) for element in node.elts):
        return False  # tables put together: each loses its own rows
    rows = all(isinstance(element, ast.Call) for element in node.elts)
    return top and (rows or isinstance(parent, ast.Assign | ast.AnnAssign))


def _function(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_looked_up(place: Place) -> bool:
    """`{...}.get(x)` and `{...}[x]`."""
    return place.field == "value" and isinstance(place.parent, ast.Attribute | ast.Subscript)


def traits(node: ast.AST, place: Place, top: bool) -> Iterator[Change]:
    """A property that a declared table or row has or has not."""
    if top and isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
        value = node.value.value
        if isinstance(value, bool):
            text = f"{text_of(node)} in {text_of(place.parent)}"
            yield Change("flipped", text, Edit(node, "value", ast.Constant(not value)))


def cases(node: ast.AST, place: Place, _top: bool) -> Iterator[Change]:
    """A case that is not told from the others."""
    if not isinstance(node, ast.match_case) or len(place.siblings) == 1:
        return
    if not (isinstance(node.pattern, ast.MatchAs) and node.pattern.pattern is None):
        yield Change("case-dropped", text_of(node.pattern), place.removed())


def extremes(node: ast.AST, place: Place, _top: bool) -> Iterator[Change]:
    """min for max, any for all, and the other way."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SWAPS:
        yield Change("swapped", text_of(node), Edit(node, "func", ast.Name(_SWAPS[node.func.id], ast.Load())))


OPERATORS: Final[tuple[Operator, ...]] = (
    conditions,
    operands,
    comparisons,
    negations,
    exits,
    checks,
    elements,
    traits,
    cases,
    extremes,
)
