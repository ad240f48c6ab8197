"""Takes away every guard, one at a time, and says which of these mutants no cheap test notices.

python -m tests.mutants --list
python -m tests.mutants --list --all
python -m tests.mutants --module balancing/compose.py
python -m tests.mutants --sample 60 --seed 7
python -m tests.mutants --resume artifacts/mutants.jsonl
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tests.mutants.plan import PLAN, Plan
from tests.mutants.results import EXPLAINED, Kept, Tree, read_explanations
from tests.mutants.run import Run, sampled
from tests.mutants.sites import Module, Mutant, read_modules


def main(arguments: Sequence[str] | None = None, plan: Plan = PLAN, explained: Path = EXPLAINED) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the mutants, run nothing")
    parser.add_argument("--all", action="store_true", help="also what is no guard: boundaries, values, either way")
    parser.add_argument("--module", action="append", help="only mutants of this file (or pattern); may be repeated")
    parser.add_argument("--match", help="only mutants whose id contains this text")
    parser.add_argument("--sample", type=int, help="only so many, drawn at random")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (%(default)s)")
    parser.add_argument(
        "--budget",
        type=float,
        default=30,
        metavar="S",
        help="seconds of tests for one mutant, shared by all test functions that run past it (%(default)s)",
    )
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on from this file of results, and add to it")
    options = parser.parse_args(arguments)

    root = Path.cwd()
    modules = read_modules(root, plan)
    mutants = sampled(
        _wanted(modules, options.module, options.match, everything=options.all), options.sample, options.seed
    )
    if options.list:
        _list(root, plan, mutants)
        return 0
    if not mutants:
        parser.error("no mutant is wanted: see --list")
    kept = Kept(options.resume, Tree(root))
    reasons = read_explanations(explained)
    partial = bool(options.module or options.match or options.sample)
    return Run(root, plan, modules, kept, reasons, options.jobs, options.budget, partial).execute(mutants)


def _wanted(
    modules: Sequence[Module], paths: Sequence[str] | None, text: str | None, *, everything: bool
) -> list[Mutant]:
    return [
        mutant
        for module in modules
        for mutant in module.mutants
        if (everything or mutant.guard)
        and (not paths or any(fnmatchcase(module.path, path) for path in paths))
        and (not text or text in mutant.id)
    ]


def _list(root: Path, plan: Plan, mutants: Sequence[Mutant]) -> None:
    for mutant in mutants:
        print(f"{mutant.id}  (line {mutant.line})")
    print(f"{len(mutants)} mutants")
    named = [*plan.targets, *plan.tests, *(path for paths in plan.first.values() for path in paths)]
    for pattern in dict.fromkeys(named):
        if not any(root.glob(pattern)):
            print(f"plan: nothing is named {pattern}")


if __name__ == "__main__":
    raise SystemExit(main())
