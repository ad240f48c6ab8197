"""What happened in a soak: faults, requests, migrations as they were last seen. Redis forgets; this does not."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]


class Ledger:
    """Written by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.faults: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        """Faults that found no victim, or whose time did not come."""
        self.asked: Counter[tuple[str, str]] = Counter()
        """(request, answer) -> how often."""
        self.failures: list[str] = []
        """What must not happen, whatever the oracle says: each line fails the soak."""
        self.excused: list[str] = []
        """What went wrong by itself and was to be expected from a fault of that moment."""
        self.migrations: dict[str, Json] = {}
        self.replans: dict[str, Json] = {}

    def fault(self, kind: str) -> None:
        with self._lock:
            self.faults[kind] += 1

    def miss(self, kind: str) -> None:
        with self._lock:
            self.missed[kind] += 1

    def ask(self, what: str, answer: str) -> None:
        with self._lock:
            self.asked[what, answer] += 1

    def fail(self, text: str) -> None:
        with self._lock:
            self.failures.append(text)

    def excuse(self, text: str) -> None:
        with self._lock:
            self.excused.append(text)

    def see(self, migrations: Iterable[Json]) -> None:
        """Newer views replace older ones; one that has ended stays as it ended."""
        with self._lock:
            for view in migrations:
                known = self.migrations.get(view["id"])
                if known is None or not known["outcome"] or view["outcome"]:
                    self.migrations[view["id"]] = view

    def see_replans(self, replans: Iterable[Json]) -> None:
        """The same for changes of plans."""
        with self._lock:
            for view in replans:
                known = self.replans.get(view["id"])
                if known is None or known["open"] or not view["open"]:
                    self.replans[view["id"]] = view

    def replan_outcomes(self) -> Counter[tuple[str, str]]:
        """(strategy, outcome) -> changes of plans."""
        with self._lock:
            return Counter(
                (str(view["strategy"]), "forgotten by Redis while open" if view["open"] else str(view["state"]))
                for view in self.replans.values()
            )

    def outcomes(self) -> Counter[tuple[str, str]]:
        """(strategy, outcome) -> migrations. One that Redis forgot while it was open has no outcome to tell."""
        with self._lock:
            return Counter(
                (str(view["strategy"]), str(view["outcome"] or "forgotten by Redis while open"))
                for view in self.migrations.values()
            )

    def ended(self) -> int:
        with self._lock:
            return sum(bool(view["outcome"]) for view in self.migrations.values())

    def audits(self) -> tuple[Counter[str], list[str]]:
        """How many audits were clean, not finished when last seen, incomplete or complaining, and the complaints. An
        audit that had no batch to look at (the move was never opened, or Redis forgot it before) is not clean: it has
        seen nothing."""
        counts: Counter[str] = Counter()
        complaints: list[str] = []
        with self._lock:
            for view in self.migrations.values():
                audit = view["audit"]
                problems = list(audit.get("problems", ()))
                if audit.get("lost") or audit.get("doubled"):
                    problems.append(f"lost {audit['lost']}, doubled {audit['doubled']}")
                if problems:
                    counts["complaining"] += 1
                    complaints += [f"{view['id']} ({view['strategy']}, {view['outcome']}): {each}" for each in problems]
                elif not audit.get("checked_batches") and not audit.get("unchecked_batches"):
                    counts["nothing to check"] += 1
                elif not audit.get("finished") and not audit.get("unchecked_batches"):
                    counts["unfinished"] += 1
                else:
                    counts["clean" if audit.get("clean") else "incomplete"] += 1
        return counts, complaints
