"""Commands that move groups: propose, rebalance, drain, fill, cancel."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any
from urllib.parse import quote

from commands.remote.client import Client, Refusal, at, from_options
from commands.remote.follow import FAILED_STATES, follow, summary
from commands.remote.tables import is_doubtful, proposal_lines
from commands.tables import say
from trimtab.errors import InvalidInput

Json = dict[str, Any]
_LISTING = {"migrations": "migrations", "rebalances": "migrations", "replans": "plans"}


def propose(options: argparse.Namespace) -> int:
    body = _manner(options) | _typed(
        options, policy="policy", worker="worker", max_moved_bytes="max_moved_bytes", excluded="excluded"
    )
    with contextlib.closing(from_options(options.url, options.key_file)) as client:
        proposal = client.post(f"{at(options.query)}/proposals", body)
    say(json.dumps(proposal, indent=1) if options.json else "\n".join(proposal_lines(proposal)))
    return 0


def rebalance(options: argparse.Namespace) -> int:
    body = _manner(options) | _typed(
        options,
        sender="from",
        receiver="to",
        groups="groups",
        amount="amount",
        measure="measure",
        proposal="proposal",
        policy="policy",
    )
    return _move(options, "rebalances", body)


def drain(options: argparse.Namespace) -> int:
    return _move(options, "drain", _manner(options) | {"worker": options.worker})


def fill(options: argparse.Namespace) -> int:
    return _move(options, "fill", _manner(options) | {"worker": options.worker})


def cancel(options: argparse.Namespace) -> int:
    with contextlib.closing(from_options(options.url, options.key_file)) as client:
        for query in [options.query] if options.query else client.queries():
            for kind in ("migrations", "rebalances", "replans"):
                answer = _cancelled(client, f"{at(query)}/{kind}/{quote(options.id, safe='')}/cancel", options.reason)
                if answer is not None:
                    text = f"{options.id}: cancel requested; see trimtab {_LISTING[kind]} --query {query}"
                    say(json.dumps(answer, indent=1) if options.json else text)
                    return 0
    raise InvalidInput("MIGRATION", options.id, "is not known", "`trimtab migrations` lists the known ones.")


def _cancelled(client: Client, path: str, reason: str) -> Json | None:
    """The answer; None where this query has no such migration: another query may have it."""
    try:
        return client.post(path, {"reason": reason})
    except Refusal as refusal:
        if refusal.status == 404 and refusal.field in ("migration", "rebalance", "replan"):
            return None
        raise


def _move(options: argparse.Namespace, path: str, body: Json) -> int:
    with contextlib.closing(from_options(options.url, options.key_file)) as client:
        try:
            rebalance = client.post(f"{at(options.query)}/{path}", body)
        except Refusal as refusal:
            if refusal.kind == "nothing-to-do":
                say(json.dumps(None) if options.json else refusal.problem)
                return 0
            raise
        if not options.wait:
            say(json.dumps(rebalance, indent=1) if options.json else rebalance["id"])
            return 0
        return _to_the_end(client, options.query, rebalance["id"], as_json=options.json)


def _to_the_end(client: Client, query: str, name: str, *, as_json: bool) -> int:
    """JSON is the rebalance as it ended; the steps on the way go to people alone."""
    try:
        ended = follow(client, query, name, quiet=as_json)
    except KeyboardInterrupt:
        text = f"\n{name} continues in the background; to take it back: trimtab cancel {name} --query {query}"
        print(text, file=sys.stderr if as_json else sys.stdout)
        raise
    say(json.dumps(ended, indent=1) if as_json else summary(ended))
    return 1 if ended["state"] in FAILED_STATES or is_doubtful(ended["audit"]) else 0


def _manner(options: argparse.Namespace) -> Json:
    return _typed(
        options,
        strategy="strategy",
        max_pause="max_pause",
        order="order",
        expected_epoch="expected_epoch",
        reason="reason",
    )


def _typed(options: argparse.Namespace, **names: str) -> Json:
    """The options that the user typed; for the others the server has defaults."""
    values = {field: getattr(options, option) for option, field in names.items()}
    return {field: value for field, value in values.items() if value not in (None, "")}
