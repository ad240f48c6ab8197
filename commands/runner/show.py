"""`trimtab reports` and `trimtab mapping`: what Redis knows about a query, for people or as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from commands.runner.worker_table import newest_reports
from commands.tables import print_table, say
from trimtab import redis_keys
from trimtab.errors import InvalidInput
from trimtab.reports import REPORT_TTL_S
from trimtab.store import Store


def show_reports(query: str, redis: str, batch: int | None, *, as_json: bool) -> None:
    store = _store(redis)
    reports = store.reports(query, batch)
    if not reports:
        _check_known(store, query)
        raise InvalidInput(
            "--query" if batch is None else "--batch",
            query if batch is None else batch,
            "has no reports",
            f"Workers report in every batch; reports are kept for {REPORT_TTL_S // 60} minutes.",
        )
    ordered = [reports[worker] for worker in sorted(reports)]
    if as_json:
        print(json.dumps([asdict(report) for report in ordered], indent=1))
    else:
        print_table(newest_reports(ordered))


def show_mapping(query: str, redis: str, *, as_json: bool) -> None:
    store = _store(redis)
    number = store.current_number(query)
    epoch = None if number is None else store.epoch(query, number)
    if epoch is None:
        _check_known(store, query)
        raise InvalidInput(
            "--query", query, "has no epoch", "Is it running? It publishes its first epoch when it starts."
        )
    say(json.dumps(json.loads(epoch.to_text()), indent=1) if as_json else epoch.render())


def _store(url: str) -> Store:
    store = Store(url, timeout_s=3.0)
    store.check()
    return store


def _check_known(store: Store, query: str) -> None:
    names = sorted(str(name) for name in store.client.smembers(redis_keys.QUERIES))
    if query not in names:
        remedy = f"It has: {', '.join(names)}." if names else "It has none: is it the Redis that the query uses?"
        raise InvalidInput("--query", query, "is not known to this Redis", remedy)
