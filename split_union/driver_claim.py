"""One driver per checkpoint.

Spark itself keeps two drivers from writing the same entry of a log twice, but only as far as the file system lets it:
a rename on a local or shared disk replaces a file that has come into being a moment before. So each driver writes its
name into the checkpoint before its first batch.

    the one that is named there still runs     the new driver stops, and says which one runs
    it does not, or nobody can tell            the new driver takes over: its name replaces the other
    a driver finds another name than its own   it stops before its next batch, and says so

Whether a driver still runs: on the same machine its process is there; elsewhere its signs of life in Redis go on.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from trimtab.errors import BindingError
from trimtab.offset_log import Checkpoint

FILE: Final = "trimtab/driver.json"
CHECK_S: Final = 0.5
WATCH_MAX_S: Final = 30.0
"""A driver that gives no sign of life for its longest recent silence, or this long, counts as gone."""

Beat = Callable[[], tuple[int, int] | None]
"""When the query's driver last spoke and its longest recent silence, in ms; None where Redis does not answer."""


class SecondDriver(BindingError):
    """Two drivers on one checkpoint: the one that gets this stops."""


class DriverClaim:
    """This driver's name in a checkpoint: written at first, looked at before batches."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        beat: Beat,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._checkpoint = checkpoint
        self._beat = beat
        self._clock = clock
        self._sleep = sleep
        self._token = ""
        self._checked_at = 0.0

    def hold(self) -> None:
        """Claim the checkpoint, or see that it is still ours."""
        if not self._token:
            self._claim()
        elif self._clock() - self._checked_at >= CHECK_S:
            self._checked_at = self._clock()
            found = self._read()
            if found is not None and found["token"] != self._token:
                raise SecondDriver(
                    f"checkpoint = {self._checkpoint.location!r}: another driver has taken over ({_who(found)}), so "
                    "this one stops before its next batch. Run one driver per query, or give each its own checkpoint."
                )

    def _claim(self) -> None:
        found = self._read()
        if found is not None and self._runs(found):
            raise SecondDriver(
                f"checkpoint = {self._checkpoint.location!r}: another driver runs this query ({_who(found)}), so this "
                "one does not start. Stop that one first, or give this query a checkpoint of its own."
            )
        token = secrets.token_hex(8)
        body = {**_self(), "token": token, "at_ms": time.time_ns() // 1_000_000}
        self._checkpoint.write(FILE, json.dumps(body, indent=1))
        self._token, self._checked_at = token, self._clock()

    def _read(self) -> dict[str, Any] | None:
        text = self._checkpoint.read(FILE)
        try:
            body = None if text is None else json.loads(text)
        except ValueError:
            return None
        return body if isinstance(body, dict) and "token" in body else None

    def _runs(self, found: dict[str, Any]) -> bool:
        me = _self()
        if found.get("host") == me["host"]:
            jvm, started = found.get("jvm"), found.get("jvm_started")
            # Within one JVM, Spark itself refuses to run a query twice.
            return jvm != me["jvm"] and isinstance(jvm, int) and started is not None and started == _started(jvm)
        return self._speaks()

    def _speaks(self) -> bool:
        """Whether signs of life go on while we watch, for as long as the longest recent silence."""
        first = self._beat()
        if first is None:
            return False
        silent_s = min(1.0 + first[1] / 1000, WATCH_MAX_S)
        if time.time() - first[0] / 1000 > 2 * silent_s:
            return False
        until = self._clock() + silent_s
        while self._clock() < until:
            self._sleep(0.1)
            now = self._beat()
            if now is not None and now[0] > first[0]:
                return True
        return False


def _self() -> dict[str, Any]:
    jvm = os.getppid()
    return {"host": socket.gethostname(), "pid": os.getpid(), "jvm": jvm, "jvm_started": _started(jvm)}


def _started(pid: int) -> str | None:
    """When a process began, as this machine counts it; None where there is none, or no way to know."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _who(found: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(int(found.get("at_ms", 0)) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"process {found.get('jvm')} on {found.get('host')}, since {at}"
