"""Every Redis key that Trimtab uses, spelled here and nowhere else (documented in docs/redis.md).

The query's name stands in braces so that all keys of one query fall into one slot of a Redis cluster.
"""

from __future__ import annotations

from typing import Final

QUERY_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"
"""What a query may be called. Other names get into Redis only if somebody writes them there."""

QUERIES: Final = "trimtab:queries"
"""Set: names of the queries that have published anything."""

API_KEYS: Final = "trimtab:api:keys"
"""Hash: id of an API key -> its name, scope, salt and hash, as JSON. The key itself is nowhere."""

AUDIT: Final = "trimtab:api:audit"
"""Stream: who asked what of the API, why, and how it ended. Trimmed."""


def ticket(digest: str) -> str:
    """String: scope and name of the key that a one-time ticket with this digest is worth, as JSON. Expires."""
    return f"trimtab:api:ticket:{digest}"


def idempotency(api_key: str, digest: str) -> str:
    """String: the answer to a mutation, by API key and digest of the Idempotency-Key, as JSON. Expires."""
    return f"trimtab:api:idempotency:{api_key}:{digest}"


def definition(query: str) -> str:
    """String: the query's definition as JSON."""
    return f"trimtab:{{{query}}}:definition"


def current(query: str) -> str:
    """String: number of the newest epoch."""
    return f"trimtab:{{{query}}}:current"


def epoch(query: str, number: int) -> str:
    """String: text of an epoch, immutable."""
    return f"trimtab:{{{query}}}:epoch:{number}"


def digests(query: str) -> str:
    """Hash: epoch number -> digest of its text."""
    return f"trimtab:{{{query}}}:digests"


def driver(query: str) -> str:
    """Hash, written by the query's driver: committed (batch), epoch (that it was bound to), digest, at_ms, gap_ms.

    From its process: pulse_ms, ended. Of the newest finished batch: progress_batch, batch_ms, rows_per_s, backlog,
    lags."""
    return f"trimtab:{{{query}}}:driver"


def fence(query: str) -> str:
    """String: the newest fencing token that a manager of this query was given."""
    return f"trimtab:{{{query}}}:fence"


def mapping(query: str) -> str:
    """Hash: partition -> owner of the newest epoch, for people and dashboards; nothing reads it back."""
    return f"trimtab:{{{query}}}:mapping"


def report(query: str, batch: int) -> str:
    """Hash: "WORKER:STAMP" -> the report of one attempt at a batch, as JSON. Expires."""
    return f"trimtab:{{{query}}}:report:{batch}"


def latest_reports(query: str) -> str:
    """Hash: worker -> its newest report, as JSON. Expires."""
    return f"trimtab:{{{query}}}:latest"


def alarms(query: str) -> str:
    """List: newest alarms of a query, as JSON, trimmed."""
    return f"trimtab:{{{query}}}:alarms"


def lease(query: str) -> str:
    """String: "HOLDER FENCE" of the manager that leads this query. Expires unless renewed."""
    return f"trimtab:{{{query}}}:lease"


def migrations(query: str) -> str:
    """Hash: migration -> its record as JSON, the open ones and the newest closed ones."""
    return f"trimtab:{{{query}}}:migrations"


def rebalances(query: str) -> str:
    """Hash: rebalance -> its record as JSON, the open ones and the newest closed ones."""
    return f"trimtab:{{{query}}}:rebalances"


def replans(query: str) -> str:
    """Hash: replan -> its record as JSON, the open ones and the newest closed ones."""
    return f"trimtab:{{{query}}}:replans"


def closed(query: str) -> str:
    """Sorted set: "migration:ID", "rebalance:ID" and "replan:ID" of what has ended, by the time it did."""
    return f"trimtab:{{{query}}}:closed"


def requests(query: str) -> str:
    """List: what was asked of the manager and is not yet taken up, oldest first, as JSON."""
    return f"trimtab:{{{query}}}:requests"


def events(query: str) -> str:
    """Stream: what happened, one field `event` with JSON. Trimmed."""
    return f"trimtab:{{{query}}}:events"


def auto(query: str) -> str:
    """String: settings of automatic balancing as JSON."""
    return f"trimtab:{{{query}}}:auto"


def decision(query: str) -> str:
    """String: what the balancer last decided, why, and what it remembers of it, as JSON."""
    return f"trimtab:{{{query}}}:decision"


def rules(query: str) -> str:
    """String: pinned groups, excluded workers and workers whose plan is pinned as JSON."""
    return f"trimtab:{{{query}}}:rules"


def proposal(query: str, proposal_id: str) -> str:
    """String: a proposal as JSON. Expires."""
    return f"trimtab:{{{query}}}:proposal:{proposal_id}"


def proposals(query: str) -> str:
    """Sorted set: ids of proposals by the time they were made; those that have expired are dropped when it is read."""
    return f"trimtab:{{{query}}}:proposals"


def batches(query: str) -> str:
    """List: a row for each of the newest batches, oldest first, as JSON. Trimmed, expires."""
    return f"trimtab:{{{query}}}:batches"


def history(query: str, step_s: int) -> str:
    """List: the query every so many seconds (10 or 60), oldest first, as JSON. Trimmed, expires."""
    return f"trimtab:{{{query}}}:history:{step_s}"


def outcomes(query: str) -> str:
    """Hash: "REBALANCE:forecast" and "REBALANCE:measured" -> what it was to bring, and what it did, as JSON."""
    return f"trimtab:{{{query}}}:outcomes"


def planning(query: str) -> str:
    """String: the leader's statistics of keys and steps by worker, and what the optimiser makes of them, as JSON.
    Expires."""
    return f"trimtab:{{{query}}}:planning"


def snapshot(query: str) -> str:
    """String: the leader's load snapshot as JSON, from which any instance proposes and explains. Expires."""
    return f"trimtab:{{{query}}}:snapshot"
