"""Imports a module from a changed syntax tree instead of its file; its source and its path stay what they are."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Sequence
from copy import deepcopy
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from tests.mutants.sites import Module, Mutant, is_compiled

HITS = "__mutant_hits__"
"""Name, in an instrumented module, of the array in which each statement leaves a mark under its line."""


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType, hits: bytearray | None) -> None:
        super().__init__(name, path)
        self._code = code
        self._hits = hits

    def get_code(self, fullname: str) -> CodeType:
        return self._code

    def exec_module(self, module: ModuleType) -> None:
        if self._hits is not None:
            module.__dict__[HITS] = self._hits
        super().exec_module(module)


class Changed(MetaPathFinder):
    """Modules that are imported from code of ours."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, tuple[str, CodeType, bytearray | None]] = {}

    def add(self, module: Module, code: CodeType, hits: bytearray | None = None) -> None:
        if module.name in sys.modules:
            raise RuntimeError(f"{module.name} is imported already: the change would not be seen")
        self._known[module.name] = (str(self._root / module.path), code, hits)

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._known:
            return None
        file, code, hits = self._known[fullname]
        return spec_from_file_location(fullname, file, loader=_Loader(fullname, file, code, hits))


def mutated(root: Path, module: Module, mutant: Mutant) -> CodeType:
    with mutant.edit.made():
        tree = deepcopy(module.tree)
    if mutant.compiled:
        _without_cache(tree)
    return _compiled(root, module, tree)


def instrumented(root: Path, module: Module) -> CodeType:
    """The module with a mark before each statement that contains a mutant."""
    tree = deepcopy(module.tree)
    _Marks({mutant.statement for mutant in module.mutants if mutant.statement is not None}).visit(tree)
    return _compiled(root, module, tree)


def _compiled(root: Path, module: Module, tree: ast.Module) -> CodeType:
    return compile(ast.fix_missing_locations(tree), root / module.path, "exec", dont_inherit=True)


def _without_cache(tree: ast.Module) -> None:
    """numba takes what it compiled before for the same function: it knows it by file, not by text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call):
                    decorator.keywords = [each for each in decorator.keywords if each.arg != "cache"]


class _Marks(ast.NodeTransformer):
    def __init__(self, lines: Collection[int]) -> None:
        self._lines = lines
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node if is_compiled(node) else self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._depth += 1
        result = self.generic_visit(node)
        self._depth -= 1
        return result

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field, value in ast.iter_fields(node):
            if self._depth and isinstance(value, list) and any(isinstance(each, ast.stmt) for each in value):
                setattr(node, field, [part for each in value for part in (*self._marks(each), each)])
        return node

    def _marks(self, statement: ast.stmt) -> list[ast.stmt]:
        if statement.lineno not in self._lines:
            return []
        mark = ast.parse(f"{HITS}[{statement.lineno}] = 1").body[0]
        return [ast.copy_location(mark, statement)]
