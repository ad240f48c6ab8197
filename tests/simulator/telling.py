"""Tells stories, and shortens those that end badly."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.simulator.ending import Ending
from tests.simulator.story import Action, Story
from tests.simulator.world import World, world_of

SHORTENING_S: Final = 60.0


@dataclass(frozen=True)
class Failure:
    """How a story ended badly."""

    kind: str
    """What a shorter story must fail with, too."""
    text: str


@dataclass(frozen=True)
class Outcome:
    failure: Failure | None
    world: World
    """As it was left."""

    @property
    def calls(self) -> int:
        return self.world.server.writes


def tell(story: Story, watch: Callable[[World, Action], None] | None = None) -> Outcome:
    """From the first action to the last check."""
    with world_of(story) as world:
        return Outcome(_ends_badly(story, world, watch), world)


def _ends_badly(story: Story, world: World, watch: Callable[[World, Action], None] | None) -> Failure | None:
    try:
        for action in story.actions:
            world.do(action)
            if watch is not None:
                watch(world, action)
        ending = Ending(world)
        ending.bring_about()
        problems = list(ending.problems())
    except Exception as error:
        where = "".join(traceback.format_exception(error)) if not isinstance(error, AssertionError) else ""
        return Failure(type(error).__name__, f"{type(error).__name__}: {error}\n{where}")
    return Failure("problems: " + _kind(problems[0]), "\n".join(problems)) if problems else None


def _kind(problem: str) -> str:
    """The problem without its numbers."""
    return "".join(" " if each.isdigit() else each for each in problem.partition(":")[0])[:40]


def shorten(story: Story, failure: Failure, limit_s: float = SHORTENING_S) -> tuple[Story, Failure]:
    """A story with as few actions as can be found in the time that still fails the same way (delta debugging)."""
    ends_at = time.monotonic() + limit_s
    size = max(1, len(story.actions) // 2)
    while time.monotonic() < ends_at:
        begin, shorter = 0, False
        while begin < len(story.actions) and time.monotonic() < ends_at:
            rest = (*story.actions[:begin], *story.actions[begin + size :])
            found = tell(story.with_actions(rest)).failure
            if found is not None and found.kind == failure.kind:
                story, failure, shorter = story.with_actions(rest), found, True
            else:
                begin += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return story, failure


def explain(story: Story, failure: Failure) -> str:
    """What a person needs to know about a failure."""
    shortest, why = shorten(story, failure)
    return "\n".join(
        [
            f"seed {story.seed}: {failure.text}",
            f"the shortest story found, {len(shortest.actions)} of {len(story.actions)} actions: {why.text}",
            shortest.render(),
            f"again: python -m tests.simulator --seed {story.seed} --verbose",
        ]
    )
