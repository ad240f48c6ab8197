"""Breadth-first through every world that a scenario can reach.

    python -m tests.simulation.search --faults 3 --minutes 30
    python -m tests.simulation.search --states 10000000

goes through the larger scenarios, with more and more faults where an end is given, and prints how far it is.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from balancing.protocols.table import State
from balancing.replans.table import State as ReplanState
from tests.simulation.faults import FaultyModel
from tests.simulation.plane import Wrong
from tests.simulation.scenarios import larger
from tests.simulation.world import Scenario, World, unpacked
from trimtab.errors import TrimtabError
from worker.roles import Row

STEPS_TO_THE_END_MAX: Final = 400
PROGRESS_S: Final = 5.0


class Found(AssertionError):
    """A way to a world in which an invariant does not hold."""

    def __init__(self, scenario: Scenario, problem: str, trace: list[str]) -> None:
        self.problem = problem
        self.trace = trace
        super().__init__(f"{scenario.name}: {problem}\n" + "\n".join(f"  {step}" for step in trace))


@dataclass(frozen=True)
class Searched:
    states: int
    depth: int
    ends: int
    complete: bool
    """Every world was looked at."""
    points: frozenset[str]
    """Durable writes that were made, by name."""
    cancelled: frozenset[tuple[str, State]]
    """Protocols and states in which somebody cancelled."""
    plans_cancelled: frozenset[ReplanState]
    rows: frozenset[Row]
    """Rows of the workers' table that were taken."""


class Search:
    """All worlds of a scenario, each once, in the order of their distance from the first one.

    A world is 28 bytes, the numbers of its parts; kept are these and the number of the world it was first reached from.
    The way to a world is found by going it again.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.model = FaultyModel(scenario)
        first = self.model.first().packed()
        self.worlds = [first]
        self.parents = array("Q", [0])
        self.seen = {first}
        self.leads_to_the_end: set[bytes] = set()
        self.ends = 0
        self.depth = 0

    def run(
        self,
        states_max: int | None = None,
        until: Callable[[], bool] = lambda: False,
        progress: Callable[[Search], None] | None = None,
    ) -> Searched:
        """Visit worlds; raises Found for the first (so: with the shortest way) that is wrong."""
        at, level_ends = 0, 1
        spoken = time.monotonic()
        while at < len(self.worlds):
            if at == level_ends:
                self.depth, level_ends = self.depth + 1, len(self.worlds)
            self._visit(at)
            at += 1
            if at % 1024 == 0:
                if (states_max is not None and len(self.worlds) >= states_max) or until():
                    break
                if progress is not None and time.monotonic() - spoken > PROGRESS_S:
                    spoken = time.monotonic()
                    progress(self)
        managing = self.model.managing
        return Searched(
            states=len(self.worlds),
            depth=self.depth,
            ends=self.ends,
            complete=at == len(self.worlds),
            points=frozenset(managing.points),
            cancelled=frozenset(managing.cancelled),
            plans_cancelled=frozenset(managing.plans_cancelled),
            rows=frozenset(self.model.driving.rows),
        )

    def _visit(self, at: int) -> None:
        world = unpacked(self.worlds[at])
        seen = self.seen
        try:
            self._must_end(world)
            for _, after in self.model.steps(world):
                key = after.packed()
                if key not in seen:
                    seen.add(key)
                    self.worlds.append(key)
                    self.parents.append(at)
        except (Wrong, TrimtabError) as error:
            raise Found(self.scenario, str(error), self._way_to(at)) from error

    def _must_end(self, world: World) -> None:
        """Whatever has happened: if nothing more goes wrong, every migration ends."""
        model, known = self.model, self.leads_to_the_end
        way: list[bytes] = []
        labels: list[str] = []
        key = world.packed()
        while key not in known:
            way.append(key)
            try:
                if model.at_the_end(world):
                    self.ends += 1
                    model.check_end(world)
                    break
                step = model.good_step(world)
            except (Wrong, TrimtabError) as error:
                raise Wrong(f"{error}\n  if all goes well then: {', '.join(labels)}") from error
            if step is None or len(way) > STEPS_TO_THE_END_MAX:
                raise Wrong("does not end: ... " + ", ".join(labels[-16:]))
            label, world = step
            labels.append(label)
            key = world.packed()
        known.update(way)

    def _way_to(self, at: int) -> list[str]:
        """The labels of the steps from the first world to this one."""
        numbers = [at]
        while numbers[-1]:
            numbers.append(self.parents[numbers[-1]])
        labels = []
        world = unpacked(self.worlds[0])
        for number in reversed(numbers[:-1]):
            wanted = self.worlds[number]
            label, world = next(step for step in self.model.steps(world) if step[1].packed() == wanted)
            labels.append(label)
        return labels


class Report:
    """Says how far a long search is."""

    def __init__(self) -> None:
        self.states = 0
        """Of the scenarios that are done."""
        self.started = time.monotonic()

    def __call__(self, search: Search) -> None:
        seconds = time.monotonic() - self.started
        states = self.states + len(search.worlds)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"  {states:>11,} states in all, {len(search.worlds):,} here, {search.depth} steps deep, "
            f"{states / seconds:,.0f} states/s, {memory:.1f} GiB",
            flush=True,
        )


def scenarios_from(faults: int, faults_max: int | None) -> Iterator[Scenario]:
    for budget in itertools.count(faults):
        if faults_max is not None and budget > faults_max:
            return
        yield from larger(budget)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation.search", description=__doc__)
    parser.add_argument("--faults", type=int, default=2, help="things that go wrong in one way (default 2)")
    parser.add_argument("--states", type=int, help="go on, with more faults, until so many worlds were visited")
    parser.add_argument("--minutes", type=float, help="go on, with more faults, for so long")
    arguments = parser.parse_args()
    bounded = arguments.states is not None or arguments.minutes is not None
    report = Report()
    ends_at = report.started + 60 * arguments.minutes if arguments.minutes is not None else float("inf")
    for scenario in scenarios_from(arguments.faults, None if bounded else arguments.faults):
        left = arguments.states - report.states if arguments.states is not None else None
        if (left is not None and left <= 0) or time.monotonic() >= ends_at:
            break
        print(scenario.name, flush=True)
        search = Search(scenario)
        try:
            found = search.run(left, lambda: time.monotonic() >= ends_at, report)
        except Found as error:
            print(error)
            return 1
        report(search)
        report.states += found.states
        print(f"  {'every world' if found.complete else 'stopped'}: {found.states:,} states, {found.ends:,} ends")
    print(f"{report.states:,} states in {time.monotonic() - report.started:,.0f} s: nothing lost, nothing doubled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
