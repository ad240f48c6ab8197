"""A driver of its own for test_faults: runs the join until somebody kills it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.checkers.harness import Run
from tests.spark.test_faults import Running, three_way
from trimtab.embedded import ensure_java, set_pyspark_python


def main(base: Path, redis: str) -> None:
    ensure_java()
    set_pyspark_python()
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    running = Running(three_way("driver"), base, spark, redis, ahead=0)
    assert isinstance(running.run, Run)
    running.start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
