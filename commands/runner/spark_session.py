"""Makes the Spark session of our commands: with Java, the right Python, and a quiet terminal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from commands.runner.start_failures import start_failure
from commands.runner.stderr_filter import filtered_stderr
from split_union.session import UNIX_SOCKETS
from trimtab.embedded import ensure_java, set_pyspark_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*]"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

# One line for each error: no stack for a failed query, whose cause our commands print.
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{0}
"""
_SILENT: Final = (
    "org.apache.spark.SparkContext",  # a session that does not start: our commands say why
    "org.apache.spark.sql.execution.streaming",  # a query that fails: our commands say why
    "org.apache.spark.scheduler.TaskSetManager",  # the stack trace of a failed task is in its message
    "org.apache.spark.scheduler.TaskSchedulerImpl",  # executors that end when we end them
    "org.apache.spark.scheduler.AsyncEventQueue",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.util.Utils",  # "Aborting task", with the stack in the message
    "org.apache.spark.sql.execution.datasources",
    "org.apache.spark.network",  # connections that break when executors end
)


def submitted() -> bool:
    """Whether spark-submit, or a program with a session, has chosen the master already."""
    from pyspark.sql import SparkSession

    return "PYSPARK_GATEWAY_PORT" in os.environ or SparkSession.getActiveSession() is not None


def make_session(*, master: str | None, app_name: str, config: Mapping[str, str], scratch: Path) -> SparkSession:
    """A session on `master`; where one has been chosen (see `submitted`), on that, with our session settings.

    `scratch` is a directory that the caller keeps as long as the session lives.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkConf
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if submitted():
        settings = dict(config)
    else:
        ensure_java()
        set_pyspark_python()
        _let_executors_import_us()
        builder = builder.master(master or DEFAULT_MASTER)
        # Over TCP the JVM leaves Nagle's algorithm on, and the end of a stream may wait 40 ms for an acknowledgement.
        own = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", UNIX_SOCKETS[0]: UNIX_SOCKETS[1]}
        settings = {**own, **config}
        if (master or DEFAULT_MASTER).startswith("local"):
            # Elsewhere Trimtab may not be installed, and arrives only after the daemon has started.
            settings.setdefault("spark.python.daemon.module", "worker.spark_daemon")
        options = settings.get(_JAVA_OPTIONS, "")
        if "log4j" not in options:
            settings[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={quiet_log4j(scratch).as_uri()} {options}".rstrip()
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with filtered_stderr():
            return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        # spark-submit's master is known to the JVM only.
        asked = SparkConf().get("spark.master", "") if submitted() else master
        raise start_failure(error, asked or DEFAULT_MASTER) from None


def _let_executors_import_us() -> None:
    """Local executors import our packages, but a checkout that is not installed is only on the driver's path."""
    import trimtab

    root = str(Path(trimtab.__file__).resolve().parent.parent)
    paths = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, root])


def quiet_log4j(directory: Path) -> Path:
    """A log4j configuration for the driver. It is read before Spark prints anything, unlike setLogLevel."""
    # Without this, Spark prints that it sets its gateway's logger to warn.
    lines = [_LOG4J, "logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer\n"]
    lines.append("logger.gateway.level = error\n")
    for number, name in enumerate(_SILENT):
        lines.append(f"logger.l{number}.name = {name}\nlogger.l{number}.level = off\n")
    path = directory / "log4j2.properties"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def stop_session(spark: SparkSession, *, keep_logs: bool = False) -> None:
    """Stop Spark, and remove the logs and jars that local-cluster executors leave in Spark's own directory."""
    master = spark.sparkContext.master or ""
    application = spark.sparkContext.applicationId
    spark.stop()
    if master.startswith("local-cluster") and not keep_logs:
        import pyspark

        home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
        shutil.rmtree(Path(home) / "work" / application, ignore_errors=True)
