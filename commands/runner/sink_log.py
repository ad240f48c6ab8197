"""A batch that Spark's file sink has finished and Spark itself has not, because the driver died in between.

On its restart Spark plans that batch again, and the file sink skips it: its own log has it already. So no task of the
stateful operator runs, Spark does not learn which state the batch left (checkpoint format 2 wants to know), and the
query fails with "CheckpointInfo length: 0", at this start and at every other (Spark 4.3). Without the entry in the
sink's log the batch runs again, from the same state and bound to the same epoch, and writes the same rows. Files of the
first time stay behind; nobody who reads the directory through the sink's log sees them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from trimtab.offset_log import Checkpoint

LOG: Final = "_spark_metadata"


def supersede_unfinished(checkpoint: str, output: str) -> int | None:
    """Put the sink's entry for such a batch aside; returns the batch, or None where there is none."""
    spark = Checkpoint(checkpoint)
    batch = spark.last_batch()
    if batch is None or spark.last_commit() >= batch:
        return None
    sink = Checkpoint(output)
    for name in (f"{batch}", f"{batch}.compact"):
        if sink.exists(f"{LOG}/{name}"):
            folder = f"{sink.root}/{LOG}"
            sink.filesystem.move(f"{folder}/{name}", f"{folder}/.{name}.superseded")
            with suppress(OSError):
                sink.filesystem.delete_file(f"{folder}/.{name}.crc")
            return batch
    return None
