"""SQL conditions of a join over several streams: parsed, placed, compiled and evaluated.

`place` sorts the conjuncts of a WHERE by where they are evaluated; `mask` evaluates those that are evaluated
inside the join. The package knows neither Spark nor the service, so that workers can load it alone, and it loads the
SQL parser only where conditions are placed: a worker's Python process starts half a second sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.conditions.errors import ConditionError, EvaluationError, Unreadable
from trimtab.conditions.evaluate import evaluate, mask
from trimtab.conditions.tree import Tree, from_json, to_json

if TYPE_CHECKING:
    from trimtab.conditions.placement import InJoin, PlacedConditions, Placement, place

__all__ = [
    "ConditionError",
    "EvaluationError",
    "InJoin",
    "PlacedConditions",
    "Placement",
    "Tree",
    "Unreadable",
    "evaluate",
    "from_json",
    "mask",
    "place",
    "to_json",
]


def __getattr__(name: str) -> object:
    if name in ("InJoin", "PlacedConditions", "Placement", "place"):
        from trimtab.conditions import placement

        return getattr(placement, name)
    raise AttributeError(f"module 'trimtab.conditions' has no attribute {name!r}")
