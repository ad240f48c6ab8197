"""Mutants on trial: which tests each is tried with, what came of it, and what is tried again."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.cheap import CheapTests, within
from tests.mutants.child import read_result, try_mutant
from tests.mutants.pool import Ended, Work, run_all
from tests.mutants.results import Outcome
from tests.mutants.sites import Module, Mutant

LIMIT_S: Final = 5
LIMIT_FACTOR: Final = 5
"""A test may use this much of the processor, and this many times what it uses without a mutant."""
EXPLAINED_BUDGET_S: Final = 8
"""For a mutant that is known to survive: enough to notice most explanations that have become wrong."""


@dataclass(frozen=True)
class Trial:
    """One process: a mutant against some tests."""

    mutant: Mutant
    tests: Mapping[str, float]
    doubted: str = ""
    """The test that failed before, for the tests are these without it if it passes now. It is run alone."""


@dataclass(frozen=True)
class Found:
    mutant: Mutant
    outcome: Outcome
    test: str
    seconds: float


class Trials:
    def __init__(
        self,
        root: Path,
        modules: Sequence[Module],
        tests: CheapTests,
        explained: Collection[str],
        *,
        jobs: int,
        budget_s: float,
    ) -> None:
        self._root = root
        self._modules = {module.path: module for module in modules}
        self._tests = tests
        self._explained = explained
        self._jobs = jobs
        self._budget_s = budget_s
        self._again: deque[Trial] = deque()
        self._kills: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        """By module and function: which tests have killed mutants of it. They go first."""

    def run(self, mutants: Sequence[Mutant]) -> Iterator[Found]:
        waiting = deque(mutants)
        uncovered: list[Mutant] = []

        def more() -> Work[Trial] | None:
            if self._again:
                return self._work(self._again.popleft())
            while waiting:
                trial = self._first_trial(waiting.popleft())
                if trial.tests:
                    return self._work(trial)
                uncovered.append(trial.mutant)
            return None

        for ended in run_all(more, self._jobs):
            found = self._judge(ended)
            if found is not None:
                yield found
        for mutant in uncovered:
            yield Found(mutant, "survived", "no cheap test runs it", 0)

    def _first_trial(self, mutant: Mutant) -> Trial:
        tests = self._tests.of(mutant, self._kills[mutant.module, mutant.scope])
        budget_s = min(EXPLAINED_BUDGET_S, self._budget_s) if mutant.id in self._explained else self._budget_s
        return Trial(mutant, within(tests, budget_s))

    def _work(self, trial: Trial) -> Work[Trial]:
        tests = {trial.doubted: trial.tests[trial.doubted]} if trial.doubted else trial.tests
        limits_s = {test: LIMIT_S + LIMIT_FACTOR * seconds for test, seconds in tests.items()}
        module = self._modules[trial.mutant.module]

        def child(directory: Path) -> int:
            return try_mutant(self._root, directory, module, trial.mutant, limits_s)

        return Work(trial, child)

    def _judge(self, ended: Ended[Trial]) -> Found | None:
        """What is known now; None where another trial is needed.

        A test that depends on the time may fail because the machine is busy, and any test may wait too long. It has to
        fail twice; if it does not, the other tests decide.
        """
        trial, result = ended.about, read_result(ended.directory)
        if ended.exit_code == 0:
            others = {test: seconds for test, seconds in trial.tests.items() if test != trial.doubted}
            if trial.doubted and others:
                self._again.append(Trial(trial.mutant, others))
                return None
            return Found(trial.mutant, "survived", f"passes {len(trial.tests)} tests", ended.seconds)
        test = result.now if ended.timed_out else result.failed
        doubtful = ended.waited_too_long or self._tests.is_timed(test)
        if doubtful and not trial.doubted and test in trial.tests:
            self._again.append(Trial(trial.mutant, trial.tests, doubted=test))
            return None
        if ended.timed_out:
            return Found(trial.mutant, "timed out", test, ended.seconds)
        self._kills[trial.mutant.module, trial.mutant.scope][test] += 1
        return Found(trial.mutant, "killed", test or f"process ended with {ended.exit_code}", ended.seconds)
