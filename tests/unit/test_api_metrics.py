"""/metrics over HTTP: with a key on the API's port, without one on a port of its own and nothing else there."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from api.exposition import Exposition
from api.measures import ApiMeasures, request_kind
from api.metrics_port import serving_metrics
from api.server import listen
from manager import metrics
from manager.metrics import FAMILIES, series_budget
from tests.checkers.scraped import Scraped
from tests.checkers.served import Served, cleared, until
from tests.simulation.data_plane import DataPlane
from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.redis


@pytest.fixture
def plane(server: EmbeddedRedis) -> DataPlane:
    cleared(server.url)
    plane = DataPlane(server.url)
    plane.step()
    return plane


@pytest.fixture
def served(plane: DataPlane) -> Iterator[Served]:
    with Served(plane.store.url, manager=True) as running:
        yield running


def test_it_needs_a_key_and_read_suffices(plane: DataPlane, served: Served) -> None:
    anonymous = served.client(None).get("/metrics")
    assert anonymous.status_code == 401 and "trimtab_" not in anonymous.text
    client = served.client("read")
    until(lambda: Scraped(client.get("/metrics").text).sum("trimtab_worker_rows_total") > 0, plane)
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert answer.headers["cache-control"] == "no-store"
    page = Scraped(answer.text)
    assert page.value("trimtab_manager_leading", query="orders") == 1
    assert page.value("trimtab_manager_ready") == 1
    assert page.value("trimtab_api_refusals_total", status="401") == 1
    assert page.value("trimtab_api_requests_total", kind="read", status="4xx") == 1
    assert page.value("trimtab_api_requests_total", kind="read", status="2xx") >= 1
    assert page.value("trimtab_api_request_duration_seconds_bucket", kind="read", le="+Inf") >= 2
    assert "process_resident_memory_bytes" in page.names()
    assert {name for name in page.names() if name.startswith("trimtab_")} <= {
        sample for family in FAMILIES.values() for sample in family.sample_names
    }


def test_names_that_clients_choose_make_no_series(served: Served) -> None:
    client = served.client("operate")
    before = Scraped(client.get("/metrics").text)
    for number in range(5):
        client.get(f"/v1/queries/made-up-{number}")
        client.request("PURGE", f"/made-up/{number}")
        client.post(f"/v1/queries/made-up-{number}/rebalances", json={})
    client.get("/healthz")
    after = Scraped(client.get("/metrics").text)
    api = {key for key in after.samples if key[0].startswith("trimtab_api_")}
    assert api == {key for key in before.samples if key[0].startswith("trimtab_api_")}
    assert len(api) <= series_budget().instance
    assert after.value("trimtab_api_requests_total", kind="change", status="4xx") == 10
    assert after.value("trimtab_api_requests_total", kind="open", status="2xx") == 1
    assert after.value("trimtab_api_refusals_total", status="404") >= 10


def test_a_port_of_its_own_has_metrics_and_nothing_else(plane: DataPlane) -> None:
    command = [sys.executable, "-m", "commands.cli", "serve", "--port", "0", "--redis", plane.store.url]
    process = subprocess.Popen(
        [*command, "--metrics-port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = ""
        while "Metrics without a key" not in said:
            said = process.stdout.readline()
            assert said, "it ended"
        url = said.split()[-1]
        assert url.startswith("http://127.0.0.1:") and url.endswith("/metrics")
        with httpx.Client(timeout=10) as client:
            until(lambda: "trimtab_build_info" in client.get(url).text)
            page = client.get(url)
            assert page.status_code == 200 and page.headers["x-content-type-options"] == "nosniff"
            assert "server" not in page.headers
            base = url.removesuffix("/metrics")
            for method, path in (("GET", "/"), ("GET", "/v1/queries"), ("POST", "/metrics"), ("GET", "/metrics/x")):
                answer = client.request(method, base + path)
                assert answer.status_code == 404 and "trimtab_" not in answer.text
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=15)
        assert process.returncode == 0 and "Traceback" not in errors, errors
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_connections_that_ask_nothing_do_not_shut_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the port takes, half of them with a part of a request; and one that asks in part after an answer."""
    monkeypatch.setattr("api.connections.REQUEST_S", 0.5)

    async def scenario() -> None:
        listening = listen("127.0.0.1", 0)
        port = listening.getsockname()[1]
        async with serving_metrics(Exposition(), listening), httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{port}/metrics"
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(64)]
            for _, writer in idle[::2]:
                writer.write(b"GET /metrics HTTP/1.1\r\nHost")
            async with asyncio.timeout(20):
                assert {await reader.read() for reader, _ in idle} == {b""}
            for _, writer in idle:
                writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"API's port.\n")).startswith(b"HTTP/1.1 404")
            writer.write(b"G")
            async with asyncio.timeout(20):
                assert await reader.read() == b""
            writer.close()
            assert (await client.get(url)).status_code == 200

    asyncio.run(scenario())


def test_a_port_that_is_taken_is_reported_by_its_option(plane: DataPlane, served: Served) -> None:
    port = served.url.rpartition(":")[2]
    command = [sys.executable, "-m", "commands.cli", "serve", "--port", "0", "--metrics-port", port]
    ended = subprocess.run([*command, "--redis", plane.store.url], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "--metrics-port" in ended.stderr and "--metrics-host" in ended.stderr


@pytest.mark.parametrize(
    ("status", "status_class", "shown"),
    [(200, "2xx", None), (304, "3xx", None), (418, "4xx", "other"), (429, "4xx", "429"), (503, "5xx", "503")],
)
def test_statuses(status: int, status_class: str, shown: str | None) -> None:
    measures = ApiMeasures()
    measures.add("read", status, 0.002)
    samples = {
        (sample.name, sample.labels.get("status")): sample.value
        for family in measures.collect()
        for sample in family.samples
        if sample.value and "kind" not in sample.labels
    }
    assert samples == ({} if shown is None else {("trimtab_api_refusals_total", shown): 1.0})
    assert measures._tally.value(metrics.API_REQUESTS, "read", status_class) == 1


@pytest.mark.parametrize(
    ("method", "path", "streams", "kind"),
    [
        ("GET", "/readyz", False, "open"),
        ("GET", "/v1/queries", False, "read"),
        ("POST", "/v1/queries/x/drain", False, "change"),
        ("GET", "/v1/queries/x/events", True, "stream"),
    ],
)
def test_kinds_of_requests(method: str, path: str, streams: bool, kind: str) -> None:
    assert request_kind(method, path, streams=streams) == kind
    assert kind in metrics.REQUEST_KINDS
