"""Evaluating a typed tree on Arrow columns, with Spark's three-valued logic.

Under ANSI an error must come exactly for the rows for which Spark evaluates the failing operand. Spark skips
the right operand of AND and OR once the left one decides, and an operand of an operation whose other operand
is already null; so where an operand can fail, it is evaluated on those rows only.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from trimtab.conditions import kernels
from trimtab.conditions import types as t
from trimtab.conditions.kernels import Value
from trimtab.conditions.like import match_like
from trimtab.conditions.tree import (
    Arithmetic,
    Cast,
    Column,
    Compare,
    In,
    IsNull,
    Like,
    Literal,
    Logical,
    Negate,
    Node,
    Not,
    Tree,
    can_raise,
    walk,
)

Columns = Mapping[tuple[str, str], pa.Array | pa.ChunkedArray]

_EVERYTHING = pa.scalar(True)


def evaluate(tree: Tree, columns: Columns) -> pa.BooleanArray:
    """True, false or null for each row; EvaluationError where Spark under ANSI would raise."""
    needed = {(node.stream, node.name): node.type for node in walk(tree.root) if isinstance(node, Column)}
    arrays = {key: _prepare(columns[key], type_) for key, type_ in needed.items()}
    if tree.root.type not in (t.BOOLEAN, t.VOID):
        raise ValueError(f"a condition must be boolean, not {tree.root.type}")
    lengths = {len(array) for array in (arrays or columns).values()}
    if len(lengths) != 1:
        raise ValueError(f"the columns of a condition must have one length, not {sorted(lengths)}")
    batch = _Batch(arrays, lengths.pop(), tree.ansi)
    if batch.length == 0:
        return pa.array([], pa.bool_())
    return kernels.as_array(pc.cast(batch.value(tree.root), pa.bool_()), batch.length)


def mask(tree: Tree, columns: Columns) -> pa.BooleanArray:
    """True where the condition holds; null counts as not holding, as in WHERE."""
    return pc.fill_null(evaluate(tree, columns), False)


def _prepare(column: pa.Array | pa.ChunkedArray, type_: str) -> pa.Array:
    """The column in the Arrow type the kernels expect: sources differ in string width, unit and zone."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    target = t.arrow_type(type_)
    return array if array.type == target else array.cast(target)


def _scalar(literal: Literal) -> pa.Scalar:
    value, arrow = literal.value, t.arrow_type(literal.type)
    if value is None:
        return pa.scalar(None, arrow)
    if literal.type in t.FRACTIONAL:
        return pa.scalar(float(value), arrow)
    if t.is_decimal(literal.type):
        return pa.scalar(Decimal(str(value)), arrow)
    if literal.type == t.DATE:
        return pa.scalar(datetime.date.fromisoformat(str(value)), arrow)
    return pa.scalar(value, arrow)


@dataclass(frozen=True)
class _Batch:
    """Some rows of the columns; a selection of them is again a batch."""

    columns: dict[tuple[str, str], pa.Array]
    length: int
    ansi: bool

    def value(self, node: Node) -> Value:
        """The value of a node for each row; a scalar if it is the same for all."""
        match node:
            case Column():
                return self.columns[node.stream, node.name]
            case Literal():
                return _scalar(node)
            case Cast():
                return kernels.cast(self.value(node.arg), node.arg.type, node.type, ansi=self.ansi)
            case Negate():
                return kernels.negate(self.value(node.arg), node.type, ansi=self.ansi)
            case Arithmetic():
                left, right = self._operands(node.left, node.right, right_first=node.op in "/%")
                return kernels.arithmetic(node.op, left, right, node.type, ansi=self.ansi)
            case Compare(op="<=>"):
                return kernels.compare(node.op, self.value(node.left), self.value(node.right), node.left.type)
            case Compare():
                left, right = self._operands(node.left, node.right, right_first=False)
                return kernels.compare(node.op, left, right, node.left.type)
            case Logical():
                return self._logical(node)
            case Not():
                return pc.invert(self.value(node.arg))
            case IsNull():
                return pc.is_null(self.value(node.arg))
            case In():
                return self._in(node)
            case Like():
                return match_like(self.value(node.arg), node.pattern, node.escape)

    def _operands(self, left: Node, right: Node, *, right_first: bool) -> tuple[Value, Value]:
        """Both operands, the second only where the first is not null; a division begins with its divisor."""
        first, second = (right, left) if right_first else (left, right)
        value = self.value(first)
        other = self._guarded(second, pc.is_valid(value)) if self._fails(second) else self.value(second)
        return (other, value) if right_first else (value, other)

    def _logical(self, node: Logical) -> Value:
        combine = pc.and_kleene if node.op == "and" else pc.or_kleene
        undecided = _is_not_false if node.op == "and" else _is_not_true
        result = self.value(node.args[0])
        for arg in node.args[1:]:
            value = self._guarded(arg, undecided(result)) if self._fails(arg) else self.value(arg)
            result = combine(result, value)
        return result

    def _in(self, node: In) -> Value:
        value = self.value(node.arg)
        type_ = node.arg.type
        if type_ not in t.FRACTIONAL and isinstance(value, pa.Array):
            found = _in_literals(value, node)
            if found is not None:
                return found
        return _any(kernels.compare("=", value, self.value(option), type_) for option in node.options)

    def _fails(self, node: Node) -> bool:
        return can_raise(node, ansi=self.ansi)

    def _guarded(self, node: Node, selected: Value) -> Value:
        """The value of a node that can fail, on the selected rows; null on the others."""
        selected = kernels.as_array(selected, self.length)
        count = selected.true_count
        if count == self.length:
            return self.value(node)
        if count == 0:
            return pa.nulls(self.length, t.arrow_type(node.type))
        chosen = {key: array.filter(selected) for key, array in self.columns.items()}
        value = kernels.as_array(_Batch(chosen, count, self.ansi).value(node), count)
        return pc.replace_with_mask(pa.nulls(self.length, value.type), selected, value)


def _is_not_false(value: Value) -> Value:
    return pc.fill_null(value, True)


def _is_not_true(value: Value) -> Value:
    return pc.invert(pc.fill_null(value, False))


def _in_literals(value: pa.Array, node: In) -> pa.Array | None:
    """Membership by hashing; None if an option is not a literal. A null option makes every miss unknown."""
    options = [option for option in node.options if isinstance(option, Literal)]
    if len(options) < len(node.options):
        return None
    present = [_scalar(option).as_py() for option in options if option.value is not None]
    found = pc.is_in(value, value_set=pa.array(present, value.type))
    known = pc.is_valid(value)
    if len(present) < len(options):
        known = pc.and_(known, found)
    return pc.if_else(known, found, pa.scalar(None, pa.bool_()))


def _any(values: Iterator[Value]) -> Value:
    result = next(values)
    for value in values:
        result = pc.or_kleene(result, value)
    return result
