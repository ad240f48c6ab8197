"""Forks a process for each piece of work, some at a time."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

POLL_S = 0.01


@dataclass(frozen=True)
class Work(Generic[T]):
    about: T
    run: Callable[[Path], int]
    """Runs in the forked process, with a directory of its own; returns the exit code. Ends by itself."""


@dataclass(frozen=True)
class Ended(Generic[T]):
    about: T
    directory: Path
    """Is removed when the next one is asked for. Holds what was printed, in `log`."""
    exit_code: int
    seconds: float
    """Of the processor."""

    @property
    def waited_too_long(self) -> bool:
        return self.exit_code == -signal.SIGALRM

    @property
    def timed_out(self) -> bool:
        return self.waited_too_long or self.exit_code == -signal.SIGPROF

    def log(self) -> str:
        return (self.directory / "log").read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True)
class _Running(Generic[T]):
    work: Work[T]
    directory: Path


def run_all(more: Callable[[], Work[T] | None], at_a_time: int) -> Iterator[Ended[T]]:
    """Work is asked for when there is room for it, so that what has ended can decide what comes next. Ends when nothing
    runs and there is no more."""
    running: dict[int, _Running[T]] = {}
    try:
        while True:
            while len(running) < at_a_time and (work := more()) is not None:
                directory = Path(tempfile.mkdtemp(prefix="trimtab-mutant-"))
                running[_fork(work, directory)] = _Running(work, directory)
            if not running:
                return
            for ended in _ended(running):
                try:
                    yield ended
                finally:
                    shutil.rmtree(ended.directory, ignore_errors=True)
            time.sleep(POLL_S)
    finally:
        for pid, one in running.items():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            shutil.rmtree(one.directory, ignore_errors=True)


def _ended(running: dict[int, _Running[T]]) -> Iterator[Ended[T]]:
    for pid, one in list(running.items()):
        reaped, status, used = os.wait4(pid, os.WNOHANG)
        if reaped:
            del running[pid]
            code = os.waitstatus_to_exitcode(status)
            yield Ended(one.work.about, one.directory, code, used.ru_utime + used.ru_stime)


def _fork(work: Work[T], directory: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = work.run(directory)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)  # nothing of the parent's is to be tidied up here
