"""What a task of ours asks Spark about itself, in split and worker alike."""

from __future__ import annotations

import gc

from pyspark import TaskContext

from trimtab import __version__
from trimtab.errors import BindingError


def batch_identity(context: TaskContext) -> tuple[int, str]:
    """The micro-batch and the query that a task runs for."""
    batch = context.getLocalProperty("streaming.sql.batchId")
    query_id = context.getLocalProperty("sql.streaming.queryId")
    if batch is None or query_id is None:
        raise BindingError("this task does not belong to a streaming query: start the join with writeStream")
    return int(batch), query_id


_settled = False


def settle() -> None:
    """Called at the end of a task: what is loaded by now is there for good.

    PySpark collects garbage after every task, before the process takes its next one, and with pandas, pyarrow and numba
    loaded that takes some 40 ms. Objects that are frozen once are not looked at again.
    """
    global _settled
    if not _settled:
        _settled = True
        gc.freeze()


def check_version(expected: str) -> None:
    if expected != __version__:
        raise BindingError(
            f"the driver runs Trimtab {expected}, this executor {__version__}: install the same version on both"
        )
