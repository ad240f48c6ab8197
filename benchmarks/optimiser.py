"""How long a plan is searched for, and how good the fast way is: `python -m benchmarks.optimiser`.

The targets: exact for 3 to 8 streams, and two layers for 10 to 20 streams, each within 500 ms. Graphs are random as in
JTree section 6.1.3: rates within [1, 100], random joins, selectivities within (0, 1). The slowest of several graphs
counts, by two clocks: time on the wall, which depends on what else runs, and CPU time of this process. The first search
of a size in a process also lays out its lattice; `cold` includes that.

The second table has JTree's definition 4, the qualified percentage: limits are put a margin above a plan in the middle
of the exact front, so a plan exists, and the two layers look for one. Its last columns compare their cheapest plan with
the cheapest of all.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from plans import exact
from plans.costs import CostModel
from plans.exact import pareto_front
from plans.optimiser import Limits, Method, optimise
from plans.statistics import Statistics, from_graph, from_key_counts
from plans.two_layer import candidates

MS_MAX = 500.0
EXACT = range(3, 9)
TWO_LAYER = (10, 12, 14, 16, 18, 20)
MARGINS = (0.02, 0.05, 0.25)


def random_graph(streams: int, seed: int, density: float = 0.3) -> Statistics:
    """Connected, with that share of the edges that a tree leaves out."""
    chance = random.Random(seed)
    names = [f"S{number}" for number in range(streams)]
    edges = {(names[chance.randrange(at)], names[at]): chance.uniform(0.001, 1) for at in range(1, streams)}
    for pair in itertools.combinations(names, 2):
        if pair not in edges and chance.random() < density:
            edges[pair] = chance.uniform(0.001, 1)
    rates = {name: chance.uniform(1, 100) for name in names}
    return from_graph(rates, edges, window_s=1.0, row_bytes=dict.fromkeys(names, 100.0))


def random_sample(streams: int, seed: int, keys: int = 4096) -> Statistics:
    """What a worker would know: live rows of sampled keys, some keys hot on some streams."""
    chance = np.random.default_rng(seed)
    counts = {f"S{number}": chance.zipf(2.5, keys).clip(max=50) for number in range(streams)}
    return from_key_counts(counts, window_s=60.0, lateness_s=5.0)


def clocked(action: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds on the wall and of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return (time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000


def timed(streams: int, method: Method, make: Callable[[int, int], Statistics], rounds: int) -> list[float]:
    """Wall and CPU of the slowest graph, then of the first one with nothing laid out."""
    exact._lattice.cache_clear()
    cold = clocked(lambda: optimise(CostModel(make(streams, 0)), method=method))
    runs = []
    for seed in range(rounds):
        model = CostModel(make(streams, seed))
        runs.append(clocked(lambda model=model: optimise(model, method=method)))  # type: ignore[misc]
    return [max(run[0] for run in runs), max(run[1] for run in runs), *cold]


def qualified_share(streams: int, margin: float, graphs: int) -> float:
    found = 0
    for seed in range(graphs):
        model = CostModel(random_graph(streams, seed))
        points = pareto_front(model)
        middle = points[len(points) // 2]
        limits = Limits(cpu=middle.cpu * (1 + margin), memory_bytes=middle.memory_bytes * (1 + margin))
        found += any(
            each.cpu <= limits.cpu and each.memory_bytes <= limits.memory_bytes
            for each in candidates(model, limits.memory_bytes)
        )
    return found / graphs


def times_of_cheapest(streams: int, graphs: int) -> list[float]:
    """CPU of the cheapest plan of the two layers over the cheapest of all, per graph."""
    shares = []
    for seed in range(graphs):
        model = CostModel(random_graph(streams, seed))
        best = pareto_front(model)[0].cpu
        shares.append(min(model.cost(each.plan).cpu for each in candidates(model)) / best)
    return shares


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optimiser", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="graphs of each size (5)")
    parser.add_argument("--graphs", type=int, default=40, metavar="N", help="graphs for the quality tables (40)")
    options = parser.parse_args(argv)
    console = Console(width=120)
    times = _table("streams", "statistics", "method", "wall ms", "CPU ms", "cold wall ms", "cold CPU ms", "")
    slow = 0
    runs: list[tuple[int, Method, str, Callable[[int, int], Statistics]]] = []
    runs += [(streams, "exact", "graph", random_graph) for streams in EXACT]
    runs += [(8, "exact", "4096 keys", random_sample)]
    runs += [(streams, "two-layer", "graph", random_graph) for streams in (*EXACT, *TWO_LAYER)]
    for streams, method, name, make in runs:
        wall, cpu, cold_wall, cold_cpu = timed(streams, method, make, options.rounds)
        late = max(wall, cold_wall) > MS_MAX
        slow += late
        numbers = (f"{each:,.0f}" for each in (wall, cpu, cold_wall, cold_cpu))
        times.add_row(str(streams), name, method, *numbers, f"over {MS_MAX:.0f} ms" if late else "")
    console.print(times)
    quality = _table("streams", *(f"qualified, margin {margin:.0%}" for margin in MARGINS), "CPU, median", "CPU, worst")
    for streams in (3, 4, 5, 6, 7, 8):
        shares = times_of_cheapest(streams, options.graphs)
        quality.add_row(
            str(streams),
            *(f"{qualified_share(streams, margin, options.graphs):.0%}" for margin in MARGINS),
            f"{statistics.median(shares):.3f} x",
            f"{max(shares):.3f} x",
        )
    console.print(f"\nTwo layers against the exact search, {options.graphs} graphs of each size:")
    console.print(quality)
    return 1 if slow else 0


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="left" if name in ("statistics", "method", "") else "right")
    return table


if __name__ == "__main__":
    sys.exit(main())
