"""PySpark's daemon with the heavy modules loaded before it forks: `spark.python.daemon.module`.

An executor forks a Python process for every task that runs at once, and each would import pandas, pyarrow and numba for
itself: seconds of CPU each. Here they are imported once, and the forks share them. Only an application's settings, made
before it starts, can name a daemon: `trimtab run` on local masters, demo and tests do.
"""

from __future__ import annotations

import gc

import worker.spark  # noqa: F401

if __name__ == "__main__":
    from pyspark.daemon import manager

    # What is loaded by now is there for good: no collection in a fork needs to look at it.
    gc.freeze()
    manager()
