"""`trimtab serve` as a process: what it says, how it ends, what it does without Redis."""

from __future__ import annotations

import io
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from api.server import PlainLines, listen
from commands.cli import main
from tests.checkers.acl_server import ROLES, acl_server, acl_text
from tests.simulation.data_plane import DataPlane
from trimtab import redis_access, redis_keys
from trimtab.embedded import EmbeddedRedis
from trimtab.embedded.redis_server import free_port
from trimtab.errors import InvalidInput

pytestmark = pytest.mark.redis


@contextmanager
def serve(*options: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The process, and what it has said by the time it tells how to make a key."""
    command = [sys.executable, "-m", "commands.cli", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line.strip())
            if "keys create" in line:
                break
        yield process, said
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def url_in(said: list[str]) -> str:
    return next(word for word in said[0].split() if word.startswith("http://"))


def test_keys_in_files_are_counted_also_while_redis_is_away(tmp_path: Path) -> None:
    for name in ("ops", "page"):
        assert main(["keys", "create", "--name", name, "--into", str(tmp_path)]) == 0
    with serve("--redis", f"redis://127.0.0.1:{free_port()}/0", "--keys", str(tmp_path)) as (_, said):
        assert "does not answer yet" in said[1]
        assert said[2].startswith("There are 2 API keys")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_and_ends_in_order(number: signal.Signals) -> None:
    with EmbeddedRedis() as server:
        plane = DataPlane(server.url)
        plane.step()
        with serve("--redis", server.url) as (process, said):
            assert "There is no API key yet" in said[1]
            assert f"--redis {server.url}" in said[2]
            with httpx.Client(base_url=url_in(said), timeout=10) as client:
                assert client.get("/healthz").status_code == 200
                answer = client.get("/v1/queries")
                assert answer.status_code == 401
                assert "server" not in answer.headers
            process.send_signal(number)
            _, errors = process.communicate(timeout=15)
            assert process.returncode == 0, errors
            assert "Traceback" not in errors
            assert "GET '/v1/queries' 401" in errors
        assert plane.store.client.get(redis_keys.lease("orders")) is None, "the lease was not handed back"


def test_probes_and_scrapes_are_logged_only_when_they_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", "--name", "prometheus", "--scope", "read", "--into", str(tmp_path)]) == 0
    key = capsys.readouterr().out.strip()
    with EmbeddedRedis() as server, serve("--redis", server.url, "--keys", str(tmp_path)) as (process, said):
        url = url_in(said)
        statuses = [httpx.get(f"{url}{path}", timeout=30).status_code for path in ("/healthz", "/readyz", "/metrics")]
        headers = {"Authorization": f"Bearer {key}"}
        for path in ("/metrics", "/v1/queries"):
            assert httpx.get(f"{url}{path}", headers=headers, timeout=30).status_code == 200
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert statuses == [200, 200, 401]
    lines = [line.partition("trimtab.access: ")[2] for line in errors.splitlines() if "trimtab.access" in line]
    assert [line.split(" ")[:3] for line in lines] == [["GET", "'/metrics'", "401"], ["GET", "'/v1/queries'", "200"]]


def test_what_others_wrote_into_redis_is_text_in_the_log() -> None:
    """A query's name goes to the terminal of whoever started the server, and into a file of lines."""
    name = "x\n2026-01-01 INFO trimtab.audit: forged\x1b[2J\u202e\x9b"
    with EmbeddedRedis() as server:
        DataPlane(server.url, query=name, incarnation="abc").step()
        with serve("--redis", server.url) as (process, _):
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "trimtab.manager: x\\x0a2026-01-01 INFO trimtab.audit: forged\\x1b[2J\\u202e\\x9b: leading" in line
    stack = io.StringIO()
    handler = logging.StreamHandler(stack)
    handler.setFormatter(PlainLines("%(message)s"))
    try:
        raise ValueError("a\x1b[31m\nb")
    except ValueError:
        error = sys.exc_info()
    handler.emit(logging.LogRecord("trimtab", logging.ERROR, "", 0, "%s: failed", ("\x1b",), error))
    lines = stack.getvalue().splitlines()
    assert lines[:2] == ["\\x1b: failed", "Traceback (most recent call last):"]
    assert lines[-2:] == ["ValueError: a\\x1b[31m", "b"]


def test_it_waits_for_a_redis_that_is_not_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedRedis() as server:
        server.kill()
        monkeypatch.setenv("TRIMTAB_REDIS", server.url.replace("redis://", "redis://:canary@"))
        with serve() as (process, said):
            assert "does not answer yet" in said[1]
            with httpx.Client(base_url=url_in(said), timeout=10) as client:
                assert client.get("/healthz").status_code == 200
                assert client.get("/readyz").status_code == 503
            process.send_signal(signal.SIGTERM)
            out, errors = process.communicate(timeout=15)
            assert process.returncode == 0
            assert "canary" not in "".join(said) + out + errors


@pytest.mark.parametrize(
    ("user", "password", "words"),
    [("trimtab-manager", "canary", "password is wrong or missing"), ("trimtab-query", "query-1", "may not do that")],
)
def test_it_says_why_redis_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, password: str, words: str
) -> None:
    """A wrong password looks like a server that is away, to whoever is told only that it does not answer."""
    with acl_server(tmp_path, acl_text({role: f"{role}-1" for role in ROLES})) as server:
        monkeypatch.setenv("TRIMTAB_REDIS", server.url)
        monkeypatch.setenv(redis_access.USER, user)
        monkeypatch.setenv(redis_access.PASSWORD, password)
        with serve() as (process, said):
            assert words in said[1]
            ready = httpx.get(f"{url_in(said)}/readyz", timeout=30)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
    assert password not in "".join(said) + errors + ready.text
    if password == "canary":
        assert ready.status_code == 503
        assert words not in ready.text and words in errors
        assert "WARNING trimtab.manager: Redis does not answer: invalid username-password pair" in errors


def test_a_command_says_why_redis_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with acl_server(tmp_path, acl_text({role: f"{role}-1" for role in ROLES})) as server:
        monkeypatch.setenv("TRIMTAB_REDIS", server.url)
        monkeypatch.setenv(redis_access.USER, "trimtab-probe")
        monkeypatch.setenv(redis_access.PASSWORD, "probe-1")
        assert main(["mapping", "--query", "orders"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("trimtab: Redis does not answer (this user may not do that") and said.count("\n") == 1


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port), "--redis", "redis://127.0.0.1:1/0"]) == 2
        errors = capsys.readouterr().err
        assert f"--port = '127.0.0.1:{port}'" in errors and "another --port" in errors
    with pytest.raises(InvalidInput):
        listen("no.such.host.invalid", 0)


def test_files_and_urls_that_are_none(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["serve", "--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.pem"]) == 2
    assert "--tls-cert" in capsys.readouterr().err
    assert main(["serve", "--tls-cert", __file__, "--tls-key", __file__]) == 2
    said = capsys.readouterr().err
    assert "--tls-cert" in said and "Give a certificate and its own key" in said and said.count("\n") == 1
    assert main(["serve", "--tls-key", sys.executable]) == 2
    assert "Give both" in capsys.readouterr().err
    monkeypatch.setenv("TRIMTAB_REDIS", "http://:secret@nowhere")
    assert main(["serve"]) == 2
    errors = capsys.readouterr().err
    assert "redis://HOST:PORT/DB" in errors and "secret" not in errors


def test_small_answers_do_not_wait_for_acknowledgements() -> None:
    """asyncio sets TCP_NODELAY only on sockets that say they are TCP: without it each answer takes 40 ms."""
    with listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP
