"""What would be moved if: a budget, workers left out, a shorter pause. Nothing is moved by asking."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.checkers.served import Served, contents, measured
from tests.simulation.data_plane import DataPlane
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis
PATH = "/v1/queries/orders/proposals"


@pytest.fixture(scope="module")
def plane(server: EmbeddedRedis) -> DataPlane:
    plane = DataPlane(server.url, weights=(9, 1, 1, 6, 1, 1, 4, 2, 1), partitions=9, executors=3)
    for _ in range(8):
        plane.step()
    measured(server.url)
    return plane


@pytest.fixture(scope="module")
def served(plane: DataPlane, server: EmbeddedRedis) -> Iterator[Served]:
    with Served(server.url) as running:
        yield running


def test_shares_before_and_after(served: Served) -> None:
    body = served.client("operate").post(PATH, json={}).json()
    assert [each["worker"] for each in body["workers"]] == [0, 1, 2]
    for moment in ("before", "after"):
        assert sum(each[moment] for each in body["workers"]) == pytest.approx(1.0, abs=0.001)
    largest = {moment: max(each[moment] for each in body["workers"]) for moment in ("before", "after")}
    assert largest["after"] < largest["before"]
    again = served.client("read").get(f"{PATH}/{body['id']}").json()
    assert again["workers"] == body["workers"], "a proposal can be sent to a colleague"


def test_workers_that_are_left_out(served: Served, plane: DataPlane) -> None:
    client = served.client("operate")
    moves = client.post(PATH, json={}).json()["moves"]
    receivers = {move["receiver"] for move in moves}
    left_out = min(receivers)
    without = client.post(PATH, json={"excluded": [left_out]}).json()
    concerned = {worker for move in without["moves"] for worker in (move["sender"], move["receiver"])}
    assert left_out not in concerned
    unchanged = next(each for each in without["workers"] if each["worker"] == left_out)
    assert unchanged["before"] == pytest.approx(unchanged["after"], abs=0.001)
    assert client.get("/v1/queries/orders/rules").json()["excluded"] == []
    # It is not stale because of what was asked for.
    assert without["stale"] == []


def test_a_budget(served: Served) -> None:
    client = served.client("operate")
    whole = client.post(PATH, json={}).json()
    tight = client.post(PATH, json={"max_moved_bytes": max(1, whole["forecast"]["bytes"] // 2)}).json()
    assert tight["forecast"]["bytes"] <= whole["forecast"]["bytes"] // 2
    assert client.post(PATH, json={"max_moved_bytes": 1}).json()["moves"] == []


def test_policy_strategy_and_pause_together(served: Served) -> None:
    body = {"policy": "pairwise", "strategy": "ptlb", "max_pause": "250ms", "excluded": [2], "max_moved_bytes": 10**9}
    answer = served.client("operate").post(PATH, json=body)
    assert answer.status_code == 201
    assert (answer.json()["policy"], answer.json()["strategy"]) == ("pairwise", "ptlb")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"excluded": [3]}, "excluded"),
        ({"excluded": [-1]}, "excluded.0"),
        ({"excluded": 3}, "excluded"),
        ({"max_moved_bytes": 0}, "max_moved_bytes"),
        ({"max_moved_bytes": "1"}, "max_moved_bytes"),
    ],
)
def test_what_makes_no_sense(served: Served, plane: DataPlane, body: dict[str, object], field: str) -> None:
    before = contents(plane)
    answer = served.client("operate").post(PATH, json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert contents(plane) == before
