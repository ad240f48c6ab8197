"""The commands that talk to a server, and their options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from balancing.words import BALANCERS, GROUPS_MAX, ORDERS, POLICY_NAMES, SHARE_MEASURES
from trimtab.defaults import (
    DEFAULT_PORT,
    DEFAULT_REDIS,
    DEFAULT_URL,
    KEY_FILE_VARIABLE,
    KEY_VARIABLE,
    REDIS_VARIABLE,
    URL_VARIABLE,
)
from trimtab.errors import InvalidInput
from trimtab.redis_access import PASSWORD_REMEDY, password_problem, redacted

Parsers = Any
"""argparse's own type for subparsers is private."""
REDIS_HELP = f"URL of the Redis that the query uses (or {REDIS_VARIABLE}; default {DEFAULT_REDIS})"


def add_commands(commands: Parsers) -> None:
    _add_serve(commands)
    _add_reading(commands)
    _add_moving(commands)
    _add_plans(commands)
    _add_settings(commands)
    _add_keys(commands)


def groups(text: str) -> list[int]:
    """Numbers as in "4,9,17" or "4-7,9"."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers: write 4,9,17 or 4-7")
        numbers += range(int(first), int(last or first) + 1)
        if len(numbers) > GROUPS_MAX:
            raise argparse.ArgumentTypeError(f"{text!r} names more than {GROUPS_MAX:,} numbers")
    return numbers


def _add_serve(commands: Parsers) -> None:
    serve = commands.add_parser("serve", help="run the manager and its REST API; it finds running queries in Redis")
    serve.add_argument("--redis", metavar="URL", help=REDIS_HELP)
    serve.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    serve.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, metavar="N", help=f"port to listen on ({DEFAULT_PORT})"
    )
    serve.add_argument(
        "--metrics-port", type=_port, metavar="N", help="port for /metrics without a key; 0 for a free one (none)"
    )
    serve.add_argument(
        "--metrics-host", default="127.0.0.1", metavar="ADDRESS", help="address of --metrics-port (127.0.0.1)"
    )
    serve.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate, to serve https")
    serve.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key")
    serve.add_argument(
        "--keys", type=Path, metavar="DIR", help="directory with a file per API key, beside the keys in Redis"
    )
    serve.add_argument("--no-access-log", dest="access_log", action="store_false", help="do not log requests")
    serve.set_defaults(action=_later("commands.remote.serving", "serve"))


def _add_reading(commands: Parsers) -> None:
    for name, text in (
        ("queries", "list the queries"),
        ("workers", "list workers with their load"),
        ("partitions", "list partition groups with owner and load"),
        ("migrations", "list migrations, newest first"),
    ):
        parser = commands.add_parser(name, help=text)
        if name != "queries":
            parser.add_argument("--query", metavar="NAME", help="only this query")
        _json(parser)
        _server(parser)
        parser.set_defaults(action=_later("commands.remote.reading", name))

    top = commands.add_parser("top", help="watch a query in the terminal: load, why nothing moves, moves, events")
    top.add_argument("--query", metavar="NAME", help="this query; without it the first one, and n for the next")
    top.add_argument("--json", action="store_true", help="print what it would show, once, as JSON")
    _server(top)
    top.set_defaults(action=_later("commands.remote.top", "top"))

    events = commands.add_parser("events", help="print recent events, and with --follow new ones as they happen")
    events.add_argument("--query", metavar="NAME", help="only of this query")
    events.add_argument("--follow", action="store_true", help="continue until interrupted")
    events.add_argument("--json", action="store_true", help="print a JSON object per line")
    _server(events)
    events.set_defaults(action=_later("commands.remote.reading", "events"))

    explain = commands.add_parser("explain", help="explain why nothing is moved now, or why a group is where it is")
    explain.add_argument("--query", required=True, metavar="NAME")
    explain.add_argument("--group", type=int, metavar="N", help="this partition group")
    _json(explain)
    _server(explain)
    explain.set_defaults(action=_later("commands.remote.reading", "explain"))


def _add_moving(commands: Parsers) -> None:
    propose = commands.add_parser("propose", help="show what a rebalance would do, and what it would cost")
    propose.add_argument("--query", required=True, metavar="NAME")
    propose.add_argument("--policy", choices=POLICY_NAMES, help="the policy (level)")
    propose.add_argument("--worker", type=int, metavar="N", help="for drain and fill")
    propose.add_argument("--max-moved-bytes", type=int, metavar="N", help="budget: at most this much state moves")
    propose.add_argument("--excluded", type=groups, metavar="N,N", help="workers that this proposal leaves out")
    _manner(propose)
    propose.set_defaults(action=_later("commands.remote.moving", "propose"))

    rebalance = commands.add_parser("rebalance", help="move groups, and follow the protocol's steps to the end")
    rebalance.add_argument("--query", required=True, metavar="NAME")
    rebalance.add_argument("--from", dest="sender", type=int, metavar="WORKER")
    rebalance.add_argument("--to", dest="receiver", type=int, metavar="WORKER")
    rebalance.add_argument("--groups", type=groups, metavar="N,N", help="partition groups, such as 4,9,17 or 4-7")
    rebalance.add_argument("--amount", metavar="SHARE", help="of the sender's load, such as 25%%")
    rebalance.add_argument("--measure", choices=SHARE_MEASURES, help="what the amount is a share of (cpu)")
    rebalance.add_argument("--proposal", metavar="ID", help="carry out this proposal")
    rebalance.add_argument("--policy", choices=BALANCERS, help="if neither a proposal nor a move is named (level)")
    _manner(rebalance)
    _waiting(rebalance)
    rebalance.set_defaults(action=_later("commands.remote.moving", "rebalance"))

    for name, text in (
        ("drain", "move everything away from a worker, for scale-in"),
        ("fill", "give a worker its share"),
    ):
        parser = commands.add_parser(name, help=text)
        parser.add_argument("--query", required=True, metavar="NAME")
        parser.add_argument("--worker", required=True, type=int, metavar="N")
        _manner(parser)
        _waiting(parser)
        parser.set_defaults(action=_later("commands.remote.moving", name))

    cancel = commands.add_parser("cancel", help="cancel a migration, all of a rebalance, or a change of plans")
    cancel.add_argument("id", metavar="MIGRATION")
    cancel.add_argument("--query", metavar="NAME", help="its query; without it all queries are searched")
    cancel.add_argument("--reason", default="", metavar="TEXT")
    _json(cancel)
    _server(cancel)
    cancel.set_defaults(action=_later("commands.remote.moving", "cancel"))


def _add_plans(commands: Parsers) -> None:
    plans = commands.add_parser("plans", help="list each worker's plan, its cost and states, and the best alternative")
    plans.add_argument("--query", metavar="NAME", help="only this query")
    _json(plans)
    _server(plans)
    plans.set_defaults(action=_later("commands.remote.planning", "plans"))

    replan = commands.add_parser("replan", help="give a worker another plan, and follow the change to the end")
    replan.add_argument("--query", required=True, metavar="NAME")
    replan.add_argument("--worker", required=True, type=int, metavar="N")
    replan.add_argument("--plan", metavar="TREE", help='such as "((B C) A)"; without it the optimiser chooses')
    replan.add_argument("--strategy", metavar="NAME", help="ms, hybmig or auto (auto)")
    replan.add_argument("--budget", metavar="TIME", help="what a batch may spend on it, such as 100ms")
    replan.add_argument("--dry-run", action="store_true", help="only say what would be done")
    replan.add_argument("--expected-epoch", type=int, metavar="N", help="refuse if the query has another epoch by now")
    replan.add_argument("--reason", default="", metavar="TEXT", help="stored with the request")
    _json(replan)
    _server(replan)
    _waiting(replan)
    replan.set_defaults(action=_later("commands.remote.planning", "replan"))


def add_live_plan(plan: argparse.ArgumentParser) -> None:
    """What `trimtab plan` takes for a query that runs."""
    plan.add_argument("--query", metavar="NAME", help="of a worker of this query, by its live statistics")
    plan.add_argument("--worker", type=int, metavar="N", help="this worker")
    plan.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="rate.STREAM=N",
        help="with other rows per second of a stream than those measured; may be repeated",
    )
    _server(plan)


def _add_settings(commands: Parsers) -> None:
    auto = commands.add_parser("auto", help="switch automatic balancing on or off, or show its settings")
    auto.add_argument("switch", choices=("on", "off", "status"))
    auto.add_argument("--query", required=True, metavar="NAME")
    auto.add_argument("--plans", action="store_true", help="switch the optimiser of plans instead of the balancer")
    auto.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting; `auto status` lists them"
    )
    auto.add_argument("--reason", default="", metavar="TEXT")
    _json(auto)
    _server(auto)
    auto.set_defaults(action=_later("commands.remote.settings", "auto"))

    for name, what, text in (
        ("pin", "groups", "keep groups where they are, or workers' plans as they are"),
        ("unpin", "groups", "let groups be moved, or plans be changed, again"),
        ("exclude", "workers", "exclude workers from balancing"),
        ("include", "workers", "let workers take part again"),
    ):
        parser = commands.add_parser(name, help=text)
        parser.add_argument("--query", required=True, metavar="NAME")
        if what == "groups":
            parser.add_argument("--groups", type=groups, metavar="N,N")
            parser.add_argument("--workers", type=groups, metavar="N,N", help="with --plan: the plans of these workers")
            parser.add_argument("--plan", action="store_true", help="plans of workers instead of groups")
        else:
            parser.add_argument("--workers", dest="numbers", required=True, type=groups, metavar="N,N")
        parser.add_argument("--reason", default="", metavar="TEXT")
        _json(parser)
        _server(parser)
        parser.set_defaults(action=_later("commands.remote.settings", name))


def _add_keys(commands: Parsers) -> None:
    keys = commands.add_parser("keys", help="API keys: create, list, revoke (needs Redis, not the server)")
    verbs = keys.add_subparsers(metavar="VERB", required=True)
    create = verbs.add_parser("create", help="create a key and print it")
    create.add_argument("--name", required=True, metavar="NAME", help="its owner, for the audit log")
    create.add_argument("--scope", default="read", metavar="SCOPE", help="read, operate or admin (read)")
    create.add_argument(
        "--into",
        type=Path,
        metavar="DIR",
        help="write its hash to DIR/NAME, for `serve --keys DIR` or a Secret, and not to Redis",
    )
    listing = verbs.add_parser("list", help="list keys, without their secrets")
    revoke = verbs.add_parser("revoke", help="revoke the key with this id, or all keys with this name")
    revoke.add_argument("key", metavar="ID-OR-NAME")
    for verb, parser in (("create", create), ("list_keys", listing), ("revoke", revoke)):
        _json(parser)
        parser.add_argument("--redis", metavar="URL", help=REDIS_HELP)
        parser.set_defaults(action=_later("commands.remote.keys", verb))


def _server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", metavar="URL", help=f"the server (or {URL_VARIABLE}; default {DEFAULT_URL})")
    parser.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help=f"file with the API key (or {KEY_FILE_VARIABLE}; the key itself goes into {KEY_VARIABLE})",
    )
    parser.add_argument("--key", dest="visible_key", help=argparse.SUPPRESS)


def redis_url(option: str | None) -> str:
    """The URL in the option, or in the environment. On a command line, everybody on the machine can read it."""
    if option and (problem := password_problem(option)):
        raise InvalidInput("--redis", redacted(option), problem, PASSWORD_REMEDY)
    return option or os.environ.get(REDIS_VARIABLE) or DEFAULT_REDIS


def refuse_key(options: argparse.Namespace) -> None:
    """A key on the command line: taken by the parser, so that it can be refused without being repeated."""
    if getattr(options, "visible_key", None) is not None:
        raise InvalidInput(
            "--key",
            "(hidden)",
            "is not taken from the command line, where other users of this machine can see it (ps)",
            f"Put the key into {KEY_VARIABLE}, or into a file and name that: --key-file FILE",
        )


def _manner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strategy", metavar="NAME", help="ptlb, mslb or auto (auto)")
    parser.add_argument("--max-pause", metavar="TIME", help="how much longer a batch may take, such as 500ms")
    parser.add_argument("--order", choices=ORDERS, help="which groups of a paced move go first")
    parser.add_argument("--expected-epoch", type=int, metavar="N", help="refuse if the query has another epoch by now")
    parser.add_argument("--reason", default="", metavar="TEXT", help="stored with the request")
    _json(parser)
    _server(parser)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _waiting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-wait", dest="wait", action="store_false", help="print the id and return")


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: use 0 to 65535")
    return int(text)


def _later(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """Imported when the command runs: `trimtab --help` loads neither HTTP nor Redis."""

    def act(options: argparse.Namespace) -> int:
        import importlib

        return int(getattr(importlib.import_module(module), name)(options))

    return act
