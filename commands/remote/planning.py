"""Commands about plans: what workers run, what would be better, and changing a plan while the query runs."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from commands.remote.client import Client, Refusal, RemoteFailure, at, from_options
from commands.remote.follow import AWAY_S, POLL_S
from commands.remote.tables import number, percent, table
from commands.runner.plan import PlanOptions, parse_limits
from commands.tables import print_table, say
from plans.optimiser import bytes_text, cpu_text
from trimtab.errors import InvalidInput

Json = dict[str, Any]
FAILED: Final = frozenset({"cancelled", "refused", "superseded"})


def plans(options: argparse.Namespace) -> int:
    with contextlib.closing(from_options(options.url, options.key_file)) as client:
        names = [options.query] if options.query else client.queries()
        bodies = [client.get(f"{at(name)}/plans") for name in names]
    if options.json:
        print(json.dumps(bodies[0] if options.query else bodies, indent=1))
        return 0
    for body in bodies:
        if len(bodies) > 1:
            say(f"{body['query']}:")
        _print_plans(body)
    return 0


def _print_plans(body: Json) -> None:
    rows = table(
        ["worker", "plan", "CPU", "memory", "states", "best", "saves", "pays back", ""],
        ["plan", "states", "best", ""],
    )
    for each in body["workers"]:
        cost, best = each["cost"], each["best"]
        rows.add_row(
            str(each["worker"]),
            each["plan"] or "-",
            "-" if cost is None else cpu_text(cost["cpu"]),
            "-" if each["state_bytes"] is None else bytes_text(each["state_bytes"]),
            # Leaves say how much comes in, not how the plan does.
            ", ".join(f"{s['state']}: {number(s['rows'])}" for s in each["states"] if " " in s["state"]) or "-",
            best["plan"] if best else ("the same" if cost else "-"),
            percent(best["saves"]) if best else "-",
            seconds(best["payback_s"]) if best else "-",
            ", ".join(_notes(each)),
        )
    print_table(rows)
    for each in body["workers"]:
        if each["best"] or each["replan"]:
            say(f"worker {each['worker']}: {each['text']}")


def _notes(worker: Json) -> list[str]:
    notes = ["pinned"] if worker["pinned"] else []
    if worker["migrating"]:
        notes.append(f"to {worker['ordered']} by {worker['strategy']}, {_share(worker['done'], worker['total'])}")
    elif worker["ordered"] and worker["ordered"] != worker["plan"]:
        notes.append(f"ordered {worker['ordered']}")
    return notes


def replan(options: argparse.Namespace) -> int:
    names = ("worker", "plan", "strategy", "budget", "expected_epoch", "reason")
    body = {name: value for name in names if (value := getattr(options, name)) not in (None, "")}
    if options.dry_run:
        body["dry_run"] = True
    with contextlib.closing(from_options(options.url, options.key_file)) as client:
        try:
            answer = client.post(f"{at(options.query)}/replans", body)
        except Refusal as refusal:
            if refusal.kind == "nothing-to-do":
                say(json.dumps(None) if options.json else refusal.problem)
                return 0
            raise
        if options.dry_run or not options.wait:
            text = "\n".join(dry_lines(answer)) if options.dry_run else answer["id"]
            say(json.dumps(answer, indent=1) if options.json else text)
            return 0
        return _to_the_end(client, options.query, answer["id"], as_json=options.json)


def dry_lines(body: Json) -> list[str]:
    change = body["change"]
    if change is None:
        return [f"worker {body['worker']} would get {body['plan']}; what that costs is not known yet"]
    return [
        f"worker {body['worker']}: {change['text']}",
        f"strategy {change['strategy']}: {change['why']}; takes {seconds(change['seconds'])}, "
        f"{seconds(change['work_s'])} of CPU, {bytes_text(change['needed_bytes'])} for the states of both plans",
    ]


def _to_the_end(client: Client, query: str, name: str, *, as_json: bool) -> int:
    try:
        ended = follow(client, query, name, quiet=as_json)
    except KeyboardInterrupt:
        text = f"\n{name} continues in the background; to take it back: trimtab cancel {name} --query {query}"
        print(text, file=sys.stderr if as_json else sys.stdout)
        raise
    say(json.dumps(ended, indent=1) if as_json else summary(ended))
    return 1 if ended["state"] in FAILED else 0


def follow(
    client: Client, query: str, name: str, *, quiet: bool = False, sleep: Callable[[float], None] = time.sleep
) -> Json:
    """The replan as it ended; its steps, and how far the worker has come, are printed as they happen."""
    printed: set[str] = set()
    away_since_s: float | None = None
    while True:
        try:
            body = client.get(f"{at(query)}/replans/{name}")
        except RemoteFailure as failure:
            away_since_s = away_since_s if away_since_s is not None else time.monotonic()
            if time.monotonic() - away_since_s > AWAY_S:
                raise RemoteFailure(
                    f"{failure} {name} continues without it: see trimtab plans --query {query}"
                ) from None
            sleep(1.0)
            continue
        away_since_s = None
        for line in () if quiet else progress_lines(body):
            if line not in printed:
                printed.add(line)
                say(line)
        if not body["open"]:
            return body
        sleep(POLL_S)


def progress_lines(body: Json) -> list[str]:
    """A line for each step, and one for how far the worker is; the same step gives the same line."""
    lines = []
    for entry in body["story"]:
        note = f" ({entry['note']})" if entry["note"] else ""
        lines.append(f"{body['id']}: {entry['message']} -> {entry['state']}{note}")
    if body["state"] in ("migrating", "returning") and body["total"]:
        waits = f", waits for stream {body['waits_for']}" if body["waits_for"] else ""
        share = _share(body["done"], body["total"])
        lines.append(f"{body['id']}: {share} of {number(body['total'])} tuples computed{waits}")
    return lines


def summary(body: Json) -> str:
    if body["state"] == "refused":
        refusal = body["refusal"] or {}
        return f"{body['id']} refused: {refusal.get('problem', '')}. {refusal.get('remedy', '')}"
    spent_s = ((body["closed_ms"] or 0) - body["created_ms"]) / 1000
    plan = body["plan"] if body["state"] == "committed" else body["former"]
    text = (
        f"{body['id']} {body['state']}: worker {body['worker']} runs {plan} after {spent_s:.1f} s ({body['strategy']})"
    )
    return f"{text}: {body['problem']}" if body["problem"] else text


# -- the optimiser on live statistics


def plan_live(options: argparse.Namespace) -> int:
    if options.worker is None:
        raise InvalidInput("--worker", None, "is missing", "Give the worker's number: statistics differ between them.")
    if options.method is not None:
        raise InvalidInput("--method", options.method, "is for files", "Leave it out: up to 8 streams it is exact.")
    limits = parse_limits(PlanOptions(cpu=options.cpu, memory=options.memory, method=None, as_json=options.json))
    body: Json = {"worker": options.worker, "rates": dict(map(_rate, options.what_if))}
    if math.isfinite(limits.cpu):
        body["cpu"] = limits.cpu
    if math.isfinite(limits.memory_bytes):
        body["memory_bytes"] = limits.memory_bytes
    with contextlib.closing(from_options(options.url, options.key_file)) as client:
        answer = client.post(f"{at(options.query)}/plans/what-if", body)
    if options.json:
        print(json.dumps(answer, indent=1))
    else:
        _print_answer(answer)
    return 0 if answer["chosen"] is not None else 2


def _rate(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    stream = name.strip().removeprefix("rate.")
    try:
        rate = float(value)
    except ValueError:
        rate = math.nan
    if not name.strip().startswith("rate.") or not stream or not equals or not 0 <= rate < math.inf:
        raise InvalidInput("--what-if", text, "is not a change of a rate", "Write rate.STREAM=N, such as rate.B=5.")
    return stream, rate


def _print_answer(body: Json) -> None:
    rates = ", ".join(f"{stream} {rate:,.3g}/s" for stream, rate in body["rates"].items())
    say(f"worker {body['worker']} of {body['query']}, with {rates}:")
    chosen, now = body["chosen"], body.get("now")
    if chosen is not None:
        say(f"{chosen['plan']}  ({body['answer']})")
    say(body["explanation"])
    rows = table(["", "plan", "CPU", "memory", "states"], ["", "plan", "states"])
    for what, cost in (("best", chosen), ("now", now)):
        if cost is not None:
            states = [f"{' '.join(s['streams'])}: {number(s['rows'])}" for s in cost["states"] if len(s["streams"]) > 1]
            rows.add_row(what, cost["plan"], cpu_text(cost["cpu"]), bytes_text(cost["memory_bytes"]), ", ".join(states))
    print_table(rows)
    for each in body.get("change", ()):
        say(
            f"{each['strategy']}: takes {seconds(each['seconds'])}, {seconds(each['work_s'])} of CPU, "
            f"pays back in {seconds(each['payback_s'])}"
        )
    if body["rejected"]:
        say("\nNot taken:")
        rejected = table(["plan", "kind", "CPU", "memory", "why"], ["plan", "kind", "why"])
        for each in body["rejected"]:
            rejected.add_row(
                each["plan"], each["kind"], cpu_text(each["cpu"]), bytes_text(each["memory_bytes"]), each["reason"]
            )
        print_table(rejected)


def seconds(value: float | None) -> str:
    if value is None:
        return "no end in sight"
    return f"{value:,.1f} s" if value >= 1 or value == 0 else f"{value * 1000:,.3g} ms"


def _share(done: int, total: int) -> str:
    return percent(done / total) if total else "0%"
