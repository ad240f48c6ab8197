"""Forks a process for each piece of work, some at a time, and ends those that take too long."""

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
    """Runs in the forked process, with a directory of its own; returns the exit code."""
    limit_s: float


@dataclass(frozen=True)
class Ended(Generic[T]):
    about: T
    directory: Path
    """Is removed when the next one is asked for. Holds what was printed, in `log`."""
    exit_code: int
    timed_out: bool
    seconds: float

    def log(self) -> str:
        return (self.directory / "log").read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True)
class _Running(Generic[T]):
    work: Work[T]
    directory: Path
    started: float


def run_all(more: Callable[[], Work[T] | None], at_a_time: int) -> Iterator[Ended[T]]:
    """Work is asked for when there is room for it, so that what has ended can decide what comes next. Ends when nothing
    runs and there is no more."""
    running: dict[int, _Running[T]] = {}
    try:
        while True:
            while len(running) < at_a_time and (work := more()) is not None:
                directory = Path(tempfile.mkdtemp(prefix="trimtab-mutant-"))
                running[_fork(work, directory)] = _Running(work, directory, time.monotonic())
            if not running:
                return
            for ended in _ended(running):
                yield ended
                shutil.rmtree(ended.directory, ignore_errors=True)
            time.sleep(POLL_S)
    finally:
        for pid, one in running.items():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            shutil.rmtree(one.directory, ignore_errors=True)


def _ended(running: dict[int, _Running[T]]) -> Iterator[Ended[T]]:
    for pid, one in list(running.items()):
        seconds = time.monotonic() - one.started
        reaped, status = os.waitpid(pid, os.WNOHANG)
        too_long = not reaped and seconds > one.work.limit_s
        if too_long:
            os.kill(pid, signal.SIGKILL)
            reaped, status = os.waitpid(pid, 0)
        if reaped:
            del running[pid]
            code = os.waitstatus_to_exitcode(status)
            yield Ended(one.work.about, one.directory, code, too_long or code == -signal.SIGALRM, seconds)


def _fork(work: Work[T], directory: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = work.run(directory)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)  # nothing of the parent's is to be tidied up here
