"""A process that the soak starts, kills and starts again, and the search for what is left running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from tests.checkers.harness import kill_tree
from tests.soak.layout import COMMAND, ROOT

MARK: Final = "TRIMTAB_SOAK"
"""An environment variable that all processes of one soak inherit, so that every one of them can be found again."""


class TrimtabProcess:
    """`trimtab ...` in a session of its own, so that Ctrl-C reaches the soak alone."""

    def __init__(self, name: str, arguments: Sequence[str], logs: Path, mark: str) -> None:
        self.name = name
        self._command = [sys.executable, *COMMAND, *arguments]
        self._logs = logs
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", MARK: mark}
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.wanted = False
        """Whether it is meant to run: one that has ended is then started again."""
        self.start_at = 0.0

    @property
    def log(self) -> Path:
        return self._logs / f"{self.name}-{self.starts:03d}.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def root(self) -> psutil.Process | None:
        if self._process is None or self._process.poll() is not None:
            return None
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid)
        return None

    def start(self) -> None:
        self.starts += 1
        self.wanted = True
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ended_by_itself(self) -> str | None:
        """The exit code and last words of one that is meant to run and does not; told once, restart in a moment."""
        if not self.wanted or self._process is None or self._process.poll() is None:
            return None
        code = self._process.returncode
        self._process = None
        self.start_at = time.monotonic() + 2.0
        return f"{self.name} ended with code {code}: {self.last_words()}"

    def last_words(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-600:]

    def restart_if_due(self) -> None:
        if self.wanted and self._process is None and time.monotonic() >= self.start_at:
            self.start()

    def kill(self, pause_s: float, *, tree: bool) -> None:
        """SIGKILL; with `tree` all below it too, like a machine that loses power. Starts again after the pause."""
        root = self.root
        assert root is not None and self._process is not None
        if tree:
            kill_tree(root)
        else:
            for process in [root, *root.children()]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()
        self._process = None
        self.start_at = time.monotonic() + pause_s

    def stop(self, deadline_s: float = 90.0) -> int | None:
        """End it in order; its exit code, or None where it had to be killed or was not there."""
        self.wanted = False
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            with suppress(psutil.NoSuchProcess):
                kill_tree(psutil.Process(process.pid))
            process.wait()
            return None


def marked(mark: str) -> list[psutil.Process]:
    """All processes of a soak that are alive."""
    alive = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


def left_running(mark: str, patience_s: float = 30.0) -> list[str]:
    """Who is alive although nobody should be; orphans of a killed driver have a moment to notice. They are ended."""
    end = time.monotonic() + patience_s
    while (alive := marked(mark)) and time.monotonic() < end:
        time.sleep(0.5)
    names = []
    for process in alive:
        with suppress(psutil.Error):
            names.append(f"{process.pid} {' '.join(process.cmdline())[:160]}")
            process.kill()
    return names


def still_listening(ports: Sequence[int]) -> list[int]:
    """Ports of ours that somebody answers on."""
    found = []
    for port in ports:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            found.append(port)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
