"""`make soak`, `python -m tests.soak --minutes 20 --seed 1`: the whole system under load, moves and kills.

A real driver with real executors (`trimtab run`), two managers (`trimtab serve`), a Redis with persistence. Rows are
fed all the time; an operator moves groups about; processes are killed and stopped as the seed says. In the end
everything is mended, all migrations must end, and DuckDB joins the same input: 0 missing, 0 extra.

The seed decides the faults, their times and the rows. It does not decide how the processes are scheduled, so it repeats
a soak in kind and not to the letter.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from commands.runner.stopping import StopRequest
from tests.soak.layout import Layout
from tests.soak.schedule import KINDS
from tests.soak.soak import Soak, SoakOptions


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    directory = Path(tempfile.mkdtemp(prefix="trimtab-soak-", dir=options.directory)).absolute()
    print(f"soak of {options.minutes:g} minutes, seed {options.seed}; everything is in {directory}", flush=True)
    stop = StopRequest()
    soak = Soak(
        SoakOptions(
            seconds=options.minutes * 60,
            seed=options.seed,
            rows_per_s=options.rows,
            kinds=options.faults,
            mark=secrets.token_hex(8),
        ),
        Layout(directory),
        stop,
    )
    with stop.installed():
        well = soak.run()
    if well and not options.keep:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"input, output, checkpoint and logs are in {directory}")
    return 130 if stop else 0 if well else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20.0, metavar="N", help="of load and faults (20)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of faults, rows and requests (1)")
    parser.add_argument("--rows", type=int, default=3_000, metavar="N", help="rows per second, all streams (3000)")
    parser.add_argument(
        "--faults", type=_kinds, default=KINDS, metavar="KIND,KIND", help=f"some of: {', '.join(KINDS)}"
    )
    parser.add_argument("--directory", type=Path, metavar="DIR", help="where to make the soak's directory")
    parser.add_argument("--keep", action="store_true", help="keep it even if all is well")
    return parser.parse_args(argv)


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(part for part in text.split(",") if part and part != "none")
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"{kind!r} is not a fault: use none, or some of {', '.join(KINDS)}")
    return kinds


if __name__ == "__main__":
    sys.exit(main())
