"""A log line per request, which holds no secrets.

What a kubelet and Prometheus ask every few seconds is logged at debug as long as it succeeds: two managers would write
tens of thousands of such lines a day, between which nobody finds the request of a person.
"""

from __future__ import annotations

import logging
from typing import Final

from api.access import OPEN_PATHS
from api.keys import without_keys

ROUTINE_PATHS: Final = OPEN_PATHS | {"/metrics"}
_LOG = logging.getLogger("trimtab.access")


def log_request(method: str, path: str, status: int, spent_s: float, key_id: str) -> None:
    """Never the query string or a header: they may contain secrets."""
    level = logging.DEBUG if path in ROUTINE_PATHS and 200 <= status < 300 else logging.INFO
    if _LOG.isEnabledFor(level):
        _LOG.log(level, "%s %r %d %.1f ms key %s", method, without_keys(path), status, spent_s * 1000, key_id)
