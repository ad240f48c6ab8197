"""What a witness counts for each move: its own groups, what was read, and no more results than are worth the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.checkers.cluster import Cluster, Row
from tests.checkers.feed import record
from trimtab import frames
from trimtab.conditions import place, to_json
from trimtab.evidence import NOTHING, Evidence
from trimtab.moves import Way
from worker import witness
from worker.spec import ConditionSpec

AT = 100


def rows(count: int, key: int = 0) -> list[Row]:
    return [(key, AT, number) for number in range(count)]


def opened(tmp_path: Path, groups: Sequence[Sequence[int]] = ((0,),), **changes: Any) -> Cluster:
    """Worker 0 has groups 0 and 2 of four; one move of it for each of these."""
    cluster = Cluster(tmp_path, "AB", 20, 4, ("(A B)", "(A B)"))
    cluster.spec = replace(cluster.spec, **changes)
    moves = [cluster.move(f"m{number}.w1", "transfer", each, 0, 1) for number, each in enumerate(groups)]
    cluster.publish(moves)
    return cluster


def evidence(cluster: Cluster, move: str = "m0.w1") -> Evidence:
    return cluster.report(move, 0).evidence


def test_each_move_has_the_keys_and_rows_of_its_own_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[witness.Key] = []
    original = witness.expected_results

    def noting(state: Any, leaves: Any, keys: Sequence[witness.Key]) -> Any:
        looked_at.extend(keys)
        return original(state, leaves, keys)

    monkeypatch.setattr(witness, "expected_results", noting)
    cluster = opened(tmp_path, [(2,), (0,)])
    cluster.step({"A": rows(2), "B": rows(3)}, AT - 10)
    idle, busy = evidence(cluster, "m0.w1"), evidence(cluster, "m1.w1")
    assert (busy.sampled_keys, busy.sampled_made.rows, busy.joined_by_group) == (1, 6, {0: 5})
    assert (idle.sampled_keys, idle.sampled_made, idle.joined_by_group) == (0, NOTHING, {})
    assert {key.group for key in looked_at} == {0}, "places that stay empty are no keys"


def test_a_key_with_too_many_combinations_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed naively they would hold up the batch."""
    monkeypatch.setattr(witness, "COMBINATIONS_MAX", 12)
    for count, keys in ((4, 1), (5, 0)):
        cluster = opened(tmp_path / str(count))
        cluster.step({"A": rows(3), "B": rows(count)}, AT - 10)
        assert (evidence(cluster).sampled_keys, evidence(cluster).joined.rows) == (keys, 3 + count)


@pytest.mark.parametrize(
    ("where", "results"), [(["A.id <= B.id"], 3), (["A.id > B.id + 5", "A.id < B.id"], 0)], ids=["some", "none"]
)
def test_results_meet_the_conditions(tmp_path: Path, where: list[str], results: int) -> None:
    columns = {"key": "bigint", "at": "timestamp", "id": "bigint"}
    placed = place(where, {"A": columns, "B": columns}, ansi=True).in_join
    made = tuple(ConditionSpec(each.streams, tuple(sorted(each.columns)), to_json(each.tree)) for each in placed)
    cluster = opened(tmp_path, conditions=made)
    cluster.step({"A": rows(2), "B": rows(2)}, AT - 10)
    found = evidence(cluster)
    assert (found.sampled_keys, found.sampled_expected.rows) == (1, results)
    assert found.sampled_made == found.sampled_expected


def test_rows_that_are_lost_while_they_wait_are_not_counted_as_waiting(tmp_path: Path) -> None:
    """What counts is what the batch that takes them up has read, not what the record says about them."""
    cluster = opened(tmp_path)
    cluster.checking = False
    for _ in range(3):
        cluster.step({"A": rows(4)}, AT - 10)
    cluster.go_way("m0.w1", Way.RECALLED)
    cluster.step({}, AT - 10)
    cluster.go_way("m0.w1", Way.JOINED)
    assert evidence(cluster).waiting_after.rows == 8
    kept = cluster.durable[0].rows_kept
    for batch, number in record(cluster, 0).roles[0].aside:
        stream, frame = kept[batch, number]
        half = frames.decode(pa.py_buffer(frame)).slice(0, 2)
        kept[batch, number] = (stream, frames.encode(half).to_pybytes())
    cluster.step({}, AT - 10)
    assert evidence(cluster).waiting_before.rows == 4
