"""A schema registry that is none, or sends us elsewhere; a real one's answers are in tests/outside/test_kafka.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from split_union.kafka.registry import Registry, versions_of
from trimtab.errors import InvalidInput

FIRST = "/subjects/orders/versions"
SCHEMA = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}'


class _Answers(HTTPServer):
    answers: dict[str, tuple[int, str]]
    passwords: int


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Answers)
        self.server.passwords += "Authorization" in self.headers
        status, body = self.server.answers.get(self.path, (404, "{}"))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", body)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments: object) -> None:
        """Nothing: tests are quiet."""


@pytest.fixture
def server() -> Iterator[_Answers]:
    with _Answers(("127.0.0.1", 0), _Handler) as running:
        running.answers, running.passwords = {}, 0
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def _registry(server: _Answers) -> Registry:
    return Registry(f"http://127.0.0.1:{server.server_port}", "me", "canary")


def test_its_versions_are_read(server: _Answers) -> None:
    body = SCHEMA.replace('"', '\\"')
    server.answers = {FIRST: (200, "[1]"), f"{FIRST}/1": (200, f'{{"id": 7, "schema": "{body}"}}')}
    assert [(each.id, each.schema) for each in versions_of(_registry(server), "orders", "f")] == [(7, SCHEMA)]


@pytest.mark.parametrize(
    "answers",
    [
        {FIRST: (200, '{"status": "ok"}')},
        {FIRST: (200, "[]")},
        {FIRST: (200, '["a"]')},
        {FIRST: (200, "[1]"), f"{FIRST}/1": (200, "[]")},
        {FIRST: (200, "[1]"), f"{FIRST}/1": (200, '{"schema": "x"}')},
    ],
)
def test_another_service_is_told_from_a_registry(server: _Answers, answers: dict[str, tuple[int, str]]) -> None:
    server.answers = answers
    with pytest.raises(InvalidInput, match="not as a schema registry does") as caught:
        versions_of(_registry(server), "orders", "value.registry")
    assert caught.value.field == "value.registry.url"


def test_a_password_goes_nowhere_else(server: _Answers) -> None:
    server.answers = {FIRST: (302, f"http://localhost:{server.server_port}/elsewhere"), "/elsewhere": (200, "[1]")}
    with pytest.raises(InvalidInput, match="answers with status 302"):
        versions_of(_registry(server), "orders", "value.registry")
    assert server.passwords == 1
