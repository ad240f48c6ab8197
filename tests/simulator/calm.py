"""A story written by hand: nothing goes wrong but what is meant to. Every way of both protocols is gone at least once.

Tests of the audit damage workers in it; the audit must be clean where they are not damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

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
ROWS = 6
KEYS = 6


class _Writer:
    def __init__(self, seed: int, rows: int) -> None:
        self.random = Random(f"calm {seed}")
        self.rows = rows
        self.now_us = 10 * SECOND_US
        self.row_id = 0
        self.requests = 0

    def batch(self, **faults: Any) -> Iterator[Action]:
        """A batch with some late rows, and what the manager makes of it."""
        self.now_us += 400_000
        values: dict[str, Any] = {"rows": {name: [self.row() for _ in range(self.rows)] for name in SHAPE.names}}
        if faults:
            values["faults"] = faults
        yield Action("batch", values)
        yield Action("turn", {"manager": "m0"})

    def row(self) -> list[int]:
        self.row_id += 1
        age = self.random.randrange(1_200) if self.random.random() < 0.75 else self.random.randrange(1_200, 4_000)
        return [self.random.randrange(KEYS), self.now_us - 1000 * age, self.row_id]

    def ask(self, strategy: str, group: int) -> Action:
        self.requests += 1
        return Action(
            "ask",
            {"id": f"r{self.requests}", "moves": [{"groups": [group], "receiver": self.requests}], "strategy": strategy},
        )

    def cancel(self) -> Action:
        return Action("cancel", {"id": f"c{self.requests}", "rebalance": f"r{self.requests}"})

    def move(self, strategy: str, *, cancel_after: int = -1, trouble: str = "") -> Iterator[Action]:
        """One migration, from the request until nothing is left of it."""
        group = self.requests % SHAPE.partitions
        yield self.ask(strategy, group)
        for number in range(12 if strategy == "ptlb" else 10):
            if number == cancel_after:
                yield self.cancel()
            if trouble == "full" and number in (2, 6):
                # The probe is written, the package is not.
                yield Action("store_fault", {"fault": str(StoreFault.NEARLY_FULL if number == 2 else StoreFault.NONE)})
            if trouble == "lost" and number in (3, 4):
                yield Action("package_lost", {"number": 0})
                # The receiver looks before the sender packs again.
                yield from self.batch(order=2)
            else:
                yield from self.batch()


def calm_story(seed: int = 1, rows: int = ROWS, *, strategies: tuple[str, ...] = ("mslb", "ptlb")) -> Story:
    """Moves by both protocols: to the end, with a package that is lost, cancelled after so many batches."""
    writer = _Writer(seed, rows)
    actions = [Action("manager_starts", {"manager": "m0"})]
    for _ in range(3):
        actions += writer.batch()
    if "mslb" in strategies:
        actions += writer.move("mslb")
        actions += writer.move("mslb", trouble="lost")
        actions += writer.move("mslb", trouble="full")
        for cancel_after in (2, 3, 4):
            actions += writer.move("mslb", cancel_after=cancel_after)
    if "ptlb" in strategies:
        actions += writer.move("ptlb")
        actions += writer.move("ptlb", cancel_after=5)
    return Story(seed, SHAPE, tuple(actions))
