"""A driver of its own for test_faults: runs the join until somebody kills it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.checkers.harness import Run
from tests.checkers.sessions import make_session
from tests.spark.test_faults import Running, three_way


def main(base: Path, redis: str) -> None:
    spark = make_session("local-cluster[2,1,1024]")
    running = Running(three_way("driver"), base, spark, redis, ahead=0)
    assert isinstance(running.run, Run)
    running.start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
