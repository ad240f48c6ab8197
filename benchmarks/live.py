"""Many clients follow one query on one instance: `python -m benchmarks.live --help`.

A real `trimtab serve` and a real Redis server; a query with 64 groups on 4 workers that commits a batch every half
second; clients in a process of their own, half of them on the events and half on the front page, and some that never
read. Events are written as the leader writes them, with the time in their text; a delay is the time from before that
write to the moment at which the client has the bytes. Everything shares this machine's cores with whatever else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.api import QUERY, Query, make_keys, serving
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis
from trimtab.store import Store

TARGET_P99_MS: Final = 200.0
TARGET_CLIENT_KB: Final = 256.0
"""Memory of the server for each client: bounded, whatever happens."""
CLIENTS_OF_KEY: Final = 100
EVENTS_PER_S: Final = 4.0
_SENT: Final = re.compile(rb'"text":"sent (\d+)"')
_CONNECTING_AT_ONCE: Final = 50


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description="Event streams of one instance.")
    parser.add_argument("--clients", type=int, default=1000, help="that follow, half events and half front page (1000)")
    parser.add_argument("--slow", type=int, default=50, help="more of them, which never read (50)")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure (20)")
    options = parser.parse_args(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with EmbeddedRedis() as redis, tempfile.TemporaryDirectory() as directory:
        query = Query(redis.url)
        query.batch()
        keys = asyncio.run(make_keys(redis.url, (options.clients + options.slow) // CLIENTS_OF_KEY + 1))
        with serving(redis.url, Path(directory)) as (port, server):
            figures = measure(query, Store(redis.url), port, server, keys, options)
    print(f"{options.clients} clients and {options.slow} that never read, {options.seconds:.0f} s")
    for line in figures.lines():
        print(f"  {line}")
    reached = figures.reached(options.clients)
    print("  reached" if reached else "  NOT reached")
    return 0 if reached else 1


@dataclass
class Figures:
    """What the clients and the server say."""

    seconds: float
    """Measured."""
    events: int
    """Written."""
    delays_ms: list[float]
    """Of each event at each client that follows events."""
    deltas: int
    """Messages that clients of the front page got."""
    connected: int
    redis_connections: int
    before_mb: float
    after_mb: float
    slow: int
    cpu_share: float
    """Of a core, the server's."""
    clients_cpu_share: float
    """Of a core, that of all clients together: one process. Near 1 it would be what is measured."""

    @property
    def p99_ms(self) -> float:
        return statistics.quantiles(self.delays_ms, n=100)[98] if len(self.delays_ms) > 1 else float("inf")

    def client_kb(self) -> float:
        return (self.after_mb - self.before_mb) * 1000 / max(1, self.connected + self.slow)

    def message_us(self) -> float:
        """CPU time of the server for each message that a client got, all its other work included."""
        return self.cpu_share * self.seconds * 1e6 / max(1, len(self.delays_ms) + self.deltas)

    def lines(self) -> list[str]:
        expected = self.events * (self.connected // 2)
        return [
            f"{self.connected} connected; {len(self.delays_ms):,} of {expected:,} events arrived, "
            f"{self.deltas:,} messages of the front page",
            f"delay of an event: median {statistics.median(self.delays_ms):.0f} ms, 99 % {self.p99_ms:.0f} ms "
            f"(target {TARGET_P99_MS:.0f}), largest {max(self.delays_ms):.0f} ms",
            f"server: {self.before_mb:.0f} MB before, {self.after_mb:.0f} MB with them, {self.client_kb():.0f} KB for "
            f"each client (target {TARGET_CLIENT_KB:.0f}), {self.cpu_share:.0%} of a core, "
            f"{self.message_us():.0f} us a message",
            f"clients: {self.clients_cpu_share:.0%} of a core",
            f"connections to Redis, all programs together: {self.redis_connections}",
        ]

    def reached(self, clients: int) -> bool:
        complete = self.connected == clients and len(self.delays_ms) == self.events * (clients // 2)
        return complete and self.p99_ms <= TARGET_P99_MS and self.client_kb() <= TARGET_CLIENT_KB


def measure(
    query: Query, store: Store, port: int, server: psutil.Process, keys: list[str], options: argparse.Namespace
) -> Figures:
    _until_served(port, keys[0])
    before_mb = server.memory_info().rss / 1e6
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    following = context.Process(
        target=_follow, args=(theirs, port, keys, options.clients, options.slow, options.seconds + 3), daemon=True
    )
    following.start()
    connected = ours.recv()
    follower = psutil.Process(following.pid)
    begun, cpu_s, followers_s, events = time.monotonic(), _cpu_s(server), _cpu_s(follower), 0
    while (spent_s := time.monotonic() - begun) < options.seconds:
        if events % 2 == 0:
            query.batch()
        body = {"at_ms": 0, "kind": "step", "text": f"sent {time.time_ns()}", "data": {}}
        store.client.xadd(redis_keys.events(QUERY), {"event": json.dumps(body)}, maxlen=10_000)
        events += 1
        time.sleep(max(0.0, begun + events / EVENTS_PER_S - time.monotonic()))
    cpu_share, clients_cpu_share = (_cpu_s(server) - cpu_s) / spent_s, (_cpu_s(follower) - followers_s) / spent_s
    after_mb = server.memory_info().rss / 1e6
    clients: Any = store.client.info("clients")
    delays_ms, deltas = ours.recv()
    following.join(30)
    return Figures(
        seconds=spent_s,
        events=events,
        delays_ms=delays_ms,
        deltas=deltas,
        connected=connected,
        redis_connections=int(clients["connected_clients"]),
        before_mb=before_mb,
        after_mb=after_mb,
        slow=options.slow,
        cpu_share=cpu_share,
        clients_cpu_share=clients_cpu_share,
    )


@dataclass
class _Follower(asyncio.Protocol):
    """One client: as little work as possible, since a thousand of them share a core."""

    head: bytes
    live: bool
    delays_ms: list[float]
    messages: list[int]
    ready: asyncio.Future[bool]
    reads: bool = True
    _rest: bytes = field(default=b"", repr=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.head)

    def data_received(self, data: bytes) -> None:
        now_ns = time.time_ns()
        if not self.ready.done():
            self.ready.set_result(data.startswith(b"HTTP/1.1 200"))
            if not self.ready.result():
                print(data.decode(errors="replace"), file=sys.stderr)
            if not self.reads:
                self.transport.pause_reading()
        if self.live:
            self.messages[0] += data.count(b"event: ")
            return
        data = self._rest + data
        last = 0
        for found in _SENT.finditer(data):
            self.delays_ms.append((now_ns - int(found[1])) / 1e6)
            last = found.end()
        self._rest = data[max(last, len(data) - 100) :]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_result(False)


def _follow(tell: Connection, port: int, keys: list[str], clients: int, slow: int, seconds: float) -> None:
    asyncio.run(_clients(tell, port, keys, clients, slow, seconds))


async def _clients(tell: Connection, port: int, keys: list[str], clients: int, slow: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    delays_ms: list[float] = []
    messages = [0]
    room = asyncio.Semaphore(_CONNECTING_AT_ONCE)

    async def connect(number: int) -> bool:
        live, reads = number % 2 == 1, number < clients
        path = f"/v1/queries/{QUERY}/{'live' if live else 'events'}"
        key = keys[number // CLIENTS_OF_KEY]
        head = f"GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
        ready: asyncio.Future[bool] = loop.create_future()
        async with room:
            await loop.create_connection(
                lambda: _Follower(head, live, delays_ms, messages, ready, reads), "127.0.0.1", port
            )
            return await ready

    answers = await asyncio.gather(*(connect(number) for number in range(clients + slow)))
    await asyncio.sleep(1.0)
    tell.send(sum(answers[:clients]))
    await asyncio.sleep(seconds)
    tell.send((delays_ms, messages[0]))


def _until_served(port: int, key: str) -> None:
    """Warm: modules are loaded, the manager has seen the query."""
    import httpx

    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"}) as client:
        for _ in range(100):
            with contextlib.suppress(httpx.HTTPError):
                if client.get(f"/v1/queries/{QUERY}/front").status_code == 200:
                    return
            time.sleep(0.1)
    raise RuntimeError("the server does not answer")


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    sys.exit(main())
