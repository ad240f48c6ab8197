"""What the Spark image starts: `driver ...` or `executor`, as Spark's Kubernetes scheduler asks; else what it is given.

Spark tells an executor all it has to know in the environment. What it tells, and what has to be started, is agreed
between the scheduler and its image: the names below belong to Spark.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

EXECUTOR: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
EXECUTOR_OPTIONS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
JAVA_OPTION: Final = re.compile(r"SPARK_JAVA_OPT_(\d+)")


class Missing(Exception):
    """A variable that Spark's scheduler sets is not there."""

    def __init__(self, variable: str, role: str) -> None:
        super().__init__(
            f"{variable} is not set. Spark's Kubernetes scheduler sets it where it starts this image as {role}; "
            "to run something else, give a command, such as `trimtab run query.yaml`."
        )


def _needed(environ: Mapping[str, str], variable: str, role: str) -> str:
    value = environ.get(variable)
    if not value:
        raise Missing(variable, role)
    return value


def classpath(environ: Mapping[str, str]) -> str:
    """Configuration first, so that a file there wins over the same file in a jar."""
    home = environ["SPARK_HOME"]
    parts = (
        environ.get("SPARK_CONF_DIR") or f"{home}/conf",
        environ.get("HADOOP_CONF_DIR"),
        environ.get("SPARK_CLASSPATH"),
        f"{home}/jars/*",
        environ.get("SPARK_EXTRA_CLASSPATH"),
        environ.get("SPARK_DIST_CLASSPATH"),
    )
    return ":".join(part for part in parts if part)


def driver(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    address = _needed(environ, "SPARK_DRIVER_BIND_ADDRESS", "driver")
    return [
        f"{environ['SPARK_HOME']}/bin/spark-submit",
        *("--conf", f"spark.driver.bindAddress={address}"),
        *("--conf", f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}"),
        *("--deploy-mode", "client"),
        *arguments,
    ]


def executor(environ: Mapping[str, str]) -> list[str]:
    numbered = sorted(
        (int(match[1]), value) for name, value in environ.items() if (match := JAVA_OPTION.fullmatch(name))
    )
    memory = _needed(environ, "SPARK_EXECUTOR_MEMORY", "executor")
    told = {option: _needed(environ, variable, "executor") for option, variable in EXECUTOR_OPTIONS.items()}
    return [
        f"{environ['JAVA_HOME']}/bin/java",
        *(option for _, option in numbered),
        *(f"-Xms{memory}", f"-Xmx{memory}"),
        *("-cp", classpath(environ)),
        EXECUTOR,
        *(word for pair in told.items() for word in pair),
    ]


def command(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    match arguments:
        case ["driver", *rest]:
            return driver(rest, environ)
        case ["executor", *_]:
            return executor(environ)
        case _:
            return list(arguments)


def main() -> int:
    try:
        words = command(sys.argv[1:], os.environ)
        os.execvp(words[0], words)
    except (Missing, OSError) as problem:
        print(f"entrypoint: {problem}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main())
