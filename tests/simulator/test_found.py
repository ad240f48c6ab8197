"""Stories that once ended badly, as short as they could be made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.files import StoreFault
from tests.simulator.shape import Shape
from tests.simulator.story import Action, Story
from tests.simulator.telling import tell
from trimtab.moves import Way

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


@pytest.mark.parametrize("attempts", [1, 4])
@pytest.mark.parametrize("fault", [StoreFault.UNLISTABLE, StoreFault.UNREADABLE])
def test_a_store_that_cannot_be_read_for_good_stops_nothing(fault: StoreFault, attempts: int) -> None:
    """The last attempt that Spark makes goes on without it, and in local mode the first one is the last: there every
    attempt failed, and every start of the query."""
    rows = [{"A": [[0, at, 2 * at]], "B": [[0, at, 2 * at + 1]]} for at in range(10_000_000, 14_000_000, 500_000)]
    story = Story(
        0,
        replace(SHAPE, attempts=attempts),
        (
            START,
            batch(rows[0]),
            Action("ask", {"id": "r1", "moves": [{"groups": [0], "receiver": 0}], "strategy": "mslb"}),
            TURN,
            batch(rows[1]),
            TURN,
            Action("store_fault", {"fault": str(fault), "lasts": True}),
            *(each for more in rows[2:] for each in (batch(more), TURN)),
        ),
    )
    outcome = tell(story)
    assert outcome.failure is None, outcome.failure.text
    assert outcome.world.files.fault == fault
    ways = {move.way for epoch in outcome.world.spark.epochs for move in epoch.moves}
    assert ways == {Way.THERE, Way.RECALLED, Way.HELD}
