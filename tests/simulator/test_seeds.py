"""Stories drawn from seeds: whatever goes wrong, everything ends, and no result is lost or doubled.

`make simulate SEEDS=1000` tells more of them; a failure prints its seed and the shortest story found.
"""

from __future__ import annotations

import json

import pytest

from tests.simulator.drawing import draw_story
from tests.simulator.story import parse_story
from tests.simulator.telling import explain, tell

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
    assert json.dumps(first.server.dump(), default=sorted) == json.dumps(second.server.dump(), default=sorted)
    assert first.spark.results == second.spark.results


def test_a_story_survives_its_text() -> None:
    story = draw_story(3)
    assert parse_story(story.to_text()) == story
