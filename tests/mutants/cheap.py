"""The cheap tests: that they pass without a mutant, how long each takes, and which statements it runs past."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from tests.mutants.child import Ran, read_result, try_baseline
from tests.mutants.plan import Plan
from tests.mutants.pool import Work, run_all
from tests.mutants.results import Kept
from tests.mutants.sites import Module, Mutant

TOGETHER: Final = "all in one process"
TRIES: Final = 3
"""A test that depends on the time may fail on a busy machine."""
QUICK_S: Final = 0.05
"""A case that takes no longer than this has its turn as if it were the first of its function."""


class BaselineFailed(Exception):
    """Tests fail without a mutant: nothing would be learned."""


@dataclass(frozen=True)
class CheapTests:
    plan: Plan
    ran: Mapping[str, Ran]

    def is_timed(self, test: str) -> bool:
        return any(fnmatchcase(test, pattern) for pattern in self.plan.tests_timed)

    def of(self, mutant: Mutant, kills: Counter[str]) -> dict[str, float]:
        """Tests that run past the mutated statement, with their seconds, in the order in which they are tried: first
        what has killed its neighbours, then by the plan, then what is quick."""
        key = f"{mutant.module}:{mutant.statement}"
        tests = [test for test, ran in self.ran.items() if mutant.statement is None or key in ran.hits]
        patterns = [pattern for pattern in self.plan.first if fnmatchcase(mutant.module, pattern)]
        first = [path for pattern in patterns for path in self.plan.first[pattern]]
        cost: Counter[str] = Counter()
        for test in tests:
            cost[_file(test)] += round(1000 * self.ran[test].seconds)

        def rank(test: str) -> tuple[Any, ...]:
            file = _file(test)
            tier = first.index(file) if file in first else len(first) + self.is_timed(test)
            # File by file, because the fixtures of a file may start a server.
            return -kills[test], tier, cost[file], file, self.ran[test].seconds

        return {test: self.ran[test].seconds for test in sorted(tests, key=rank)}


def measure(root: Path, plan: Plan, modules: Sequence[Module], kept: Kept, jobs: int, *, together: bool) -> CheapTests:
    """Run every cheap test without a mutant, but for files of which that is kept already; and all of them together."""
    paths = sorted({path for pattern in plan.tests for path in root.glob(pattern)})
    files = [path.relative_to(root).as_posix() for path in paths]

    def work(name: str) -> Work[str]:
        # All in one process too, as they are run against a mutant: they must not disturb each other.
        left_out = (*plan.tests_left_out, *(plan.tests_timed if name == TOGETHER else ()))
        some, marked = (files, ()) if name == TOGETHER else ([name], modules)

        def child(directory: Path) -> int:
            return try_baseline(root, directory, marked, some, left_out)

        return Work(name, child)

    waiting = deque(name for name in (*([TOGETHER] if together else []), *files) if name not in kept.baseline)
    failures: Counter[str] = Counter()
    ran = {test: Ran(**body) for tests in kept.baseline.values() for test, body in tests.items()}
    for ended in run_all(lambda: work(waiting.popleft()) if waiting else None, jobs):
        result = read_result(ended.directory)
        if ended.exit_code in (0, 5):  # 5: all of its tests are left out
            tests = result.tests if ended.about != TOGETHER else {}
            kept.add_baseline(ended.about, {test: asdict(each) for test, each in tests.items()})
            ran |= tests
            continue
        failures[ended.about] += 1
        timed = any(fnmatchcase(result.failed, pattern) for pattern in plan.tests_timed)
        doubtful = timed or ended.waited_too_long  # the machine is busy, or somebody has stopped us for a while
        if not doubtful or failures[ended.about] == TRIES:
            raise BaselineFailed(f"{ended.about} fails without a mutant: {result.failed}\n{ended.log()}")
        waiting.append(ended.about)
    return CheapTests(plan, ran)


def within(tests: Mapping[str, float], budget_s: float) -> dict[str, float]:
    """As many tests as fit, in their order: of each function the first case before any gets a second slow one."""
    cases: Counter[str] = Counter()
    turns: dict[str, int] = {}
    for test, seconds in tests.items():
        function = test.partition("[")[0]
        cases[function] += 1
        turns[test] = 1 if seconds <= QUICK_S else cases[function]
    chosen: set[str] = set()
    left_s = budget_s
    for test in sorted(tests, key=turns.__getitem__):
        if tests[test] <= left_s or not chosen:
            chosen.add(test)
            left_s -= tests[test]
    return {test: seconds for test, seconds in tests.items() if test in chosen}


def _file(test: str) -> str:
    return test.partition("::")[0]
