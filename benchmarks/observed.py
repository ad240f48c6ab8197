"""What being watched costs: `python -m benchmarks.observed --help`.

The same join, again and again, in pairs: once plain, once with all that watches it. Plain: a manager that keeps no
history and counts nothing, no progress listener in the driver, nobody who looks. Watched: metrics, history and listener
as shipped, a scrape every few seconds, and clients that follow the page's live stream. The order within a pair
alternates, so that whatever else changes on this machine meets both alike. A pair's figure is the ratio of its two
throughputs; the median of all pairs and their spread are reported. Clients and scraper run here, too, and cost what
they cost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console

from api.server import ServeSettings, serve
from benchmarks.api import make_keys
from benchmarks.application import make_application
from benchmarks.rebalance import BATCH_US, STREAMS, Bench, InputShape
from manager import runner as manager_runner
from manager import showing as manager_showing
from manager.chronicle import Chronicle, Entries
from manager.observing import Observed
from split_union import progress
from trimtab.embedded import EmbeddedRedis

LOSS_MAX: Final = 0.02
SCRAPE_S: Final = 5.0
WARM_UP_RUNS: Final = 2
"""The JVMs compile for a hundred batches."""


class Forgetful(Chronicle):
    """Keeps nothing."""

    def note(self, *_: object) -> None:
        return

    told = note  # type: ignore[assignment]

    def entries(self, *_: object) -> Entries:
        return Entries()


class Blind(Observed):
    """Counts nothing."""

    def saw(self, *_: object) -> None:
        return

    told = weighed = compared = knows = did = alarmed = saw  # type: ignore[assignment]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observed", description="What being watched costs.")
    parser.add_argument("--pairs", type=int, default=5, help="of runs, plain and watched (5)")
    parser.add_argument("--rows", type=int, default=100_000, help="of each stream in a batch (100000)")
    parser.add_argument("--batches", type=int, default=40, help="of a run (40)")
    parser.add_argument("--measured", type=int, default=25, help="of them, the last so many count (25)")
    parser.add_argument("--clients", type=int, default=3, help="that follow the page's live stream (3)")
    parser.add_argument("--memory", default="2g", help="of the driver (2g)")
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        return serve_here(options.serve, plain=options.plain)
    console = Console(soft_wrap=True)
    with tempfile.TemporaryDirectory() as scratch, EmbeddedRedis() as redis:
        (key, *_) = asyncio.run(make_keys(redis.url))
        spark = make_application(options.memory, Path(scratch) / "application")
        try:
            bench = Bench(spark, Path(scratch), redis.url, console)
            for number in range(WARM_UP_RUNS):
                _run(bench, f"warm-up{number}", key, options, watched=True)
            ratios = []
            for pair in range(options.pairs):
                order = (False, True) if pair % 2 == 0 else (True, False)
                speed: dict[bool, float] = {}
                used: dict[bool, float] = {}
                for each in order:
                    before = resource.getrusage(resource.RUSAGE_CHILDREN)
                    speed[each] = _run(bench, f"pair{pair}-{int(each)}", key, options, watched=each)
                    after = resource.getrusage(resource.RUSAGE_CHILDREN)
                    used[each] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                ratios.append(speed[True] / speed[False])
                console.print(
                    f"pair {pair + 1}: plain {speed[False]:,.0f} rows/s, watched {speed[True]:,.0f}, {ratios[-1]:.3f}; "
                    f"CPU of manager and API {used[False]:.1f} and {used[True]:.1f} s"
                )
        finally:
            spark.stop()
    middle = statistics.median(ratios)
    console.print(f"watched over plain: median {middle:.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")
    reached = middle >= 1 - LOSS_MAX
    console.print(f"target: at least {1 - LOSS_MAX:.2f}: {'reached' if reached else 'NOT reached'}")
    return 0 if reached else 1


def _run(bench: Bench, name: str, key: str, options: argparse.Namespace, *, watched: bool) -> float:
    """Rows per second of the last batches of one run."""
    # So many keys that there is about one result for each row: the time goes into rows, which is what watching counts.
    shape = InputShape(
        rows=options.rows, keys=6 * options.rows, window_us=2 * BATCH_US, lateness_us=BATCH_US, batches=options.batches
    )
    directory = bench.write(name, shape)
    listen = progress.listen
    try:
        if not watched:
            progress.listen = lambda *_: None
        with contextlib.ExitStack() as stack:
            url = stack.enter_context(served(bench.redis, plain=not watched))
            trial = bench.start(name, shape, directory)
            if watched:
                stack.enter_context(watching(url, name, key, options.clients))
            trial.finish()
    finally:
        progress.listen = listen
        shutil.rmtree(bench.scratch / name, ignore_errors=True)
    times = [trial.batch_ms[batch] for batch in sorted(trial.batch_ms)][-options.measured :]
    return float(options.rows * len(STREAMS) * 1000 / statistics.median(times))


@contextlib.contextmanager
def served(redis_url: str, *, plain: bool) -> Iterator[str]:
    """Manager and API in a process of their own, as in production."""
    command = [sys.executable, "-m", "benchmarks.observed", "--serve", redis_url, *(["--plain"] if plain else [])]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ)
    try:
        assert server.stdout is not None
        yield next(word for word in server.stdout.readline().split() if word.startswith("http://"))
    finally:
        server.terminate()
        server.wait(30)


def serve_here(redis_url: str, *, plain: bool) -> int:
    if plain:
        vars(manager_runner).update(Observed=Blind)
        vars(manager_showing).update(Chronicle=Forgetful)
    asyncio.run(serve(ServeSettings(redis=redis_url, port=0, access_log=False), lambda line: print(line, flush=True)))
    return 0


@contextlib.contextmanager
def watching(url: str, query: str, key: str, clients: int) -> Iterator[None]:
    """A scraper, and clients that read the live stream and throw it away."""
    ended = threading.Event()
    headers = {"Authorization": f"Bearer {key}"}

    def scrape() -> None:
        with httpx.Client(headers=headers, timeout=30) as client:
            while not ended.wait(SCRAPE_S):
                client.get(f"{url}/metrics").raise_for_status()

    def follow() -> None:
        with httpx.Client(headers=headers, timeout=None) as client:
            while not ended.is_set():
                with (
                    contextlib.suppress(httpx.HTTPError),
                    client.stream("GET", f"{url}/v1/queries/{query}/live") as answer,
                ):
                    for _ in answer.iter_raw():
                        if ended.is_set():
                            return
                ended.wait(1.0)

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
