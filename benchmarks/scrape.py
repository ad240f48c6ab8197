"""How long a scrape takes: `python -m benchmarks.scrape --help`.

A real `trimtab serve` that leads a query with 4,096 groups on 64 workers, which commits a batch every half second, and
a client that scrapes /metrics with a key, as Prometheus does. An instance answers the same request from memory for a
quarter of a second, so the client waits for longer than that: every scrape is made anew.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx
import psutil

from benchmarks.api import Query, make_keys, serving
from trimtab.driver_progress import DriverProgress
from trimtab.embedded import EmbeddedRedis
from trimtab.store import Store

TARGET_MS: Final = 50.0
PAUSE_S: Final = 0.4


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scrape", description="How long a scrape takes.")
    parser.add_argument("--groups", type=int, default=4_096, help="partition groups (4096)")
    parser.add_argument("--workers", type=int, default=64, help="workers (64)")
    parser.add_argument("--scrapes", type=int, default=50, help="how many to measure (50)")
    options = parser.parse_args(arguments)
    with EmbeddedRedis() as redis, tempfile.TemporaryDirectory() as directory:
        query = Query(redis.url, options.groups, options.workers)
        (key, *_) = asyncio.run(make_keys(redis.url))
        with serving(redis.url, Path(directory)) as (port, server):
            ended = threading.Event()
            feeding = threading.Thread(target=feed, args=(query, Store(redis.url), ended))
            feeding.start()
            try:
                took_ms, cpu_ms, text = measure(f"http://127.0.0.1:{port}/metrics", key, server, options.scrapes)
            finally:
                ended.set()
                feeding.join()
    series = sum(line.startswith("trimtab_") for line in text.splitlines())
    median_ms, slowest_ms = statistics.median(took_ms), max(took_ms)
    print(f"{options.groups:,} groups, {options.workers} workers: {series:,} series, {len(text):,} bytes")
    print(f"  a scrape takes {median_ms:.1f} ms (median of {len(took_ms)}), at most {slowest_ms:.1f} ms")
    print(f"  the server uses {cpu_ms:.1f} ms of CPU for one; this does not depend on what else runs here")
    reached = median_ms <= TARGET_MS
    print(f"  target {TARGET_MS:.0f} ms: {'reached' if reached else 'NOT reached'}")
    return 0 if reached else 1


def feed(query: Query, store: Store, ended: threading.Event) -> None:
    batch = 0
    while not ended.wait(0.5):
        query.batch()
        store.progress("orders", DriverProgress(batch=batch, batch_ms=500, rows_per_s=1e6, backlog=0))
        batch += 1


def measure(url: str, key: str, server: psutil.Process, scrapes: int) -> tuple[list[float], float, str]:
    """Milliseconds of each scrape, CPU milliseconds of the server for one, and the last answer."""
    with httpx.Client(headers={"Authorization": f"Bearer {key}"}, timeout=30) as client:
        while "trimtab_query_imbalance_ratio" not in client.get(url).text:
            time.sleep(PAUSE_S)
        idle = server_cpu_s(server)
        begun = time.perf_counter()
        time.sleep(scrapes * PAUSE_S)
        idle_share = (server_cpu_s(server) - idle) / (time.perf_counter() - begun)
        took_ms: list[float] = []
        text = ""
        spent, begun = server_cpu_s(server), time.perf_counter()
        for _ in range(scrapes):
            time.sleep(PAUSE_S)
            started = time.perf_counter()
            answer = client.get(url)
            took_ms.append((time.perf_counter() - started) * 1000)
            assert answer.status_code == 200, answer.text
            text = answer.text
        spent = server_cpu_s(server) - spent
        of_scrapes = spent - idle_share * (time.perf_counter() - begun)
    return took_ms, max(0.0, of_scrapes) * 1000 / scrapes, text


def server_cpu_s(server: psutil.Process) -> float:
    times = server.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    sys.exit(main())
