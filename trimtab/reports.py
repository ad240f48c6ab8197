"""What each worker says once per batch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.evidence import Evidence, Seen, parse_evidence, parse_seen
from trimtab.moves import Answer, RoleState, Side
from trimtab.plan_orders import (
    KeySample,
    PlanReport,
    StepCount,
    parse_key_sample,
    parse_plan_report,
    parse_step_count,
)
from trimtab.records import known_fields

REPORT_TTL_S: Final = 900
"""Reports of old batches leave Redis after this time."""


@dataclass(frozen=True, kw_only=True)
class MoveReport:
    """What a worker says about a move in every batch: a level, not an edge, so that none is ever missed.

    Everything but `packed_bytes`, `taken_bytes`, the counts by group and the evidence is what the worker's durable
    record said when the batch *began*. That is committed by definition: an attempt that dies, or that Spark gives up,
    says the same as the one that wins. The rest is what this attempt did; it counts only once the next batch names
    this attempt as the one that was committed (`WorkerReport.stamp_before`).
    """

    move: str
    side: Side
    state: RoleState
    rows: int = 0
    """Leaf rows in the package that was exported or taken in."""
    bytes: int = 0
    """Of the package."""
    digest: str = ""
    """Names the package's rows, whatever their order."""
    held_rows: int = 0
    """Receiver: rows that wait for the package. Sender: rows put aside for the way back."""
    newest_old_us: int | None = None
    """PTLB: the largest timestamp of an old row; all are purged once watermark - window is beyond it."""
    newest_old_stream: str = ""
    """The stream of that row."""
    problem: str = ""
    packed_bytes: int = 0
    """Bytes that this batch packed."""
    taken_bytes: int = 0
    """Bytes that this batch took in."""
    arrived: Mapping[int, int] = field(default_factory=dict)
    """Rows of this batch, by group, late ones included."""
    results: Mapping[int, int] = field(default_factory=dict)
    """Results of this batch, by group."""
    suppressed: Mapping[int, int] = field(default_factory=dict)
    """PTLB, sender: all-new combinations left out in this batch, by group. The receiver makes them."""
    evidence: Evidence = field(default_factory=Evidence)

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "evidence": self.evidence.to_json()}


def parse_move_report(body: Mapping[str, Any]) -> MoveReport:
    counts = {
        name: {int(group): int(count) for group, count in body[name].items()}
        for name in ("arrived", "results", "suppressed")
    }
    states = {"side": Side(body["side"]), "state": RoleState(body["state"])}
    return MoveReport(
        **{**known_fields(MoveReport, body), **counts, **states, "evidence": parse_evidence(body["evidence"])}
    )


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
    stamp: str = ""
    """Names this attempt: no two attempts of any batch or run share one."""
    stamp_before: str = ""
    """The attempt of the worker's previous batch that Spark committed: its report is the one that counts."""
    rows: dict[str, int]
    """Rows received per stream, late ones included."""
    late_rows: dict[str, int]
    bad_rows: dict[str, int]
    """Rows that a split task dropped because key or time was null; each task says it to one worker."""
    results: int
    """Results that the join made."""
    state_rows: int
    """Live rows of the streams."""
    combined_rows: int
    """Live tuples of the plan's intermediate states."""
    state_bytes: int
    """Columns, indexes and payload of the resident state."""
    index_bytes: int
    watermark_us: int
    cpu_ns: int
    emitted: int = 0
    """Result rows that the worker handed to Spark."""
    resident: str = "hit"
    """"hit": the resident state was found; "rebuild": it was made again from the durable one."""
    plan: str = ""
    plan_states: dict[str, int] = field(default_factory=dict)
    """State of the plan, as "A B" -> its live tuples; leaves first."""
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
    chosen: Mapping[str, Answer] = field(default_factory=dict)
    """PartitionsToMove (step 2 of both protocols): the answer to each migration's question in the epoch."""
    seen: Mapping[int, Seen] = field(default_factory=dict)
    """Rows of groups in open moves, by group, as split tasks counted them before routing. A task tells one worker."""

    order: PlanReport | None = None
    """Where the worker is with the plan that it was ordered; None from workers of an earlier version."""
    steps: list[StepCount] = field(default_factory=list)
    """What each step of the plan has handled in this batch."""
    keys: KeySample | None = None
    """Live rows of a sample of keys; None in batches in which none was taken."""

    @property
    def work(self) -> int:
        """Tuples handled: what a batch's rows caused. CPU time would count a batch's fixed cost, too."""
        return sum(self.group_rows) + sum(self.group_probes) + sum(self.group_results)

    def to_text(self) -> str:
        body = {
            **self.__dict__,
            "moves": [move.to_json() for move in self.moves],
            "chosen": {name: answer.to_json() for name, answer in self.chosen.items()},
            "seen": {group: seen.to_json() for group, seen in self.seen.items()},
            "order": None if self.order is None else self.order.to_json(),
            "steps": [step.to_json() for step in self.steps],
            "keys": None if self.keys is None else self.keys.to_json(),
        }
        return json.dumps(body, separators=(",", ":"))


def parse_report(text: str | bytes) -> WorkerReport:
    body = json.loads(text)
    chosen = {
        name: Answer(groups=tuple(each["groups"]), problem=each["problem"]) for name, each in body["chosen"].items()
    }
    seen = {int(group): parse_seen(each) for group, each in body["seen"].items()}
    moves = [parse_move_report(each) for each in body["moves"]]
    planning = {
        "order": None if body.get("order") is None else parse_plan_report(body["order"]),
        "steps": [parse_step_count(each) for each in body.get("steps", ())],
        "keys": None if body.get("keys") is None else parse_key_sample(body["keys"]),
    }
    parsed = {"moves": moves, "chosen": chosen, "seen": seen, **planning}
    return WorkerReport(**{**known_fields(WorkerReport, body), **parsed})


def likely(attempts: Iterable[WorkerReport]) -> dict[int, WorkerReport]:
    """By worker, of several attempts at one batch the one that probably counts: the last of the run that spoke last."""
    chosen: dict[int, WorkerReport] = {}
    for report in attempts:
        known = chosen.get(report.worker)
        if known is None or _later(report, known):
            chosen[report.worker] = report
    return chosen


def winners(attempts: Iterable[WorkerReport], following: Iterable[WorkerReport]) -> dict[int, WorkerReport]:
    """By worker, the reports that surely count: the worker's next batch began with what these attempts committed."""
    committed = {report.stamp_before for report in following}
    return {report.worker: report for report in attempts if report.stamp in committed}


def _later(report: WorkerReport, known: WorkerReport) -> bool:
    if report.run == known.run:
        return report.attempt > known.attempt
    return report.at_ms > known.at_ms
