"""A Kafka server of one process, for examples and tests: KRaft mode, a directory of its own, gone at the end."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from examples.kafka.jars import jars
from trimtab.embedded import ensure_java

START_S: Final = 180.0
_SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.retention.ms=-1
"""


class BrokerFailed(Exception):
    """The server did not start; its last words are in the message."""


class EmbeddedKafka:
    """`with EmbeddedKafka() as kafka: kafka.servers`"""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="trimtab-kafka-")
        self._process: subprocess.Popen[bytes] | None = None
        self.servers = ""

    def __enter__(self) -> Self:
        base = Path(self._directory.name)
        port, controller = _free_ports(2)
        settings = base / "server.properties"
        settings.write_text(_SETTINGS.format(port=port, controller=controller, directory=base))
        java = [str(Path(ensure_java()) / "bin" / "java"), "-Xmx512m", "-cp", os.pathsep.join(map(str, jars("broker")))]
        name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formatted = [*java, "kafka.tools.StorageTool", "format", "-t", name, "-c", str(settings), "--standalone"]
        done = subprocess.run(formatted, capture_output=True, text=True, timeout=START_S, check=False)
        if done.returncode != 0:
            raise BrokerFailed(f"Kafka's storage cannot be formatted:\n{(done.stdout + done.stderr)[-1500:]}")
        log = base / "log"
        with log.open("wb") as told:
            self._process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=told, stderr=told)
        deadline = time.monotonic() + START_S
        while not _answers(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-1500:]
                self.__exit__(None, None, None)
                raise BrokerFailed(f"Kafka did not start:\n{said}")
            time.sleep(0.1)
        self.servers = f"127.0.0.1:{port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(30)
        self._directory.cleanup()


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _answers(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
