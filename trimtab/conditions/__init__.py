"""SQL conditions of a join over several streams: parsed, placed, compiled and evaluated.

`place` sorts the conjuncts of a WHERE by where they are evaluated; `mask` evaluates those that are evaluated
inside the join. The package knows neither Spark nor the service, so that workers can load it alone.
"""

from trimtab.conditions.errors import ConditionError, EvaluationError
from trimtab.conditions.evaluate import evaluate, mask
from trimtab.conditions.place import InJoin, PlacedConditions, Placement, place
from trimtab.conditions.tree import Tree, from_json, to_json

__all__ = [
    "ConditionError",
    "EvaluationError",
    "InJoin",
    "PlacedConditions",
    "Placement",
    "Tree",
    "evaluate",
    "from_json",
    "mask",
    "place",
    "to_json",
]
