"""Default deny, scopes, limits, and that no secret is ever repeated."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from api.access import needed_scope
from api.gate import GateSettings
from api.keys import KeyStore, new_key, parse_key
from api.limits import BUCKETS_MAX, Buckets, RequestRates, check_depth
from api.problems import Problem
from manager.store import ManagerStore
from tests.checkers.clock import ManualClock
from tests.checkers.served import Served, cleared, measured, until
from tests.simulation.data_plane import DataPlane
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis
from trimtab.errors import InvalidInput

pytestmark = pytest.mark.redis
BASE = "/v1/queries/orders"


@pytest.fixture
def plane(server: EmbeddedRedis) -> DataPlane:
    cleared(server.url)
    plane = DataPlane(server.url)
    for _ in range(3):
        plane.step()
    measured(server.url)
    return plane


@pytest.fixture(scope="module")
def served(server: EmbeddedRedis) -> Iterator[Served]:
    with Served(server.url) as running:
        yield running


def routes(client: httpx.Client) -> list[tuple[str, str]]:
    paths = client.get("/v1/openapi.json").json()["paths"]
    names = {"{query}": "orders", "{group}": "0"}
    operations_of_paths = []
    for path, operations in paths.items():
        for part, value in names.items():
            path = path.replace(part, value)
        operations_of_paths += [(method.upper(), path) for method in operations]
    return operations_of_paths


def test_every_route_but_health_needs_a_key(plane: DataPlane, served: Served) -> None:
    known = routes(served.client("read"))
    assert len(known) > 25
    stranger = served.client(None)
    for method, path in [*known, ("GET", "/v1/openapi.json"), ("GET", "/docs"), ("GET", "/page"), ("POST", "/nothing")]:
        if path == "/v1/session":
            continue  # a ticket instead of a key: tests/unit/test_api_session.py
        answer = stranger.request(method, path)
        if path in ("/healthz", "/readyz"):
            assert answer.status_code == 200
            continue
        document = answer.json()
        assert (answer.status_code, document["field"]) == (401, "Authorization"), path
        assert "trimtab keys create" in document["remedy"]
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_a_key_with_too_small_a_scope(plane: DataPlane, served: Served) -> None:
    reader, operator, admin = (served.client(scope) for scope in ("read", "operate", "admin"))
    for method, path in routes(admin):
        if path in ("/healthz", "/readyz", "/v1/session"):
            continue
        needed = needed_scope(method, path)
        if needed != "read":
            document = reader.request(method, path).json()
            assert (document["status"], document["field"], document["value"]) == (403, "scope", "read"), path
            assert f"--scope {needed}" in document["remedy"]
        if needed == "admin":
            assert operator.request(method, path).status_code == 403
    assert plane.store.client.exists(redis_keys.requests("orders")) == 0
    assert reader.get(f"{BASE}/workers").status_code == 200
    assert admin.get("/v1/keys").status_code == 200


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer nonsense", "Basic abc", "Bearer trimtab_000000000000_" + "x" * 43],
)
def test_a_wrong_key(plane: DataPlane, served: Served, header: str) -> None:
    answer = served.client(None).get(f"{BASE}/workers", headers={"Authorization": header})
    assert answer.status_code == 401
    assert header in ("", "Bearer") or header not in answer.text


def test_the_right_id_with_another_secret(plane: DataPlane, served: Served) -> None:
    right = served.key("read")
    wrong = right[:-43] + ("A" * 43)
    answer = served.client(None).get(f"{BASE}/workers", headers={"Authorization": f"Bearer {wrong}"})
    assert answer.status_code == 401


def test_keys_are_stored_hashed_and_salted() -> None:
    text, record = new_key("ops", "operate", 5)
    again = new_key("ops", "operate", 5)[1]
    presented = parse_key(text)
    assert presented is not None
    assert presented.secret not in json.dumps(record.__dict__)
    assert record.matches(presented.secret) and not record.matches("x" * 43)
    assert record.salt != again.salt
    assert presented.secret not in repr(presented)
    assert record.allows("read") and record.allows("operate") and not record.allows("admin")
    for name, scope in (("", "read"), ("a b", "read"), ("x" * 65, "read"), ("ops", "root")):
        with pytest.raises(InvalidInput):
            new_key(name, scope, 0)


def test_a_revoked_key_is_out_after_two_seconds(plane: DataPlane, server: EmbeddedRedis) -> None:
    clock = ManualClock()
    with Served(server.url, clock=clock) as served:
        client = served.client("read")
        assert client.get(f"{BASE}/auto").status_code == 200
        mine = client.headers["Authorization"].split("_")[1]
        assert served.client("admin").delete(f"/v1/keys/{mine}").status_code == 200
        clock.now_s += 2.1
        assert client.get(f"{BASE}/auto").status_code == 401


def test_an_event_stream_ends_when_its_key_is_revoked(plane: DataPlane, server: EmbeddedRedis) -> None:
    clock = ManualClock()
    with Served(server.url, clock=clock) as served:
        client = served.client("read")
        with client.stream("GET", f"{BASE}/events") as answer:
            lines = answer.iter_lines()
            assert next(lines) == "retry: 2000"
            plane.store.client.hdel(redis_keys.API_KEYS, client.headers["Authorization"].split("_")[1])
            clock.now_s += 11.0
            assert list(lines) == [""]


def test_rates_are_limited_for_each_key(plane: DataPlane, server: EmbeddedRedis) -> None:
    clock = ManualClock()
    rates = RequestRates(reads_per_s=2.0, mutations_per_s=1.0, failures_per_s=1.0)
    with Served(server.url, gate=GateSettings(rates=rates, answers_kept_s=0.0), clock=clock) as served:
        one, other, stranger = served.client("operate"), served.client("operate"), served.client(None)
        assert [one.get(f"{BASE}/auto").status_code for _ in range(6)] == [200] * 4 + [429] * 2
        assert other.get(f"{BASE}/auto").status_code == 200
        answers = [one.put(f"{BASE}/auto", json={"enabled": False}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[-1].headers["Retry-After"] == "1"
        assert "Wait" in answers[-1].json()["remedy"]
        assert [stranger.get(BASE).status_code for _ in range(3)] == [401, 401, 429]
        clock.now_s += 1.0
        assert one.get(f"{BASE}/auto").status_code == 200
        assert one.put(f"{BASE}/auto", json={"enabled": False}).status_code == 200


def test_a_key_that_may_only_read_cannot_push_others_out_of_the_audit(plane: DataPlane, server: EmbeddedRedis) -> None:
    gate = GateSettings(rates=RequestRates(mutations_per_s=1.0))
    with Served(server.url, gate=gate, clock=ManualClock()) as served:
        reader, operator = served.client("read"), served.client("operate")
        assert [reader.post(f"{BASE}/drain", json={"worker": 0}).status_code for _ in range(5)] == [403] * 2 + [429] * 3
        assert plane.store.client.xlen(redis_keys.AUDIT) == 2
        assert operator.put(f"{BASE}/auto", json={"reason": "x" * 20_000}).status_code == 422
        assert operator.post(f"/v1/{'x' * 20_000}").status_code == 404
        for entry in served.client("admin").get("/v1/audit").json()["entries"]:
            assert max(len(str(value)) for value in entry.values()) <= 2_000


def test_guessing_keys_costs_redis_nothing_and_locks_nobody_out(plane: DataPlane, server: EmbeddedRedis) -> None:
    clock = ManualClock()
    gate = GateSettings(rates=RequestRates(failures_per_s=1.0), answers_kept_s=0.0)

    def lookups() -> int:
        statistics: Any = plane.store.client.info("commandstats")
        return int(statistics["cmdstat_hget"]["calls"])

    with Served(server.url, gate=gate, clock=clock) as served:
        known, stranger = served.client("read"), served.client(None)
        assert known.get(f"{BASE}/auto").status_code == 200
        headers = {"Authorization": "Bearer trimtab_000000000000_" + "x" * 43}
        before = lookups()
        codes = [stranger.get(BASE, headers=headers).status_code for _ in range(6)]
        assert codes == [401] * 2 + [429] * 4
        assert lookups() - before == 2
        clock.now_s += 2.1  # the known key has to be looked up again
        assert [stranger.get(BASE, headers=headers).status_code for _ in range(3)] == [401, 401, 429]
        assert known.get(f"{BASE}/auto").status_code == 200


def test_event_streams_are_counted_for_each_key_and_in_all(
    plane: DataPlane, server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.limits.STREAMS_MAX", 40)
    monkeypatch.setattr("api.limits.STREAMS_OF_KEY_MAX", 20)
    with Served(server.url) as served:
        keys = [served.key("read") for _ in range(3)]

        async def ask(client: httpx.AsyncClient, key: str) -> httpx.Response:
            headers = {"Authorization": f"Bearer {key}"}
            answer = await client.send(client.build_request("GET", f"{BASE}/events", headers=headers), stream=True)
            if answer.status_code != 200:
                await answer.aread()
            return answer

        async def follow() -> None:
            limits = httpx.Limits(max_connections=200)
            async with httpx.AsyncClient(base_url=served.url, limits=limits, timeout=10.0) as client:
                opened: list[httpx.Response] = []
                for key in keys[:2]:
                    answers = await asyncio.gather(*(ask(client, key) for _ in range(30)))
                    assert sorted(answer.status_code for answer in answers) == [200] * 20 + [429] * 10
                    opened += [answer for answer in answers if answer.status_code == 200]
                refused = await ask(client, keys[2])
                assert (refused.status_code, refused.headers["Retry-After"]) == (503, "10")
                assert "40 event streams are open" in refused.json()["detail"]
                headers = {"Authorization": f"Bearer {keys[2]}"}
                others = [client.get(f"{BASE}/workers?{number}", headers=headers) for number in range(30)]
                assert {answer.status_code for answer in await asyncio.gather(*others)} == {200}
                for answer in opened:
                    await answer.aclose()
                for _ in range(100):
                    answer = await ask(client, keys[0])
                    await answer.aclose()
                    if answer.status_code == 200:
                        return
                    await asyncio.sleep(0.05)
                pytest.fail("places are not given back")

        asyncio.run(follow())


def test_buckets_fill_up_and_are_forgotten() -> None:
    buckets = Buckets(10.0)
    assert [buckets.wait_s("a", 0.0) for _ in range(20)] == [0.0] * 20
    assert buckets.wait_s("a", 0.0) == pytest.approx(0.1)
    assert buckets.wait_s("a", 0.1) == 0.0
    for number in range(BUCKETS_MAX + 5):
        buckets.wait_s(str(number), 0.2)
    assert len(buckets._levels) == BUCKETS_MAX


def test_depth_does_not_count_what_is_in_strings() -> None:
    check_depth(json.dumps({"reason": "[" * 100 + '"' + "{" * 100}).encode())
    check_depth(b"[" * 16 + b"]" * 16)
    with pytest.raises(Problem):
        check_depth(b'[{"a":' * 9)


def test_redis_away_is_503_and_comes_back(tmp_path: Path) -> None:
    with EmbeddedRedis(appendonly=True) as server:
        plane = DataPlane(server.url)
        for _ in range(3):
            plane.step()
        with Served(server.url) as served:
            client = served.client("operate")
            assert client.get(f"{BASE}/workers").status_code == 200
            server.kill()
            for answer in (
                client.get(f"{BASE}/workers"),
                client.post(f"{BASE}/rebalances", json={"from": 0, "to": 1, "groups": [0]}),
                client.put(f"{BASE}/auto", json={"enabled": True}, headers={"Idempotency-Key": "k"}),
                client.get(f"{BASE}/events"),
                client.get("/readyz"),
            ):
                assert answer.status_code == 503
                assert answer.headers["Retry-After"] == "2"
                assert answer.headers["content-type"] == "application/problem+json"
                assert str(server.port) not in answer.text
            assert client.get("/healthz").status_code == 200
            server.start()
            assert client.get(f"{BASE}/workers").status_code == 200
            assert client.get("/readyz").status_code == 200


def test_a_slow_redis_is_503_in_bounded_time(plane: DataPlane, server: EmbeddedRedis) -> None:
    """It takes what it is asked and answers after seconds."""
    with Served(server.url) as served:
        client = served.client("operate")
        assert client.get(f"{BASE}/workers").status_code == 200
        requests: list[Callable[[], httpx.Response]] = [
            lambda: client.get(f"{BASE}/workers"),
            lambda: client.post(f"{BASE}/rebalances", json={"from": 0, "to": 1, "groups": [0]}),
            lambda: client.put(f"{BASE}/auto", json={"enabled": True}, headers={"Idempotency-Key": "k"}),
            lambda: client.get(f"{BASE}/events"),
            lambda: client.get("/readyz"),
        ]
        plane.store.client.client_pause(5_000)
        begun_s = time.monotonic()
        with ThreadPoolExecutor(len(requests)) as pool:
            answers = list(pool.map(lambda ask: ask(), requests))
        assert client.get("/healthz").status_code == 200
        assert time.monotonic() - begun_s < 4.5
        for answer in answers:
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
            assert answer.headers["content-type"] == "application/problem+json"
        until(lambda: client.get(f"{BASE}/workers").status_code == 200)


def test_a_request_is_not_slow_for_ever_by_small_delays(
    plane: DataPlane, server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer of Redis's comes in time, all of them together do not."""
    with Served(server.url) as served:
        client = served.client("operate")
        assert client.get(f"{BASE}/workers").status_code == 200
        monkeypatch.setattr("api.limits.ANSWER_S", 0.2)
        plane.store.client.client_pause(700)
        assert client.get(f"{BASE}/workers").status_code == 503
        until(lambda: client.get(f"{BASE}/workers").status_code == 200)


