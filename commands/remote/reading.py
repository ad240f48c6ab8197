"""Commands that only read: queries, workers, partitions, migrations, events, explain."""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.table import Table

from commands.remote.client import Client, Refusal, RemoteFailure, at, from_options
from commands.remote.tables import event_line, migrations_table, partitions_table, table, workers_table
from commands.tables import print_table, say
from trimtab.errors import TrimtabError

RETURN_S: Final = 1.0
"""The pause before a lost stream is requested again."""
Json = dict[str, Any]


def queries(options: argparse.Namespace) -> int:
    with contextlib.closing(from_options(options.url, options.key_file)) as client:
        shown = client.get("/v1/queries")["queries"]
    if options.json:
        print(json.dumps(shown, indent=1))
        return 0
    listing = table(
        ["query", "running", "epoch", "workers", "partitions", "batch", "auto", "migrations", "alarms"], ["query"]
    )
    for each in shown:
        listing.add_row(
            each["name"],
            "yes" if each["running"] else "no",
            str(each["epoch"]),
            f"{each['workers_up']}/{each['workers']}",
            str(each["partitions"]),
            str(each["committed_batch"]),
            "on" if each["auto"] else "off",
            str(len(each["open_migrations"])),
            str(len(each["alarms"])),
        )
    print_table(listing)
    return 0


def workers(options: argparse.Namespace) -> int:
    return _tables(options, "workers", workers_table)


def partitions(options: argparse.Namespace) -> int:
    return _tables(options, "partitions", partitions_table)


def migrations(options: argparse.Namespace) -> int:
    return _tables(options, "migrations", migrations_table)


def _tables(options: argparse.Namespace, what: str, render: Callable[[Json], Table]) -> int:
    """One query's table, or one for each."""
    with contextlib.closing(from_options(options.url, options.key_file)) as client:
        names = _names(client, options.query)
        bodies = [client.get(f"{at(name)}/{what}") for name in names]
    if options.json:
        print(json.dumps(bodies[0] if options.query else bodies, indent=1))
        return 0
    for body in bodies:
        if len(bodies) > 1:
            say(f"{body['query']}:")
        print_table(render(body))
    return 0


def explain(options: argparse.Namespace) -> int:
    path = "explain" if options.group is None else f"partitions/{options.group}/explain"
    with contextlib.closing(from_options(options.url, options.key_file)) as client:
        explanation = client.get(f"{at(options.query)}/{path}")
    plans = [f"worker {each['worker']}: {each['text']}" for each in explanation.get("plans", ())]
    say(json.dumps(explanation, indent=1) if options.json else "\n".join([explanation["text"], *plans]))
    return 0


def events(options: argparse.Namespace) -> int:
    with contextlib.closing(from_options(options.url, options.key_file)) as client:
        names = _names(client, options.query)
        several = len(names) > 1
        newest: dict[str, str | None] = {}
        lines: list[tuple[int, str]] = []
        for name in names:
            recent = client.get(f"{at(name)}/events", limit=20 if options.follow else 100)["events"]
            newest[name] = recent[-1]["id"] if recent else "0-0"
            lines += [(each["at_ms"], _line(options, each, name, several)) for each in recent]
        for _, line in sorted(lines, key=lambda pair: pair[0]):
            say(line)
    if options.follow:
        _follow(options, newest)
    return 0


def _follow(options: argparse.Namespace, newest: dict[str, str | None]) -> None:
    """One connection for each query. A lost connection continues where it ended."""
    arrivals: queue.Queue[tuple[str, Json] | TrimtabError] = queue.Queue()
    for name, after in newest.items():
        threading.Thread(target=_listen, args=(options, name, after, arrivals), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            message = arrivals.get()
            if isinstance(message, TrimtabError):
                raise message
            query, event = message
            say(_line(options, event, query, len(newest) > 1))


def _listen(
    options: argparse.Namespace,
    query: str,
    after: str | None,
    arrivals: queue.Queue[tuple[str, Json] | TrimtabError],
) -> None:
    with contextlib.closing(from_options(options.url, options.key_file)) as client:
        failures = 0
        while True:
            try:
                for event in client.events(query, after):
                    after, failures = event["id"], 0
                    arrivals.put((query, event))
            except Refusal as error:
                arrivals.put(error)
                return
            except RemoteFailure as error:
                failures += 1
                if failures > 30:
                    arrivals.put(error)
                    return
            time.sleep(RETURN_S)


def _line(options: argparse.Namespace, event: Json, query: str, several: bool) -> str:
    return json.dumps({"query": query, **event}) if options.json else event_line(event, query if several else "")


def _names(client: Client, query: str | None) -> Sequence[str]:
    if query is not None:
        return [query]
    names = client.queries()
    if not names:
        raise RemoteFailure("the server has no query: does it use the same Redis as the query?")
    return names
