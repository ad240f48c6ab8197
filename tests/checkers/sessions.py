"""Spark sessions for tests: real executor processes, set up for programs that are over soon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).resolve().parents[2]

# The second compiler would have half of the CPU for the first dozens of batches, and no test lives to see it pay.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def make_session(master: str, **settings: str) -> SparkSession:
    from trimtab.embedded import ensure_java, set_pyspark_python

    ensure_java()
    set_pyspark_python()
    # Python beside the driver and on executors needs the sources under test, installed or not. A JVM that an earlier
    # test of this process has started keeps the environment of then, so executors are told by a setting.
    path = os.pathsep.join(
        dict.fromkeys([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    )
    os.environ["PYTHONPATH"] = path
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("trimtab-tests")
    for name, value in {
        "spark.executorEnv.PYTHONPATH": path,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": _QUICK,
        "spark.executor.extraJavaOptions": _QUICK,
        "spark.python.daemon.module": "worker.spark_daemon",
        "spark.task.maxFailures": "8",
        **settings,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark
