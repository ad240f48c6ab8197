"""How often a worker finds its resident state on executors of two cores. Prints one line of JSON.

python tests/spark/resident_hit_rate.py DIRECTORY [BATCHES]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.checkers.cases import Theme, make_case
from tests.checkers.harness import Run
from tests.checkers.sessions import make_session
from trimtab.embedded import EmbeddedRedis
from trimtab.store import Store


def main(base: Path, batches: int) -> None:
    spark = make_session("local-cluster[1,2,1024]")
    case = make_case(31, Theme(key="int", streams=2, rows=40, workers=4, partitions=16, nulls=False), "hit-rate")
    run = Run(base, case.query, case.schemas)
    rows = {name: files for phase in case.phases for name, files in phase.items()}
    for number in range(batches):
        for name, files in rows.items():
            run.write(name, files[number % len(files)])
    with EmbeddedRedis() as redis:
        run.run(spark, redis.url)
        store = Store(redis.url)
        # The first batch has no state to find.
        reports = [r for batch in range(1, batches) for r in store.reports("hit-rate", batch).values()]
    hits = [report for report in reports if report.resident == "hit"]
    told = {
        "batches": len({report.batch for report in reports}),
        "workers": len({report.worker for report in reports}),
        "tasks": len(reports),
        "executors": len({report.executor for report in reports}),
        "processes": len({report.process for report in reports}),
        "hit_rate": len(hits) / max(1, len(reports)),
        "rebuilds": [[report.batch, report.worker] for report in reports if report.resident != "hit"],
    }
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 19)
