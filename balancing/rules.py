"""What an operator forbids."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What must not be moved, and who takes no part."""

    pinned: frozenset[int] = frozenset()
    """Groups that stay where they are."""
    excluded: frozenset[int] = frozenset()
    """Workers that take no part: nothing is moved to or from them unless it is asked for by name."""

    plans: frozenset[int] = frozenset()
    """Workers whose plan stays as it is."""

    def to_text(self) -> str:
        return json.dumps(self.to_json())

    def to_json(self) -> dict[str, list[int]]:
        return {"pinned": sorted(self.pinned), "excluded": sorted(self.excluded), "plans": sorted(self.plans)}


def parse_rules(text: str) -> Rules:
    body = json.loads(text)
    plans = frozenset(body.get("plans", ()))
    return Rules(pinned=frozenset(body["pinned"]), excluded=frozenset(body["excluded"]), plans=plans)
