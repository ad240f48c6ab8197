"""A story written by hand: nothing goes wrong but what is meant to. Every way of both protocols is gone at least once.

Tests of the audit damage workers in it; the audit must be clean where they are not damaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tests.simulator.files import StoreFault
from tests.simulator.shape import Shape
from tests.simulator.story import Action, Story

SECOND_US = 1_000_000
SHAPE = Shape(
    names="ABC",
    partitions=4,
    plans=("((A B) C)", "((B C) A)", "((A B) C)"),
    owners=(0, 1, 2, 0),
    window_us=2 * SECOND_US,
    lateness_us=SECOND_US // 2,
)
ROWS = 5
KEYS = 5


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a migration goes."""

    strategy: str = "mslb"
    cancel_after: int = -1
    """So many batches after the request; -1: not at all."""
    again_after: int = -1
    """So many batches after the request the same group is asked for again; -1: not at all."""
    trouble: str = ""
    batches: int = 9


WAYS: Final = {
    "there": Way(),
    "there, package lost": Way(trouble="lost", batches=10),
    "back, nothing packed": Way(trouble="full", batches=10),
    "back, early": Way(cancel_after=2, batches=10),
    "back, held": Way(cancel_after=3, batches=10),
    "back, joined": Way(cancel_after=4, batches=10),
    "parallel": Way(strategy="ptlb", batches=16),
    "parallel, cancelled": Way(strategy="ptlb", cancel_after=5),
    "there, and on at once": Way(again_after=5, batches=14),
}


class _Writer:
    def __init__(self, seed: int) -> None:
        self.random = Random(f"calm {seed}")
        self.receiver = 0
        self.now_us = 10 * SECOND_US
        self.row_id = 0
        self.requests = 0

    def batch(self, **faults: Any) -> Iterator[Action]:
        """A batch with some late rows, and what the manager makes of it."""
        self.now_us += 400_000
        values: dict[str, Any] = {"rows": {name: [self.row() for _ in range(ROWS)] for name in SHAPE.names}}
        if faults:
            values["faults"] = faults
        yield Action("batch", values)
        yield Action("turn", {"manager": "m0"})

    def row(self) -> list[int]:
        self.row_id += 1
        age = self.random.randrange(900) if self.random.random() < 0.6 else self.random.randrange(900, 2_500)
        return [self.random.randrange(KEYS), self.now_us - 1000 * age, self.row_id]

    def ask(self, strategy: str, group: int) -> Action:
        """The next worker is to have the group."""
        self.requests += 1
        self.receiver = (SHAPE.owners[group] + 1) % SHAPE.workers
        move = {"groups": [group], "receiver": 0}
        return Action("ask", {"id": f"r{self.requests}", "moves": [move], "strategy": strategy})

    def cancel(self) -> Action:
        return Action("cancel", {"id": f"c{self.requests}", "rebalance": f"r{self.requests}"})

    def move(self, way: str) -> Iterator[Action]:
        """One migration, from the request until nothing is left of it."""
        plan = WAYS[way]
        group = self.requests % SHAPE.partitions
        yield self.ask(plan.strategy, group)
        for number in range(plan.batches):
            if number == plan.cancel_after:
                yield self.cancel()
            if plan.trouble == "full" and number == 2:
                # The probe is written, the package is not.
                yield Action("store_fault", {"fault": str(StoreFault.NEARLY_FULL)})
            if plan.trouble == "lost" and number in (3, 4):
                yield Action("package_lost", {"number": 0})
                # The receiver looks before the sender packs again.
                yield from self.batch(order=self.receiver)
            elif number == plan.again_after:
                # The batch that closes the move: the next one opens while this one is still watched.
                batch, turn = self.batch()
                yield from (batch, turn, self.ask(plan.strategy, group), turn)
            else:
                yield from self.batch()
        if plan.trouble == "full":
            # Not before: the way back must do without the store.
            yield Action("store_fault", {"fault": str(StoreFault.NONE)})


def calm_story(ways: Sequence[str] = (), seed: int = 1) -> Story:
    """One migration after the other, on these ways."""
    writer = _Writer(seed)
    actions = [Action("manager_starts", {"manager": "m0"})]
    for _ in range(3):
        actions += writer.batch()
    for way in ways:
        actions += writer.move(way)
    return Story(seed, SHAPE, tuple(actions))
