"""Removes known chatter from what our JVM writes to stderr; everything else passes.

Neither log4j nor any setting affects these lines: Java itself and PySpark's driver-side Python worker print them. A JVM
inherits file descriptor 2 when it starts, so a pipe replaces that descriptor for this moment.
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


class LineFilter:
    """Drops lines of chatter, and the empty lines that follow them."""

    def __init__(self) -> None:
        self._dropped = False

    def passes(self, line: bytes) -> bool:
        if CHATTER.match(line) or (self._dropped and not line.strip()):
            self._dropped = True
            return False
        self._dropped = False
        return True


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
            if line_filter.passes(line):
                with contextlib.suppress(OSError):
                    os.write(target, line)
    os.close(target)
