"""Whatever is sent, the answer is a document and never a failure of the server's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkers.served import Served, measured
from tests.simulation.data_plane import DataPlane
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis
BASE = "/v1/queries/orders"
HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}
HUGE = [10**400, -(10**400), 2**63, 2**64, 1e305, -1e305, 10**19]
huge = st.sampled_from(HUGE)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 8)
    | st.integers()
    | st.floats()
    | huge
    | huge.map(str)
    | huge.map(lambda number: f"{number}ms")
    | huge.map(lambda number: f"{number}%")
    | st.text(max_size=20)
    | st.sampled_from(["auto", "mslb", "ptlb", "25%", "500ms", "500", "level", "drain", "cpu", "\ud800", "p-1"])
)
values = scalars | st.lists(scalars, max_size=4) | st.dictionaries(st.text(max_size=3), scalars, max_size=2)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
parts = {
    "query": st.just("orders") | names,
    "group": st.integers(-2, 8).map(str) | huge.map(str) | names,
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with EmbeddedRedis() as server:
        plane = DataPlane(server.url)
        for _ in range(5):
            plane.step()
        measured(server.url)
        with Served(server.url) as served:
            yield served.client("admin")


def test_any_operation_with_anything(client: httpx.Client) -> None:
    """Each one that OpenAPI names, with values of its path, query and body: from its examples to nonsense."""
    document = client.get("/v1/openapi.json").json()
    operations = [(path, method) for path, methods in document["paths"].items() for method in methods]
    assert len(operations) > 25
    for path, method in operations:
        _try(client, document, path, method)


def _try(client: httpx.Client, document: dict[str, Any], path: str, method: str) -> None:
    operation = document["paths"][path][method]
    named = [(each["in"], each["name"]) for each in operation.get("parameters", ())]
    places = {name: parts.get(name, names) for where, name in named if where == "path"}
    words = scalars.map(lambda value: str(value).encode(errors="replace").decode())
    queries = st.dictionaries(st.sampled_from([name for where, name in named if where == "query"] or ["x"]), words)
    bodies = _bodies(document, operation)

    @settings(max_examples=10 if bodies is None else 40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(filled=st.fixed_dictionaries(places), query=queries, body=st.none() if bodies is None else bodies | values)
    def ask(filled: dict[str, str], query: dict[str, str], body: Any) -> None:
        target = path.format_map({name: quote(value, safe="") for name, value in filled.items()})
        content = None if body is None else json.dumps(body)
        _check(client.request(method.upper(), f"{target}?{urlencode(query)}", content=content, headers=HEADERS))

    ask()


def test_any_field_with_a_huge_number(client: httpx.Client) -> None:
    document = client.get("/v1/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            schema = _schema(document, operation)
            for field in schema["properties"] if schema else ():
                for value in [*HUGE, [HUGE[0]], f"{HUGE[0]}", f"{HUGE[0]}ms", f"{HUGE[0]}%"]:
                    content = json.dumps({**schema["examples"][-1], field: value})
                    target = path.format(query="orders", rebalance="r-1", migration="m-1", replan="p-1")
                    _check(client.request(method.upper(), target, content=content, headers=HEADERS))


@settings(max_examples=50)
@given(content=st.binary(max_size=60))
def test_any_bytes(client: httpx.Client, content: bytes) -> None:
    _check(client.post(f"{BASE}/rebalances", content=content, headers=HEADERS))


@pytest.mark.parametrize("digits", [400, 5_000, 60_000])
def test_any_number_of_digits(client: httpx.Client, digits: int) -> None:
    for text in ("9" * digits, f"0.{'9' * digits}", f"1e{'9' * digits}", f"-{'9' * digits}"):
        for body in (f'{{"max_moved_bytes": {text}}}', f'{{"start_ratio": {text}}}', text):
            answer = client.put(f"{BASE}/auto", content=body, headers=HEADERS)
            _check(answer)
            assert answer.status_code in (200, 400, 422)


def _bodies(document: dict[str, Any], operation: dict[str, Any]) -> st.SearchStrategy[Any] | None:
    """Of the schema's fields, on top of one of its examples: so that some get past the first check."""
    schema = _schema(document, operation)
    if not schema:
        return None
    fields = st.dictionaries(st.sampled_from(sorted(schema["properties"])) | st.text(max_size=5), values, max_size=3)
    return st.builds(lambda example, drawn: {**example, **drawn}, st.sampled_from(schema["examples"]), fields)


def _schema(document: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    """Of the body; empty where there is none."""
    if "requestBody" not in operation:
        return {}
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema: dict[str, Any] = document["components"]["schemas"][reference.rpartition("/")[2]]
    return schema


def _check(answer: httpx.Response) -> None:
    if answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain"):
        return  # metrics
    document = json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert answer.status_code < 500 or answer.status_code == 503, document
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert document["status"] == answer.status_code
        assert document["detail"] and document["remedy"]
