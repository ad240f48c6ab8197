"""The page's files: open by name, with a policy of their own; everything else stays behind keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.pages import POLICY, page_answer, page_files
from balancing.protocols.migration import TABLES
from tests.checkers.served import Served
from trimtab.embedded.redis_server import EmbeddedRedis

PAGE = Path(__file__).resolve().parents[2] / "api" / "page"


@pytest.fixture(scope="module")
def api(server: EmbeddedRedis) -> Iterator[Served]:
    with Served(server.url) as running:
        yield running


@pytest.mark.redis
def test_files_are_open_and_bring_their_policy(api: Served) -> None:
    client = api.client(None)
    for path in page_files():
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers.get_list("content-security-policy") == [POLICY], path
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/").headers["cache-control"] == "no-store"


@pytest.mark.redis
def test_a_file_that_the_browser_has_is_not_sent_again(api: Served) -> None:
    client = api.client(None)
    first = client.get("/page/main.js")
    again = client.get("/page/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    changed = client.get("/page/main.js", headers={"If-None-Match": '"another"'})
    assert changed.content == first.content
    head = client.head("/page/main.js")
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", first.headers["etag"])


@pytest.mark.redis
@pytest.mark.parametrize(
    "path",
    [
        "/page",
        "/page/",
        "/page/nothing.js",
        "/page/../pages.py",
        "/page/%2e%2e/pages.py",
        "/page//main.js",
        "/index.html",
    ],
)
def test_everything_else_needs_a_key(api: Served, path: str) -> None:
    # httpx would tidy some of these paths, so they are also asked for directly.
    assert api.client(None).get(path).status_code in (401, 429)
    assert page_answer("GET", path, None) is None


@pytest.mark.redis
def test_files_cannot_be_written(api: Served) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert page_answer(method, "/", None) is None
        assert api.client(None).request(method, "/").status_code in (401, 429)


def test_nothing_comes_from_elsewhere_and_nothing_is_parsed_as_markup() -> None:
    forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage")
    for file in PAGE.iterdir():
        text = file.read_text(encoding="utf-8")
        assert forbidden.search(text) is None, file.name
        addresses = [each for each in re.findall(r"https?://[^\s\"')]+", text) if "www.w3.org" not in each]
        assert addresses == [], file.name
        assert " style=" not in text and not re.search(r"\son\w+=\"", text), file.name


def test_it_works_on_plain_http_too() -> None:
    """Browsers have these on https and localhost only; a server may listen on another address without TLS."""
    secure_only = re.compile(r"randomUUID\(|crypto\.subtle|serviceWorker|caches\.")
    for file in PAGE.iterdir():
        assert secure_only.search(file.read_text(encoding="utf-8")) is None, file.name


def test_every_file_that_a_module_names_is_there() -> None:
    named = {name for file in PAGE.iterdir() for name in re.findall(r"/page/[\w.-]+", file.read_text(encoding="utf-8"))}
    assert named <= set(page_files())


def test_the_page_knows_the_protocols_steps() -> None:
    text = (PAGE / "steps.js").read_text(encoding="utf-8")
    for name, table in TABLES.items():
        block = text.partition(f"  {name}: [")[2].partition("\n  ],")[0]
        told = re.findall(r'\["(\w+)"', block)
        steps = {row.step: row.message for row in table.rows if row.step}
        assert told == [steps[number] for number in range(1, table.steps + 1)]
