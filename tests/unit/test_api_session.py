"""A one-time ticket is worth a key, once; and every key can ask who it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from api.gate import GateSettings
from api.keys import parse_key
from api.limits import RequestRates
from tests.checkers.clock import ManualClock
from tests.checkers.served import Served
from tests.simulation.data_plane import DataPlane
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis
from trimtab.errors import InvalidInput

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def redis_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as running:
        DataPlane(running.url).step()
        yield running


@pytest.fixture(scope="module")
def served(redis_server: EmbeddedRedis) -> Iterator[Served]:
    with Served(redis_server.url) as running:
        yield running


def test_a_ticket_is_worth_a_key_once(served: Served) -> None:
    ticket = served.ticket("operate", "page")
    stranger = served.client(None)
    answer = stranger.post("/v1/session", json={"ticket": ticket})
    assert answer.status_code == 201
    body = answer.json()
    assert (body["name"], body["scope"]) == ("page", "operate")
    me = stranger.get("/v1/me", headers={"Authorization": f"Bearer {body['key']}"}).json()
    assert me == {"id": body["id"], "name": "page", "scope": "operate"}
    again = stranger.post("/v1/session", json={"ticket": ticket})
    assert (again.status_code, again.json()["field"]) == (401, "ticket")
    assert ticket not in again.text
    entry = served.client("admin").get("/v1/audit").json()["entries"][0]
    assert (entry["key"], entry["path"], entry["outcome"]) == (body["id"], "/v1/session", "accepted")


def test_me_is_never_somebody_else(served: Served) -> None:
    reader, operator = served.client("read"), served.client("operate")
    for _ in range(3):
        assert reader.get("/v1/me").json()["scope"] == "read"
        assert operator.get("/v1/me").json()["scope"] == "operate"
    assert served.client(None).get("/v1/me").status_code == 401


def test_a_ticket_expires_and_redis_has_no_secret(served: Served, redis_server: EmbeddedRedis) -> None:
    ticket = served.ticket("read", "page")
    plane = DataPlane(redis_server.url)
    (name,) = plane.store.client.keys("trimtab:api:ticket:*")
    assert 590 <= plane.store.client.ttl(name) <= 600
    key = served.client(None).post("/v1/session", json={"ticket": ticket}).json()["key"]
    secret = parse_key(key)
    assert secret is not None
    for each in plane.store.client.hgetall(redis_keys.API_KEYS).values():
        assert secret.secret not in each and ticket not in each
    assert plane.store.client.keys("trimtab:api:ticket:*") == []
    with pytest.raises(InvalidInput):
        served.ticket("read", "no name")


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 422), ({"ticket": 5}, 422), ({"ticket": "x" * 201}, 422), ({"ticket": ""}, 401), ({"ticket": "x" * 43}, 401)],
)
def test_what_is_not_a_ticket(served: Served, body: dict[str, object], status: int) -> None:
    answer = served.client(None).post("/v1/session", json=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


def test_guessing_tickets_is_limited_and_costs_nobody_with_a_key(redis_server: EmbeddedRedis) -> None:
    gate = GateSettings(rates=RequestRates(failures_per_s=1.0))
    with Served(redis_server.url, gate=gate, clock=ManualClock()) as served:
        known, stranger = served.client("read"), served.client(None)
        assert known.get("/v1/me").status_code == 200
        good = [served.ticket("read", "page") for _ in range(4)]
        for ticket in good:  # a good ticket costs nothing
            assert stranger.post("/v1/session", json={"ticket": ticket}).status_code == 201
        codes = [stranger.post("/v1/session", json={"ticket": "x" * 43}).status_code for _ in range(4)]
        assert codes == [401, 401, 429, 429]
        assert known.get("/v1/me").status_code == 200


def test_two_who_hand_in_the_same_ticket(served: Served) -> None:
    ticket = served.ticket("read", "page")

    async def both() -> list[int]:
        import httpx

        async with httpx.AsyncClient(base_url=served.url) as client:
            answers = await asyncio.gather(*(client.post("/v1/session", json={"ticket": ticket}) for _ in range(8)))
        return sorted(answer.status_code for answer in answers)

    assert asyncio.run(both()) == [201] + [401] * 7
