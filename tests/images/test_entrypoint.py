"""What the images' own scripts make of the environment."""

from __future__ import annotations

import pytest

from deploy.docker.entrypoint import EXECUTOR, EXECUTOR_OPTIONS, Missing, command
from deploy.docker.healthcheck import address

HOMES = {"SPARK_HOME": "/opt/spark", "JAVA_HOME": "/opt/java"}
POD = {
    **HOMES,
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "4096m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "orders-exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


def test_a_driver_is_submitted_in_client_mode() -> None:
    assert command(
        ["driver", "--class", "X", "local:///x.py", "a b"], {**HOMES, "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.6"}
    ) == [
        "/opt/spark/bin/spark-submit",
        *("--conf", "spark.driver.bindAddress=10.0.0.6"),
        *("--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.6"),
        *("--deploy-mode", "client", "--class", "X", "local:///x.py", "a b"),
    ]


def test_an_executor_is_told_what_the_scheduler_says() -> None:
    options = {
        "SPARK_JAVA_OPT_10": "-Dlast=1",
        "SPARK_JAVA_OPT_2": "-Da=two words",
        "SPARK_CONF_DIR": "/opt/spark/conf",
    }
    extra = {"SPARK_CLASSPATH": "/own.jar", "HADOOP_CONF_DIR": "/hadoop", "SPARK_DIST_CLASSPATH": "/dist/*"}
    assert command(["executor"], {**POD, **options, **extra}) == [
        *("/opt/java/bin/java", "-Da=two words", "-Dlast=1", "-Xms4096m", "-Xmx4096m"),
        *("-cp", "/opt/spark/conf:/hadoop:/own.jar:/opt/spark/jars/*:/dist/*", EXECUTOR),
        *("--driver-url", "spark://CoarseGrainedScheduler@driver:7078", "--executor-id", "1", "--cores", "2"),
        *("--app-id", "spark-1", "--hostname", "10.0.0.7", "--resourceProfileId", "0", "--podName", "orders-exec-1"),
    ]


@pytest.mark.parametrize("variable", ["SPARK_EXECUTOR_MEMORY", *EXECUTOR_OPTIONS.values()])
def test_a_variable_that_is_missing_is_named(variable: str) -> None:
    with pytest.raises(Missing, match=rf"^{variable} is not set\. .* as executor;"):
        command(["executor"], {**POD, variable: ""})
    with pytest.raises(Missing, match="SPARK_DRIVER_BIND_ADDRESS is not set"):
        command(["driver"], HOMES)


def test_any_other_command_is_run_as_it_is() -> None:
    assert command(["trimtab", "run", "driver"], HOMES) == ["trimtab", "run", "driver"]


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({"TRIMTAB_SERVE_HOST": "0.0.0.0"}, "http://127.0.0.1:8765/healthz"),
        ({"TRIMTAB_SERVE_HOST": "::"}, "http://[::1]:8765/healthz"),
        ({"TRIMTAB_SERVE_HOST": "10.0.0.7"}, "http://10.0.0.7:8765/healthz"),
        ({"TRIMTAB_SERVE_TLS_CERT": "/etc/tls.crt"}, "https://127.0.0.1:8765/healthz"),
    ],
)
def test_the_health_check_asks_where_the_manager_listens(environ: dict[str, str], url: str) -> None:
    assert address({"TRIMTAB_SERVE_PORT": "8765", **environ}) == url
