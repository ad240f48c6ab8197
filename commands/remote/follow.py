"""Follows a rebalance to its end: a bar through the protocol's steps, or a line per step without a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from commands.remote.client import Client, RemoteFailure, at
from commands.remote.tables import audit_words, numbers
from commands.tables import say
from trimtab.plain_text import plain_text

POLL_S: Final = 0.3
AWAY_S: Final = 60.0
"""How long a server that stopped answering is asked again: a restart takes less."""
FAILED_STATES: Final = frozenset({"rolled-back", "refused", "partly-committed"})
Json = dict[str, Any]


def follow(
    client: Client,
    query: str,
    rebalance: str,
    *,
    quiet: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Json:
    """The rebalance as it ended. If the server is restarted meanwhile, this waits: the rebalance does not need it.

    With `quiet` its steps are not shown, and what goes wrong goes to stderr.
    """
    console = Console(stderr=quiet)
    shown = Silence() if quiet else Bars(console) if console.is_terminal else Lines()
    away_since_s: float | None = None
    with shown:
        while True:
            try:
                body = client.get(f"{at(query)}/rebalances/{rebalance}")
            except RemoteFailure as failure:
                if away_since_s is None:
                    away_since_s = time.monotonic()
                    console.print(
                        "the server does not answer; waiting for it while the rebalance continues", markup=False
                    )
                elif time.monotonic() - away_since_s > AWAY_S:
                    raise RemoteFailure(
                        f"{failure} {rebalance} continues without it: see trimtab migrations --query {query}"
                    ) from None
                sleep(1.0)
                continue
            away_since_s = None
            for migration in body["migrations"]:
                shown.show(migration)
            if not body["open"]:
                return body
            sleep(POLL_S)


def summary(body: Json) -> str:
    if body["state"] == "refused":
        refusal = body["refusal"] or {}
        return f"{body['id']} refused: {refusal.get('problem', '')}. {refusal.get('remedy', '')}"
    moved = sum(len(each["moved"]) for each in body["migrations"])
    problems = "; ".join(sorted({each["problem"] for each in body["migrations"] if each["problem"]}))
    spent_s = ((body["closed_ms"] or 0) - body["created_ms"]) / 1000
    groups = "1 group" if moved == 1 else f"{moved} groups"
    text = f"{body['id']} {body['state']}: {groups} moved in {spent_s:.1f} s, {audit_words(body['audit'])}"
    return f"{text} ({problems})" if problems else text


def step_words(migration: Json) -> str:
    if migration["outcome"]:
        return str(migration["outcome"])
    done = len(migration["moved"])
    waves = f", {done} of {len(migration['groups'])} groups moved" if len(migration["waves"]) > 1 else ""
    eta = "" if migration["eta_s"] is None else f", about {migration['eta_s']:.0f} s left"
    if not eta and migration["waits_for_event_time"]:
        eta = ", waits for event time to advance"
    name = migration["message"] or "waiting"
    return f"step {migration['step']}/{migration['steps']} {name}{waves}{eta}"


def _title(migration: Json) -> str:
    what = numbers(migration["groups"], 6) or f"{migration['amount']:.0%} of the load"
    return f"{migration['strategy']} {migration['from']} -> {migration['to']} ({what})"


class Bars:
    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[step]}", markup=False),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> None:
        self._progress.start()

    def __exit__(self, *caught: object) -> None:
        self._progress.stop()

    def show(self, migration: Json) -> None:
        task = self._tasks.get(migration["id"])
        if task is None:
            task = self._tasks[migration["id"]] = self._progress.add_task("", total=1.0, step="")
        self._progress.update(
            task,
            completed=migration["progress"],
            description=plain_text(_title(migration)),
            step=plain_text(step_words(migration)),
        )


class Silence:
    def __enter__(self) -> None:
        return

    def __exit__(self, *caught: object) -> None:
        return

    def show(self, migration: Json) -> None:
        return


class Lines:
    def __init__(self) -> None:
        self._printed: set[tuple[Any, ...]] = set()

    def __enter__(self) -> None:
        return

    def __exit__(self, *caught: object) -> None:
        return

    def show(self, migration: Json) -> None:
        """Print every line of the story once, also those of steps between two looks. A long story has lost its middle;
        its newest lines are printed."""
        for entry in migration["story"]:
            line = (migration["id"], *entry.values())
            if line in self._printed:
                continue
            self._printed.add(line)
            wave = f" wave {entry['wave']}" if entry["wave"] else ""
            step = f"step {entry['step']}/{migration['steps']} " if entry["step"] else ""
            note = f" ({entry['note']})" if entry["note"] else ""
            say(f"{migration['id']}{wave}: {step}{entry['message']} -> {entry['state']}{note}")