def test_no_secret_in_logs_errors_answers_or_redis(caplog: pytest.LogCaptureFixture) -> None:
    """Canaries: a key in every place where a careless client might put it, and Redis's password."""
    with EmbeddedRedis() as server:
        plane = DataPlane(server.url)
        plane.step()
        _canaries(server, plane, caplog)


def _canaries(server: EmbeddedRedis, plane: DataPlane, caplog: pytest.LogCaptureFixture) -> None:
    password = "canary-password-5a1f"
    plane.store.client.config_set("requirepass", password)
    url = server.url.replace("redis://", f"redis://:{password}@")
    caplog.set_level(logging.DEBUG)
    answers: list[str] = []
    try:
        with Served(url) as served:
            key = served.key("admin", name="canary")
            secret = key[-43:]
            client = httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {key}"})
            requests: list[tuple[str, str, dict[str, Any]]] = [
                ("GET", f"/v1/queries/{key}", {}),
                ("GET", f"{BASE}/workers?key={key}", {}),
                ("GET", f"/{key}", {}),
                ("POST", f"{BASE}/rebalances", {"json": {"reason": f"my key is {key}"}}),
                ("POST", f"{BASE}/rebalances", {"json": {"from": key}}),
                ("POST", f"{BASE}/rebalances/{key}/cancel", {"json": {}}),
                ("PUT", f"{BASE}/auto", {"json": {key: 1}}),
                ("PUT", f"{BASE}/auto", {"content": key, "headers": {"Content-Type": "text/plain"}}),
                ("GET", f"{BASE}/workers", {"headers": {"Authorization": f"Basic {key}"}}),
                ("GET", f"{BASE}/workers", {"headers": {"Authorization": f"Bearer {key}x"}}),
                ("PUT", f"{BASE}/auto", {"json": {"enabled": False}, "headers": {"Idempotency-Key": key}}),
                ("GET", "/v1/keys", {}),
                ("GET", "/v1/audit", {}),
                ("GET", "/readyz", {}),
            ]
            for method, path, more in requests:
                answer = client.request(method, path, **more)
                assert answer.status_code < 500, path
                answers.append(f"{answer.headers} {answer.text}")
            plane.store.client.config_set("requirepass", "another-one")
            plane.store.client.client_kill_filter(skipme=True)
            answers.append(client.get(f"{BASE}/workers").text)
            answers.append(client.get("/readyz").text)
            client.close()
    finally:
        plane.store.client.config_set("requirepass", "")
    stored = [str(redis.Redis.from_url(server.url).dump(name)) for name in plane.store.client.keys("*")]
    # The client in this process logs its own URLs; what counts is what the server says.
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith("http")]
    assert any("PUT" in text for text in logged)
    for text in (*answers, *logged, *stored):
        assert secret not in text
        assert password not in text
    assert any("key-in-request" in text for text in answers)


