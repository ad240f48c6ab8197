"""A real Prometheus that scrapes one target every second, with our rules, and answers questions."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from tests.outside.tools import tool

ROOT: Final = Path(__file__).resolve().parents[2]
RULES: Final = ROOT / "deploy" / "prometheus"
START_S: Final = 60.0


@dataclass
class Prometheus:
    url: str
    begun_s: float

    def get(self, path: str, **parameters: Any) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=60)
        body = answer.json()
        assert body["status"] == "success", (parameters, body)
        return body["data"]

    def over_the_run(self, expression: str) -> list[dict[str, Any]]:
        """Series with at least one number in the time since it was started."""
        now_s = time.time()
        step_s = max(2.0, (now_s - self.begun_s) / 500)
        data = self.get("query_range", query=expression, start=self.begun_s, end=now_s, step=step_s)
        return [
            series for series in data["result"] if any(math.isfinite(float(value)) for _, value in series["values"])
        ]

    def now(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def names(self) -> set[str]:
        return set(self.get("label/__name__/values"))


@contextmanager
def scraping(target: str, key: str, directory: Path, labels: Mapping[str, str] | None = None) -> Iterator[Prometheus]:
    """`target` is HOST:PORT of an instance, `key` one with scope read."""
    key_file = directory / "key"
    key_file.write_text(key)
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "5s"},
        "rule_files": [str(RULES / "recording.yml"), str(RULES / "alerts.yml")],
        "scrape_configs": [
            {
                "job_name": "trimtab",
                "authorization": {"credentials_file": str(key_file)},
                "static_configs": [{"targets": [target], "labels": dict(labels or {})}],
            }
        ],
    }
    path = directory / "prometheus.json"  # JSON is YAML
    path.write_text(json.dumps(configuration))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [tool("prometheus"), f"--config.file={path}", f"--storage.tsdb.path={directory / 'data'}"]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"], stdout=log, stderr=log
        )
        try:
            running = Prometheus(f"http://127.0.0.1:{port}", time.time())
            _wait_until_ready(running, process, directory / "log")
            yield running
        finally:
            process.terminate()
            process.wait(30)


def _wait_until_ready(running: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            if httpx.get(f"{running.url}/-/ready", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"Prometheus did not start: {log.read_text()[-2000:]}")
