"""Session settings that the join needs, and the ones it cannot live with.

Spark's defaults are unsafe or slow for state of this kind. A setting that the user has made
differently is never overwritten: it is refused by name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from trimtab.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STORE = "spark.sql.streaming.stateStore"
REQUIRED: Final[dict[str, tuple[str, str]]] = {
    f"{_STORE}.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "the stateful operator runs on RocksDB only",
    ),
    f"{_STORE}.rocksdb.changelogCheckpointing.enabled": ("true", "a commit must cost the batch, not the window"),
    f"{_STORE}.checkpointFormatVersion": ("2", "without it a zombie task may overwrite the winner's state file"),
    f"{_STORE}.encodingFormat": ("avro", "it must be set before batch 0 for state to be readable by later versions"),
    "spark.sql.streaming.statefulOperator.allowMultiple": (
        "false",
        "a watermark defined on the result would stop the query in its second batch",
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": ("false", "a batch without data runs neither split nor worker"),
    "spark.sql.execution.arrow.maxRecordsPerBatch": ("1000000", "rows travel in few large frames"),
}
LOCAL_FILES: Final = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)
"""For checkpoints on a local disk (ADR 0007). Both managers of Spark write a temporary file and rename it there; the
default one starts `readlink` and `chmod` processes for every file, dozens in each batch."""
UNIX_SOCKETS: Final = ("spark.python.unix.domain.socket.enabled", "true")
"""Between executors and their Python processes, in place of TCP: an application's setting, for whoever starts it."""
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
TASK_ATTEMPTS: Final = 4
"""Where spark.task.maxFailures is not set: Spark's own default."""


def check(spark: SparkSession, workers: int) -> None:
    """Refuse settings that the join cannot live with."""
    made = spark.conf.getAll
    for name, (value, why) in _wanted(workers).items():
        if name in made and made[name].lower() != value.lower():
            remedy = f"Set it to {value}, or leave it unset and Trimtab sets it."
            if name == SHUFFLE_PARTITIONS:
                remedy += " Queries with different worker counts need sessions of their own: spark.newSession()."
            raise InvalidInput(name, made[name], f"Trimtab needs {value} here: {why}", remedy)
    if spark.conf.get("spark.speculation", "false") == "true":
        raise InvalidInput(
            "spark.speculation",
            "true",
            "two attempts of one worker at once would rebuild its state over and over",
            "Set it to false.",
        )


def prepare(spark: SparkSession, workers: int, checkpoint: str) -> None:
    """Make the settings, which `check` has found to be free."""
    for name, (value, _) in _wanted(workers).items():
        spark.conf.set(name, value)
    if is_local(spark, checkpoint) and LOCAL_FILES[0] not in spark.conf.getAll:
        spark.conf.set(*LOCAL_FILES)


def flag(spark: SparkSession, name: str) -> bool:
    return (spark.conf.get(name, "false") or "false").lower() == "true"


def is_local(spark: SparkSession, checkpoint: str) -> bool:
    """Whether Spark finds a checkpoint on a local disk."""
    context: Any = spark.sparkContext
    default = str(context._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///"))
    return (checkpoint if ":" in checkpoint.partition("/")[0] else default).startswith("file:")


def task_attempts(spark: SparkSession) -> int:
    """How often Spark tries a task before it gives the query up."""
    context = spark.sparkContext
    return attempts_under(str(context.master), context.getConf().get("spark.task.maxFailures"))


def attempts_under(master: str, max_failures: str | None) -> int:
    """As Spark has it: `local[N]` and `local` try once, `local[N,M]` M times, whatever spark.task.maxFailures says."""
    local = re.fullmatch(r"local(?:\[\s*(?:\d+|\*)\s*(?:,\s*(\d+)\s*)?\])?", master)
    if local is not None:
        return int(local[1] or 1)
    return int(max_failures or TASK_ATTEMPTS)


def _wanted(workers: int) -> dict[str, tuple[str, str]]:
    return {**REQUIRED, SHUFFLE_PARTITIONS: (str(workers), "each worker is one shuffle partition")}


def worker_keys(workers: int) -> tuple[int, ...]:
    """A grouping key for each worker that Spark hashes to the shuffle partition of the worker's number."""
    keys: dict[int, int] = {}
    candidate = 0
    while len(keys) < workers:
        keys.setdefault(_murmur3_long(candidate) % workers, candidate)
        candidate += 1
    return tuple(keys[worker] for worker in range(workers))


def _murmur3_long(value: int, seed: int = 42) -> int:
    """Spark's hash() of one bigint, as a signed 32-bit number (Murmur3_x86_32 over two halves)."""
    mask = 0xFFFFFFFF

    def rotated(word: int, by: int) -> int:
        return ((word << by) | (word >> (32 - by))) & mask

    mixed = seed
    for word in (value & mask, (value >> 32) & mask):
        word = (rotated((word * 0xCC9E2D51) & mask, 15) * 0x1B873593) & mask
        mixed = (rotated(mixed ^ word, 13) * 5 + 0xE6546B64) & mask
    mixed ^= 8
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) & mask
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >= 1 << 31 else mixed