def test_the_audit_says_who_asked_what_and_why(plane: DataPlane, served: Served) -> None:
    operator, admin = served.client("operate"), served.client("admin")
    operator.put(f"{BASE}/auto", json={"enabled": True, "reason": "night shift"})
    operator.post(f"{BASE}/rebalances", json={"from": 0, "to": 0, "groups": [0], "reason": "oops"})
    served.client("read").post(f"{BASE}/drain", json={"worker": 0})
    newest = admin.get("/v1/audit?limit=3").json()["entries"]
    entries = [(each["path"], each["status"], each["outcome"], each["reason"]) for each in newest]
    assert entries == [
        (f"{BASE}/drain", 403, "refused", ""),
        (f"{BASE}/rebalances", 422, "refused", "oops"),
        (f"{BASE}/auto", 200, "accepted", "night shift"),
    ]
    assert all(each["name"] == "test" and len(each["key"]) == 12 and each["at_ms"] > 0 for each in newest)


def test_keys_are_listed_and_revoked_without_secrets(plane: DataPlane, served: Served) -> None:
    async def revoke() -> int:
        store = ManagerStore(served.redis_url)
        gone = await KeyStore(store.client).revoke("gone")
        await store.close()
        return len(gone)

    admin = served.client("admin")
    served.key("read", name="gone")
    served.key("operate", name="gone")
    known = admin.get("/v1/keys").json()["keys"]
    assert {each["name"] for each in known} >= {"test", "gone"}
    assert all(set(each) == {"id", "name", "scope", "created_ms", "from"} for each in known)
    assert asyncio.run(revoke()) == 2
    served.key("read", name="ci@build")
    assert [each["name"] for each in admin.delete("/v1/keys/ci@build").json()["revoked"]] == ["ci@build"]
    answer = admin.delete("/v1/keys/gone")
    assert (answer.status_code, answer.json()["value"]) == (404, "gone")
