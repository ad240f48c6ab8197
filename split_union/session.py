"""Session settings that the join needs, and the ones it cannot live with.

Spark's defaults are unsafe or slow for state of this kind. A setting that the user has made
differently is never overwritten: it is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
CHEAPER: Final[dict[str, tuple[str, str]]] = {
    f"{_STORE}.rocksdb.trackTotalNumberOfRows": ("false", "each write to the store would begin with a read"),
    "spark.sql.ui.explainMode": ("simple", "the driver writes the plan of every batch down, for the UI"),
}
"""What makes batches cheaper, and is made only where the user has chosen nothing."""
UNIX_SOCKETS: Final = ("spark.python.unix.domain.socket.enabled", "true")
"""Between executors and their Python processes, in place of TCP: an application's setting, for whoever starts it."""
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_NO_LIMIT: Final = 2**31 - 1
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
    optional = {name: value for name, (value, _) in CHEAPER.items()}
    if is_local(spark, checkpoint):
        optional.update([LOCAL_FILES])
    made = spark.conf.getAll
    for name, value in optional.items():
        if name not in made:
            spark.conf.set(name, value)


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


def over_tcp(spark: SparkSession) -> bool:
    """Whether executors talk to their Python processes over TCP."""
    return (spark.sparkContext.getConf().get(UNIX_SOCKETS[0]) or "false").lower() != "true"


def task_slots(spark: SparkSession) -> int | None:
    """How many tasks the application may ever run at once, where its settings say so."""
    context: Any = spark.sparkContext
    processors = int(context._jvm.java.lang.Runtime.getRuntime().availableProcessors())
    return slots_under(str(context.master), dict(context.getConf().getAll()), processors)


def slots_under(master: str, settings: Mapping[str, str], processors: int) -> int | None:
    """An upper bound: where executors can still join, and nothing says how many, there is none.

    Yarn and Kubernetes give as many executors as are asked for, a standalone cluster as many cores; under dynamic
    allocation only its maximum counts. `processors` are the driver's, for `local[*]`.
    """
    per_task = int(settings.get("spark.task.cpus", "1"))
    local = re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?", master)
    if local is not None:
        cores = 1 if local[1] is None else processors if local[1] == "*" else int(local[1])
        return max(cores // per_task, 1)
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    if cluster is not None:
        return max(int(cluster[1]) * (int(cluster[2]) // per_task), 1)
    cores_each = settings.get("spark.executor.cores")
    if settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        executors = settings.get("spark.dynamicAllocation.maxExecutors", "")
        if not executors.isdigit() or cores_each is None or int(executors) >= _NO_LIMIT:
            return None
        return max(int(executors) * (int(cores_each) // per_task), 1)
    if master.startswith("k8s://") or master == "yarn":
        return max(int(settings.get("spark.executor.instances", "2")) * (int(cores_each or "1") // per_task), 1)
    if master.startswith("spark://") and "spark.cores.max" in settings:
        return max(int(settings["spark.cores.max"]) // per_task, 1)
    return None


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
