"""All mutants of a module: a walk through its syntax tree that offers every node to every operator."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from tests.mutants.edits import Change, Edit, Place
from tests.mutants.guards import Condition, condition_of, takes_a_guard
from tests.mutants.lua import is_script, scripts
from tests.mutants.operators import OPERATORS
from tests.mutants.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A module with one change."""

    id: str
    """module:function:operator:source text of the guard[:ordinal]: the same after unrelated edits of the module."""
    module: str
    """Its path from the root of the tree."""
    scope: str
    line: int
    statement: int | None
    """Line of the statement that contains the change; None outside of functions, and in compiled ones: nothing there
    can say when it runs."""
    compiled: bool
    """In a function that numba compiles: its cache must not be used."""
    guard: bool
    """Whether a guard is taken away; else something is changed that may be one or not (`--all`)."""
    edit: Edit


@dataclass(frozen=True)
class Module:
    path: str
    tree: ast.Module
    mutants: tuple[Mutant, ...]

    @property
    def name(self) -> str:
        return ".".join(Path(self.path).with_suffix("").parts).removesuffix(".__init__")


def read_modules(root: Path, plan: Plan) -> list[Module]:
    paths = {path for pattern in plan.targets for path in root.glob(pattern)}
    names = sorted(path.relative_to(root).as_posix() for path in paths)
    return [
        module_of(name, (root / name).read_text(encoding="utf-8"), plan)
        for name in names
        if not any(fnmatchcase(name, pattern) for pattern in plan.modules_left_out)
    ]


def module_of(path: str, source: str, plan: Plan) -> Module:
    tree = ast.parse(source)
    everything = any(fnmatchcase(path, pattern) for pattern in plan.everything_in)
    refusals_only = any(fnmatchcase(path, pattern) for pattern in plan.refusals_only)
    known: Counter[str] = Counter()
    mutants: list[Mutant] = []
    for change, node, at in _walk(tree, Place(tree, "body"), _Scope(), plan):
        id_ = f"{path}:{at.name or '-'}:{change.operator}:{change.text}"
        known[id_] += 1
        ordinal = f":{known[id_]}" if known[id_] > 1 else ""
        mutants.append(
            Mutant(
                id=id_ + ordinal,
                module=path,
                scope=at.name,
                line=at.line,
                statement=at.statement,
                compiled=at.compiled,
                guard=everything or takes_a_guard(change, node, at.condition, top=at.top, refusals_only=refusals_only),
                edit=change.edit,
            )
        )
    return Module(path, tree, tuple(mutants))


@dataclass(frozen=True)
class _Scope:
    """What the walk is inside of."""

    name: str = ""
    line: int = 0
    top: bool = True
    """Neither in a function nor in a class."""
    function: bool = False
    statement: int | None = None
    compiled: bool = False
    predicate: bool = False
    """In a function that answers yes or no."""
    condition: Condition = None

    def within(self, node: ast.AST) -> _Scope:
        """The scope of the node itself."""
        at = replace(self, line=getattr(node, "lineno", self.line))
        if isinstance(node, ast.stmt) and self.function and not self.compiled:
            at = replace(at, statement=node.lineno)
        if self.top and isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            at = replace(at, name=ast.unparse(target))
        return at

    def inside(self, node: ast.AST) -> _Scope:
        """The scope of what stands in the body of the node."""
        at = self
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            at = replace(at, name=f"{self.name}.{node.name}".strip("."), top=False)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            predicate = node.returns is not None and ast.unparse(node.returns) == "bool"
            at = replace(at, function=True, predicate=predicate, compiled=self.compiled or is_compiled(node))
        return at


def is_compiled(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("njit" in ast.unparse(decorator) for decorator in node.decorator_list)


_NEVER_RUN = frozenset({"annotation", "returns", "decorator_list", "type_comment"})


def _walk(node: ast.AST, place: Place, scope: _Scope, plan: Plan) -> Iterator[tuple[Change, ast.AST, _Scope]]:
    at = scope.within(node)
    inner = at.inside(node)
    if _is_left_out(node, inner, plan):
        return
    for operator in (*OPERATORS, scripts):
        for change in operator(node, place, at.top):
            yield change, node, at
    for field, value in ast.iter_fields(node):
        if field in _NEVER_RUN or (isinstance(node, ast.Raise) and field in ("exc", "cause")):
            continue  # the message of an error is wording
        in_body = inner if field == "body" else at
        if (isinstance(node, ast.If) and field == "test") or isinstance(node, ast.Return):
            in_body = replace(at, condition=condition_of(node, predicate=at.predicate))
        if isinstance(value, list):
            for index, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield from _walk(child, Place(node, field, index), in_body, plan)
        elif isinstance(value, ast.AST):
            yield from _walk(value, Place(node, field), in_body, plan)


def _is_left_out(node: ast.AST, inner: _Scope, plan: Plan) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
        inner.top and isinstance(node, ast.Assign | ast.AnnAssign)
    ):
        return inner.name == "__all__" or any(fnmatchcase(inner.name, pattern) for pattern in plan.names_left_out)
    if isinstance(node, ast.Call):
        return any(fnmatchcase(ast.unparse(node.func), pattern) for pattern in plan.calls_left_out)
    if isinstance(node, ast.keyword):
        return node.arg in plan.traits_left_out
    if isinstance(node, ast.JoinedStr):
        return not any(map(is_script, node.values))  # else a message
    return False
