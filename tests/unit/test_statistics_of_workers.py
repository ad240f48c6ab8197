"""What a worker counts for the optimiser: the steps of its plan, and live rows of a sample of keys."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plans.statistics import from_key_counts
from tests.checkers.cluster import Cluster, Row
from tests.checkers.plan_changes import Rule, conditions_of, order
from trimtab.plan_orders import KeySample, StepCount
from worker import sampling
from worker.sampling import sizes_of

MIX = 0x9E3779B97F4A7C15


def cluster_of(directory: Path, plan: str, window: int = 1000, names: str = "ABC") -> Cluster:
    cluster = Cluster(directory, names, window, 4, (plan,))
    cluster.checking = False
    return cluster


def rows_of(luck: random.Random, count: int, keys: int, at: tuple[int, int] = (1, 500)) -> list[Row]:
    return [(luck.randrange(keys), luck.randint(*at), number) for number in range(count)]


def expected(cluster: Cluster, one_in: int) -> dict[str, Counter[int]]:
    """Live rows by key, of keys whose hash begins with enough zero bits."""
    found = {}
    for name, rows in cluster.on_time.items():
        live = (key for key, at, _ in rows if at >= cluster.watermark - cluster.spec.window_us)
        found[name] = Counter(key for key in live if key * MIX % 2**64 < 2**64 // one_in)
    return found


def check(sample: KeySample | None, cluster: Cluster, one_in: int) -> None:
    assert sample is not None and sample.one_in == one_in
    wanted = expected(cluster, one_in)
    keys = sorted(set().union(*wanted.values()))
    assert sample.counts == {name: tuple(wanted[name][key] for key in keys) for name in cluster.names}


@pytest.mark.parametrize(("keys", "one_in"), [(3, 1), (200, 1), (600, 4), (3000, 64), (9000, 64), (40_000, 256)])
def test_every_stream_counts_the_same_keys(tmp_path: Path, keys: int, one_in: int) -> None:
    luck = random.Random(keys)
    cluster = cluster_of(tmp_path, "(A B C)", window=200)
    rows = {"A": rows_of(luck, 8000, keys), "B": rows_of(luck, 30, keys), "C": list[Row]()}
    if keys > 10_000:
        rows["A"] = [(key, 400, key) for key in range(keys)]
    cluster.step(rows, 0)
    check(cluster.last[0].keys, cluster, one_in)
    for batch in range(1, sampling.EVERY + 1):
        cluster.step({"A": rows_of(luck, 5, keys, (480, 500)), "B": [], "C": []}, 50 * batch)
    check(cluster.last[0].keys, cluster, one_in)
    assert cluster.watermark == 400, "half of the rows have expired"


def test_samples_are_taken_every_few_batches_and_by_workers_in_turn(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "AB", 10, 4, ("(A B)",) * 2)
    cluster.checking = False
    taken = []
    for _ in range(2 * sampling.EVERY):
        cluster.step({"A": [(1, 5, 1)], "B": []}, 0)
        taken.append([outcome.keys is not None for outcome in cluster.last])
    assert [sum(each) for each in zip(*taken, strict=True)] == [2, 2]
    assert taken[0] == [True, False] and taken[sampling.EVERY - 1] == [False, True]


def test_many_rows_of_few_keys_are_counted_at_equal_distances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ROWS_MAX", 1000)
    luck = random.Random(5)
    cluster = cluster_of(tmp_path, "(A B C)")
    cluster.step({"A": rows_of(luck, 20_000, 4), "B": rows_of(luck, 500, 4), "C": []}, 0)
    sample = cluster.last[0].keys
    assert sample is not None and sample.one_in == 1
    assert sum(sample.counts["A"]) == 20_000 and sum(sample.counts["B"]) == 500
    assert all(4000 < count < 6000 for count in sample.counts["A"])


def test_a_sample_of_frozen_groups_has_what_they_keep(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "AB", 10, 4, ("(A B)",) * 2)
    cluster.checking = False
    cluster.publish([cluster.move("m.0", "transfer", [0], 0, 1)])
    cluster.step({"A": [(0, 50, 1), (2, 50, 2)], "B": []}, 45)
    for watermark in (50, 90, 100, 100, *[100] * (sampling.EVERY - 4)):
        cluster.step({"A": [], "B": []}, watermark)
    sample = cluster.last[0].keys
    assert sample is not None and sample.counts == {"A": (1,), "B": (0,)}


def test_sizes_are_those_that_the_cost_model_has() -> None:
    sample = KeySample(one_in=64, counts={"A": (2, 50, 0), "B": (3, 50, 7), "C": (0, 1, 5)})
    model = from_key_counts(sample.counts, window_s=1.0, one_in=sample.one_in)
    wanted = [frozenset("AB"), frozenset("BC"), frozenset("ABC")]
    assert sizes_of(sample, wanted) == {streams: round(model.size_of(streams)) for streams in wanted}


def test_steps_are_counted_in_the_order_in_which_they_are_taken(tmp_path: Path) -> None:
    """A: 2 rows of one key, at 100 and at 300; B: one; C: 3, one of which is too far away."""
    rules = [Rule("A", "B"), Rule("A", "C")]
    cluster = cluster_of(tmp_path, "((A B) C)", window=150)
    cluster.spec = replace(cluster.spec, conditions=conditions_of(rules, "ABC"))
    cluster.step({"A": [(1, 100, 1), (1, 300, 4)], "B": [(1, 200, 0)], "C": []}, 0)
    cluster.step({"A": [], "B": [], "C": [(1, 210, 1), (1, 220, 2), (1, 600, 1)]}, 0)
    cluster.step({"A": [(1, 230, 1), (2, 230, 2)], "B": [], "C": []}, 0)
    assert cluster.last[0].steps == [
        StepCount(stream="A", other=("B",), tuples=2, candidates=1, matched=1, passed=(1,)),
        StepCount(stream="A", other=("C",), tuples=1, candidates=3, matched=2, passed=(1,)),
    ]
    cluster.step({"A": [], "B": [], "C": [(1, 240, 2)]}, 0)
    assert cluster.last[0].steps == [
        StepCount(stream="C", other=("A", "B"), tuples=1, candidates=3, matched=3, passed=(0,))
    ]


def test_the_smallest_state_is_probed_first(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, "(A B C)")
    cluster.step({"A": [], "B": [(1, 1, n) for n in range(9)], "C": [(1, 1, n) for n in range(3)]}, 0)
    cluster.step({"A": [(1, 1, 1)], "B": [], "C": []}, 0)
    assert [(step.other, step.matched) for step in cluster.last[0].steps] == [(("C",), 3), (("B",), 27)]


@pytest.mark.parametrize("strategy", ["ms", "hybmig"])
def test_steps_of_the_plan_that_runs_are_counted_while_it_changes(tmp_path: Path, strategy: str) -> None:
    cluster = cluster_of(tmp_path, "((A B) C)")
    rows = {name: [(1, 5, number) for number in range(4)] for name in "ABC"}
    cluster.step(rows, 0)
    cluster.publish([], plans=[order(cluster, "r.1", 0, "(A (B C))", strategy)])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PAIRS_FIRST", "PAIRS_MIN", "PAIRS_MAX"):
            patch.setattr("worker.background." + name, 2)
        cluster.step({name: [] for name in "ABC"}, 0)
        cluster.step(rows, 0)
    steps = {(step.stream, step.other): step.tuples for step in cluster.last[0].steps}
    assert list(steps) == [("A", ("B",)), ("A", ("C",)), ("B", ("A",)), ("B", ("C",)), ("C", ("A", "B"))]
    assert steps["C", ("A", "B")] == (4 if strategy == "ms" else 0), "new rows of C satisfy no entry of B and C"
    assert np.all([steps["A", ("B",)] == 4, steps["B", ("A",)] == 4])
