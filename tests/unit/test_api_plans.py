"""Plans over HTTP: what is shown, what is asked for and followed to the end, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from balancing.replans.table import State
from tests.checkers.served import Served, cleared, contents, until
from tests.simulation.data_plane import DataPlane
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis
BASE = "/v1/queries/orders"
OLD = "((A B) C)"


@pytest.fixture
def plane(server: EmbeddedRedis) -> DataPlane:
    """Many rows of B and few of C: (A C) is the smaller state."""
    cleared(server.url)
    plane = DataPlane(server.url, streams="ABC", window=2)
    plane.rates |= {"B": 12}
    for _ in range(8):
        plane.step()
    return plane


@pytest.fixture
def served(server: EmbeddedRedis, plane: DataPlane) -> Iterator[Served]:
    with Served(server.url, manager=True) as running:
        until(lambda: plane.store.client.exists(redis_keys.planning("orders")) == 1, plane)
        yield running


def ended(client: httpx.Client, plane: DataPlane, answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 202, answer.text
    location = answer.headers["Location"]
    until(lambda: not client.get(location).json()["open"], plane)
    body: dict[str, Any] = client.get(location).json()
    return body


def test_what_each_worker_runs_and_what_would_be_better(served: Served, plane: DataPlane) -> None:
    body = served.client("read").get(f"{BASE}/plans").json()
    assert (body["streams"], body["auto"], len(body["workers"])) == (["A", "B", "C"], False, 3)
    worker = body["workers"][0]
    assert (worker["plan"], worker["ordered"], worker["migrating"], worker["replan"]) == (OLD, None, False, None)
    assert worker["cost"]["cpu"] > 0 and {"A B", "A"} <= {name for name, _ in worker["cost"]["states"]}
    best = worker["best"]
    assert best["now"] == OLD and best["saves"] > 0 and best["text"] == worker["text"]
    assert f"{best['plan']} instead of {OLD}" in worker["text"]


def test_a_replan_is_followed_to_its_end_and_told(served: Served, plane: DataPlane) -> None:
    client = served.client("operate")
    body = {"worker": 1, "plan": "(A C) B", "strategy": "ms", "budget": "50ms", "reason": "B is fast"}
    key = {"Idempotency-Key": "one"}
    answer = client.post(f"{BASE}/replans", json=body, headers=key)
    made = ended(client, plane, answer)
    assert (made["state"], made["former"], made["plan"], made["strategy"]) == ("committed", OLD, "((A C) B)", "ms")
    assert (made["progress"], made["budget_ms"], made["reason"]) == (1.0, 50, "B is fast")
    assert made["forecast"]["strategy"] == "ms" and made["note"]
    again = client.post(f"{BASE}/replans", json=body, headers=key)
    assert again.headers["Idempotency-Replayed"] == "true" and again.json()["id"] == made["id"]
    listed = client.get(f"{BASE}/replans").json()["replans"]
    assert [each["id"] for each in listed] == [made["id"]]
    worker = client.get(f"{BASE}/plans").json()["workers"][1]
    assert worker["ordered"] == "((A C) B)"
    history = client.get(f"{BASE}/history").json()["history"]
    assert [(each["kind"], each["id"]) for each in history] == [("replan", made["id"])]
    told = client.get(f"{BASE}/events", headers={"Accept": "application/json"}).json()["events"]
    events = [each for each in told if each["kind"] == "replan"]
    assert [each["data"]["state"] for each in events][-1] == "committed"
    audit = served.client("admin").get("/v1/audit").json()["entries"]
    assert any(each["path"] == f"{BASE}/replans" and "B is fast" in each["body"] for each in audit)
    assert plane.verdict() == (0, 0)


def test_to_what_the_optimiser_would_choose(served: Served, plane: DataPlane) -> None:
    client = served.client("operate")
    dry = client.post(f"{BASE}/replans", json={"worker": 0, "dry_run": True})
    assert dry.status_code == 200 and dry.json()["change"]["saves"] > 0
    assert plane.bound.number == 1 and client.get(f"{BASE}/replans").json()["replans"] == []
    made = ended(client, plane, client.post(f"{BASE}/replans", json={"worker": 0}))
    assert made["plan"] == dry.json()["plan"]
    assert client.get(f"{BASE}/plans").json()["workers"][0]["ordered"] == made["plan"]


def test_cancelled_on_the_way(served: Served, plane: DataPlane) -> None:
    client = served.client("operate")
    plane.plays_orders, plane.followers[2] = True, replace(plane.followers[2], stands=True)
    answer = client.post(f"{BASE}/replans", json={"worker": 2, "plan": "((A C) B)", "strategy": "hybmig"})
    location = answer.headers["Location"]
    until(lambda: client.get(location).json()["state"] == "migrating", plane)
    shown = client.get(location).json()
    assert (shown["done"], shown["total"], shown["waits_for"], shown["can_be_cancelled"]) == (0, 2, "B", True)
    assert 0 < shown["progress"] < 1
    again = client.post(f"{BASE}/replans", json={"worker": 2, "plan": "(A B C)"})
    assert again.status_code == 409 and "is in replan" in again.json()["detail"]
    assert client.delete(location, params={"reason": "too slow"}).status_code == 202
    until(lambda: client.get(location).json()["state"] == "cancelled", plane)
    assert "too slow" in client.get(location).json()["problem"]
    late = client.post(f"{location}/cancel", json={"reason": "too slow"})
    assert (late.status_code, late.json()["type"]) == (409, "urn:trimtab:problem:too-late")
    assert plane.followers[2].plan == OLD


def test_what_if(served: Served, plane: DataPlane) -> None:
    client = served.client("read")
    now = client.post(f"{BASE}/plans/what-if", json={"worker": 0}).json()
    assert now["chosen"]["cpu"] <= now["now"]["cpu"] and now["rates"]["B"] > now["rates"]["C"]
    other = client.post(f"{BASE}/plans/what-if", json={"worker": 0, "rates": {"B": 0.1, "C": 1000.0}}).json()
    assert other["rates"]["C"] == pytest.approx(1000.0)
    assert other["chosen"]["plan"] != now["chosen"]["plan"]
    none = client.post(f"{BASE}/plans/what-if", json={"worker": 0, "memory_bytes": 1.0}).json()
    assert none["answer"] == "none" and none["misses"][0]["limit"] == "memory"


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"worker": 9}, 422, "worker"),
        ({"worker": -1}, 422, "worker"),
        ({"worker": 0, "plan": "((A B) B)"}, 422, "plan"),
        ({"worker": 0, "plan": "(A B)"}, 422, "plan"),
        ({"worker": 0, "plan": "((A B) X)"}, 422, "plan"),
        ({"worker": 0, "plan": "((A B"}, 422, "plan"),
        ({"worker": 0, "plan": ""}, 422, "plan"),
        ({"worker": 0, "plan": "(C (B A))"}, 409, "plan"),
        ({"worker": 0, "plan": "(A B C)", "strategy": "pt"}, 422, "strategy"),
        ({"worker": 0, "plan": "(A B C)", "budget": "0ms"}, 422, "budget"),
        ({"worker": 0, "plan": "(A B C)", "budget": -5}, 422, "budget"),
        ({"worker": 0, "plan": "(A B C)", "expected_epoch": 7}, 409, "expected_epoch"),
        ({"worker": 1, "plan": "(A B C)"}, 409, "worker"),
        ({"worker": 2, "plan": "(A B C)"}, 409, "worker"),
        ({}, 422, "worker"),
    ],
)
def test_bad_input_changes_nothing(
    server: EmbeddedRedis, plane: DataPlane, body: dict[str, Any], status: int, field: str
) -> None:
    with Served(server.url) as served:
        client = served.client("operate")
        client.put(f"{BASE}/rules", json={"plans": [1]}).raise_for_status()
        _take_reports_of_an_older_version(plane, 2)
        before = contents(plane)
        answer = client.post(f"{BASE}/replans", json=body)
        assert (answer.status_code, answer.json()["field"]) == (status, field), answer.text
        assert answer.json()["remedy"]
        assert contents(plane) == before


def _take_reports_of_an_older_version(plane: DataPlane, worker: int) -> None:
    key = redis_keys.latest_reports(plane.query)
    body = json.loads(str(plane.store.client.hget(key, str(worker))))
    del body["order"]
    plane.store.client.hset(key, str(worker), json.dumps(body))


def test_nothing_is_known_yet(server: EmbeddedRedis, plane: DataPlane) -> None:
    with Served(server.url) as served:
        client = served.client("operate")
        assert client.get(f"{BASE}/plans").json()["workers"][0]["cost"] is None
        assert client.post(f"{BASE}/replans", json={"worker": 0}).status_code == 503
        assert client.post(f"{BASE}/plans/what-if", json={"worker": 0}).status_code == 503
        named = client.post(f"{BASE}/replans", json={"worker": 0, "plan": "(A B C)"})
        assert (named.status_code, named.json()["strategy"], named.json()["state"]) == (202, "ms", State.REQUESTED)
        assert client.get(f"{BASE}/replans/nobody").status_code == 404
        assert client.delete(f"{BASE}/replans/nobody").status_code == 404
        bad = client.post(f"{BASE}/plans/what-if", json={"worker": 0, "rates": {"X": 1}})
        assert (bad.status_code, bad.json()["field"]) == (422, "rates.X")
        zero = client.post(f"{BASE}/plans/what-if", json={"worker": 0, "memory_bytes": 0})
        assert (zero.status_code, zero.json()["field"]) == (422, "memory_bytes")


def test_both_plans_need_memory(served: Served, plane: DataPlane) -> None:
    client = served.client("operate")
    client.put(f"{BASE}/auto", json={"plan_memory_bytes": 100, "plan_budget": "20ms"}).raise_for_status()
    answer = client.post(f"{BASE}/replans", json={"worker": 0, "plan": "((A C) B)"})
    assert (answer.status_code, answer.json()["field"]) == (409, "plan")
    assert "100 are allowed" in answer.json()["detail"]
