"""Typing: Spark's implicit conversions made explicit, and the checks that keep us to certain ground.

Each function builds one kind of node from already typed operands or raises NotCompiled.
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.conditions import literals
from trimtab.conditions import types as t
from trimtab.conditions.tree import (
    Arithmetic,
    Cast,
    Column,
    Compare,
    In,
    Literal,
    Logical,
    Node,
    can_raise,
    walk,
)

# Spark turns longer lists into a hash set, in which -0.0 is not 0.0.
_MAX_FRACTIONAL_OPTIONS = 10


class NotCompiled(Exception):
    """Outside the subset whose result is certain to equal Spark's; not an error of the author."""


def boolean(node: Node) -> Node:
    """An operand of NOT, AND or OR."""
    if node.type == t.VOID:
        return _convert(node, t.BOOLEAN)
    if node.type != t.BOOLEAN:
        raise NotCompiled(f"{node.type} used as boolean")
    return node


def logical(op: str, args: Sequence[Node], *, ansi: bool) -> Node:
    """A chain of AND or OR; a chain of one is that one."""
    if len(args) == 1:
        return args[0]
    node = Logical(op, tuple(boolean(arg) for arg in args))
    if can_raise(node, ansi=ansi) and any(_is_constant(arg) for arg in args):
        # Spark's optimizer may fold the whole away together with the error.
        raise NotCompiled("a constant beside an operand that can fail")
    return node


def comparison(op: str, left: Node, right: Node, *, ansi: bool) -> Node:
    """A comparison with both sides brought to their common type."""
    common = t.common_type(left.type, right.type, ansi=ansi)
    if common is None or common == t.VOID:
        raise NotCompiled(f"comparison of {left.type} with {right.type}")
    _check_null_operand(left, right, ansi=ansi)
    _check_decimal_range([left, right])
    return checked(Compare(op, _convert(left, common), _convert(right, common)), ansi=ansi)


def membership(value: Node, options: Sequence[Node], *, ansi: bool) -> Node:
    """`value IN (options)`; Spark brings all of them to one type."""
    operands = [value, *options]
    common = t.common_type_of((operand.type for operand in operands), ansi=ansi)
    if common is None or common == t.VOID:
        raise NotCompiled("IN list of mixed types")
    if common in t.FRACTIONAL and len(options) > _MAX_FRACTIONAL_OPTIONS:
        raise NotCompiled("long IN list of fractions")
    if any(can_raise(operand, ansi=ansi) for operand in operands):
        # Spark stops at the first match, so that later options may fail or not.
        raise NotCompiled("IN list that can fail")
    _check_decimal_range(operands)
    converted = [_convert(operand, common) for operand in operands]
    return In(converted[0], tuple(converted[1:]))


def arithmetic(op: str, left: Node, right: Node, *, ansi: bool) -> Node:
    """`+ - * / %` over numbers; a decimal only as a literal beside a fraction, where Spark takes double."""
    common = t.common_type(left.type, right.type, ansi=ansi)
    if common not in t.NUMERIC:
        raise NotCompiled(f"{left.type} {op} {right.type}")
    if op == "/":
        common = t.DOUBLE
    _check_null_operand(left, right, ansi=ansi)
    node = Arithmetic(op, _convert(left, common), _convert(right, common), common)
    if ansi and _is_reordered(node):
        raise NotCompiled("a chain with a constant, which Spark reorders and so may overflow elsewhere")
    return checked(node, ansi=ansi)


def cast(node: Node, target: str, *, ansi: bool) -> Node:
    """A conversion the author wrote."""
    if node.type == target:
        return node
    if node.type == t.VOID:
        return _convert(node, target)
    convertible = t.NUMERIC | {t.BOOLEAN}
    if node.type not in convertible or target not in convertible:
        raise NotCompiled(f"cast of {node.type} to {target}")
    return checked(_cast(node, target), ansi=ansi)


def checked(node: Node, *, ansi: bool) -> Node:
    """The node, unless it is a constant that can fail: when Spark would report that is not certain."""
    if _is_constant(node) and can_raise(node, ansi=ansi):
        raise NotCompiled("a constant that can fail")
    return node


def _is_reordered(node: Arithmetic) -> bool:
    """Whether Spark's optimizer moves operands of an integral chain of `+` or `*`.

    It gathers the constants of a chain at its end (ReorderAssociativeOperator), with and without ANSI; only
    `a + b + 1` is in that order already.
    """
    if node.op not in "+*" or node.type not in t.INTEGRAL:
        return False
    operands = _chain(node, node.op)
    constants = [_is_constant(operand) for operand in operands]
    if len(operands) < 3 or not any(constants):
        return False
    return any(constants[:-1]) or not _is_left_deep(node)


def _chain(node: Node, op: str) -> list[Node]:
    if isinstance(node, Arithmetic) and node.op == op:
        return [*_chain(node.left, op), *_chain(node.right, op)]
    return [node]


def _is_left_deep(node: Arithmetic) -> bool:
    current: Node = node
    while isinstance(current, Arithmetic) and current.op == node.op:
        if isinstance(current.right, Arithmetic) and current.right.op == node.op:
            return False
        current = current.left
    return True


def _is_constant(node: Node) -> bool:
    return not any(isinstance(item, Column) for item in walk(node))


def _check_null_operand(left: Node, right: Node, *, ansi: bool) -> None:
    """Spark folds an operation on a NULL literal away, and with it an error of the other side."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Literal) and one.value is None and can_raise(other, ansi=ansi):
            raise NotCompiled("NULL beside an operand that can fail")


def _check_decimal_range(operands: Sequence[Node]) -> None:
    if not any(operand.type in t.INTEGRAL for operand in operands):
        return
    for operand in operands:
        match operand:
            case Literal(value, type_) if t.is_decimal(type_) and not literals.fits_bigint(str(value)):
                raise NotCompiled("decimal literal beyond bigint")


def _convert(node: Node, target: str) -> Node:
    """An implicit conversion, which is never a narrowing one; literals are converted at once."""
    if node.type == target:
        return node
    if isinstance(node, Literal):
        if node.value is None:
            return Literal(None, target)
        if target == t.DOUBLE and (node.type in t.INTEGRAL or t.is_decimal(node.type)):
            return Literal(repr(float(node.value)), t.DOUBLE)
        if target in t.INTEGRAL:
            return Literal(node.value, target)
    if t.is_decimal(node.type) and not t.is_decimal(target):
        raise NotCompiled("decimal column beside a fraction")
    return _cast(node, target)


def _cast(node: Node, target: str) -> Node:
    """A cast; but Spark's optimizer takes the float out of integral -> float -> double, and its rounding."""
    match node:
        case Cast(arg, t.FLOAT) if target == t.DOUBLE and arg.type in t.INTEGRAL:
            raise NotCompiled("a cast through float")
    return Cast(node, target)
