"""The command `trimtab`. Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted twice."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import redis

from commands.environment import fill_in_options
from commands.remote.commands import REDIS_HELP, add_commands, add_live_plan, redis_url, refuse_key
from trimtab import __version__
from trimtab.durations import parse_us
from trimtab.errors import InvalidInput, TrimtabError
from trimtab.plain_text import plain_text
from trimtab.redis_access import reason

FAILED: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["demo"]:
        # It has its own parser, so that `trimtab demo --help` and `python -m commands.demo --help` agree.
        from commands.demo.__main__ import main as demo

        return demo(arguments[1:])
    return exit_code(lambda: _act(arguments))


def _act(arguments: list[str]) -> int:
    parser = build_parser()
    fill_in_options(parser, arguments, os.environ)
    options = parser.parse_args(_with_negative_sizes(arguments))
    refuse_key(options)
    return int(options.action(options))


def _with_negative_sizes(arguments: Sequence[str]) -> list[str]:
    """`--memory -3MB` as one word: argparse takes -3MB for an option, and would say so instead of what is wrong."""
    words: list[str] = []
    for each in arguments:
        if words[-1:] == ["--memory"] and each[:1] == "-" and each[1:2].isdigit():
            words[-1] = f"--memory={each}"
        else:
            words.append(each)
    return words


def exit_code(action: Callable[[], int]) -> int:
    """Run `action`. Our own errors become a message without a stack, and an exit code."""
    try:
        code = action()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        return FAILED
    except InvalidInput as error:
        print(f"trimtab: {plain_text(error, lines=True)}", file=sys.stderr)
        return BAD_INPUT
    except TrimtabError as error:
        print(f"trimtab: {plain_text(error, lines=True)}", file=sys.stderr)
        return FAILED
    except redis.RedisError as error:
        print(f"trimtab: Redis does not answer ({reason(error)})", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("trimtab: interrupted", file=sys.stderr)
        return INTERRUPTED


def _nobody_reads() -> bool:
    """Whoever reads has seen enough (`| head`): what is left to say goes nowhere, also when Python ends."""
    with contextlib.suppress(OSError):  # stdout may be no file at all
        number = sys.stdout.fileno()
        pipe = select.poll()
        pipe.register(number, 0)
        if pipe.poll(0):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            return True
    return False


def seconds(text: str) -> float:
    """The duration in an option: "90", "90s", or as in Spark."""
    plain = text.strip()
    if plain.replace(".", "", 1).isdigit():
        plain += " seconds"
    try:
        value = parse_us(plain, "duration") / 1e6
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not positive")
    return value


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trimtab",
        description="A windowed multi-way stream join on Spark whose load can be moved while it runs.",
    )
    parser.add_argument("--version", action="version", version=f"trimtab {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    run = commands.add_parser("run", help="run a query from a YAML file (see examples/orders.yaml)")
    run.add_argument("file", type=Path, metavar="query.yaml")
    run.add_argument("--check", action="store_true", help="check everything up to the plan, but start nothing")
    run.add_argument("--duration", type=seconds, metavar="TIME", help='stop after this time, such as "60s"')
    shown = run.add_mutually_exclusive_group()
    shown.add_argument("--progress", action="store_true", default=True, help="print a line per batch (the default)")
    shown.add_argument("--quiet", dest="progress", action="store_false", help="print nothing but errors")
    run.add_argument("--json", action="store_true", help="print a JSON object per batch, or for the check")
    run.set_defaults(action=_run)

    plan = commands.add_parser(
        "plan",
        help="find the best plan for a join graph in a YAML file (see examples/graph.yaml), or for a worker that runs",
        epilog="Exit code 2 where no plan stays within the limits.",
    )
    plan.add_argument("file", type=Path, nargs="?", metavar="graph.yaml")
    plan.add_argument("--cpu", metavar="CORES", help="CPU seconds per second that there are, such as 1.0 (no limit)")
    plan.add_argument("--memory", metavar="SIZE", help="memory that there is for state, such as 300MB (no limit)")
    plan.add_argument(
        "--method",
        choices=("exact", "two-layer"),
        help="search all trees (the default up to 8 streams), or the polynomial way of the paper",
    )
    plan.add_argument("--json", action="store_true", help="print JSON")
    add_live_plan(plan)
    plan.set_defaults(action=_plan)

    commands.add_parser("demo", add_help=False, help="show a skewed three-stream join on two local executors")

    reports = commands.add_parser("reports", help="print the newest report of each worker")
    reports.add_argument("--query", required=True, metavar="NAME")
    reports.add_argument("--redis", metavar="URL", help=REDIS_HELP)
    reports.add_argument("--batch", type=int, metavar="N", help="the reports of this batch instead")
    reports.add_argument("--json", action="store_true", help="print JSON")
    reports.set_defaults(action=_reports)

    mapping = commands.add_parser("mapping", help="print which worker owns which partition groups")
    mapping.add_argument("--query", required=True, metavar="NAME")
    mapping.add_argument("--redis", metavar="URL", help=REDIS_HELP)
    mapping.add_argument("--json", action="store_true", help="print JSON")
    mapping.set_defaults(action=_mapping)

    add_commands(commands)

    archive = commands.add_parser("archive", help="write the files for spark-submit into a directory")
    archive.add_argument("directory", type=Path, metavar="DIR")
    archive.add_argument("--json", action="store_true", help="print JSON")
    archive.set_defaults(action=_archive)
    return parser


def _run(options: argparse.Namespace) -> int:
    from commands.runner.run import RunOptions, run_file

    return run_file(
        options.file,
        RunOptions(check=options.check, duration_s=options.duration, progress=options.progress, as_json=options.json),
    )


def _plan(options: argparse.Namespace) -> int:
    if (options.file is None) == (options.query is None):
        given = "graph.yaml" if options.file is None else "--query"
        raise InvalidInput(
            given,
            options.query,
            "is not one thing to plan for",
            "Name a file, or a running query with --query NAME --worker N; not both.",
        )
    if options.query is not None:
        from commands.remote.planning import plan_live

        return plan_live(options)
    for name in ("worker", "what_if"):
        if getattr(options, name) not in (None, []):
            shown = f"--{name.replace('_', '-')}"
            raise InvalidInput(shown, getattr(options, name), "is for a running query", "Give --query, too.")
    from commands.runner.plan import PlanOptions, show_plan

    show_plan(
        options.file,
        PlanOptions(cpu=options.cpu, memory=options.memory, method=options.method, as_json=options.json),
    )
    return 0


def _reports(options: argparse.Namespace) -> int:
    from commands.runner.show import show_reports

    show_reports(options.query, redis_url(options.redis), options.batch, as_json=options.json)
    return 0


def _mapping(options: argparse.Namespace) -> int:
    from commands.runner.show import show_mapping

    show_mapping(options.query, redis_url(options.redis), as_json=options.json)
    return 0


def _archive(options: argparse.Namespace) -> int:
    from commands.runner.archive import write_archive

    packages, entry = write_archive(options.directory)
    if options.json:
        print(json.dumps({"packages": str(packages), "entry": str(entry)}, indent=1))
        return 0
    print(f"spark-submit --master MASTER --py-files {packages} {entry} query.yaml")
    return 0


if __name__ == "__main__":
    sys.exit(main())
