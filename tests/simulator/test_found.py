"""Stories that once ended badly, as short as they could be made."""

from __future__ import annotations

from tests.simulator.shape import Shape
from tests.simulator.story import Action, Story
from tests.simulator.telling import tell

SHAPE = Shape(plans=("(A B)", "(B A)", "(B A)"), owners=(0, 1, 2, 0, 1, 2), window_us=2_000_000)
START = Action("manager_starts", {"manager": "m0"})
TURN = Action("turn", {"manager": "m0"})


def ends_well(shape: Shape, *actions: Action) -> None:
    failure = tell(Story(0, shape, (START, *actions))).failure
    assert failure is None, failure.text


def batch(rows: dict[str, list[list[int]]], **faults: object) -> Action:
    return Action("batch", {"rows": rows, "faults": faults})


def test_a_batch_without_tasks_opens_a_transfer_and_rows_expire_in_it() -> None:
    """Seed 49: the sender freezes at the beginning of the next batch, by a watermark by which nothing was purged. The
    rows that had expired were counted as stored, and the audit missed them in the package."""
    ends_well(
        SHAPE,
        batch({"A": [[0, 10_000_000, 1]], "B": [[0, 10_000_000, 2]]}),
        Action("ask", {"id": "r1", "moves": [{"groups": [0], "receiver": 0}], "strategy": "mslb"}),
        TURN,
        batch({"A": [[0, 13_000_000, 3]], "B": [[0, 13_000_000, 4]]}),
        TURN,
        batch({}, no_task=True),
        # Another epoch shows that the move is switched: without it the audit leaves the batch out.
        Action("ask", {"id": "r2", "moves": [{"groups": [1], "receiver": 0}], "strategy": "mslb"}),
        TURN,
        batch({}),
        TURN,
    )


def test_an_empty_request_does_not_stop_those_after_it() -> None:
    """Seed 1012, as stories were drawn then: an empty text was never taken off the list."""
    ends_well(
        SHAPE,
        batch({"A": [[0, 10_000_000, 1]]}),
        Action("garbage", {"text": ""}),
        Action("ask", {"id": "r1", "moves": [{"groups": [0], "receiver": 0}], "strategy": "mslb"}),
        TURN,
        batch({}),
        TURN,
    )
