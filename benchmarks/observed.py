"""What being watched costs: `python -m benchmarks.observed --help`.

One long run of a join, in blocks of batches: plain, watched, watched, plain, and so on. Plain: the manager keeps no
history and counts nothing, the driver's listener tells nothing, nobody looks. Watched: metrics, history and listener as
shipped, a scrape every few seconds, and clients that follow the page's live stream. All of it is switched on and off
while the query runs, so that both kinds have the same JVMs, equally warm, and meet the same neighbours on the machine:
runs apart differed by ten times of what is to be measured. The first batches of a block do not count. A pair of blocks
that follow each other gives the ratio of their median batch times; the median of all pairs, their spread, and the CPU
of manager and API in either kind are reported. Clients and scraper run here, too, and cost what they cost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console

from api.server import ServeSettings, serve
from benchmarks.api import make_keys
from benchmarks.native_join import session
from benchmarks.rebalance import BATCH_US, Bench, BenchmarkQuery, InputShape
from manager.chronicle import Chronicle, Entries
from manager.observing import Observed
from split_union.progress import ProgressListener
from trimtab.embedded import EmbeddedRedis, ensure_java, set_pyspark_python

LOSS_MAX: Final = 0.02
SCRAPE_S: Final = 5.0
UNCOUNTED: Final = 2
"""Of each block: what was begun before the switch ends in them."""


class Switch:
    """Whether anybody watches: one in this process, one in that of manager and API."""

    def __init__(self) -> None:
        self.on = threading.Event()

    def only_when_on(self, kind: type[Any], methods: Sequence[str], instead: Callable[[], Any]) -> None:
        """From now on these methods do nothing while the switch is off."""
        for name in methods:
            setattr(kind, name, self._switched(getattr(kind, name), instead))

    def _switched(self, method: Callable[..., Any], instead: Callable[[], Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def either(*arguments: Any, **named: Any) -> Any:
            return method(*arguments, **named) if self.on.is_set() else instead()

        return either


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observed", description="What being watched costs.")
    parser.add_argument("--pairs", type=int, default=12, help="of blocks, plain and watched (12)")
    parser.add_argument("--block", type=int, default=12, help="batches in a block (12)")
    parser.add_argument("--rows", type=int, default=50_000, help="of each stream in a batch (50000)")
    parser.add_argument("--warm-up", type=int, default=80, help="batches before the first block (80)")
    parser.add_argument("--clients", type=int, default=3, help="that follow the page's live stream (3)")
    parser.add_argument("--memory", default="2g", help="of the driver (2g)")
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.block <= UNCOUNTED or options.pairs < 1:
        parser.error(f"--block must be more than {UNCOUNTED}, and --pairs at least 1")
    if options.serve:
        return serve_here(options.serve)
    ensure_java()
    set_pyspark_python()
    console = Console(soft_wrap=True)
    with tempfile.TemporaryDirectory() as scratch, EmbeddedRedis() as redis:
        (key, *_) = asyncio.run(make_keys(redis.url))
        spark = session(options.memory)
        try:
            blocks = measured(Bench(spark, Path(scratch), redis.url, console), key, options)
        finally:
            spark.stop()
    ratios = [_of(blocks, pair, watched=False).ms / _of(blocks, pair, watched=True).ms for pair in range(options.pairs)]
    for watched in (False, True):
        same = [each for each in blocks if each.watched == watched]
        share = sum(each.cpu_s for each in same) / sum(each.seconds for each in same)
        name = "watched" if watched else "plain"
        console.print(f"{name}: {statistics.median(each.ms for each in same):.0f} ms a batch, {share:.1%} of a core")
    middle = statistics.median(ratios)
    console.print(
        f"throughput watched over plain, {len(ratios)} pairs of blocks: median {middle:.3f}, "
        f"from {min(ratios):.3f} to {max(ratios):.3f}; load of the machine {os.getloadavg()[0]:.1f}"
    )
    reached = middle >= 1 - LOSS_MAX
    console.print(f"target: at least {1 - LOSS_MAX:.2f}: {'reached' if reached else 'NOT reached'}")
    return 0 if reached else 1


@dataclass(frozen=True)
class Block:
    watched: bool
    ms: float
    """Median time of the batches that count."""
    cpu_s: float
    """Of manager and API."""
    seconds: float


def _of(blocks: Sequence[Block], pair: int, *, watched: bool) -> Block:
    return next(each for each in blocks[2 * pair : 2 * pair + 2] if each.watched == watched)


def measured(bench: Bench, key: str, options: argparse.Namespace) -> list[Block]:
    """Two blocks for each pair, in the order in which they ran."""
    batches = options.warm_up + 2 * options.pairs * options.block
    # So many keys that there is about one result for each row: the time goes into rows, which is what watching counts.
    shape = InputShape(
        rows=options.rows, keys=6 * options.rows, window_us=2 * BATCH_US, lateness_us=BATCH_US, batches=batches + 1
    )
    bench.console.print(f"writing {batches + 1} batches of {options.rows:,} rows a stream ...")
    directory = bench.write("watched", shape)
    switch = Switch()
    switch.only_when_on(ProgressListener, ["tell"], lambda: None)
    blocks: list[Block] = []
    with served(bench.redis) as (url, server), watching(url, "watched", key, options.clients, switch):
        trial = bench.start("watched", shape, directory)
        bench.console.print(f"warming up for {options.warm_up} batches ...")
        turn(server, switch, on=True)
        trial.until(lambda: trial.look() >= options.warm_up - 1)
        for number in range(2 * options.pairs):
            # plain, watched, watched, plain: what drifts meets both kinds alike.
            watched = number % 4 in (1, 2)
            turn(server, switch, on=watched)
            begun, cpu_s = time.monotonic(), cpu_of(server)
            first = max(trial.batch_ms) + 1 + UNCOUNTED
            last = options.warm_up + (number + 1) * options.block - 1
            trial.until(functools.partial(_is_past, trial, last))
            times = [ms for batch, ms in trial.batch_ms.items() if first <= batch <= last]
            block = Block(watched, statistics.median(times), cpu_of(server) - cpu_s, time.monotonic() - begun)
            blocks.append(block)
            bench.console.print(f"block {number + 1}: {'watched' if watched else 'plain'}, {block.ms:.0f} ms a batch")
        trial.query.stop()
    return blocks


def _is_past(trial: BenchmarkQuery, batch: int) -> bool:
    return trial.look() >= batch


def turn(server: subprocess.Popen[str], switch: Switch, *, on: bool) -> None:
    """Switch the watching on or off, here and in the server."""
    (switch.on.set if on else switch.on.clear)()
    server.send_signal(signal.SIGUSR1 if on else signal.SIGUSR2)


def cpu_of(server: subprocess.Popen[str]) -> float:
    """CPU seconds that a process has used, its threads included (proc(5), stat: utime and stime)."""
    fields = Path(f"/proc/{server.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def served(redis_url: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Manager and API in a process of their own, as in production."""
    command = [sys.executable, "-m", "benchmarks.observed", "--serve", redis_url]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ)
    try:
        assert server.stdout is not None
        yield next(word for word in server.stdout.readline().split() if word.startswith("http://")), server
    finally:
        server.terminate()
        server.wait(30)


