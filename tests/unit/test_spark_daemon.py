"""PySpark's daemon as `worker.spark_daemon`: where the JVM at the other end of a Unix socket goes, it says nothing."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.checkers.harness import poll

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    """As Spark's PythonWorkerFactory starts it. The path of a socket must be short: pytest's directories are not."""
    with tempfile.TemporaryDirectory() as sockets:
        yield from _started(sockets)


def _started(sockets: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": sockets,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    command = [sys.executable, "-m", "worker.spark_daemon", "pyspark.worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, cwd=ROOT, **pipes)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_text(stream: object) -> str:
    """An int for the length, then so many bytes."""
    (length,) = struct.unpack("!i", stream.read(4))  # type: ignore[attr-defined]
    return str(stream.read(length), "utf-8")  # type: ignore[attr-defined]


def _is_gone(process: int) -> bool:
    return not Path(f"/proc/{process}").exists()


def test_a_fork_whose_jvm_goes_says_nothing(daemon: subprocess.Popen[bytes]) -> None:
    path = read_text(daemon.stdout)
    for _ in range(3):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as jvm:
            jvm.settimeout(DEADLINE_S)
            jvm.connect(path)
            (fork,) = struct.unpack("!i", jvm.recv(4, socket.MSG_WAITALL))
        # The fork reads that nothing comes any more, answers, and ends: only then is the daemon told to.
        poll(partial(_is_gone, fork), "the end of a fork")
    assert daemon.stdin is not None
    daemon.stdin.close()
    assert daemon.stderr is not None
    said = daemon.stderr.read().decode()
    assert not re.search("Traceback|Broken", said), said
