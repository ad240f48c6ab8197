"""How many reads a second the API answers: `python -m benchmarks.api --help`.

A real `trimtab serve` (manager and API in one process, access log on) and a real Redis server; a query with 64 groups
on 4 workers that commits a batch every half second; clients that keep their connections and ask for the partitions as
fast as they are answered, from another process. They share this machine's cores with everything else that runs, so the
CPU time of a request is printed too: it does not depend on other processes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from api.keys import KeyStore, new_key
from manager.store import ManagerStore
from trimtab.embedded import EmbeddedRedis
from trimtab.epochs import Epoch, dealt_in_turn, first_epoch
from trimtab.reports import WorkerReport
from trimtab.store import Store

QUERY = "orders"
PARTITIONS = 64
WORKERS = 4
TARGET_PER_S = 1_000
KEYS = 4
"""Each key may be used 2,000 times a second; the clients share these keys."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.api", description="Requests per second of the API.")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to measure (10)")
    parser.add_argument("--clients", type=int, default=16, help="connections that ask at the same time (16)")
    options = parser.parse_args(arguments)
    with EmbeddedRedis() as redis, tempfile.TemporaryDirectory() as directory:
        query = Query(redis.url)
        query.batch()
        keys = asyncio.run(make_keys(redis.url))
        with serving(redis.url, Path(directory)) as (port, server):
            figures = asyncio.run(measure(query, port, server, keys, options.clients, options.seconds))
    print(
        f"GET /v1/queries/{QUERY}/partitions: {PARTITIONS} groups, {figures.body_bytes:,} bytes, "
        f"{options.clients} clients"
    )
    print(f"  {figures.per_s:,.0f} requests/s (target {TARGET_PER_S:,}), {figures.failed} of {figures.count:,} failed")
    print(f"  latency median {figures.median_ms:.1f} ms, 99 % {figures.p99_ms:.1f} ms")
    print(
        f"  the server had {figures.cpu_share:.0%} of a core: {figures.cpu_us:.0f} us of CPU a request, "
        f"{1e6 / figures.cpu_us:,.0f} requests per second of CPU"
    )
    reached = figures.per_s >= TARGET_PER_S and not figures.failed
    print("  reached" if reached else "  NOT reached")
    return 0 if reached else 1


class Query:
    """What a running query writes to Redis: epochs, reports, heartbeat."""

    def __init__(self, url: str, partitions: int = PARTITIONS, workers: int = WORKERS) -> None:
        self._store = Store(url)
        self._workers = workers
        self._epoch: Epoch = first_epoch(QUERY, "bench", dealt_in_turn(partitions, workers))
        self._store.publish(self._epoch)
        self._store.define(
            QUERY,
            {"incarnation": "bench", "workers": workers, "partitions": partitions, "window": 10_000_000, "lateness": 0},
        )
        self._batch = -1
        self._random = random.Random(1)

    def batch(self) -> None:
        self._batch += 1
        for worker in range(self._workers):
            groups = [group for group, owner in enumerate(self._epoch.owners) if owner == worker]
            rows = [self._random.randrange(100, 1000) for _ in groups]
            self._store.report(_report(self._batch, worker, groups, rows))
        self._store.beat(QUERY, self._batch, self._epoch.number, self._epoch.digest)


class Figures:
    def __init__(self, seconds: float, cpu_s: float, latencies_s: list[float], failed: int, body_bytes: int) -> None:
        self.count = len(latencies_s)
        self.failed = failed
        self.body_bytes = body_bytes
        self.per_s = self.count / seconds
        self.cpu_share = cpu_s / seconds
        self.cpu_us = cpu_s / self.count * 1e6
        self.median_ms = statistics.median(latencies_s) * 1000
        self.p99_ms = statistics.quantiles(latencies_s, n=100)[98] * 1000


async def measure(
    query: Query, port: int, server: psutil.Process, keys: list[str], clients: int, seconds: float
) -> Figures:
    latencies_s: list[float] = []
    answers: list[tuple[int, int]] = []
    stop = asyncio.Event()

    async def ask(key: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET /v1/queries/{QUERY}/partitions HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n\r\n"
        request = head.encode()
        while not stop.is_set():
            begun = time.perf_counter()
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            latencies_s.append(time.perf_counter() - begun)
            answers.append((int(answer[9:12]), length))
        writer.close()

    async def go_on() -> None:
        while not stop.is_set():
            await asyncio.to_thread(query.batch)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.5)

    asking = [asyncio.create_task(ask(keys[number % len(keys)])) for number in range(clients)]
    going_on = asyncio.create_task(go_on())
    await asyncio.sleep(2.0)  # warm: connections are open, the manager has seen batches
    latencies_s.clear()
    answers.clear()
    begun, cpu_s = time.perf_counter(), _cpu_s(server)
    await asyncio.sleep(seconds)
    spent_s, cpu_s = time.perf_counter() - begun, _cpu_s(server) - cpu_s
    figures = Figures(spent_s, cpu_s, list(latencies_s), sum(status != 200 for status, _ in answers), answers[-1][1])
    stop.set()
    await asyncio.gather(*asking, going_on)
    return figures


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def make_keys(url: str, count: int = KEYS) -> list[str]:
    store = ManagerStore(url)
    keys = [new_key(f"bench{number}", "read", 0) for number in range(count)]
    for _, record in keys:
        await KeyStore(store.client).add(record)
    await store.close()
    return [text for text, _ in keys]


@contextlib.contextmanager
def serving(url: str, directory: Path) -> Iterator[tuple[int, psutil.Process]]:
    """Port and process of a new `trimtab serve`."""
    command = [sys.executable, "-m", "commands.cli", "serve", "--redis", url, "--port", "0"]
    with (directory / "log").open("w") as log:
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | {"LC_ALL": "C"}
        )
        try:
            assert server.stdout is not None
            first = server.stdout.readline()
            yield int(first.partition("127.0.0.1:")[2].split()[0]), psutil.Process(server.pid)
        finally:
            server.terminate()
            server.wait(60)  # it gives open streams some seconds, and the machine may be busy
            if server.stdout is not None:
                server.stdout.close()


def _report(batch: int, worker: int, groups: list[int], rows: list[int]) -> WorkerReport:
    total = sum(rows)
    return WorkerReport(
        query=QUERY,
        batch=batch,
        epoch=1,
        worker=worker,
        attempt=0,
        executor=str(worker % 2),
        process=worker,
        at_ms=time.time_ns() // 1_000_000,
        rows={"A": total},
        late_rows={},
        bad_rows={},
        results=total // 3,
        state_rows=total * 20,
        combined_rows=0,
        state_bytes=total * 1000,
        index_bytes=total * 100,
        watermark_us=batch * 500_000,
        cpu_ns=total * 2_000,
        resident="hit",
        groups=groups,
        group_rows=rows,
        group_probes=rows,
        group_results=[each // 3 for each in rows],
        group_state_rows=[each * 20 for each in rows],
        group_bytes=[each * 1000 for each in rows],
        group_cpu_ns=[each * 2_000 for each in rows],
    )


if __name__ == "__main__":
    sys.exit(main())