def serve_here(redis_url: str) -> int:
    switch = Switch()
    switch.on.set()
    signal.signal(signal.SIGUSR1, lambda *_: switch.on.set())
    signal.signal(signal.SIGUSR2, lambda *_: switch.on.clear())
    switch.only_when_on(Observed, ["saw", "told", "weighed", "compared", "knows", "did", "alarmed"], lambda: None)
    switch.only_when_on(Chronicle, ["note", "told"], lambda: None)
    switch.only_when_on(Chronicle, ["entries"], Entries)
    asyncio.run(serve(ServeSettings(redis=redis_url, port=0, access_log=False), lambda line: print(line, flush=True)))
    return 0


@contextlib.contextmanager
def watching(url: str, query: str, key: str, clients: int, switch: Switch) -> Iterator[None]:
    """A scraper, and clients that read the live stream and throw it away, while the switch is on."""
    ended = threading.Event()
    headers = {"Authorization": f"Bearer {key}"}

    def scrape() -> None:
        with httpx.Client(headers=headers, timeout=30) as client:
            while not ended.wait(SCRAPE_S):
                if switch.on.is_set():
                    client.get(f"{url}/metrics").raise_for_status()

    def follow() -> None:
        with httpx.Client(headers=headers, timeout=None) as client:
            while not ended.is_set():
                if switch.on.wait(1.0):
                    with (
                        contextlib.suppress(httpx.HTTPError),
                        client.stream("GET", f"{url}/v1/queries/{query}/live") as answer,
                    ):
                        for _ in answer.iter_raw():
                            if ended.is_set() or not switch.on.is_set():
                                break
                    # Before the query runs, or after the server has gone, the stream ends at once.
                    ended.wait(0.5)

    threads = [threading.Thread(target=each, daemon=True) for each in (scrape, *[follow] * clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(15)


if __name__ == "__main__":
    sys.exit(main())
