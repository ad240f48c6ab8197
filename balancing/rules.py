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

    def to_text(self) -> str:
        return json.dumps({"pinned": sorted(self.pinned), "excluded": sorted(self.excluded)})


def parse_rules(text: str) -> Rules:
    body = json.loads(text)
    return Rules(pinned=frozenset(body["pinned"]), excluded=frozenset(body["excluded"]))
