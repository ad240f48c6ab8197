"""Which changes take away a guard: what `make mutants` tries unless it is asked for everything.

A guard keeps something from happening: an `if` that does nothing but leave or refuse, a refusal, a check, a part of
what a predicate answers, a filter, a row of a table and its traits, a condition of a script that Redis runs. Other
changes (a boundary, a value, which of two ways is taken) are worth a look at one module; of all they are too many.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final, Literal

from tests.mutants.edits import Change

Condition = Literal["leaves", "refuses", "answers"] | None
"""What a condition decides on: the `if` does nothing but leave or refuse, or the function is a predicate."""

_OF_CONDITIONS: Final = frozenset({"if-false", "operand-dropped"})
_ALWAYS: Final = frozenset({"check-dropped", "filter-dropped", "lua-if-false", "lua-operand-dropped"})


def condition_of(node: ast.If | ast.Return, *, predicate: bool) -> Condition:
    """`predicate`: whether the node stands in a function that answers yes or no."""
    if isinstance(node, ast.Return):
        return "answers" if predicate else None
    if _is_all(node.body, ast.Raise) or _complains(node.body):
        return "refuses"
    return "leaves" if _is_all(node.body, ast.Return, ast.Continue, ast.Break) else None


def _is_all(body: Sequence[ast.stmt], *kinds: type[ast.stmt]) -> bool:
    return len(body) == 1 and isinstance(body[0], kinds)


def _complains(body: Sequence[ast.stmt]) -> bool:
    """Whether all it does is to yield a problem, in words."""
    only = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
    return isinstance(only, ast.Yield) and isinstance(only.value, ast.Constant | ast.JoinedStr)


def takes_a_guard(change: Change, node: ast.AST, condition: Condition, *, top: bool, refusals_only: bool) -> bool:
    """`condition`: what the node is a part of; `top`: it stands in a declared table; `refusals_only`: see the plan."""
    if change.operator in _OF_CONDITIONS:
        return condition == "refuses" or (condition is not None and not refusals_only)
    if change.operator == "exit-dropped":
        return isinstance(node, ast.Raise | ast.Assert)
    if refusals_only:
        return False
    if change.operator == "element-dropped":
        return top
    if change.operator == "flipped":
        return top and isinstance(node, ast.keyword)
    return change.operator in _ALWAYS
