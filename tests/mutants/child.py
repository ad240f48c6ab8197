"""What happens in a forked process: pytest runs chosen tests in a chosen order and leaves a result in a file.

The result says which tests ran, for how long and past which statements, and which one failed first. A test that takes
too long ends the process by a signal, which also interrupts what is not Python: SIGPROF when it has used too much of
the processor, which means the same on a busy machine, and SIGALRM when it has waited far too long.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.configuration import set_hypothesis_home_dir

from tests.mutants.hook import Changed, instrumented, mutated
from tests.mutants.sites import Module, Mutant

MEMORY_MAX_BYTES = 6 << 30
"""A mutant that does not stop growing must not take the machine with it."""
COLLECTION_S = 120
"""For imports and collection, and for a test of which nothing is known."""
WAITING_S = 60
WAITING_FACTOR = 10
"""How long may be waited, beside and in relation to the time of the processor that is allowed."""


@dataclass
class Ran:
    """One test that ran."""

    seconds: float
    """Of the processor: what a clock says depends on what else the machine does."""
    hits: list[str] = field(default_factory=list)
    """Statements that it ran past, as "module:line"."""


@dataclass
class Result:
    exit_code: int = -1
    failed: str = ""
    """Test (or file) that failed first."""
    now: str = ""
    """Test that was under way when this was written."""
    tests: dict[str, Ran] = field(default_factory=dict)


def _limit(seconds: float) -> None:
    """From now on, or the process ends."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, WAITING_S + WAITING_FACTOR * seconds)


def read_result(directory: Path) -> Result:
    try:
        body = json.loads((directory / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Result()
    return Result(**{**body, "tests": {name: Ran(**each) for name, each in body["tests"].items()}})


class Watch:
    """A pytest plugin."""

    def __init__(self, directory: Path, limits_s: Mapping[str, float], hits: Mapping[str, bytearray]) -> None:
        self.result = Result()
        self._directory = directory
        self._limits_s = limits_s
        self._hits = hits
        self._collected: set[str] = set()

    def write(self) -> None:
        (self._directory / "result.json").write_text(json.dumps(asdict(self.result)), encoding="utf-8")

    def take_hits(self) -> set[str]:
        """What was run past since the last time."""
        lines = {f"{path}:{line}" for path, marks in self._hits.items() for line, mark in enumerate(marks) if mark}
        for marks in self._hits.values():
            marks[:] = bytes(len(marks))
        return lines

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.result.now = item.nodeid
        self.write()
        _limit(self._limits_s.get(item.nodeid, COLLECTION_S))
        started = time.process_time()
        yield
        seconds = time.process_time() - started
        _limit(COLLECTION_S)
        self.result.tests[item.nodeid] = Ran(round(seconds, 3), sorted(self.take_hits() | self._collected))

    def pytest_collection_finish(self) -> None:
        # What runs while modules are imported and cases are made can change every test of the file.
        self._collected = self.take_hits()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.result.failed = self.result.failed or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.result.failed = self.result.failed or report.nodeid


class Chosen(Watch):
    """Runs the tests that have a limit, in the order of their limits."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        ranks = {test: rank for rank, test in enumerate(self._limits_s)}
        items[:] = sorted((item for item in items if item.nodeid in ranks), key=lambda item: ranks[item.nodeid])


class AllBut(Watch):
    """Runs every test but those left out."""

    left_out: Sequence[str] = ()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not any(fnmatchcase(item.nodeid, each) for each in self.left_out)]


def try_mutant(root: Path, directory: Path, module: Module, mutant: Mutant, limits_s: Mapping[str, float]) -> int:
    changed = Changed(root)
    changed.add(module, mutated(root, module, mutant))
    changed.install()
    files = list(dict.fromkeys(test.partition("::")[0] for test in limits_s))
    watch = Chosen(directory, limits_s, {})
    # The likeliest file alone first: most mutants die there, before all others are imported and collected.
    for some in (files[:1], files[1:]):
        code = _pytest(root, directory, some, watch, "-x") if some else 0
        if code:
            return code
    return 0


def try_baseline(
    root: Path, directory: Path, modules: Sequence[Module], files: Sequence[str], left_out: Sequence[str]
) -> int:
    """Every test of these files, with marks in these modules."""
    changed = Changed(root)
    hits = {}
    for module in modules:
        lines = [mutant.statement for mutant in module.mutants if mutant.statement is not None]
        hits[module.path] = bytearray(max(lines, default=0) + 1)
        changed.add(module, instrumented(root, module), hits[module.path])
    changed.install()
    watch = AllBut(directory, {}, hits)
    watch.left_out = left_out
    return _pytest(root, directory, files, watch)


def _pytest(root: Path, directory: Path, files: Sequence[str], watch: Watch, *options: str) -> int:
    _limit(COLLECTION_S)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
    os.environ["TMPDIR"] = str(directory)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # Profiles that tests register inherit from this one: the same cases each time, no search for the smallest failure.
    phases = (Phase.explicit, Phase.generate)
    set_hypothesis_home_dir(directory)
    settings.register_profile("mutants", database=None, derandomize=True, deadline=None, phases=phases)
    settings.load_profile("mutants")
    arguments = ["-q", "-p", "no:cacheprovider", "-W", "ignore", "--assert=plain", "--tb=short", f"--rootdir={root}"]
    code = int(pytest.main([*arguments, *options, f"--basetemp={directory / 'pytest'}", *files], plugins=[watch]))
    watch.result.exit_code = code
    watch.write()
    return code
