"""Why Spark did not start, in plain words: which master was asked, what went wrong, what to do about it."""

from __future__ import annotations

import re
from typing import Final

from commands.runner.failures import innermost_cause
from trimtab.errors import InvalidInput

_KUBERNETES: Final = "k8s://"
_ANSWERED: Final = re.compile(r"^KubernetesClientException: (?:Failure executing: .*?Message: )?(.+)", re.DOTALL)
"""The API server has answered. An error on the way to it has a cause of another class."""


class SparkNotStarted(InvalidInput):
    """The master of the Spark session did not answer, or refused; no query was started."""


def start_failure(error: BaseException, master: str) -> SparkNotStarted:
    return start_failure_of_cause(innermost_cause(error), master)


def start_failure_of_cause(cause: str, master: str) -> SparkNotStarted:
    if not master.startswith(_KUBERNETES):
        return SparkNotStarted(
            "spark.master",
            master,
            f"Spark did not start: {_without_stop(cause)}",
            "Check spark.config, and that the master is local[N], local-cluster[N,CORES,MB], spark://HOST:PORT, "
            "k8s://https://HOST:PORT or yarn and can be reached from here.",
        )
    if (answered := _ANSWERED.match(cause)) is not None:
        return SparkNotStarted(
            "spark.master",
            master,
            f"the Kubernetes API refused what Spark asked for: {_without_stop(answered[1])}",
            "Give the driver's service account the rights in spark.kubernetes.namespace that the chart's Role for "
            "drivers has, then start again.",
        )
    return SparkNotStarted(
        "spark.master",
        master,
        f"the Kubernetes API cannot be reached: {_without_stop(cause)}",
        "Compare the address with `kubectl cluster-info`, check that a connection to it is allowed from here (in the "
        "chart: networkPolicy.apiServer), then start again.",
    )


def _without_stop(text: str) -> str:
    return text.strip().rstrip(".")
