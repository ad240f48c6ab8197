"""All interleavings of manager, driver and data plane, with faults: nothing lost, nothing doubled, and an end."""

from __future__ import annotations

import time

import pytest

from tests.simulation.model import Scenario
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.search import Found, search

WRITES = {f"mslb:{step}" for step in range(1, 9)} | {f"ptlb:{step}" for step in range(1, 6)}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_world_is_right(scenario: Scenario, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    found = search(scenario)
    with capsys.disabled():
        print(f"\n{scenario.name}: {found.states} states, {time.monotonic() - started:.1f} s", end=" ")
    assert found.ends > 0
    strategies = {migration.strategy for migration in scenario.migrations}
    assert {point for point in WRITES if point.partition(":")[0] in strategies} <= found.points


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_every_guard_is_needed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each guard of the protocols, removed once: the search finds it."""
    mutant.patch(monkeypatch)
    with pytest.raises(Found):
        search(mutant.scenario)
