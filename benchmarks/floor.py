"""The floor under a batch: Spark with a Python split and a stateful Python operator that both do nothing.

It reads the same files by the same number of tasks, and makes the same settings. Whatever a batch takes longer than
this is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from benchmarks.engines import LATENESS
from split_union import session
from split_union.split import ticks
from worker.arriving import WORKER_KEY
from worker.spark import INPUT

RESULT = "nothing long"


class Idle(StatefulProcessor):
    """Takes what comes and gives nothing."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        for _ in rows:
            pass
        return iter(())

    def close(self) -> None:
        pass


def drop_rows(keys: tuple[int, ...], stream: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A split that only wakes the workers."""
    for _ in batches:
        pass
    yield ticks(keys, stream)


def floor_result(spark: SparkSession, inputs: dict[str, DataFrame], checkpoint: Path, workers: int) -> DataFrame:
    session.prepare(spark, workers, str(checkpoint))
    keys = session.worker_keys(workers)
    splits = [
        # As in a join: Spark itself watches event time and hashes the key before the rows go to Python.
        frame.withWatermark("at", LATENESS)
        .withColumn("group", F.pmod(F.xxhash64("user"), F.lit(64)))
        .mapInArrow(partial(drop_rows, keys, stream), INPUT)
        for stream, frame in enumerate(inputs.values())
    ]
    routed = reduce(DataFrame.unionByName, splits)
    return routed.groupBy(WORKER_KEY).transformWithStateInPandas(Idle(), RESULT, "Append", "None")
