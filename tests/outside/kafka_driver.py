"""`trimtab run` with a gate in its sink, for test_kafka: dead letters wait there while results are written."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from commands.runner import build_kafka
from commands.runner.job import JobFile
from commands.runner.run import RunOptions, run_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEADLINE_S = 600.0


def gated(frame: DataFrame, directory: str) -> DataFrame:
    deadline = DEADLINE_S

    # A closure, so that Spark ships it by value: executors cannot import the tests.
    def hold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        for batch in batches:
            end = time.monotonic() + deadline
            while batch.num_rows and os.path.exists(f"{directory}/shut"):
                open(f"{directory}/reached", "w").close()
                if time.monotonic() > end:
                    raise TimeoutError("the gate stayed shut")
                time.sleep(0.01)
            yield batch

    return frame.mapInArrow(hold, frame.schema)


def main(job: Path, directory: str) -> int:
    plain = build_kafka.build_dead_letters

    def held(job: JobFile, bad: dict[str, DataFrame]) -> list[DataFrame]:
        return [gated(letters, directory) for letters in plain(job, bad)]

    build_kafka.build_dead_letters = held
    return run_file(job, RunOptions(as_json=True))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
