"""Removes known chatter from what our JVM writes to stderr; everything else passes.

Neither log4j nor any setting affects these lines: Java itself and PySpark's processes beside the driver print them.
Among them are stacks at the end. A process that waits for work answers a JVM that has gone; over a Unix socket it is
told so, and PySpark's daemon prints that, if it is not killed in the middle. A JVM inherits file descriptor 2 when
it starts, so a pipe replaces that descriptor for this moment.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Final

CHATTER: Final = re.compile(
    rb"WARNING: Using incubator modules: |"
    rb"Streaming TransformWithStateInPandas Python worker |"
    rb"Starting Streaming TransformWithStateInPandas Python worker"
)


_STACK: Final = b"Traceback (most recent call last):"
_FRAME: Final = re.compile(rb'  File ".*/pyspark/daemon\.py", ')
_END: Final = b"BrokenPipeError: [Errno 32] Broken pipe"


class LineFilter:
    """Drops lines of chatter and the empty lines that follow them, and stacks of a daemon whose JVM has gone."""

    def __init__(self) -> None:
        self._dropped = False
        self._stack: list[bytes] = []
        """Lines of a stack whose end has not come yet."""
        self._ends = 0
        """Last lines that are still to come of stacks that were mixed with one that has been dropped."""

    def passes(self, line: bytes) -> list[bytes]:
        """What is to be written now that this line has come."""
        if line.startswith(_STACK) or (self._stack and line.startswith(b"  ")):
            self._stack.append(line)
            return []
        if line.startswith(_END) and self._is_quiet():
            self._ends = sum(each.startswith(_STACK) for each in self._stack) - 1
            self._stack = []
            return []
        if line.startswith(_END) and self._ends:
            self._ends -= 1
            return []
        stack, self._stack = self._stack, []
        self._dropped = bool(CHATTER.match(line)) or (self._dropped and not line.strip())
        return stack if self._dropped else [*stack, line]

    def rest(self) -> list[bytes]:
        """What is to be written after the last line: a stack that broke off, unless it is the daemon's."""
        return [] if self._is_quiet() else self._stack

    def _is_quiet(self) -> bool:
        frames = [line for line in self._stack if line.startswith(b"  File ")]
        return bool(self._stack) and all(_FRAME.match(line) for line in frames)


@contextlib.contextmanager
def filtered_stderr() -> Iterator[None]:
    """Processes that are started inside write through the filter, as long as they live."""
    sys.stderr.flush()
    try:
        real = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    source, sink = os.pipe()
    os.dup2(sink, 2)
    os.close(sink)
    threading.Thread(target=_pump, args=(source, os.dup(real)), name="trimtab-stderr", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
        os.close(real)


def _pump(source: int, target: int) -> None:
    """Copy whole lines until all writers have closed the pipe."""
    line_filter = LineFilter()
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            _write(target, line_filter.passes(line))
    _write(target, line_filter.rest())
    os.close(target)


def _write(target: int, lines: list[bytes]) -> None:
    for line in lines:
        with contextlib.suppress(OSError):
            os.write(target, line)
