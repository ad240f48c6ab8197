"""Whatever is sent, the answer is a document and never a failure of the server's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkers.served import Served, measured
from tests.simulation.data_plane import DataPlane
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis
BASE = "/v1/queries/orders"
PATHS = [
    ("POST", f"{BASE}/proposals"),
    ("POST", f"{BASE}/rebalances"),
    ("POST", f"{BASE}/drain"),
    ("POST", f"{BASE}/fill"),
    ("POST", f"{BASE}/rebalances/r-1/cancel"),
    ("PUT", f"{BASE}/auto"),
    ("PUT", f"{BASE}/rules"),
]
FIELDS = [
    "proposal",
    "from",
    "to",
    "groups",
    "amount",
    "measure",
    "strategy",
    "max_pause",
    "order",
    "policy",
    "worker",
    "reason",
    "expected_epoch",
    "enabled",
    "start_ratio",
    "stop_ratio",
    "cool_down_s",
    "min_gain",
    "min_batches",
    "max_moved_bytes",
    "pinned",
    "excluded",
]
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 8)
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["auto", "mslb", "ptlb", "25%", "500ms", "level", "drain", "cpu", "\ud800", "p-1"])
)
values = scalars | st.lists(scalars, max_size=4) | st.dictionaries(st.text(max_size=3), scalars, max_size=2)
bodies = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), values, max_size=6)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with EmbeddedRedis() as server:
        plane = DataPlane(server.url)
        for _ in range(5):
            plane.step()
        measured(server.url)
        with Served(server.url) as served:
            yield served.client("operate")


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(target=st.sampled_from(PATHS), body=bodies | values)
def test_any_json(client: httpx.Client, target: tuple[str, str], body: Any) -> None:
    _check(client.request(*target, content=json.dumps(body), headers={"Content-Type": "application/json"}))


@settings(max_examples=50)
@given(content=st.binary(max_size=60))
def test_any_bytes(client: httpx.Client, content: bytes) -> None:
    _check(client.post(f"{BASE}/rebalances", content=content, headers={"Content-Type": "application/json"}))


@settings(max_examples=50)
@given(name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12))
def test_any_name(client: httpx.Client, name: str) -> None:
    _check(client.get(f"/v1/queries/{quote(name, safe='')}/workers"))


def _check(answer: httpx.Response) -> None:
    document = json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert answer.status_code < 500, document
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert document["status"] == answer.status_code
        assert document["detail"] and document["remedy"]
