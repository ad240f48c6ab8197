"""The run: the cheap tests without a mutant, then against each mutant, then the summary."""

from __future__ import annotations

import gc
import importlib
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.cheap import BaselineFailed, CheapTests, measure
from tests.mutants.plan import Plan
from tests.mutants.results import Kept, Verdict, digest_of, summary
from tests.mutants.sites import Module, Mutant
from tests.mutants.trials import Trials


@dataclass(frozen=True)
class Run:
    root: Path
    plan: Plan
    modules: Sequence[Module]
    kept: Kept
    explained: Mapping[str, str]
    jobs: int
    budget_s: float
    partial: bool
    """Only some mutants are wanted: that the tests do not disturb each other is left to a whole run."""

    def execute(self, mutants: Sequence[Mutant]) -> int:
        """All of it; returns the exit code."""
        started = time.monotonic()
        verdicts: dict[str, Verdict] = {}
        interrupted = False
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with tempfile.TemporaryDirectory(prefix="trimtab-mutants-") as bytecode:
            self._preload(bytecode)
            try:
                tests = measure(self.root, self.plan, self.modules, self.kept, self.jobs, together=not self.partial)
                seconds = sum(ran.seconds for ran in tests.ran.values())
                print(f"{len(tests.ran)} cheap tests pass, {seconds:.0f} s of tests", flush=True)
                progress = Progress(len(mutants))
                for verdict in self._verdicts(mutants, tests):
                    verdicts[verdict.id] = verdict
                    progress.add(verdict)
            except BaselineFailed as error:
                print(error)
                return 2
            except KeyboardInterrupt:
                print("interrupted")
                interrupted = True
        all_ids = [mutant.id for module in self.modules for mutant in module.mutants]
        lines, unexplained = summary(mutants, verdicts, self.explained, all_ids)
        print("\n".join(lines))
        print(f"{(time.monotonic() - started) / 60:.1f} minutes")
        return 130 if interrupted else int(unexplained)

    def _preload(self, bytecode: str) -> None:
        for name in self.plan.preloaded:
            importlib.import_module(name)
        ours = [module.name for module in self.modules if module.name in sys.modules]
        if ours:
            raise RuntimeError(f"imported before any fork, so that their mutants would not be seen: {ours}")
        # Compiled modules are shared by all children, in a place where nobody else finds them.
        sys.dont_write_bytecode = False
        sys.pycache_prefix = bytecode
        gc.collect()
        gc.freeze()

    def _verdicts(self, mutants: Sequence[Mutant], tests: CheapTests) -> Iterator[Verdict]:
        """Known ones first, then as they come."""
        digests = {module.path: digest_of(self.root, [self.root / module.path]) for module in self.modules}
        todo: list[Mutant] = []
        for mutant in mutants:
            known = self.kept.verdict(mutant, digests[mutant.module])
            if known is None:
                todo.append(mutant)
            else:
                yield known
        trials = Trials(self.root, self.modules, tests, self.explained, jobs=self.jobs, budget_s=self.budget_s)
        for found in trials.run(todo):
            verdict = Verdict(
                id=found.mutant.id,
                outcome=found.outcome,
                test=found.test,
                seconds=round(found.seconds, 2),
                module=digests[found.mutant.module],
                tree=self.kept.tree.digest,
            )
            self.kept.add(verdict)
            yield verdict


def sampled(mutants: Sequence[Mutant], count: int | None, seed: int) -> list[Mutant]:
    if count is None or count >= len(mutants):
        return list(mutants)
    chosen = set(random.Random(seed).sample(range(len(mutants)), count))
    return [mutant for index, mutant in enumerate(mutants) if index in chosen]


class Progress:
    """A line about how far it is, from time to time."""

    EVERY_S = 20

    def __init__(self, total: int) -> None:
        self._total = total
        self._started = self._printed = time.monotonic()
        self._counts: Counter[str] = Counter()

    def add(self, verdict: Verdict) -> None:
        self._counts[verdict.outcome] += 1
        now = time.monotonic()
        if now - self._printed < self.EVERY_S:
            return
        self._printed = now
        done = self._counts.total()
        minutes = (now - self._started) / 60
        left = minutes / done * (self._total - done)
        counts = ", ".join(f"{self._counts[name]} {name}" for name in ("killed", "timed out", "survived"))
        print(f"{done}/{self._total}: {counts}; {done / minutes:.0f} a minute, {left:.0f} minutes left", flush=True)
