"""A leader's turn without Redis: which happenings steering is told of, in the order of balancing/turn.py.

Shared by the exhaustive search and the text scenarios. What follows from a happening is decided by
`balancing.steering.Steering` alone; here is only what a leader reads before it asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from balancing.committed import CommittedBatch
from balancing.happenings import (
    BatchCommitted,
    CancelAsked,
    Happening,
    Led,
    Loaded,
    MovesAsked,
    QueryRuns,
    QueryStopped,
    RecordsLost,
    ReplanAsked,
    ReplanCancelAsked,
    TurnEnds,
)
from balancing.load import Snapshot, WorkerLoad
from balancing.protocols.migration import Migration
from balancing.replans.replan import Replan
from balancing.replans.requests import CancelReplan, ReplanRequest
from balancing.requests import CancelRequest, Rebalance, RebalanceRequest
from balancing.situation import Situation, followers, plans_of
from balancing.steering import Steering
from balancing.turn import Part, parts_of_turn
from tests.simulation.plane import Told
from trimtab.epochs import Epoch
from trimtab.moves import Answer, RoleState, Side
from trimtab.plan_orders import PlanReport
from trimtab.reports import MoveReport, WorkerReport

TURN: Final = parts_of_turn(running=True, batches=1)
END: Final = TURN.index(Part.END)


@dataclass(frozen=True)
class Look:
    """What a leader read when its turn began."""

    batch: CommittedBatch | None
    """The newest committed one; None where Redis does not know it."""
    newest: Epoch | None
    """The newest epoch that is published."""
    workers: int = 2


def led(holder: str, fence: int, now_ms: int = 0) -> Led:
    return Led(now_ms=now_ms, holder=holder, fence=fence)


def loaded(
    look: Look,
    migrations: Sequence[Migration],
    rebalances: Sequence[Rebalance],
    now_ms: int = 0,
    replans: Sequence[Replan] = (),
) -> Loaded:
    assert look.batch is not None
    return Loaded(
        now_ms=now_ms,
        bound=look.batch.bound,
        migrations={each.id: each for each in migrations},
        rebalances={each.id: each for each in rebalances},
        replans={each.id: each for each in replans},
    )


def records_lost(
    migrations: Sequence[Migration],
    rebalances: Sequence[Rebalance],
    now_ms: int = 0,
    replans: Sequence[Replan] = (),
) -> RecordsLost:
    return RecordsLost(
        now_ms=now_ms,
        migrations={each.id: each for each in migrations},
        rebalances={each.id: each for each in rebalances},
        replans={each.id: each for each in replans},
    )


def situation_of(steering: Steering, look: Look) -> Situation | None:
    if look.newest is None:
        return None
    reports = look.batch.reports if look.batch is not None else {}
    return Situation(
        query=steering.query,
        workers=look.workers,
        epoch=look.newest,
        migrations=steering.migrations,
        replans=steering.replans,
        streams=("A", "B", "C"),
        plans=plans_of(look.newest, reports),
        follow=followers(reports),
        up=frozenset(range(look.workers)),
        committed=look.batch.batch if look.batch is not None else -1,
    )


def turn_of(look: Look) -> tuple[Part, ...]:
    """A turn with this look. Every look has the newest batch: what a batch says is a level."""
    return parts_of_turn(running=look.batch is not None, batches=1)


def happening_at(part: Part, steering: Steering, look: Look, snapshot: Snapshot, now_ms: int = 0) -> Happening | None:
    """What steering is told of in this part of a turn. Requests are taken up elsewhere; the balancer is off."""
    if part == Part.STOPPED:
        return QueryStopped(now_ms=now_ms)
    assert look.batch is not None
    if part == Part.RUNS:
        return QueryRuns(now_ms=now_ms)
    if part == Part.BATCH:
        return BatchCommitted(now_ms=now_ms, batch=look.batch, workers=look.workers)
    situation = situation_of(steering, look)
    if part == Part.END and situation is not None:
        return TurnEnds(now_ms=now_ms, situation=situation, bound=look.batch.bound, snapshot=snapshot)
    return None


def moves_asked(
    request: RebalanceRequest,
    text: str,
    steering: Steering,
    look: Look,
    snapshot: Snapshot,
    rebalances: Mapping[str, Rebalance],
    now_ms: int = 0,
) -> MovesAsked | None:
    """A request for moves, as a leader reads it from the list; None while it does not know the newest epoch."""
    situation = situation_of(steering, look)
    if situation is None or look.batch is None:
        return None
    return MovesAsked(
        now_ms=now_ms,
        request=request,
        text=text,
        situation=situation,
        snapshot=snapshot,
        known=rebalances.get(request.id),
    )


def replan_asked(
    request: ReplanRequest, text: str, steering: Steering, look: Look, replans: Mapping[str, Replan], now_ms: int = 0
) -> ReplanAsked | None:
    """A request for another plan; None while the leader does not know the newest epoch, or no report of the worker."""
    situation = situation_of(steering, look)
    if situation is None or look.batch is None or request.worker not in look.batch.reports:
        return None
    return ReplanAsked(now_ms=now_ms, request=request, text=text, situation=situation, known=replans.get(request.id))


def replan_cancel_asked(query: str, replan: str, text: str, now_ms: int = 0) -> ReplanCancelAsked:
    request = CancelReplan(id=f"cancel-{replan}", query=query, replan=replan, by="somebody")
    return ReplanCancelAsked(now_ms=now_ms, request=request, text=text)


def cancel_asked(query: str, migration: str, text: str, now_ms: int = 0) -> CancelAsked:
    request = CancelRequest(id=f"cancel-{migration}", query=query, migration=migration, by="somebody")
    return CancelAsked(now_ms=now_ms, request=request, text=text)


def report_of(
    worker: int,
    batch: int,
    epoch: Epoch,
    told: Sequence[Told],
    *,
    store_problem: str = "",
    at_ms: int = 0,
    order: PlanReport | None = None,
) -> WorkerReport:
    """What a worker reports: what it says about moves, and its answers to questions."""
    moves = [
        MoveReport(move=each.move, side=each.side, state=each.state, problem=each.problem, digest=_digest(each))
        for each in told
        if each.worker == worker
    ]
    nothing: dict[str, int] = {}
    return WorkerReport(
        query=epoch.query, batch=batch, epoch=epoch.number, worker=worker, attempt=0, executor=f"x{worker}", process=0,
        at_ms=at_ms, rows=nothing, late_rows=nothing, bad_rows=nothing, results=0, state_rows=0, combined_rows=0,
        state_bytes=0, index_bytes=0, watermark_us=0, cpu_ns=0, moves=moves,
        chosen=_answers(worker, epoch, store_problem), order=order, plan="" if order is None else order.plan,
    )  # fmt: skip


def _digest(told: Told) -> str:
    """A sender knows what it packed, or would have."""
    return f"of {told.move}" if told.side == Side.SENDER and told.state != RoleState.ACTIVE else ""


def _answers(worker: int, epoch: Epoch, store_problem: str) -> dict[str, Answer]:
    """Step 2 of both protocols: groups that are asked for by name, or any one that is free."""
    mine = [group for group, owner in enumerate(epoch.owners) if owner == worker and group not in epoch.moving]
    answers = {}
    for question in epoch.questions:
        if question.worker == worker:
            free = [group for group in mine if group not in question.excluded]
            groups = tuple(group for group in question.groups if group in mine) if question.groups else tuple(free[:1])
            answers[question.migration] = Answer(groups=groups, problem=store_problem if question.ships else "")
    return answers


GROUP_BYTES = 1_000.0


def snapshot_of(groups: int, workers: int = 2, *, single_waves: bool = False) -> Snapshot:
    """A load under which all groups may go at once, or one at a time."""
    nothing = (0.0,) * groups
    return Snapshot(
        query="q",
        incarnation="life",
        epoch=1,
        batch=0,
        at_ms=0,
        owners=(0,) * groups,
        moving={},
        pinned=frozenset(),
        excluded=frozenset(),
        workers=tuple(_load(worker) for worker in range(workers)),
        group_cpu=nothing,
        group_rows=nothing,
        group_bytes=(GROUP_BYTES,) * groups,
        group_state_rows=nothing,
        fixed_cpu_ns_per_s=0.0,
        slots={},
        # What may be spent on moving, some microseconds, is enough for one group; no time known: no bound.
        batch_ms=0.05 if single_waves else 0.0,
    )


def _load(worker: int) -> WorkerLoad:
    return WorkerLoad(
        worker=worker,
        executor=f"x{worker}",
        alive=True,
        cpu_ns_per_s=0.0,
        rows_per_s=0.0,
        results_per_s=0.0,
        state_bytes=0,
        state_rows=0,
        combined_rows=0,
        batch=0,
    )
