"""TLS on both sides of `trimtab serve`: to Redis, with a user of its own, and to clients."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from commands.cli import main
from manager.store import ManagerStore
from tests.checkers.acl_server import ROLES, acl_server, acl_text
from tests.checkers.tls_front import Certificate, make_certificate, tls_front
from trimtab import redis_access
from trimtab.errors import RedisUnreachable
from trimtab.store import Store

pytestmark = pytest.mark.redis
PASSWORDS = {role: f"{role}-password" for role in ROLES}


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path)


@pytest.fixture
def url(tmp_path: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Redis behind TLS, and the environment of a manager that trusts it."""
    with acl_server(tmp_path, acl_text(PASSWORDS)) as server, tls_front(server.port, certificate) as port:
        address = f"rediss://localhost:{port}/0"
        monkeypatch.setenv("TRIMTAB_REDIS", address)
        monkeypatch.setenv(redis_access.CA_FILE, str(certificate.authority))
        monkeypatch.setenv(redis_access.USER, "trimtab-manager")
        monkeypatch.setenv(redis_access.PASSWORD, PASSWORDS["manager"])
        monkeypatch.setenv(redis_access.API_USER, "trimtab-api")
        monkeypatch.setenv(redis_access.API_PASSWORD, PASSWORDS["api"])
        yield address


def test_redis_with_tls_and_a_user(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    Store(url, timeout_s=10.0).check()

    async def ping() -> bool:
        store = ManagerStore(url, timeout_s=10.0)
        try:
            return bool(await store.client.ping())
        finally:
            await store.close()

    assert asyncio.run(ping())
    assert main(["keys", "create", "--name", "ops"]) == 0
    capsys.readouterr()
    assert main(["keys", "list"]) == 0
    assert "ops" in capsys.readouterr().out


def test_a_certificate_that_nobody_vouches_for(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(redis_access.CA_FILE)
    with pytest.raises(RedisUnreachable, match="certificate verify failed"):
        Store(url, timeout_s=10.0).check()
    assert main(["keys", "list"]) == 2
    assert redis_access.CA_FILE in capsys.readouterr().err


def test_the_api_with_tls(
    url: str, certificate: Certificate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "commands.cli", "serve", "--port", "0"]
    command += ["--tls-cert", str(certificate.chain), "--tls-key", str(certificate.key)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        address = next(word for word in said.split() if word.startswith("https://"))
        trusting = ssl.create_default_context(cafile=str(certificate.authority))
        assert httpx.get(f"{address}/readyz", verify=trusting, timeout=30).status_code == 200
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            httpx.get(f"{address}/readyz", timeout=30)
        assert main(["queries", "--url", address]) == 1
        assert "Name its authority in SSL_CERT_FILE" in capsys.readouterr().err
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
        assert main(["queries", "--url", address]) == 2
        assert "The request has no key" in capsys.readouterr().err
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0
