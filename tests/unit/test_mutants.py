"""The tool behind `make mutants`: what it changes, what it calls the changes, and that it sees what survives."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.mutants.cheap import within
from tests.mutants.hook import instrumented, mutated
from tests.mutants.plan import PLAN, Plan
from tests.mutants.results import Kept, Tree, Verdict, read_explanations
from tests.mutants.sites import Module, module_of, read_modules

ROOT = Path(__file__).parents[2]
NO_PLAN = Plan(targets=(), tests=())


def _module(source: str, plan: Plan = NO_PLAN) -> Module:
    return module_of("m.py", dedent(source), plan)


def _mutants(source: str, plan: Plan = NO_PLAN) -> dict[str, str]:
    """Operator and text -> source of what the mutant is, by `ast.unparse`."""
    module = _module(source, plan)
    texts = {}
    for mutant in module.mutants:
        with mutant.edit.made():
            texts[mutant.id.split(":", 2)[2]] = ast.unparse(ast.fix_missing_locations(module.tree))
    assert ast.unparse(module.tree) == ast.unparse(ast.parse(dedent(source)))
    return texts


def _in_function(body: str, plan: Plan = NO_PLAN) -> dict[str, str]:
    """The same for statements of a function, without its first line."""
    source = "def f(a, b, xs):\n" + "\n".join(f"    {line}" for line in dedent(body).strip().splitlines())
    return {id_: dedent(text.partition("\n")[2]) for id_, text in _mutants(source, plan).items()}


def test_a_guard_never_holds_or_always() -> None:
    assert _in_function("if a:\n    return []\nreturn b") == {
        "if-true:a": "if a or True:\n    return []\nreturn b",
        "if-false:a": "if a and False:\n    return []\nreturn b",
    }


def test_a_condition_of_two_parts_loses_each() -> None:
    """That it always holds is then implied."""
    assert _in_function("if a and b:\n    xs.clear()") == {
        "if-false:a and b": "if (a and b) and False:\n    xs.clear()",
        "operand-dropped:a": "if b:\n    xs.clear()",
        "operand-dropped:b": "if a:\n    xs.clear()",
    }
    assert set(_in_function("if a or b:\n    xs.clear()")) == {
        "if-true:a or b",
        "operand-dropped:a",
        "operand-dropped:b",
    }


def test_a_part_that_binds_a_name_is_still_evaluated() -> None:
    mutants = _in_function("return a and (c := b) > 1 and c")
    assert mutants["operand-dropped:(c := b) > 1"] == "return a and ((c := b) > 1 or True) and c"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a < b", "a <= b"),
        ("a >= b", "a > b"),
        ("a == b", "a != b"),
        ("a not in xs", "a in xs"),
        ("a is None", "a is not None"),
        ("not a", "a"),
    ],
)
def test_comparisons_are_flipped(before: str, after: str) -> None:
    assert _in_function(f"return {before}") == {f"flipped:{before}": f"return {after}"}


def test_both_ends_of_a_range_are_flipped() -> None:
    mutants = _in_function("return 1 <= a <= 9")
    assert mutants == {"flipped:1 <= a <= 9": "return 1 < a <= 9", "flipped:1 <= a <= 9:2": "return 1 <= a < 9"}


def test_filters_cases_and_extremes() -> None:
    assert _in_function("return [x for x in xs if x]") == {"filter-dropped:x": "return [x for x in xs]"}
    assert set(_in_function("return max(a, b)")) == {"swapped:max(a, b)"}
    assert _in_function("return any(xs)") == {"swapped:any(xs)": "return all(xs)"}
    mutants = _in_function("match a:\n    case 1 | 2:\n        return b\n    case _:\n        return xs")
    assert set(mutants) == {"case-dropped:1 | 2", "element-dropped:1", "element-dropped:2"}


def test_a_refusal_is_dropped_and_its_wording_is_not_touched() -> None:
    mutants = _in_function("for x in xs:\n    raise ValueError(f'{x or a}' if b else '')")
    assert mutants == {"exit-dropped:raise ValueError": "for x in xs:\n    pass"}


def test_tables_lose_their_rows_and_sets_their_members() -> None:
    table = "T = Table(rows=(Row(1, paced=True), Row(2)), refusing=frozenset({A, B}))\n"
    mutants = _mutants(table)
    assert mutants["element-dropped:Row(2)"] == "T = Table(rows=(Row(1, paced=True),), refusing=frozenset({A, B}))"
    assert mutants["element-dropped:A"] == "T = Table(rows=(Row(1, paced=True), Row(2)), refusing=frozenset({B}))"
    assert "flipped:paced=True in Row(1, paced=True)" in mutants
    assert len(mutants) == 5
    assert set(_mutants("W = {A: 1, B: 2}\n__all__ = ['x', 'y']\n")) == {"element-dropped:A", "element-dropped:B"}
    assert "element-dropped:1" in _in_function("return a in (1, 2)")


def test_rows_that_are_arguments_are_dropped() -> None:
    table = "T = (*rows(A, (1, 2), (3, 4)), *rows(B, (5, 6)))\nA, B = C, D\n"
    assert set(_mutants(table)) == {"element-dropped:(1, 2)", "element-dropped:(3, 4)"}


def test_checks_are_dropped() -> None:
    assert _in_function("check(a)\nself._check_form(b)\nlook(xs)") == {
        "check-dropped:check(a)": "self._check_form(b)\nlook(xs)",
        "check-dropped:self._check_form(b)": "check(a)\nlook(xs)",
    }


def _guards(source: str, plan: Plan = NO_PLAN) -> set[str]:
    return {mutant.id.split(":", 2)[2] for mutant in _module(source, plan).mutants if mutant.guard}


@pytest.mark.parametrize("leaves", ["return", "continue", "break", "raise E(a or b)", "yield f'{a} is wrong'"])
def test_an_if_that_only_leaves_is_a_guard(leaves: str) -> None:
    source = f"def f(a, b, xs):\n    for x in xs:\n        if a and x < b:\n            {leaves}\n        g()\n"
    assert _guards(source) == {"if-false:a and x < b", "operand-dropped:a", "operand-dropped:x < b"}


def test_what_a_guard_is_beside_that() -> None:
    assert _guards("def f(a, b) -> bool:\n    return a or b\n") == {"operand-dropped:a", "operand-dropped:b"}
    assert _guards("def f(a):\n    assert a\n") == {"exit-dropped:assert a"}
    assert _guards("def f(xs):\n    return [x for x in xs if x > 1]\n") == {"filter-dropped:x > 1"}
    assert _guards("W = {A: 1, B: 2}\nT = Row(1, paced=True)\n") == {
        "element-dropped:A",
        "element-dropped:B",
        "flipped:paced=True in Row(1, paced=True)",
    }


@pytest.mark.parametrize(
    "body", ["if a > b:\n        g()", "if a:\n        g()\n        return", "return a or b", "return max(a, b)"]
)
def test_what_is_not_a_guard(body: str) -> None:
    source = f"def f(a, b):\n    {body}\n"
    assert not _guards(source)
    assert _guards(source, Plan(targets=(), tests=(), everything_in={"m.py": "small"}))


def test_where_only_refusals_are_guards() -> None:
    source = """
    def f(a, b, xs):
        if a:
            return 0
        if b:
            raise ValueError
        return [x for x in xs if x]
    """
    assert _guards(source, Plan(targets=(), tests=(), refusals_only={"m.py": "weighs"})) == {"if-false:b"}


def test_guards_of_scripts() -> None:
    source = '''
    S = f"""
    if redis.call('GET', KEYS[1]) ~= ARGV[1] and (x or y) then {REFUSE} end
    if n < 3 then redis.call('DEL', KEYS[1]) end
    """
    '''
    mutants = _mutants(source)
    condition = "redis.call('GET', KEYS[1]) ~= ARGV[1] and (x or y)"
    assert f"if ({condition}) and false then {{REFUSE}}" in mutants[f"lua-if-false:{condition}"]
    assert "if redis.call('GET', KEYS[1]) ~= ARGV[1] then" in mutants["lua-operand-dropped:(x or y)"]
    assert "if n <= 3 then" in mutants["lua-flipped:n < 3"]
    assert len(mutants) == 7


def test_what_is_left_out() -> None:
    plan = Plan(targets=(), tests=(), names_left_out={"*render*": "text"}, calls_left_out={"log.*": "log lines"})
    assert not _mutants("def render_it(a):\n    return a or 1\n", plan)
    assert not _in_function("log.info(a or b)", plan)
    assert not _in_function("return f'{a or b}'")
    assert not _mutants("def f(a: int | None = None) -> bool: return a\n")
    plan = Plan(targets=(), tests=(), names_left_out={"_WORDS": "text"}, traits_left_out={"drawn": "text"})
    assert not _mutants("_WORDS = {A: 1, B: 2}\nT = Row(1, drawn=True)\n", plan)


def test_ids_survive_unrelated_edits() -> None:
    source = "class C:\n    def f(self, a):\n        if a:\n            return 1\n        return 2 if a else 3\n"
    before = [mutant.id for mutant in _module(source).mutants]
    assert before == [f"m.py:C.f:if-{way}:a{n}" for n in ("", ":2") for way in ("true", "false")]
    edited = '"""Words."""\n\ndef g(b):\n    return b or 1\n\n' + source.replace("if a:", "if  a :  # why")
    assert [mutant.id for mutant in _module(edited).mutants if ":C.f:" in mutant.id] == before


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return read_modules(ROOT, PLAN)


def test_the_plan_finds_guards_and_ids_are_unique(modules: list[Module]) -> None:
    ids = [mutant.id for module in modules for mutant in module.mutants]
    assert len(ids) > 2000
    assert len(set(ids)) == len(ids)
    assert 400 < sum(mutant.guard for module in modules for mutant in module.mutants) < 1000
    for module in modules:
        instrumented(ROOT, module)


def test_every_mutant_of_a_module_compiles(modules: list[Module]) -> None:
    module = next(module for module in modules if module.path == "manager/journal.py")
    for mutant in module.mutants:
        mutated(ROOT, module, mutant)


def test_a_budget_is_shared_by_functions() -> None:
    tests = {"t.py::a[1]": 2.0, "t.py::a[2]": 2.0, "t.py::b": 2.0}
    assert list(within(tests, 4)) == ["t.py::a[1]", "t.py::b"]
    assert list(within(tests, 1)) == ["t.py::a[1]"]
    quick = {"t.py::a[1]": 0.01, "t.py::a[2]": 0.01, "t.py::b": 2.0}
    assert list(within(quick, 2)) == ["t.py::a[1]", "t.py::a[2]"], "a table of cases costs next to nothing"


def test_what_a_file_of_results_still_says(tmp_path: Path) -> None:
    killed, survivor = _module("def f(a, b):\n    return a or b\n").mutants
    file = tmp_path / "out" / "results.jsonl"
    for name in ("code/a.py", "tests/test_a.py", "tests/test_b.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    tree = Tree(tmp_path)
    kept = Kept(file, tree)
    kept.add(Verdict(id=killed.id, outcome="killed", test="t", seconds=1, module="m", tree=tree.digest))
    kept.add(Verdict(id=survivor.id, outcome="survived", test="", seconds=1, module="m", tree=tree.digest))
    for name in ("together", "tests/test_a.py", "tests/test_b.py"):
        kept.add_baseline(name, {"t": {"seconds": 1.0, "hits": []}})
    same = Kept(file, Tree(tmp_path))
    assert same.verdict(killed, "m") and same.verdict(survivor, "m") and len(same.baseline) == 3
    assert not same.verdict(killed, "edited")

    (tmp_path / "tests/test_b.py").write_text("2")
    other = Kept(file, Tree(tmp_path))
    assert other.verdict(killed, "m") and not other.verdict(survivor, "m")
    assert set(other.baseline) == {"tests/test_a.py"}
    (tmp_path / "code/a.py").write_text("2")
    assert not Kept(file, Tree(tmp_path)).baseline


def test_an_explanation_has_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "explained.toml"
    file.write_text('[explained]\n"an id" = " "\n')
    with pytest.raises(ValueError, match="an id has no reason"):
        read_explanations(file)


# -- the whole tool, on a small project

GUARDS = """
def floor(number, least):
    if number < least:
        return least
    return number


def unused(number):
    return number or 1


LETTERS = ("a", "b")
"""
CHECKS = """
from toy.guards import LETTERS, floor


def test_floor():
    assert floor(1, 2) == 2 and floor(3, 2) == 3


def test_letters():
    assert "a" in LETTERS
"""
START = """
import sys
from pathlib import Path
from tests.mutants.__main__ import main
from tests.mutants.plan import Plan

plan = Plan(targets=("toy/*.py",), tests=("checks/*.py",), preloaded=("pytest",))
sys.exit(main(sys.argv[1:], plan, Path("explained.toml")))
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    for name, text in {"toy/__init__.py": "", "toy/guards.py": GUARDS, "checks/test_toy.py": CHECKS}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib"]\n')
    return tmp_path


def _run(toy: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", START, *arguments],
        cwd=toy,
        env={"PYTHONPATH": f"{ROOT}:{toy}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_survivors_are_reported_and_can_be_explained(toy: Path) -> None:
    """The mutated code is what runs: tests that pass without a mutant kill most of them."""
    code, out = _run(toy, "--all", "--resume", "results.jsonl")
    assert code == 1, out
    boundary = "toy/guards.py:floor:flipped:number < least"
    lines = [json.loads(line) for line in (toy / "results.jsonl").read_text().splitlines()]
    outcomes = {line["id"]: line["outcome"] for line in lines if "id" in line}
    assert outcomes == {
        "toy/guards.py:floor:if-true:number < least": "killed",
        "toy/guards.py:floor:if-false:number < least": "killed",
        boundary: "survived",
        "toy/guards.py:unused:operand-dropped:number": "survived",
        "toy/guards.py:unused:operand-dropped:1": "survived",
        "toy/guards.py:LETTERS:element-dropped:'a'": "killed",
        "toy/guards.py:LETTERS:element-dropped:'b'": "survived",
    }
    assert f"toy/guards.py:3  SURVIVED\n  {json.dumps(boundary)}  (passes 1 tests)" in out
    assert "(no cheap test runs it)" in out

    reasons = {id_: "equivalent" for id_, outcome in outcomes.items() if outcome == "survived"}
    stale = {"toy/guards.py:floor:if-true:number < least": "wrong", "toy/guards.py:gone": "old"}
    text = "\n".join(f"{json.dumps(id_)} = {json.dumps(reason)}" for id_, reason in (reasons | stale).items())
    (toy / "explained.toml").write_text(f"[explained]\n{text}\n")
    code, out = _run(toy, "--all")
    assert code == 0, out
    assert "stale explanation, there is no such mutant" in out
    assert "stale explanation, checks/test_toy.py::test_floor kills it" in out


def test_nothing_is_tried_while_tests_fail_anyway(toy: Path) -> None:
    (toy / "checks" / "test_toy.py").write_text("def test_wrong():\n    assert False\n")
    code, out = _run(toy)
    assert code == 2
    assert "fails without a mutant: checks/test_toy.py::test_wrong" in out


def test_mutants_can_be_listed_and_chosen(toy: Path) -> None:
    code, out = _run(toy, "--list", "--match", ":floor:")
    assert code == 0
    assert out.splitlines()[0].startswith("toy/guards.py:floor:if-false:number < least  ")
    assert "1 mutants" in out
    code, out = _run(toy, "--list", "--all", "--module", "toy/g*.py", "--match", ":floor:")
    assert [line.partition("  ")[0] for line in out.splitlines()[:-1]] == [
        f"toy/guards.py:floor:{operator}:number < least" for operator in ("if-true", "if-false", "flipped")
    ]
    code, out = _run(toy, "--list", "--sample", "2", "--seed", "3")
    assert "2 mutants" in out
