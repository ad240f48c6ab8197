"""All interleavings of manager, driver and data plane, with faults: nothing lost, nothing doubled, and an end."""

from __future__ import annotations

import time
from functools import cache

import pytest

from balancing.protocols import TABLES, CancelRequested
from balancing.replans.events import CancelRequested as CancelReplan
from balancing.replans.table import TABLE as PLAN_TABLE
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.scenarios import FORGETFUL, PTLB_BOTH, REPLAN, SCENARIOS
from tests.simulation.search import Found, Search, Searched
from tests.simulation.world import Scenario
from worker.roles import ROWS

WRITES = {f"mslb:{step}" for step in range(1, 9)} | {f"ptlb:{step}" for step in range(1, 6)}


PLAN_WRITES = {f"replan:{step}" for step in ("orderplan", "migrating", "settled", "close", "ranalone")}


@cache
def searched(scenario_name: str) -> tuple[Searched, float]:
    scenario = next(each for each in SCENARIOS if each.name == scenario_name)
    started = time.monotonic()
    return Search(scenario).run(), time.monotonic() - started


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_world_is_right(scenario: Scenario, capsys: pytest.CaptureFixture[str]) -> None:
    found, seconds = searched(scenario.name)
    with capsys.disabled():
        print(f"\n{scenario.name}: {found.states} states, {found.depth} steps deep, {seconds:.1f} s", end=" ")
    assert found.complete and found.ends > 0
    strategies = {request.strategy for request in scenario.requests}
    if scenario.plan:
        assert found.points >= PLAN_WRITES
    if not scenario.broken:
        assert {point for point in WRITES if point.partition(":")[0] in strategies} <= found.points


def test_somebody_cancels_in_every_state() -> None:
    for scenario, name in ((FORGETFUL, "mslb"), (PTLB_BOTH, "ptlb")):
        wanted = {(name, row.state) for row in TABLES[name].rows if row.event is CancelRequested}
        assert wanted <= searched(scenario.name)[0].cancelled


def test_somebody_cancels_a_change_of_plans_in_every_state() -> None:
    found = searched(REPLAN.name)[0].plans_cancelled
    assert {row.state for row in PLAN_TABLE.rows if row.event is CancelReplan} | PLAN_TABLE.refusing <= found


def test_every_row_of_the_workers_table_is_taken() -> None:
    taken = {row for scenario in SCENARIOS for row in searched(scenario.name)[0].rows}
    assert set(ROWS) <= taken


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_every_guard_is_needed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each guard of the protocols, removed once: the search finds it."""
    mutant.patch(monkeypatch)
    with pytest.raises(Found):
        Search(mutant.scenario).run()
