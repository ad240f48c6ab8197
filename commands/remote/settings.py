"""Commands that set: auto on|off|status, pin, unpin, exclude, include."""

from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any

from commands.remote.client import at, from_options
from commands.remote.tables import auto_lines, numbers
from commands.tables import say
from trimtab.errors import InvalidInput

Json = dict[str, Any]


def auto(options: argparse.Namespace) -> int:
    body: Json = dict(map(_setting, options.set))
    if options.switch != "status":
        body["plans" if options.plans else "enabled"] = options.switch == "on"
    with contextlib.closing(from_options(options.url, options.key_file)) as client:
        path = f"{at(options.query)}/auto"
        answer = client.put(path, body | {"reason": options.reason}) if body else client.get(path)
    say(json.dumps(answer, indent=1) if options.json else "\n".join(auto_lines(answer)))
    return 0


def pin(options: argparse.Namespace) -> int:
    return _rule(options, _pinned(options), add=True)


def unpin(options: argparse.Namespace) -> int:
    return _rule(options, _pinned(options), add=False)


def _pinned(options: argparse.Namespace) -> str:
    """Groups, or with --plan the plans of workers."""
    if options.plan != (options.workers is not None) or (options.workers is None) == (options.groups is None):
        raise InvalidInput(
            "--groups",
            options.groups,
            "is not what can be pinned",
            "Give --groups N,N to pin groups, or --workers N,N --plan to pin the plans of workers.",
        )
    options.numbers = options.workers if options.plan else options.groups
    return "plans" if options.plan else "pinned"


def exclude(options: argparse.Namespace) -> int:
    return _rule(options, "excluded", add=True)


def include(options: argparse.Namespace) -> int:
    return _rule(options, "excluded", add=False)


def _rule(options: argparse.Namespace, field: str, *, add: bool) -> int:
    with contextlib.closing(from_options(options.url, options.key_file)) as client:
        path = f"{at(options.query)}/rules"
        before = set(client.get(path).get(field, ()))
        after = before | set(options.numbers) if add else before - set(options.numbers)
        rules = client.put(path, {field: sorted(after), "reason": options.reason})
    pinned, excluded, plans = (numbers(rules.get(name, ())) or "none" for name in ("pinned", "excluded", "plans"))
    text = f"pinned groups: {pinned}; excluded workers: {excluded}; workers with a pinned plan: {plans}"
    say(json.dumps(rules, indent=1) if options.json else text)
    return 0


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidInput("--set", text, "is not a setting", "Write NAME=VALUE, such as start_ratio=1.3.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
