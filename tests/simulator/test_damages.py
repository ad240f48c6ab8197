"""The audit finds every damage, and finds nothing where nothing is damaged."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.simulator.calm import WAYS, calm_story
from tests.simulator.damages import DAMAGES
from tests.simulator.ending import Ending
from tests.simulator.story import Story
from tests.simulator.world import world_of
from trimtab.epochs import Epoch
from trimtab.moves import BATCHES_AFTER_CLOSE, Way


def audit_alarms(story: Story) -> tuple[list[str], str]:
    """What audits say in a story, and with what it ended, if it did not come to its end."""
    with world_of(story) as world:
        ended = ""
        try:
            for action in story.actions:
                world.do(action)
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
        return [told.text for told in world.server.told if told.alarm and told.kind == "audit"], ended


def test_an_undamaged_story_is_clean_to_the_last_batch() -> None:
    story = calm_story(tuple(WAYS))
    with world_of(story) as world:
        for action in story.actions:
            world.do(action)
        ending = Ending(world)
        ending.bring_about()
        assert list(ending.problems()) == []
        records = ending.records()
        assert {each.id: each.audit.verdict().clean for each in records.migrations.values()} == dict.fromkeys(
            records.migrations, True
        )
        assert len(records.migrations) == 10
        ways = {move.way for epoch in world.spark.epochs for move in epoch.moves}
        assert ways == set(Way), "every way back is gone"
        outcomes = sorted(each.outcome for each in records.migrations.values())
        assert outcomes == ["committed"] * 5 + ["rolled-back"] * 5
        assert _moved_again_at_once(world.spark.epochs), "a group moves again while its last move is watched"


def _moved_again_at_once(epochs: list[Epoch]) -> bool:
    """`epochs` are those of the batches, in their order."""
    closed: dict[int, int] = {}
    for batch, (before, after) in enumerate(pairwise(epochs)):
        if any(batch - closed.get(group, -99) <= BATCHES_AFTER_CLOSE for group in after.moving):
            return True
        closed |= dict.fromkeys(before.moving.keys() - after.moving.keys(), batch)
    return False


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damage_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    damage = DAMAGES[name]
    damage.do(monkeypatch)
    alarms, ended = audit_alarms(calm_story(damage.ways))
    assert alarms, f"no audit says anything{': ' + ended if ended else ''}"
