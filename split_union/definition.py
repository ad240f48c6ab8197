"""Ties a checkpoint to a query: what it was made for, and the epoch that it stands at."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any, Final

from split_union.query import JoinQuery
from trimtab.epochs import Epoch, first_epoch
from trimtab.errors import CheckpointMismatch, InvalidInput
from trimtab.offset_log import DEFINITION_FILE, Checkpoint, known_definition
from trimtab.store import Store, silence_max_ms

ALIVE_MS: Final = 30_000
"""A query that was heard of within this time counts as running; one with long batches is given longer."""

KEY_FILE: Final = "trimtab/transfer.key"
"""Signs the packages of moves. It lies where the packages lie, and nowhere else: not in Redis, not in logs."""


def claim_checkpoint(query: JoinQuery, shape: dict[str, Any], location: str, store: Store) -> tuple[Epoch, bytes]:
    """Refuse a checkpoint of another query; returns the epoch to begin with, which Redis then has too, and the key."""
    checkpoint = Checkpoint(location)
    body = {"name": query.name, **shape}
    if query.owners:
        body["owners"] = query.owners
    last_batch = checkpoint.last_batch()
    if last_batch is None:
        check_name_is_free(query.name, location, store)
        incarnation = secrets.token_hex(8)
        epoch = first_epoch(query.name, incarnation, query.first_owners)
        checkpoint.write(KEY_FILE, secrets.token_hex(32))
        checkpoint.write(DEFINITION_FILE, json.dumps({"incarnation": incarnation, **body}, indent=1, sort_keys=True))
        store.restore(epoch)
    else:
        text = checkpoint.read(DEFINITION_FILE)
        if text is None:
            raise CheckpointMismatch(
                "checkpoint",
                location,
                "was made by a query that is not Trimtab's",
                "Give the join a directory of its own.",
            )
        known = json.loads(text)
        known.pop("incarnation")
        _check_same(known, body, location)
        epoch = checkpoint.bound_epoch(last_batch)
        if store.epoch(query.name, epoch.number) != epoch:
            store.restore(epoch)
    store.define(query.name, known_definition(checkpoint))
    key = bytes.fromhex(checkpoint.read(KEY_FILE) or "")
    if not key:
        raise CheckpointMismatch(
            "checkpoint", location, f"has no {KEY_FILE}", "Restore the file, or begin with a new checkpoint."
        )
    return epoch, key


def _check_same(known: dict[str, Any], wanted: dict[str, Any], location: str) -> None:
    wanted = json.loads(json.dumps(wanted))
    _check_same_owners(known.pop("owners", None), wanted.pop("owners", None))
    changed = sorted(name for name in known.keys() | wanted.keys() if known.get(name) != wanted.get(name))
    if changed:
        told = "; ".join(f"{name} was {known.get(name)!r} and is now {wanted.get(name)!r}" for name in changed)
        raise CheckpointMismatch(
            "checkpoint", location, f"was made by another query: {told}", "Use a new checkpoint, or the old definition."
        )


def _check_same_owners(known: Any, wanted: Any) -> None:
    """Other first owners would change nothing any more: silence would let the user believe that they had."""
    if known != wanted:
        raise CheckpointMismatch(
            "owners",
            wanted,
            f"is not what this checkpoint began with ({known}), and a checkpoint keeps the mapping that it has",
            "Write it as it was; to move groups now: trimtab rebalance. Or begin with a new checkpoint.",
        )


def check_name_is_free(name: str, location: str, store: Store) -> None:
    """Refuse the name of a query that runs with another checkpoint: each would take the other's epochs away."""
    definition = store.definition(name)
    if definition is None or definition.get("checkpoint") == location:
        return
    seen_ms, gap_ms = store.last_seen(name)
    if time.time() * 1000 - seen_ms < silence_max_ms(ALIVE_MS, gap_ms):
        raise InvalidInput(
            "name",
            name,
            f"belongs to a query that runs with checkpoint {definition['checkpoint']!r} on the same Redis",
            "Stop that one, or give this query another name or another Redis database.",
        )
