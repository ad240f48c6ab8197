"""Starts that fail: the message names the field, its value, the cause and the remedy."""

from __future__ import annotations

import pytest

from commands.runner.run import has_run
from commands.runner.start_failures import start_failure_of_cause
from trimtab.embedded.redis_server import free_port
from trimtab.errors import InvalidInput


@pytest.mark.parametrize(
    ("cause", "master", "expected"),
    [
        (
            "ConnectException: Connection refused",
            "k8s://https://10.0.0.1:443",
            "spark.master = 'k8s://https://10.0.0.1:443': the Kubernetes API cannot be reached: "
            "ConnectException: Connection refused. Compare the address with `kubectl cluster-info`",
        ),
        (
            "KubernetesClientException: Failure executing: GET at: https://10.0.0.1/api/v1/namespaces/streams/pods/d. "
            'Message: pods "d" is forbidden: User "x" cannot get resource "pods".',
            "k8s://https://10.0.0.1",
            "spark.master = 'k8s://https://10.0.0.1': the Kubernetes API refused what Spark asked for: "
            'pods "d" is forbidden: User "x" cannot get resource "pods". Give the driver\'s service account',
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.",
            "locl",
            "spark.master = 'locl': Spark did not start: [JAVA_GATEWAY_EXITED] Java gateway process exited "
            "before sending its port number. Check spark.config, and that the master is local[N], ",
        ),
    ],
)
def test_a_session_that_does_not_start_names_its_master_and_the_remedy(cause: str, master: str, expected: str) -> None:
    assert str(start_failure_of_cause(cause, master)).startswith(expected)


@pytest.mark.slow
def test_a_store_of_checkpoints_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    with pytest.raises(InvalidInput, match="cannot be read") as caught:
        has_run("s3a://checkpoints/orders")
    text = str(caught.value)
    assert text.startswith("checkpoint = 's3a://checkpoints/orders': ")
    assert address.removeprefix("http://") in text and "AWS_ENDPOINT_URL" in text
    assert "canary" not in text
