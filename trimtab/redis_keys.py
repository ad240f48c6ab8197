"""Every Redis key that Trimtab uses, spelled here and nowhere else (documented in docs/redis.md).

The query's name stands in braces so that all keys of one query fall into one slot of a Redis cluster.
"""

from __future__ import annotations

from typing import Final

QUERIES: Final = "trimtab:queries"
"""Set: names of the queries that have published anything."""


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
    """Hash, written by the query's driver: committed (batch), epoch (that it was bound to), digest, at_ms."""
    return f"trimtab:{{{query}}}:driver"


def fence(query: str) -> str:
    """String: the newest fencing token that a manager of this query was given."""
    return f"trimtab:{{{query}}}:fence"


def mapping(query: str) -> str:
    """Hash: partition -> owner of the newest epoch, for people and dashboards; nothing reads it back."""
    return f"trimtab:{{{query}}}:mapping"


def report(query: str, batch: int) -> str:
    """Hash: worker -> its report of one batch, as JSON. Expires."""
    return f"trimtab:{{{query}}}:report:{batch}"


def latest_reports(query: str) -> str:
    """Hash: worker -> its newest report, as JSON. Expires."""
    return f"trimtab:{{{query}}}:latest"


def alarms(query: str) -> str:
    """List: newest alarms of a query, as JSON, trimmed."""
    return f"trimtab:{{{query}}}:alarms"
