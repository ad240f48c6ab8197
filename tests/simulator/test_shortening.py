"""A failure is told by the shortest story that can be found."""

from __future__ import annotations

import pytest

from tests.simulator.calm import calm_story
from tests.simulator.damages import DAMAGES
from tests.simulator.telling import explain, shorten, tell


def test_a_failure_prints_its_seed_and_a_shorter_story(monkeypatch: pytest.MonkeyPatch) -> None:
    DAMAGES["results are doubled in the engine, MSLB"].do(monkeypatch)
    story = calm_story()
    failure = tell(story).failure
    assert failure is not None and "too many" in failure.text
    shorter, _ = shorten(story, failure, limit_s=20)
    assert len(shorter.actions) < len(story.actions)
    assert f"seed {story.seed}:" in explain(shorter, failure)
