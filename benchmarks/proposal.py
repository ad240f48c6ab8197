"""How long a proposal takes, and publishing an epoch: `python -m benchmarks.proposal`.

The targets for 10,000 groups on 500 workers are one second and 50 ms. This needs no Spark: the snapshot is random
(loads with a tail, a mapping that favours some workers), and each policy makes its proposal from it, with strategy,
forecast and JSON. With a heavy tail some groups alone exceed the mean, so little can be done; with a light tail
everything can be levelled. The slowest of several rounds counts. Epochs are published to a Redis of this benchmark; the
median counts.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from balancing.load import Snapshot, WorkerLoad
from balancing.policies import Drain, Fill, Level, Pairwise, Policy
from balancing.proposal import Proposal, make_proposal
from balancing.settings import Settings
from manager.journal import LeaderJournal
from manager.lease import Lease
from manager.store import ManagerStore
from trimtab.embedded import EmbeddedRedis
from trimtab.epochs import dealt_in_turn, first_epoch
from trimtab.store import Store

SECONDS_MAX = 1.0
PUBLISHED_MAX = 0.05
TAILS = {"heavy": 1.5, "light": 4.0}
"""Exponents of the power law."""


def random_snapshot(groups: int, workers: int, executors: int, tail: float, seed: int = 1) -> Snapshot:
    """Loads with a tail, a mapping whose first workers own more groups than the last, four workers side by side."""
    random = np.random.default_rng(seed)
    load = (random.pareto(tail, groups) + 0.1) * 1e6
    owners = np.minimum((random.power(0.7, groups) * workers).astype(np.int64), workers - 1)
    return Snapshot(
        query="benchmark",
        incarnation="benchmark",
        epoch=1,
        batch=100,
        at_ms=0,
        owners=tuple(owners.tolist()),
        moving={},
        pinned=frozenset(),
        excluded=frozenset(),
        workers=tuple(
            WorkerLoad(
                worker=worker,
                executor=str(worker % executors),
                alive=True,
                cpu_ns_per_s=0.0,
                rows_per_s=0.0,
                results_per_s=0.0,
                state_bytes=0,
                state_rows=0,
                combined_rows=0,
                batch=100,
            )
            for worker in range(workers)
        ),
        group_cpu=tuple(load.tolist()),
        group_rows=tuple((load / 2000).tolist()),
        group_bytes=tuple((random.random(groups) * 1e7).tolist()),
        group_state_rows=tuple((random.random(groups) * 1e5).tolist()),
        fixed_cpu_ns_per_s=2e7,
        slots={str(executor): max(1, min(4, workers // executors)) for executor in range(executors)},
        batches=30,
        window_s=60.0,
        lateness_s=5.0,
    )


def measure(snapshot: Snapshot, policy: Policy, settings: Settings, rounds: int) -> tuple[float, Proposal]:
    """Seconds of the slowest round, and the proposal."""
    slowest = 0.0
    for _ in range(rounds):
        start = time.perf_counter()
        proposal = make_proposal(snapshot, policy, settings, id="p", wave_bytes=50e6)
        json.dumps(proposal.to_json())
        slowest = max(slowest, time.perf_counter() - start)
    return slowest, proposal


async def publishing(groups: int, workers: int, rounds: int) -> float:
    """Median seconds that a leader takes to publish an epoch."""
    with EmbeddedRedis() as server:
        store = ManagerStore(server.url)
        lease = Lease(store.client, "big", "benchmark", ttl_s=60, renew_s=20)
        epoch = first_epoch("big", "benchmark", dealt_in_turn(groups, workers))
        Store(server.url).restore(epoch)
        seconds = []
        try:
            await lease.acquire()
            journal = LeaderJournal(store.client, "big", lease)
            for _ in range(rounds):
                epoch = epoch.successor(epoch.owners, fence=lease.fence)
                start = time.perf_counter()
                await journal.publish(epoch)
                seconds.append(time.perf_counter() - start)
        finally:
            await store.close()
    return statistics.median(seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    table = Table(
        "policy", "tail", "executors", "seconds", "moves", "groups", "ratio before", "after", title="Proposals"
    )
    slowest = 0.0
    unlimited, limited = Settings(), Settings(max_moved_bytes=2 * 10**9)
    cases: list[tuple[str, Policy, Settings]] = [
        ("level", Level(), unlimited),
        ("level, 2 GB", Level(), limited),
        ("pairwise", Pairwise(), unlimited),
        ("drain", Drain(0), unlimited),
        ("fill", Fill(options.workers - 1), unlimited),
    ]
    shapes = sorted({options.workers, max(2, options.workers // 4), 2}, reverse=True)
    for (tail, exponent), executors in itertools.product(TAILS.items(), shapes):
        snapshot = random_snapshot(options.groups, options.workers, executors, exponent)
        for name, policy, settings in cases:
            seconds, proposal = measure(snapshot, policy, settings, options.rounds)
            slowest = max(slowest, seconds)
            forecast = proposal.forecast
            row = [name, tail, str(executors), f"{seconds:.3f}", str(len(proposal.moves)), str(forecast.groups)]
            table.add_row(*row, f"{forecast.ratio_before:.2f}", f"{forecast.ratio_after:.2f}")
    Console().print(table)
    good = slowest < SECONDS_MAX
    print(
        f"slowest proposal for {options.groups:,} groups on {options.workers} workers: {slowest:.3f} s "
        f"(must be below {SECONDS_MAX:g} s: {'yes' if good else 'NO'})"
    )
    published = asyncio.run(publishing(options.groups, options.workers, 5 * options.rounds))
    quick = published < PUBLISHED_MAX
    print(
        f"publishing an epoch of {options.groups:,} groups: {published * 1000:.0f} ms "
        f"(must be below {PUBLISHED_MAX * 1000:g} ms: {'yes' if quick else 'NO'})"
    )
    return 0 if good and quick else 1


if __name__ == "__main__":
    sys.exit(main())
