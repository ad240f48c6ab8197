"""Stories drawn from seeds: whatever goes wrong, everything ends, and no result is lost or doubled.

`make simulate SEEDS=1000` tells more of them; a failure prints its seed and the shortest story found.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.simulator.drawing import draw_story
from tests.simulator.story import parse_story
from tests.simulator.telling import explain, tell
from tests.simulator.world import World

SEEDS = 200


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_a_story_ends_well(seed: int) -> None:
    story = draw_story(seed)
    failure = tell(story).failure
    if failure is not None:
        pytest.fail(explain(story, failure), pytrace=False)


def test_a_seed_reproduces_a_run() -> None:
    first, second = (tell(draw_story(7)).world for _ in range(2))
    assert first.server.told == second.server.told
    assert _dumped(first) == _dumped(second)
    assert first.spark.results == second.spark.results


def _dumped(world: World) -> str:
    """All that Redis holds; problems name files, which lie in another directory each time."""
    text = json.dumps(world.server.dump(), default=sorted)
    return re.sub(r"trimtab-simulator-\w+", "trimtab-simulator", text)


def test_a_story_survives_its_text() -> None:
    story = draw_story(3)
    assert parse_story(story.to_text()) == story
