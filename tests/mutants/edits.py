"""One change of a syntax tree, made and taken back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Edit:
    """Another value for one field of one node."""

    node: ast.AST
    field: str
    value: Any

    @contextmanager
    def made(self) -> Iterator[None]:
        """The tree has the change inside, and is as before afterwards."""
        before = getattr(self.node, self.field)
        setattr(self.node, self.field, self.value)
        try:
            yield
        finally:
            setattr(self.node, self.field, before)


@dataclass(frozen=True)
class Place:
    """Where a node stands in its tree."""

    parent: ast.AST
    field: str
    index: int | None = None

    @property
    def siblings(self) -> list[Any]:
        """The list that the node stands in, itself included; empty for a node that stands alone in its field."""
        return [] if self.index is None else getattr(self.parent, self.field)

    def put(self, new: ast.AST) -> Edit:
        if self.index is None:
            return Edit(self.parent, self.field, new)
        return Edit(self.parent, self.field, [*self.siblings[: self.index], new, *self.siblings[self.index + 1 :]])

    def removed(self) -> Edit:
        """Without the node. A block that would be empty passes."""
        assert self.index is not None
        rest = [*self.siblings[: self.index], *self.siblings[self.index + 1 :]]
        if not rest and isinstance(self.siblings[0], ast.stmt):
            rest = [ast.Pass()]
        return Edit(self.parent, self.field, rest)


@dataclass(frozen=True)
class Change:
    """What an operator can do to a node."""

    operator: str
    text: str
    """Source of what is changed, laid out by `ast.unparse`: part of the mutant's id."""
    edit: Edit


def text_of(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())
