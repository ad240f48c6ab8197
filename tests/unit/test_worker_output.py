"""What leaves a worker for Spark, and that it is counted there."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from trimtab import frames
from trimtab.keys import KeySpec
from worker.spark import JoinWorker, WorkerTask
from worker.spec import JoinSpec, StreamSpec

PIECES = [pa.RecordBatch.from_pydict({"A_id": list(range(rows))}) for rows in (4, 6)]


def worker(*, frames_out: bool) -> JoinWorker:
    streams = tuple(StreamSpec(name, "at", KeySpec(("key",), "exact"), ("key", "at")) for name in "AB")
    task = WorkerTask(
        query="q",
        spec=JoinSpec(streams, 1, 4),
        plans=("mjoin",),
        checkpoint="",
        redis_url=None,
        worker_keys=(0,),
        transfer_key=b"",
        result_schema=b"",
        version="",
        frames_out=frames_out,
        attempts=4,
    )
    return JoinWorker(task)


def rows_of(output: pd.DataFrame, *, frames_out: bool) -> int:
    return sum(frames.decode(frame).num_rows for frame in output["frame"]) if frames_out else len(output)


@pytest.mark.parametrize("frames_out", [False, True])
def test_rows_are_counted_as_they_are_handed_over(frames_out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    each = worker(frames_out=frames_out)
    assert sum(rows_of(output, frames_out=frames_out) for output in each._hand_over(PIECES)) == 10
    assert each._emitted == 10
    right: Any = JoinWorker._output
    monkeypatch.setattr(JoinWorker, "_output", lambda self, piece: right(self, piece.slice(0, piece.num_rows // 2)))
    assert sum(rows_of(output, frames_out=frames_out) for output in each._hand_over(PIECES)) == 5
    assert each._emitted == 5, "what was lost on the way out shows in the report"
