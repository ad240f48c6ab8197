"""The ACL lines of the chart and of docs/security.md, on a real server: each role can do its work and nothing else."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import redis

from api.tickets import Tickets
from commands.cli import main
from manager.store import ManagerStore, now_ms
from tests.checkers.acl_server import ACL_FILE, ROLES, AclServer, acl_server, acl_text
from tests.checkers.served import Served, until
from tests.simulation.data_plane import DataPlane
from trimtab import redis_access, redis_keys
from trimtab.driver_progress import DriverProgress
from trimtab.store import Store

pytestmark = pytest.mark.redis
PASSWORDS = {role: f"{role}-p4ss/w:rd@x" for role in ROLES}
BASE = "/v1/queries/orders"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AclServer]:
    with acl_server(tmp_path_factory.mktemp("acl"), acl_text(PASSWORDS)) as server:
        yield server


@pytest.fixture
def roles(locked: AclServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AclServer:
    """The environment of `trimtab serve`: manager and API with users of their own, one password from a file."""
    password = tmp_path / "password"
    password.write_text(PASSWORDS["manager"] + "\n")
    monkeypatch.setenv("TRIMTAB_REDIS", locked.url)
    monkeypatch.setenv(redis_access.USER, "trimtab-manager")
    monkeypatch.setenv(redis_access.PASSWORD_FILE, str(password))
    monkeypatch.setenv(redis_access.API_USER, "trimtab-api")
    monkeypatch.setenv(redis_access.API_PASSWORD, PASSWORDS["api"])
    with locked.admin() as admin:
        admin.flushall()
        admin.acl_log_reset()
    return locked


def denied(server: AclServer) -> list[str]:
    """What the server has refused since its log was emptied."""
    with server.admin() as admin:
        entries = cast("list[dict[str, Any]]", admin.acl_log())
    return [f"{each['username']}: {each['reason']} {each['object']} in {each['context']}" for each in entries]


def test_every_role_can_do_its_work(roles: AclServer, capsys: pytest.CaptureFixture[str]) -> None:
    plane = DataPlane(roles.url_as("trimtab-query", PASSWORDS["query"]))
    for _ in range(3):
        plane.step()
    with Served(roles.url, manager=True) as served:
        keys = {}
        for scope in ("operate", "admin"):
            assert main(["keys", "create", "--scope", scope, "--name", scope]) == 0
            keys[scope] = capsys.readouterr().out.strip()
        bearer = {"Authorization": f"Bearer {keys['operate']}"}
        with httpx.Client(base_url=served.url, headers=bearer, timeout=10) as client:
            until(lambda: client.post(f"{BASE}/proposals", json={}).status_code < 300, plane)
            owners = plane.bound.owners
            for strategy, group in (("mslb", 0), ("ptlb", 1)):
                body = {"from": owners[group], "to": (owners[group] + 1) % 3, "groups": [group], "strategy": strategy}
                made = client.post(f"{BASE}/rebalances", json=body, headers={"Idempotency-Key": strategy})
                assert made.status_code == 202, made.text
                name = made.json()["id"]
                until(lambda name=name: state(client, name) == "committed", plane)  # type: ignore[misc]
            assert client.put(f"{BASE}/auto", json={"enabled": True}).status_code == 200
            assert client.put(f"{BASE}/auto", json={"enabled": False}).status_code == 200
            assert client.put(f"{BASE}/rules", json={"pinned": [3]}).status_code == 200
            assert client.get(f"{BASE}/explain").status_code == 200
            assert client.get(f"{BASE}/proposals").status_code == 200
            assert client.get(f"{BASE}/events", headers={"Accept": "application/json"}).json()["events"]
            until(lambda: bool(client.get(f"{BASE}/history?minutes=5").json()["columns"]), plane)
            until(lambda: client.get(f"{BASE}/rebalances/{name}").json()["measured"] is not None, plane)
            assert client.get(f"{BASE}/history").json()["history"]
            assert client.get(f"{BASE}/front").json()["batches"]
            assert 'query="orders"' in client.get("/metrics").text
            with client.stream("GET", f"{BASE}/live") as answer:
                assert any(line == "event: front" for line in answer.iter_lines())
            made = httpx.post(f"{served.url}/v1/session", json={"ticket": ticket()})
            assert (made.status_code, made.json()["scope"]) == (201, "read")
        with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {keys['admin']}"}) as client:
            assert client.get("/v1/audit").json()["entries"]
            assert client.delete("/v1/keys/operate").status_code == 200
    # What a query does beside batches: it starts again, and puts back what Redis has lost.
    plane.define()
    plane.store.restore(plane.bound)
    plane.store.alarm("orders", "test", "text")
    plane.store.last_seen("orders")
    plane.store.driver_beat("orders")
    plane.store.progress("orders", DriverProgress(batch=1, batch_ms=5, rows_per_s=2.0, backlog=None))
    assert denied(roles) == []


def ticket() -> str:
    """As the demo makes it, with the API's user."""

    async def issue() -> str:
        store = ManagerStore(os.environ["TRIMTAB_REDIS"], api=True)
        try:
            return await Tickets(store.client).issue("read", "page", now_ms())
        finally:
            await store.close()

    return asyncio.run(issue())


