"""Breadth-first through every world that a scenario can reach."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from tests.simulation.model import Model, Scenario, World
from tests.simulation.plane import Wrong
from trimtab.errors import TrimtabError

STEPS_TO_THE_END_MAX: Final = 200
CLOCK_EARLY: Final = 2
"""In worlds where rows have not waited for longer than this, there is time enough to see the end."""


class Found(AssertionError):
    """A way to a world in which an invariant does not hold."""

    def __init__(self, scenario: Scenario, problem: str, trace: list[str]) -> None:
        self.problem = problem
        self.trace = trace
        super().__init__(f"{scenario.name}: {problem}\n" + "\n".join(f"  {step}" for step in trace))


@dataclass(frozen=True)
class Searched:
    states: int
    ends: int
    points: frozenset[str]
    """Durable writes that were made, by name."""


def search(scenario: Scenario, states_max: int = 2_000_000) -> Searched:
    """Visit all worlds; raises Found for the first (so: with the shortest way) that is wrong."""
    model = Model(scenario)
    first = scenario.first()
    came_from: dict[World, tuple[World, str] | None] = {first: None}
    leads_to_the_end: set[World] = set()
    queue = deque([first])
    ends = 0
    while queue:
        world = queue.popleft()
        try:
            _must_end(model, world, leads_to_the_end)
            if model.at_the_end(world):
                ends += 1
                model.check_end(world)
        except (Wrong, TrimtabError) as error:
            raise Found(scenario, str(error), _trace(came_from, world)) from error
        try:
            for label, after in model.steps(world):
                if after not in came_from:
                    came_from[after] = (world, label)
                    queue.append(after)
        except (Wrong, TrimtabError) as error:
            raise Found(scenario, str(error), _trace(came_from, world)) from error
        if len(came_from) > states_max:
            raise Found(scenario, f"more than {states_max} states", _trace(came_from, world))
    return Searched(len(came_from), ends, frozenset(model.points))


def _must_end(model: Model, world: World, known: set[World]) -> None:
    """Whatever has happened: if nothing more goes wrong, every migration ends."""
    way: list[World] = []
    labels: list[str] = []
    at = world
    while at not in known and not model.at_the_end(at):
        way.append(at)
        try:
            step = next(model.good_steps(at), None)
        except (Wrong, TrimtabError) as error:
            raise Wrong(f"{error}\n  if all goes well then: {', '.join(labels)}") from error
        if step is None:
            if world.clock <= CLOCK_EARLY:
                raise Wrong("does not end, rows wait: ... " + ", ".join(labels[-12:]))
            return  # Rows had waited for long before: this search does not look further.
        labels.append(step[0])
        at = step[1]
        if len(way) > STEPS_TO_THE_END_MAX:
            raise Wrong("does not end: ... " + ", ".join(labels[-12:]))
    known.update(way)


def _trace(came_from: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    labels = []
    step = came_from[world]
    while step is not None:
        labels.append(step[1])
        step = came_from[step[0]]
    return labels[::-1]
