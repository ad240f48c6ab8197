"""The order of a leader's turn, spelled once: the manager, the exhaustive search and the text scenarios go by it."""

from __future__ import annotations

from enum import StrEnum


class Part(StrEnum):
    """One thing that a leader does in a turn; what steering is told of in it stands behind it."""

    STOPPED = "stopped"
    """The driver is silent: QueryStopped, and nothing else."""
    RUNS = "runs"
    """QueryRuns."""
    REQUESTS = "requests"
    """MovesAsked, CancelAsked or RequestFailed for each request on the list."""
    BATCH = "batch"
    """BatchCommitted for the next batch."""
    WEIGH = "weigh"
    """LoadWeighed: the balancer looks at the load with these batches in it."""
    END = "end"
    """TurnEnds: begin what is new, allow waves, publish."""


def parts_of_turn(*, running: bool, batches: int) -> tuple[Part, ...]:
    """What is done in a turn that finds so many batches committed since the one before.

    Requests are taken up before each batch, too: a cancel that came in time is not overtaken.
    """
    if not running:
        return (Part.STOPPED,)
    weigh = (Part.WEIGH,) if batches else ()
    return (Part.RUNS, *(Part.REQUESTS, Part.BATCH) * batches, Part.REQUESTS, *weigh, Part.END)