def state(client: httpx.Client, rebalance: str) -> str:
    return str(client.get(f"{BASE}/rebalances/{rebalance}").json()["state"])


FORBIDDEN: list[tuple[str, list[str]]] = [
    *((f"trimtab-{role}", ["FLUSHALL"]) for role in ROLES),
    *((f"trimtab-{role}", ["CONFIG", "GET", "*"]) for role in ROLES),
    *((f"trimtab-{role}", ["KEYS", "*"]) for role in ROLES),
    *((f"trimtab-{role}", ["SCAN", "0"]) for role in ROLES),
    *((f"trimtab-{role}", ["ACL", "LIST"]) for role in ROLES),
    *((f"trimtab-{role}", ["REPLICAOF", "NO", "ONE"]) for role in ROLES),
    *((f"trimtab-{role}", ["GET", "somebody:else"]) for role in ROLES),
    *((f"trimtab-{role}", ["EVAL", "return redis.call('GET', 'somebody:else')", "0"]) for role in ROLES),
    # The manager neither reads nor makes API keys.
    ("trimtab-manager", ["HGETALL", redis_keys.API_KEYS]),
    ("trimtab-manager", ["HSET", redis_keys.API_KEYS, "id", "{}"]),
    ("trimtab-manager", ["SET", redis_keys.ticket("digest"), "{}"]),
    # The API cannot steer: neither epochs nor leases nor the journal of migrations.
    ("trimtab-api", ["SET", redis_keys.epoch("orders", 2), "{}"]),
    ("trimtab-api", ["SET", redis_keys.current("orders"), "7"]),
    ("trimtab-api", ["DEL", redis_keys.lease("orders")]),
    ("trimtab-api", ["INCR", redis_keys.fence("orders")]),
    ("trimtab-api", ["HSET", redis_keys.migrations("orders"), "m", "{}"]),
    # Nor can it change what has been measured, or what the leader has decided.
    ("trimtab-api", ["DEL", redis_keys.driver("orders")]),
    ("trimtab-api", ["SET", redis_keys.snapshot("orders"), "{}"]),
    ("trimtab-api", ["SET", redis_keys.decision("orders"), "{}"]),
    ("trimtab-api", ["RPUSH", redis_keys.batches("orders"), "{}"]),
    ("trimtab-api", ["RPUSH", redis_keys.history("orders", 10), "{}"]),
    ("trimtab-api", ["HSET", redis_keys.outcomes("orders"), "r:measured", "{}"]),
    ("trimtab-api", ["XADD", redis_keys.events("orders"), "*", "event", "{}"]),
    ("trimtab-api", ["EVAL", f"return redis.call('DEL', '{redis_keys.lease('orders')}')", "0"]),
    # A query (and whoever runs code on its executors) neither reads keys nor asks for moves nor leads.
    ("trimtab-query", ["HGETALL", redis_keys.API_KEYS]),
    ("trimtab-query", ["HSET", redis_keys.API_KEYS, "id", "{}"]),
    ("trimtab-query", ["XRANGE", redis_keys.AUDIT, "-", "+"]),
    ("trimtab-query", ["RPUSH", redis_keys.requests("orders"), "{}"]),
    ("trimtab-query", ["SET", redis_keys.lease("orders"), "me 9"]),
    ("trimtab-query", ["HSET", redis_keys.migrations("orders"), "m", "{}"]),
    ("trimtab-query", ["SET", redis_keys.auto("orders"), "{}"]),
    ("trimtab-query", ["SET", redis_keys.ticket("digest"), "{}"]),
    ("trimtab-query", ["LRANGE", redis_keys.history("orders", 10), "0", "-1"]),
    ("trimtab-query", ["RPUSH", redis_keys.history("orders", 10), "{}"]),
    ("trimtab-query", ["RPUSH", redis_keys.batches("orders"), "{}"]),
    ("trimtab-query", ["HSET", redis_keys.outcomes("orders"), "r:measured", "{}"]),
    ("trimtab-query", ["SET", redis_keys.snapshot("orders"), "{}"]),
    ("trimtab-probe", ["GET", redis_keys.QUERIES]),
]


