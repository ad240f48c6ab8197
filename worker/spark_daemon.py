"""PySpark's daemon with the heavy modules loaded before it forks: `spark.python.daemon.module`.

An executor forks a Python process for every task that runs at once, and each would import pandas, pyarrow and numba for
itself: seconds of CPU each. Here they are imported once, and the forks share them. Only an application's settings, made
before it starts, can name a daemon: `trimtab run` on local masters, demo and tests do.

Over Unix sockets, a fork that waits for work when the application ends writes its answer to a JVM that has gone, and is
told so (over TCP it is told too late to notice). PySpark prints a stack for that. It is an ordinary end here: no word.
"""

from __future__ import annotations

import gc
import sys
import traceback
from types import SimpleNamespace

import worker.spark  # noqa: F401


def print_unless_the_jvm_has_gone() -> None:
    """In place of `traceback.print_exc` where a fork of PySpark's daemon ends by an exception."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        traceback.print_exc()


if __name__ == "__main__":
    from pyspark import daemon

    vars(daemon)["traceback"] = SimpleNamespace(
        print_exc=print_unless_the_jvm_has_gone, format_exc=traceback.format_exc
    )
    # What is loaded by now is there for good: no collection in a fork needs to look at it.
    gc.freeze()
    daemon.manager()
