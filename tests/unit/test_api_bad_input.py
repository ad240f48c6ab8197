"""Every mistake gets the right status and a problem document that names field, value and remedy; nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.checkers.served import Served, cleared, contents, measured
from tests.simulation.data_plane import DataPlane
from trimtab.embedded import EmbeddedRedis
from trimtab.moves import Kind, Move

pytestmark = pytest.mark.redis
BASE = "/v1/queries/orders"
MOVE = {"from": 0, "to": 1, "groups": [0]}


class ServedQuery:
    def __init__(self, plane: DataPlane, served: Served, operator: httpx.Client) -> None:
        self.plane = plane
        self.served = served
        self.operator = operator

    def refused(
        self,
        status: int,
        field: str,
        value: Any,
        *,
        body: Any = None,
        path: str = f"{BASE}/rebalances",
        method: str = "POST",
        client: httpx.Client | None = None,
        **request: Any,
    ) -> dict[str, Any]:
        """Ask, and check the refusal."""
        before = contents(self.plane)
        if body is not None:
            request["json"] = body
        answer = (client or self.operator).request(method, path, **request)
        document: dict[str, Any] = answer.json()
        assert (answer.status_code, document.get("field"), document.get("value")) == (status, field, value), document
        assert answer.headers["content-type"] == "application/problem+json"
        assert document["status"] == status
        assert document["type"].startswith("urn:trimtab:problem:")
        assert document["title"] and document["detail"] and document["remedy"]
        assert contents(self.plane) == before, "something changed"
        return document


@pytest.fixture(scope="module")
def served(server: EmbeddedRedis) -> Iterator[Served]:
    with Served(server.url) as running:
        yield running


@pytest.fixture(scope="module")
def operator(served: Served) -> httpx.Client:
    return served.client("operate")


@pytest.fixture
def world(server: EmbeddedRedis, served: Served, operator: httpx.Client) -> ServedQuery:
    cleared(server.url)
    plane = DataPlane(server.url, weights=(9, 1, 1, 6, 1, 1))
    for _ in range(8):
        plane.step()
    measured(server.url)
    return ServedQuery(plane, served, operator)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/workers"),
        ("GET", "/partitions"),
        ("GET", "/partitions/0"),
        ("GET", "/partitions/0/explain"),
        ("GET", "/explain"),
        ("GET", "/proposals"),
        ("GET", "/rebalances"),
        ("GET", "/migrations"),
        ("GET", "/history"),
        ("GET", "/events"),
        ("GET", "/auto"),
        ("GET", "/rules"),
        ("POST", "/proposals"),
        ("POST", "/rebalances"),
        ("PUT", "/auto"),
        ("PUT", "/rules"),
    ],
)
def test_an_unknown_query(world: ServedQuery, method: str, path: str) -> None:
    document = world.refused(404, "query", "nobody", method=method, path=f"/v1/queries/nobody{path}")
    assert "orders" in document["remedy"]


def test_a_query_name_that_is_none(world: ServedQuery) -> None:
    world.refused(422, "query", "a{b}", method="GET", path="/v1/queries/a%7Bb%7D/workers")


def test_an_unknown_worker(world: ServedQuery) -> None:
    assert "0 to 2" in world.refused(422, "from", 7, body={**MOVE, "from": 7})["remedy"]
    assert "0 to 2" in world.refused(422, "to", 7, body={**MOVE, "to": 7})["remedy"]
    for path in ("drain", "fill"):
        assert "0 to 2" in world.refused(422, "worker", 7, path=f"{BASE}/{path}", body={"worker": 7})["remedy"]
    world.refused(422, "worker", -1, path=f"{BASE}/drain", body={"worker": -1})
    world.refused(422, "worker", None, path=f"{BASE}/drain", body={})
    world.refused(422, "worker", 9, path=f"{BASE}/proposals", body={"policy": "drain", "worker": 9})
    world.refused(422, "worker", None, path=f"{BASE}/proposals", body={"policy": "fill"})
    world.refused(422, "worker", 1, path=f"{BASE}/proposals", body={"worker": 1})


def test_an_unknown_group(world: ServedQuery) -> None:
    assert "0 to 5" in world.refused(422, "groups", 64, body={**MOVE, "groups": [0, 64]})["remedy"]
    assert "0 to 5" in world.refused(404, "group", 64, method="GET", path=f"{BASE}/partitions/64")["remedy"]
    assert "0 to 5" in world.refused(404, "group", 64, method="GET", path=f"{BASE}/partitions/64/explain")["remedy"]
    world.refused(422, "group", "x", method="GET", path=f"{BASE}/partitions/x")
    world.refused(422, "groups", 0, body={**MOVE, "groups": [0, 0]})
    assert "worker 1" in world.refused(409, "groups", 1, body={**MOVE, "groups": [1]})["remedy"]


def test_an_unknown_strategy_policy_order_or_measure(world: ServedQuery) -> None:
    assert "ptlb" in world.refused(422, "strategy", "magic", body={**MOVE, "strategy": "magic"})["remedy"]
    world.refused(422, "strategy", "magic", path=f"{BASE}/proposals", body={"strategy": "magic"})
    document = world.refused(422, "policy", "magic", path=f"{BASE}/proposals", body={"policy": "magic"})
    assert document["detail"] == "policy is not known."
    assert all(name in document["remedy"] for name in ("level", "pairwise", "drain", "fill"))
    world.refused(422, "policy", "magic", body={"policy": "magic"})
    world.refused(422, "order", "random", body={**MOVE, "order": "random"})
    world.refused(422, "measure", "luck", body={"from": 0, "to": 1, "amount": "5%", "measure": "luck"})


def test_sender_is_receiver(world: ServedQuery) -> None:
    world.refused(422, "to", 0, body={"from": 0, "to": 0, "groups": [0]})


@pytest.mark.parametrize("amount", ["0%", "101%", "-5%", "much", 0, 1.5, True, "nan", "", [1]])
def test_an_amount_out_of_range(world: ServedQuery, amount: Any) -> None:
    document = world.refused(422, "amount", amount, body={"from": 0, "to": 1, "amount": amount})
    assert "25%" in document["remedy"]


@pytest.mark.parametrize("pause", ["soon", "-5ms", 0, "0s", "1 month", True, "61 minutes", 3_600_001, 1e12, "1e3ms"])
def test_a_pause_that_is_none(world: ServedQuery, pause: Any) -> None:
    document = world.refused(422, "max_pause", pause, body={**MOVE, "max_pause": pause})
    assert "500ms" in document["remedy"]
    world.refused(422, "max_pause", pause, path=f"{BASE}/proposals", body={"max_pause": pause})


@pytest.mark.parametrize("pause", ["500", 500, "500ms", "0.5 seconds"])
def test_a_pause_in_milliseconds(world: ServedQuery, pause: Any) -> None:
    answer = world.operator.put(f"{BASE}/auto", json={"max_pause": pause})
    assert (answer.status_code, answer.json()["max_pause"]) == (200, 500.0)


HUGE = 10**400


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "auto", {"max_moved_bytes": HUGE}),
        ("PUT", "auto", {"min_batches": -HUGE}),
        ("PUT", "auto", {"start_ratio": HUGE}),
        ("PUT", "auto", {"max_pause": HUGE}),
        ("PUT", "rules", {"pinned": [HUGE]}),
        ("POST", "rebalances", {"max_pause": HUGE, **MOVE}),
        ("POST", "rebalances", {"max_pause": f"{HUGE}ms", **MOVE}),
        ("POST", "rebalances", {"max_pause": f"{HUGE}", **MOVE}),
        ("POST", "rebalances", {"max_pause": 1e305, **MOVE}),
        ("POST", "proposals", {"max_pause": 1e305}),
        ("POST", "rebalances", {"amount": HUGE, "from": 0, "to": 1}),
        ("POST", "rebalances", {"amount": f"{HUGE}%", "from": 0, "to": 1}),
        ("POST", "rebalances", {"expected_epoch": HUGE, **MOVE}),
    ],
)
def test_a_number_larger_than_any_float(world: ServedQuery, method: str, path: str, body: dict[str, Any]) -> None:
    before = contents(world.plane)
    answer = world.operator.request(method, f"{BASE}/{path}", json=body)
    document = answer.json()
    assert (answer.status_code, document["field"]) == (422, next(iter(body)))
    assert document["value"] and len(str(document["value"])) <= 200 and document["remedy"]
    assert contents(world.plane) == before


def test_fields_that_cannot_be_combined(world: ServedQuery) -> None:
    world.refused(422, "to", None, body={"from": 0, "groups": [0]})
    world.refused(422, "from", None, body={"to": 0, "amount": "5%"})
    world.refused(422, "groups", None, body={"from": 0, "to": 1})
    world.refused(422, "amount", 0.5, body={**MOVE, "amount": "50%"})
    world.refused(422, "from", 0, body={**MOVE, "proposal": "p-1"})


def test_a_field_that_is_not_known_or_of_another_type(world: ServedQuery) -> None:
    world.refused(422, "max_paus", "5ms", body={**MOVE, "max_paus": "5ms"})
    world.refused(422, "from", "0", body={**MOVE, "from": "0"})
    world.refused(422, "from", True, body={**MOVE, "from": True})
    world.refused(422, "groups", [], body={**MOVE, "groups": []})
    world.refused(422, "reason", 5, body={"reason": 5})
    world.refused(422, "body", [1], body=[1])


def test_a_group_in_migration(world: ServedQuery) -> None:
    plane = world.plane
    move = Move(id="m-1.w1", kind=Kind.TRANSFER, groups=(0,), sender=0, receiver=1, epoch=2)
    plane.store.publish(plane.bound.successor(plane.owners, moves=(move,)))
    document = world.refused(409, "groups", 0, body=MOVE)
    assert "m-1" in document["detail"]
    assert "cancel" in document["remedy"]


def test_a_worker_that_is_down(world: ServedQuery) -> None:
    world.plane.silent = {1}
    for _ in range(4):
        world.plane.step()
    measured(world.served.redis_url)
    assert "is down" in world.refused(409, "to", 1, body=MOVE)["detail"]
    assert "is down" in world.refused(409, "from", 1, body={"from": 1, "to": 0, "groups": [1]})["detail"]
    for path in ("drain", "fill"):
        world.refused(409, "worker", 1, path=f"{BASE}/{path}", body={"worker": 1})


def test_a_query_that_has_stopped(world: ServedQuery) -> None:
    world.plane.store.client.hset("trimtab:{orders}:driver", "at_ms", 1)
    assert "not running" in world.refused(409, "query", "orders", body=MOVE)["detail"]
    world.refused(409, "query", "orders", path=f"{BASE}/proposals", body={})


def test_a_stale_plan(world: ServedQuery) -> None:
    """A plan is stale when a group it touches has changed since it was made; only then."""
    made = world.operator.post(f"{BASE}/proposals", json={})
    assert made.status_code == 201
    touched = made.json()["moves"][0]["groups"][0]
    plane = world.plane
    owners = list(plane.owners)
    owners[touched] = (owners[touched] + 1) % 3
    plane.store.publish(plane.bound.successor(owners))
    name = made.json()["id"]
    document = world.refused(409, "proposal", name, body={"proposal": name})
    assert document["type"] == "urn:trimtab:problem:stale"
    assert f"Group {touched}" in document["detail"]
    assert world.operator.get(f"{BASE}/proposals/{name}").json()["stale"]


def test_an_epoch_that_is_not_expected(world: ServedQuery) -> None:
    assert "which is 1" in world.refused(409, "expected_epoch", 5, body={**MOVE, "expected_epoch": 5})["detail"]
    for method, path in (("POST", "proposals"), ("PUT", "auto"), ("PUT", "rules")):
        world.refused(409, "expected_epoch", 5, method=method, path=f"{BASE}/{path}", body={"expected_epoch": 5})
    world.refused(409, "expected_epoch", 5, path=f"{BASE}/drain", body={"worker": 0, "expected_epoch": 5})


def test_a_record_that_is_not_there(world: ServedQuery) -> None:
    world.refused(404, "proposal", "p-0", body={"proposal": "p-0"})
    world.refused(404, "proposal", "p-0", method="GET", path=f"{BASE}/proposals/p-0")
    for kind in ("rebalance", "migration"):
        world.refused(404, kind, "x-0", method="GET", path=f"{BASE}/{kind}s/x-0")
        world.refused(404, kind, "x-0", path=f"{BASE}/{kind}s/x-0/cancel", body={})


def test_settings_out_of_range(world: ServedQuery) -> None:
    path = f"{BASE}/auto"
    world.refused(422, "start_ratio", 0.5, method="PUT", path=path, body={"start_ratio": 0.5})
    world.refused(422, "policy", "magic", method="PUT", path=path, body={"policy": "magic"})
    world.refused(422, "strategy", "magic", method="PUT", path=path, body={"strategy": "magic"})
    world.refused(422, "enabled", "yes", method="PUT", path=path, body={"enabled": "yes"})
    world.refused(422, "stop_ratio", 1.5, method="PUT", path=path, body={"stop_ratio": 1.5})
    world.refused(422, "ratio", 2.0, method="PUT", path=path, body={"ratio": 2.0})
    assert (
        "0 to 5" in world.refused(422, "pinned", 9, method="PUT", path=f"{BASE}/rules", body={"pinned": [9]})["remedy"]
    )
    world.refused(422, "excluded", 9, method="PUT", path=f"{BASE}/rules", body={"excluded": [9]})


def test_a_group_that_is_pinned(world: ServedQuery) -> None:
    assert world.operator.put(f"{BASE}/rules", json={"pinned": [0]}).status_code == 200
    assert "pinned" in world.refused(409, "groups", 0, body=MOVE)["detail"]


def test_nothing_to_do_is_said_so(world: ServedQuery) -> None:
    """All groups are pinned, so there is nothing that the balancer could move."""
    world.operator.put(f"{BASE}/rules", json={"pinned": [0, 1, 2, 3, 4, 5]})
    before = set(contents(world.plane))
    answer = world.operator.post(f"{BASE}/rebalances", json={})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:trimtab:problem:nothing-to-do")
    # The proposal that says so is kept for who wants to read it; nothing was asked of the manager.
    assert {name.split(":")[2] for name in set(contents(world.plane)) - before} <= {"proposal", "proposals"}


def test_bodies_that_are_none(world: ServedQuery) -> None:
    json_type = {"Content-Type": "application/json"}
    answer = world.operator.post(f"{BASE}/rebalances", content=b"{nope", headers=json_type)
    assert (answer.status_code, answer.json()["field"]) == (400, "body")
    world.refused(415, "Content-Type", "text/plain", content=b"{}", headers={"Content-Type": "text/plain"})
    world.refused(413, "Content-Length", str(65 * 1024 + 2), content=b'"' + b"x" * 65 * 1024 + b'"', headers=json_type)
    world.refused(422, "body", "depth 17", content=b"[" * 17 + b"]" * 17, headers=json_type)
    deep = b"[" * 30_000
    world.refused(422, "body", "depth 17", content=deep, headers=json_type)


def test_a_body_whose_length_is_not_declared(world: ServedQuery) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1024

    world.refused(
        413, "Content-Length", "more than 65536", content=parts(), headers={"Content-Type": "application/json"}
    )


def test_paths_and_methods_that_there_are_not(world: ServedQuery) -> None:
    answer = world.operator.get("/v1/nothing")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:trimtab:problem:no-such-path")
    answer = world.operator.delete(BASE)
    assert (answer.status_code, answer.json()["remedy"]) == (405, "Use GET.")
