"""What would be moved if: a budget, workers left out, a shorter pause. Nothing is moved by asking."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from api.gate import GateSettings
from api.limits import SPARING_WAIT_MAX, RequestRates, Sparing
from api.problems import Problem
from tests.checkers.clock import ManualClock
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


def test_a_budget_without_limit_is_more_than_the_balancers_own(served: Served) -> None:
    client = served.client("operate")
    auto = "/v1/queries/orders/auto"
    client.put(auto, json={"max_moved_bytes": 1}).raise_for_status()
    try:
        assert client.post(PATH, json={}).json()["moves"] == []
        assert client.post(PATH, json={"max_moved_bytes": 2**53 - 1}).json()["moves"] != []
    finally:
        client.put(auto, json={}).raise_for_status()


def test_a_read_key_may_ask_and_changes_nothing(served: Served, plane: DataPlane) -> None:
    reader = served.client("read")
    audited = served.client("admin").get("/v1/audit?limit=1000").json()["entries"]
    before = contents(plane)
    made = reader.post(PATH, json={"policy": "drain", "worker": 1, "reason": "what if"})
    assert made.status_code == 201 and made.json()["moves"]
    assert {name.split(":")[2] for name in set(contents(plane)) - set(before)} <= {"proposal", "proposals"}
    assert served.client("admin").get("/v1/audit?limit=1000").json()["entries"] == audited
    # To carry it out is another thing.
    refused = reader.post("/v1/queries/orders/rebalances", json={"proposal": made.json()["id"]})
    assert (refused.status_code, refused.json()["field"]) == (403, "scope")


def test_a_repeated_question_has_the_same_answer_and_nothing_is_kept_for_it(served: Served, plane: DataPlane) -> None:
    reader, headers = served.client("read"), {"Idempotency-Key": "again"}
    names = set(plane.store.client.keys("trimtab:api:*"))
    first = reader.post(PATH, json={}, headers=headers).json()
    assert reader.post(PATH, json={}, headers=headers).json()["id"] == first["id"]
    assert reader.post(PATH, json={"policy": "pairwise"}, headers=headers).json()["id"] != first["id"]
    assert set(plane.store.client.keys("trimtab:api:*")) == names


def test_questions_are_limited_more_than_anything_else(plane: DataPlane, server: EmbeddedRedis) -> None:
    clock = ManualClock()
    rates = RequestRates(questions_per_s=0.5, questions_at_once=3)
    with Served(server.url, gate=GateSettings(rates=rates), clock=clock) as running:
        reader, other = running.client("read"), running.client("read")
        assert [reader.post(PATH, json={}).status_code for _ in range(4)] == [201, 201, 201, 429]
        assert reader.get(PATH).status_code == 200
        assert other.post(PATH, json={}).status_code == 201
        clock.now_s += 2.0
        assert [reader.post(PATH, json={}).status_code for _ in range(2)] == [201, 429]


def test_one_at_a_time_and_a_rest_after_each() -> None:
    async def ask() -> None:
        clock = ManualClock()
        sparing = Sparing(0.25, clock)
        order = []

        async def one(name: str, spent_s: float) -> None:
            async with sparing.turn():
                order.append(name)
                await asyncio.sleep(0)
                assert order[-1] == name
                clock.now_s += spent_s

        await asyncio.gather(one("a", 0.001), one("b", 0.001), one("c", 10.0))
        assert order == ["a", "b", "c"]
        with pytest.raises(Problem) as refused:
            await one("d", 0.0)
        assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "30")
        clock.now_s += 30.0
        answers = await asyncio.gather(*(one(str(number), 0.0) for number in range(7)), return_exceptions=True)
        assert [getattr(each, "status", 200) for each in answers] == [200] * (1 + SPARING_WAIT_MAX) + [429] * 2

    asyncio.run(ask())


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
