"""What a task of ours asks Spark about itself, in split and worker alike."""

from __future__ import annotations

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


def check_version(expected: str) -> None:
    if expected != __version__:
        raise BindingError(
            f"the driver runs Trimtab {expected}, this executor {__version__}: install the same version on both"
        )
