"""`python -m commands.demo`, `trimtab demo`, `make run`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from commands.cli import FAILED, INTERRUPTED, exit_code, seconds
from commands.runner.stopping import StopRequest
from trimtab.errors import InvalidInput


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    stop = StopRequest()

    def show() -> int:
        with stop.installed():
            directory = _directory(options.keep)
            try:
                return _demo(options, directory, stop)
            finally:
                if options.keep is None:
                    shutil.rmtree(directory, ignore_errors=True)

    return exit_code(show)


def _demo(options: argparse.Namespace, directory: Path, stop: StopRequest) -> int:
    from commands.demo.show import DemoOptions, run_demo

    outcome = run_demo(
        DemoOptions(
            duration_s=options.duration,
            rows_per_s=options.rows,
            workers=options.workers,
            executors=options.executors,
            seed=options.seed,
            balance=options.balance,
            hold=options.hold,
            directory=directory,
        ),
        stop,
    )
    if options.keep is not None:
        print(f"input, output and checkpoint are in {directory}")
    if options.json is not None:
        text = json.dumps(outcome.as_json(), indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    if outcome.verdict is None:
        return 0 if options.hold else INTERRUPTED
    return 0 if outcome.verdict.good else FAILED


def _directory(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="trimtab-demo-"))
    try:
        keep.mkdir(parents=True, exist_ok=True)
        used = any(keep.iterdir())
    except OSError as error:
        raise InvalidInput(
            "--keep", str(keep), f"cannot be used ({error.strerror})", "Give another directory."
        ) from None
    if used:
        raise InvalidInput("--keep", str(keep), "is not empty", "Give a new directory, or empty it.")
    return keep.absolute()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trimtab demo",
        description="Joins three skewed streams on local executors while the manager balances their load. DuckDB "
        "checks the result.",
    )
    parser.add_argument("--duration", type=seconds, default=75.0, metavar="TIME", help="of streaming (75s)")
    parser.add_argument(
        "--rows", type=_positive, default=20_000, metavar="N", help="rows per second of event time, all streams (20000)"
    )
    parser.add_argument(
        "--hold",
        action="store_true",
        help="go on until Ctrl-C, at the pace of event time and with a skew that wanders; nothing is checked or kept",
    )
    parser.add_argument("--no-balance", dest="balance", action="store_false", help="leave the skew as it is")
    parser.add_argument("--workers", type=_workers, default=4, metavar="N", help="workers of the join (4)")
    parser.add_argument("--executors", type=_positive, default=2, metavar="N", help="executors of one core each (2)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the random rows (1)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in DIR, and leave input and output there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write summary and verdict to FILE")
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _workers(text: str) -> int:
    number = _positive(text)
    if number > 64:
        raise argparse.ArgumentTypeError(f"{text} is more than the demo's 64 partition groups")
    return number


if __name__ == "__main__":
    sys.exit(main())