@pytest.mark.parametrize(("user", "command"), FORBIDDEN, ids=lambda value: str(value)[:60])
def test_what_a_role_may_not_do(locked: AclServer, user: str, command: list[str]) -> None:
    with locked.client(user, PASSWORDS[user.removeprefix("trimtab-")]) as client:
        with pytest.raises(redis.ResponseError, match=r"(?i)permission|NOPERM"):
            client.execute_command(*command)
        assert client.ping()


def test_nobody_enters_without_a_password(locked: AclServer) -> None:
    with redis.Redis.from_url(locked.url) as client, pytest.raises(redis.AuthenticationError):
        client.ping()
    for role in ROLES:
        with locked.client(f"trimtab-{role}", "wrong") as client, pytest.raises(redis.AuthenticationError):
            client.ping()


def test_a_password_is_sent_to_no_other_server(roles: AclServer, tmp_path: Path) -> None:
    """The environment's credentials belong to the server that it names, whatever a query's file says."""
    assert redis_access.connection_options("redis://elsewhere:6379/0") == {}
    assert redis_access.connection_options(f"redis://u:p@127.0.0.1:{roles.port}/0") == {}
    assert "credential_provider" in redis_access.connection_options(f"redis://localhost:{roles.port}/3")
    Store(roles.url).check()


def test_a_rotated_password_needs_no_restart(roles: AclServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    password = tmp_path / "rotating"
    password.write_text("old")
    monkeypatch.setenv(redis_access.PASSWORD_FILE, str(password))
    monkeypatch.setenv(redis_access.USER, "rotating")
    with roles.admin() as admin:
        admin.execute_command("ACL", "SETUSER", "rotating", "on", ">old", "+ping", "allkeys")
        store = Store(roles.url)
        store.check()
        admin.execute_command("ACL", "SETUSER", "rotating", ">new", "<old")
        password.write_text("new\n")
        admin.execute_command("CLIENT", "KILL", "USER", "rotating")
        store.client.ping()


def test_the_documented_lines_are_these() -> None:
    """docs/security.md shows the file as it is."""
    text = (ACL_FILE.parents[4] / "docs/security.md").read_text(encoding="utf-8")
    shown = re.findall(r"```acl\n(.*?)```", text, re.DOTALL)
    assert shown == [ACL_FILE.read_text(encoding="utf-8")]
