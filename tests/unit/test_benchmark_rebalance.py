"""What the rebalancing benchmark computes from reports and measured figures."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.rebalance import Figure, batches_waited, figures_of
from trimtab.moves import RoleState, Side
from trimtab.reports import MoveReport, WorkerReport


def report(batch: int, **held: int) -> WorkerReport:
    side, state = Side.RECEIVER, RoleState.HOLDING
    moves = [MoveReport(move=move, side=side, state=state, held_rows=rows) for move, rows in held.items()]
    # What the sender puts aside for a way back does not wait.
    moves += [MoveReport(move=move, side=Side.SENDER, state=RoleState.EXPORTED, held_rows=9) for move in held]
    fields: dict[str, Any] = dict.fromkeys(("results", "state_rows", "combined_rows", "state_bytes", "index_bytes"), 0)
    fields |= dict.fromkeys(("epoch", "worker", "attempt", "process", "at_ms", "watermark_us", "cpu_ns"), 0)
    fields |= {name: {} for name in ("rows", "late_rows", "bad_rows")}
    return WorkerReport(query="q", batch=batch, executor="a", resident="hit", moves=moves, **fields)


@pytest.mark.parametrize(
    ("held", "waited"),
    [
        ([{"m": 0}, {"m": 0}], 0),
        ([{"m": 0}, {"m": 5}, {"m": 0}, {"m": 5}, {"m": 0}], 1),
        ([{"m": 5}, {"m": 9, "n": 2}, {"n": 1}, {}], 2),
        ([{"m": 5}, None, {"m": 9}, {"m": 0}], 3),
        ([{"m": 5}, None, {"m": 0}], 2),
    ],
)
def test_batches_that_rows_wait(held: list[dict[str, int] | None], waited: int) -> None:
    reports = {number: [] if each is None else [report(number, **each)] for number, each in enumerate(held)}
    assert batches_waited(reports) == waited


def test_a_wanted_figure_that_is_missed_is_told() -> None:
    part = {"state_rows": 10, "waves": 2, "longest batch": 1.4, "batches_waited": 1, "evidence": 0.01, "exact": True}
    assert all(figure.met for figure in figures_of({"mslb": part}))
    for missed in ({"longest batch": 1.6}, {"batches_waited": 2}, {"evidence": 0.03}, {"exact": False}):
        assert [figure.met for figure in figures_of({"mslb": {**part, **missed}})].count(False) == 1
    assert Figure("x", 0.94, 0.95, "x", at_least=True).row() == ("x", "0.94x", ">= 0.95x", "NO")
    assert Figure("x", 10, 10).row() == ("x", "10", "<= 10", "yes")
