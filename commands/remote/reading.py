"""Commands that only look: queries, workers, partitions, migrations, events, explain."""

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
from commands.runner.show import print_table
from trimtab.errors import TrimtabError

RETURN_S: Final = 1.0
"""Before a broken stream is asked for again."""
Json = dict[str, Any]


def queries(options: argparse.Namespace) -> int:
    with contextlib.closing(from_options(options.url, options.key)) as client:
        found = client.get("/v1/queries")
    if options.json:
        print(json.dumps(found["queries"], indent=1))
        return 0
    made = table(
        ["query", "running", "epoch", "workers", "partitions", "batch", "auto", "migrations", "alarms"], ["query"]
    )
    for each in found["queries"]:
        made.add_row(
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
    print_table(made)
    return 0


def workers(options: argparse.Namespace) -> int:
    return _tables(options, "workers", workers_table)


def partitions(options: argparse.Namespace) -> int:
    return _tables(options, "partitions", partitions_table)


def migrations(options: argparse.Namespace) -> int:
    return _tables(options, "migrations", migrations_table)


def _tables(options: argparse.Namespace, what: str, render: Callable[[Json], Table]) -> int:
    """One query's table, or one for each."""
    with contextlib.closing(from_options(options.url, options.key)) as client:
        names = _names(client, options.query)
        found = [client.get(f"{at(name)}/{what}") for name in names]
    if options.json:
        print(json.dumps(found[0] if options.query else found, indent=1))
        return 0
    for body in found:
        if len(found) > 1:
            print(f"{body['query']}:")
        print_table(render(body))
    return 0


def explain(options: argparse.Namespace) -> int:
    path = "explain" if options.group is None else f"partitions/{options.group}/explain"
    with contextlib.closing(from_options(options.url, options.key)) as client:
        found = client.get(f"{at(options.query)}/{path}")
    print(json.dumps(found, indent=1) if options.json else found["text"])
    return 0


def events(options: argparse.Namespace) -> int:
    with contextlib.closing(from_options(options.url, options.key)) as client:
        names = _names(client, options.query)
        several = len(names) > 1
        newest: dict[str, str | None] = {}
        told: list[tuple[int, str]] = []
        for name in names:
            found = client.get(f"{at(name)}/events", limit=20 if options.follow else 100)["events"]
            newest[name] = found[-1]["id"] if found else "0-0"
            told += [(each["at_ms"], _line(options, each, name, several)) for each in found]
        for _, line in sorted(told, key=lambda pair: pair[0]):
            print(line, flush=True)
    if options.follow:
        _follow(options, newest)
    return 0


def _follow(options: argparse.Namespace, newest: dict[str, str | None]) -> None:
    """One connection for each query; comes back where it was whenever one breaks."""
    arrived: queue.Queue[tuple[str, Json] | TrimtabError] = queue.Queue()
    for name, after in newest.items():
        threading.Thread(target=_listen, args=(options, name, after, arrived), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            found = arrived.get()
            if isinstance(found, TrimtabError):
                raise found
            print(_line(options, found[1], found[0], len(newest) > 1), flush=True)


def _listen(
    options: argparse.Namespace,
    query: str,
    after: str | None,
    arrived: queue.Queue[tuple[str, Json] | TrimtabError],
) -> None:
    with contextlib.closing(from_options(options.url, options.key)) as client:
        failures = 0
        while True:
            try:
                for event in client.events(query, after):
                    after, failures = event["id"], 0
                    arrived.put((query, event))
            except Refusal as error:
                arrived.put(error)
                return
            except RemoteFailure as error:
                failures += 1
                if failures > 30:
                    arrived.put(error)
                    return
            time.sleep(RETURN_S)


def _line(options: argparse.Namespace, event: Json, query: str, several: bool) -> str:
    return json.dumps({"query": query, **event}) if options.json else event_line(event, query if several else "")


def _names(client: Client, query: str | None) -> Sequence[str]:
    if query is not None:
        return [query]
    names = client.queries()
    if not names:
        raise RemoteFailure("the server knows no query: is it at the Redis that the query was given?")
    return names
