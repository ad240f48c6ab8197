"""Policies: what they move, what they leave alone, and that nothing goes round in circles."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from balancing.load import Snapshot
from balancing.policies import POLICIES, Drain, Fill, Level, Pairwise, Policy, SuggestedMove, policy_named
from balancing.policies.policy import BUDGET_LIMITS, GROUP_EXCEEDS_MEAN, MOVING_ALREADY, NO_RECEIVER, PINNED_STAY
from balancing.settings import Settings, parse_settings
from balancing.words import BALANCERS, POLICY_NAMES
from tests.unit.balancing_snapshots import after, snapshot
from trimtab.errors import InvalidInput

SETTINGS = Settings()


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    workers = draw(st.integers(2, 6))
    executors = [f"e{draw(st.integers(0, 2))}" for _ in range(workers)]
    groups = draw(st.integers(1, 24))
    owners = draw(st.lists(st.integers(0, workers - 1), min_size=groups, max_size=groups))
    loads = draw(st.lists(st.integers(0, 1000), min_size=groups, max_size=groups))
    sizes = draw(st.lists(st.integers(0, 5000), min_size=groups, max_size=groups))
    everyone, every_group = range(workers), range(groups)
    return snapshot(
        owners,
        loads,
        executors,
        down=draw(st.lists(st.sampled_from(everyone), max_size=1)),
        excluded=frozenset(draw(st.lists(st.sampled_from(everyone), max_size=1))),
        pinned=frozenset(draw(st.lists(st.sampled_from(every_group), max_size=3))),
        moving=draw(st.dictionaries(st.sampled_from(every_group), st.sampled_from(everyone), max_size=2)),
        group_bytes=tuple(map(float, sizes)),
        fixed_cpu_ns_per_s=float(draw(st.integers(0, 50))),
        slots={name: draw(st.integers(1, 3)) for name in set(executors)},
    )


def participants(seen: Snapshot, loads: dict[str, float]) -> list[float]:
    names = {seen.executor_of(worker) for worker in range(len(seen.workers)) if seen.takes_part(worker)}
    return [loads[name] for name in names]


@hypothesis_settings(deadline=None)
@given(snapshots(), st.sampled_from([Level(), Pairwise()]))
def test_balancers_only_lower_the_largest_load_and_honour_pins_excludes_and_moves(
    seen: Snapshot, policy: Policy
) -> None:
    suggestion = policy.suggest(seen, SETTINGS)
    before = participants(seen, seen.executor_loads("cpu"))
    later = participants(seen, after(seen, suggestion.moves))
    assert max(later, default=0) <= max(before, default=0) + 1e-6
    assert all(seen.takes_part(move.sender) for move in suggestion.moves)
    assert suggestion == policy.suggest(seen, SETTINGS)


@hypothesis_settings(deadline=None)
@given(snapshots(), st.integers(1, 20_000))
def test_level_keeps_to_its_budget(seen: Snapshot, budget: int) -> None:
    moves = Level().suggest(seen, Settings(max_moved_bytes=budget)).moves
    assert sum(seen.group_bytes[group] for move in moves for group in move.groups) <= budget
    after(seen, moves)


@hypothesis_settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 100), min_size=2, max_size=8),
    st.data(),
)
def test_level_comes_near_the_best_placement_there_is(loads: list[int], data: st.DataObject) -> None:
    owners = data.draw(st.lists(st.integers(0, 1), min_size=len(loads), max_size=len(loads)))
    seen = snapshot(owners, loads, ["a", "b"])
    best = min(
        max(sum(load for load, at in zip(loads, where, strict=True) if at == side) for side in (0, 1))
        for where in itertools.product((0, 1), repeat=len(loads))
    )
    found = max(after(seen, Level().suggest(seen, SETTINGS).moves).values())
    # Not a proven bound: of 4,000 random cases like these the worst was at 1.10 of the best, nine in ten at 1.00.
    assert found <= best * 4 / 3 + 1e-6


@hypothesis_settings(deadline=None)
@given(snapshots())
def test_level_has_nothing_more_to_do_after_its_own_moves(seen: Snapshot) -> None:
    """No circles: acting again and again comes to rest."""
    assume(not seen.moving)
    for _ in range(8):
        moves = Level().suggest(seen, SETTINGS).moves
        if not moves:
            return
        owners = seen.placed()
        for move in moves:
            owners[list(move.groups)] = move.receiver
        seen = replace(seen, owners=tuple(owners.tolist()))
    raise AssertionError("still moving after eight rounds")


def test_three_quarters_on_one_of_two_executors_become_halves() -> None:
    loads = [75 / 16] * 16 + [25 / 16] * 16
    seen = snapshot([0] * 8 + [1] * 8 + [2] * 8 + [3] * 8, loads, ["a", "a", "b", "b"])
    assert seen.executor_loads("cpu") == {"a": 75.0, "b": 25.0}
    later = after(seen, Level().suggest(seen, SETTINGS).moves)
    assert max(later.values()) <= 50 * 1.05


def test_level_moves_the_groups_that_relieve_most_for_a_byte() -> None:
    seen = snapshot([0, 0, 0, 1], [10, 10, 20, 20], ["a", "b"], group_bytes=(9000.0, 10.0, 1.0, 1.0))
    assert Level().suggest(seen, SETTINGS).moves == (SuggestedMove(sender=0, receiver=1, groups=(1,)),)


def test_a_group_that_alone_exceeds_the_mean_is_reported_and_stays() -> None:
    seen = snapshot([0, 1, 1], [90, 5, 5], ["a", "b"])
    for policy in (Level(), Pairwise()):
        suggestion = policy.suggest(seen, SETTINGS)
        assert suggestion.moves == ()
        assert [(each.kind, each.group) for each in suggestion.findings] == [(GROUP_EXCEEDS_MEAN, 0)]


def test_the_company_of_such_a_group_leaves_it() -> None:
    seen = snapshot([0, 0, 0, 1], [60, 10, 10, 10], ["a", "b"])
    assert Level().suggest(seen, SETTINGS).moves == (SuggestedMove(sender=0, receiver=1, groups=(1, 2)),)


def test_a_worker_that_straggles_inside_its_executor_is_relieved_if_slots_are_free() -> None:
    owners, loads, executors = [0, 0, 0, 0, 2, 3], [10, 10, 10, 10, 20, 20], ["a", "a", "b", "b"]
    assert Level().suggest(snapshot(owners, loads, executors, slots={"a": 1, "b": 1}), SETTINGS).moves == ()
    (move,) = Level().suggest(snapshot(owners, loads, executors, slots={"a": 2, "b": 2}), SETTINGS).moves
    assert (move.sender, move.receiver, len(move.groups)) == (0, 1, 2)


def test_level_says_that_the_budget_limits_it() -> None:
    seen = snapshot([0] * 10 + [1], [10] * 11, ["a", "b"])
    suggestion = Level().suggest(seen, Settings(max_moved_bytes=2000))
    assert sum(len(move.groups) for move in suggestion.moves) == 2
    assert BUDGET_LIMITS in [each.kind for each in suggestion.findings]
    assert BUDGET_LIMITS not in [each.kind for each in Level().suggest(seen, SETTINGS).findings]


def test_pairwise_moves_half_the_difference_from_the_largest_to_the_least() -> None:
    """PTLB/MSLB section 3.2: the highest consumption sends, the least receives, the manager computes the amount."""
    seen = snapshot([0] * 6 + [1] * 3 + [2], [10] * 10, ["a", "b", "c"])
    (move,) = Pairwise().suggest(seen, SETTINGS).moves
    assert (move.sender, move.receiver) == (0, 2)
    assert len(move.groups) in (2, 3)


def test_pairwise_needs_two_executors() -> None:
    suggestion = Pairwise().suggest(snapshot([0, 0], [10, 10], ["a", "a"]), SETTINGS)
    assert suggestion.moves == () and suggestion.findings[0].kind == NO_RECEIVER


def test_balancing_by_bytes_or_rows_looks_at_those() -> None:
    seen = snapshot([0, 0, 1, 1], [10, 10, 10, 10], ["a", "b"], group_bytes=(500.0, 500.0, 1.0, 1.0))
    assert Level().suggest(seen, SETTINGS).moves == ()
    assert len(Level().suggest(seen, Settings(measure="bytes")).moves) == 1


@hypothesis_settings(deadline=None)
@given(snapshots(), st.integers(0, 5))
def test_drain_empties_a_worker_but_for_what_must_stay(seen: Snapshot, worker: int) -> None:
    assume(worker < len(seen.workers) and seen.workers[worker].alive)
    assume(any(seen.takes_part(other) for other in range(len(seen.workers)) if other != worker))
    suggestion = Drain(worker).suggest(seen, SETTINGS)
    after(seen, suggestion.moves)
    left = set(np.flatnonzero(seen.placed() == worker).tolist())
    left -= {group for move in suggestion.moves for group in move.groups}
    assert all(move.sender == worker for move in suggestion.moves)
    assert all(not seen.movable(group) for group in left)
    kinds = {each.kind for each in suggestion.findings}
    assert bool(left) == bool(kinds & {PINNED_STAY, MOVING_ALREADY})


def test_drained_groups_are_dealt_out_evenly_even_before_any_load_is_known() -> None:
    seen = snapshot([0] * 9, [0] * 9, ["a", "b", "c", "d"])
    assert sorted(len(move.groups) for move in Drain(0).suggest(seen, SETTINGS).moves) == [3, 3, 3]


def test_an_excluded_worker_can_be_drained_but_not_filled() -> None:
    seen = snapshot([0, 0, 1], [10, 10, 10], ["a", "b"], excluded=frozenset({0}))
    assert Drain(0).suggest(seen, SETTINGS).moves == (SuggestedMove(sender=0, receiver=1, groups=(0, 1)),)
    with pytest.raises(InvalidInput, match="excluded"):
        Fill(0).suggest(seen, SETTINGS)


def test_drain_with_nobody_to_take_the_groups() -> None:
    with pytest.raises(InvalidInput, match="nowhere"):
        Drain(0).suggest(snapshot([0, 1], [1, 1], ["a", "b"], down=[1]), SETTINGS)
    empty = snapshot([1, 1], [1, 1], ["a", "b"], down=[1])
    assert Drain(0).suggest(empty, SETTINGS).moves == (), "who has nothing to give needs nobody"


@pytest.mark.parametrize("policy", [Drain(7), Fill(7), Fill(1), Drain(1)])
def test_unknown_workers_and_workers_that_are_down(policy: Policy) -> None:
    with pytest.raises(InvalidInput, match="worker"):
        policy.suggest(snapshot([0, 0], [1, 1], ["a", "b", "c"], down=[1]), SETTINGS)


@hypothesis_settings(deadline=None)
@given(snapshots(), st.integers(0, 5), st.one_of(st.none(), st.integers(1, 20_000)))
def test_fill_only_brings_groups_to_the_worker(seen: Snapshot, worker: int, budget: int | None) -> None:
    assume(worker < len(seen.workers) and seen.takes_part(worker))
    suggestion = Fill(worker).suggest(seen, Settings(max_moved_bytes=budget))
    after(seen, suggestion.moves)
    assert all(move.receiver == worker and seen.takes_part(move.sender) for move in suggestion.moves)
    if budget is not None:
        assert sum(seen.group_bytes[group] for move in suggestion.moves for group in move.groups) <= budget


def test_fill_brings_an_idle_worker_to_the_mean() -> None:
    seen = snapshot([0] * 6 + [1] * 6, [10] * 12, ["a", "b", "c"])
    later = after(seen, Fill(2).suggest(seen, SETTINGS).moves)
    assert later == {"a": 40.0, "b": 40.0, "c": 40.0}


def test_fill_takes_from_the_same_executor_where_that_has_its_share() -> None:
    seen = snapshot([0] * 6 + [2] * 4, [10] * 10, ["a", "a", "b"])
    moves = Fill(1).suggest(seen, SETTINGS).moves
    assert {move.sender for move in moves} == {0}


def test_fill_without_load_says_so() -> None:
    suggestion = Fill(1).suggest(snapshot([0], [0], ["a", "b"]), SETTINGS)
    assert suggestion.moves == () and "No load" in suggestion.findings[0].text


def test_every_policy_is_registered_under_its_own_name() -> None:
    assert tuple(POLICIES) == POLICY_NAMES
    assert tuple(name for name, entry in POLICIES.items() if entry.make is not None) == BALANCERS
    for name, entry in POLICIES.items():
        policy = policy_named(name, None if entry.make_for is None else 3)
        assert policy.name == name
        assert getattr(policy, "worker", None) == (None if entry.make_for is None else 3)


@pytest.mark.parametrize(
    ("name", "worker", "field", "problem"),
    [
        ("leveling", None, "policy", "is not a policy. Use one of level, pairwise, drain, fill."),
        ("", 1, "policy", "is not a policy"),
        ("drain", None, "worker", "is missing for the policy drain"),
        ("level", 1, "worker", "cannot be combined with the policy level"),
    ],
)
def test_an_unknown_policy_is_an_error_and_not_another_policy(
    name: str, worker: int | None, field: str, problem: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        policy_named(name, worker)
    assert refused.value.field == field and problem in str(refused.value)


@pytest.mark.parametrize("name", ["drain", "fill", "leveling"])
def test_only_balancers_may_act_on_their_own(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not a policy. Use one of level, pairwise\."):
        parse_settings({"policy": name})
