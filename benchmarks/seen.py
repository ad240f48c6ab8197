"""What being seen costs, all of it in one run: `python -m benchmarks.seen --help`, or `make bench-see`.

Three programs one after another, each in a process of its own, so that none finds the memory and the threads of
another: `benchmarks.scrape` (a scrape within 50 ms), `benchmarks.live` (1,000 clients, events within 200 ms at the 99th
percentile, bounded memory), `benchmarks.observed` (throughput with everything on against off, within 2 %).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final

PROGRAMS: Final = ("scrape", "live", "observed")
SHORT: Final = {
    "scrape": ("--scrapes", "10"),
    "live": ("--seconds", "8"),
    "observed": ("--pairs", "2", "--rows", "20000", "--warm-up", "20", "--block", "6"),
}


def main(arguments: Sequence[str] | None = None, run: Callable[[list[str]], int] = subprocess.call) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.seen", description="What being seen costs.")
    parser.add_argument("--short", action="store_true", help="an impression in some minutes; its figures say little")
    parser.add_argument("--only", choices=PROGRAMS, action="append", help="one of them; may be given again")
    options = parser.parse_args(arguments)
    reached = {}
    for name in options.only or PROGRAMS:
        print(f"== {name}", flush=True)
        more = SHORT[name] if options.short else ()
        reached[name] = run([sys.executable, "-m", f"benchmarks.{name}", *more]) == 0
    print("==")
    for name, good in reached.items():
        print(f"{name}: {'reached' if good else 'NOT reached'}")
    return 0 if all(reached.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
