"""The Spark application that benchmarks run in: two executors of one core, as `trimtab run` would set it up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from commands.runner.spark_session import make_session

WORKERS: Final = 2


def make_application(memory: str, scratch: Path, settings: Mapping[str, str] | None = None) -> SparkSession:
    """`scratch` is kept as long as the session lives."""
    scratch.mkdir(parents=True, exist_ok=True)
    config = {
        "spark.executor.memory": memory,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.ui.retainedStages": "100000",
        **(settings or {}),
    }
    master = f"local-cluster[{WORKERS},1,{_megabytes(memory)}]"
    spark = make_session(master=master, app_name="trimtab benchmark", config=config, scratch=scratch)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _megabytes(memory: str) -> int:
    return int(memory[:-1]) * {"g": 1024, "m": 1}[memory[-1].lower()]
