"""The server's answers for people: pure functions from JSON to tables and lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.table import Table

from commands.tables import PlainTable

Json = dict[str, Any]


def table(names: Sequence[str], left: Sequence[str] = ()) -> Table:
    empty = PlainTable(box=None, pad_edge=False, header_style="bold")
    for name in names:
        empty.add_column(name, justify="left" if name in left else "right")
    return empty


def workers_table(body: Json) -> Table:
    rows = table(
        ["worker", "executor", "groups", "share", "CPU ms/s", "rows/s", "results/s", "state rows", "state MB", ""], [""]
    )
    for each in body["workers"]:
        notes = [
            word
            for word, holds in (
                ("down", not each["up"]),
                ("excluded", each["excluded"]),
                (f"moving {numbers(each['moving'])}", bool(each["moving"])),
            )
            if holds
        ]
        rows.add_row(
            str(each["worker"]),
            each["executor"] or "-",
            str(len(each["groups"])),
            percent(each["share"]),
            number(each["cpu_ms_per_s"], 1),
            number(each["rows_per_s"]),
            number(each["results_per_s"]),
            number(each["state_rows"]),
            number(None if each["state_bytes"] is None else each["state_bytes"] / 1e6, 1),
            ", ".join(notes),
        )
    return rows


def partitions_table(body: Json) -> Table:
    rows = table(["partition", "owner", "share", "CPU ms/s", "rows/s", "state rows", "state MB", ""], [""])
    for each in body["partitions"]:
        notes = ["pinned"] if each["pinned"] else []
        if each["migration"]:
            notes.append(f"in {each['migration']}")
        rows.add_row(
            str(each["partition"]),
            str(each["owner"]),
            percent(each["share"]),
            number(each["cpu_ms_per_s"], 1),
            number(each["rows_per_s"]),
            number(each["state_rows"]),
            number(None if each["state_bytes"] is None else each["state_bytes"] / 1e6, 1),
            ", ".join(notes),
        )
    return rows


def migrations_table(body: Json) -> Table:
    names = ["migration", "strategy", "from", "to", "groups", "step", "state", "progress", "begun", "audit", "why"]
    rows = table(names, ["migration", "strategy", "state", "why"])
    for each in body["migrations"]:
        rows.add_row(
            each["id"],
            each["strategy"],
            str(each["from"]),
            str(each["to"]),
            str(len(each["groups"])) if each["groups"] else percent(each["amount"]),
            f"{each['step']}/{each['steps']}",
            each["outcome"] or each["state"],
            percent(each["progress"]),
            clock(each["created_ms"]),
            audit_words(each["audit"]),
            each["problem"] or each["reason"] or "",
        )
    return rows


def proposal_lines(body: Json) -> list[str]:
    """A proposal as a short report: the moves, the gain, and the cost."""
    forecast = body["forecast"]
    if not body["moves"]:
        return ["nothing to move", *(f"note: {each['text']}" for each in body["findings"])]
    lines = [f"proposal {body['id']}, policy {body['policy']}, made for epoch {body['epoch']}"]
    for move in body["moves"]:
        lines.append(f"  worker {move['sender']} -> worker {move['receiver']}: {numbers(move['groups'])}")
    seconds = "no end in sight" if forecast["seconds"] is None else f"{forecast['seconds']:.1f} s"
    lines += [
        f"largest load over mean: {forecast['ratio_before']:.2f} -> {forecast['ratio_after']:.2f}",
        f"cost: {forecast['groups']} groups, {forecast['bytes'] / 1e6:.1f} MB, {forecast['state_rows']:,} state rows, "
        f"{number(forecast['rows_duplicated'])} rows duplicated, pause {forecast['pause_ms']:.0f} ms, {seconds}",
        f"strategy {body['strategy']}: {body['explanation']}",
    ]
    lines += [f"note: {each['text']}" for each in body["findings"]]
    return [*lines, f"to carry it out: trimtab rebalance --query {body['query']} --proposal {body['id']}"]


def auto_lines(body: Json) -> list[str]:
    settings = ", ".join(
        f"{name} {'none' if value is None else value}"
        for name, value in body.items()
        if name not in ("query", "enabled", "plans", "last_decision")
    )
    switches = [f"automatic {what} is {'on' if on else 'off'}" for what, on in _switches(body)]
    lines = [f"{body['query']}: {', '.join(switches)}", f"  {settings}"]
    if decision := body.get("last_decision"):
        lines.append(f"  {clock(decision['at_ms'])} {'acted' if decision['act'] else 'did nothing'}: {decision['why']}")
    return lines


def _switches(body: Json) -> list[tuple[str, bool]]:
    plans = [("planning", body["plans"])] if "plans" in body else []
    return [("balancing", body["enabled"]), *plans]


def event_line(event: Json, query: str = "") -> str:
    head = f"{query} " if query else ""
    return f"{clock(event['at_ms'])} {head}{event['kind']}: {event['text']}"


def audit_words(audit: Json) -> str:
    unchecked = f", {audit['unchecked_batches']} batches unchecked" if audit["unchecked_batches"] else ""
    so_far = "" if audit["finished"] else " so far"
    return f"lost {audit['lost']}, doubled {audit['doubled']}{unchecked}{so_far}" + (" !" if is_doubtful(audit) else "")


def is_doubtful(audit: Json) -> bool:
    """Whether something is wrong or was not checked; not, where some batches are just still to be checked."""
    found = audit["lost"] or audit["doubled"] or audit["problems"] or audit["unchecked_batches"]
    return bool(found or (audit["finished"] and not audit["clean"]))


def clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).strftime("%H:%M:%S")


def numbers(values: Sequence[int], most: int = 12) -> str:
    shown = ",".join(map(str, values[:most]))
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}" if value >= 0.1 or value == 0 else f"{value:.1%}"
