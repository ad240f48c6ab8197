"""A story: the query's shape and a list of plain actions. It is drawn from a seed (drawing.py), and told by a World."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tests.simulator.shape import Shape


@dataclass(frozen=True)
class Action:
    """Something that happens: the name of a method of `World`, and its arguments."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def render(self) -> str:
        return " ".join([self.name, *(f"{name}={_short(value)}" for name, value in self.values.items())])


@dataclass(frozen=True)
class Story:
    seed: int
    shape: Shape
    actions: tuple[Action, ...]

    def with_actions(self, actions: tuple[Action, ...]) -> Story:
        return replace(self, actions=actions)

    def render(self) -> str:
        lines = [f"seed {self.seed}: {self.shape}"]
        return "\n".join([*lines, *(f"  {number:3} {each.render()}" for number, each in enumerate(self.actions))])

    def to_text(self) -> str:
        actions = [[each.name, dict(each.values)] for each in self.actions]
        return json.dumps({"seed": self.seed, "shape": asdict(self.shape), "actions": actions})


def parse_story(text: str) -> Story:
    body = json.loads(text)
    shape = body["shape"]
    shape |= {"plans": tuple(shape["plans"]), "owners": tuple(shape["owners"])}
    return Story(body["seed"], Shape(**shape), tuple(Action(name, values) for name, values in body["actions"]))


def _short(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
