"""What each worker tells once per batch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Final

from trimtab.moves import MoveReport

REPORT_TTL_S: Final = 900
"""Reports of old batches leave Redis after this time."""


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """One worker's account of one batch."""

    query: str
    batch: int
    epoch: int
    worker: int
    attempt: int
    """Spark's number of the task attempt, which grows within a run."""
    executor: str
    process: int
    at_ms: int
    """When the report was written, on the executor's clock."""
    rows: dict[str, int]
    """Rows received per stream, late ones included."""
    late_rows: dict[str, int]
    bad_rows: dict[str, int]
    """Rows that a split task dropped because key or time was null, told to one worker each."""
    results: int
    state_rows: int
    """Live rows of the streams."""
    combined_rows: int
    """Live tuples of the plan's intermediate states."""
    state_bytes: int
    """Columns, indexes and payload of the resident state."""
    index_bytes: int
    watermark_us: int
    cpu_ns: int
    resident: str
    """"hit": the resident state was found; "rebuild": it was made again from the durable one."""
    plan: str = ""
    run: str = ""
    """Of the query: another one after each start."""
    phase_ns: dict[str, int] = field(default_factory=dict)
    groups: list[int] = field(default_factory=list)
    """The partition groups that this worker had rows, work or state of; the lists below say how much of each, in this
    order. A query may have thousands of groups, and a worker a few of them."""
    group_rows: list[int] = field(default_factory=list)
    group_probes: list[int] = field(default_factory=list)
    group_results: list[int] = field(default_factory=list)
    group_state_rows: list[int] = field(default_factory=list)
    group_bytes: list[int] = field(default_factory=list)
    group_cpu_ns: list[int] = field(default_factory=list)
    moves: list[MoveReport] = field(default_factory=list)
    """One for each open move that this worker takes part in."""
    chosen: dict[str, list[int]] = field(default_factory=dict)
    """PartitionsToMove (step 2 of both protocols): the answer to each migration's question in the epoch."""
    seen_rows: dict[str, int] = field(default_factory=dict)
    """Rows of groups in open moves, by group, as split tasks counted them before routing; each told to one worker."""

    @property
    def work(self) -> int:
        """Tuples handled: what a batch's rows caused. CPU time would count a batch's fixed cost, too."""
        return sum(self.group_rows) + sum(self.group_probes) + sum(self.group_results)

    def to_text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


def parse_report(text: str | bytes) -> WorkerReport:
    body = json.loads(text)
    return WorkerReport(**{**body, "moves": [MoveReport(**each) for each in body["moves"]]})
