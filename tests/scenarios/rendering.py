"""What a scenario's trace says about epochs, reports, happenings and instructions."""

from __future__ import annotations

from collections.abc import Iterator

from balancing.happenings import (
    BatchCommitted,
    CancelAsked,
    Happening,
    MovesAsked,
    ReplanAsked,
    ReplanCancelAsked,
)
from balancing.instructions import Hold, Instruction, PublishEpoch, Write
from tests.simulation.plane import Plane, Told, levels
from trimtab.epochs import Epoch
from trimtab.moves import Move
from trimtab.reports import WorkerReport


def epoch_text(epoch: Epoch) -> str:
    parts = ["owners " + " ".join(map(str, epoch.owners))]
    parts += [f"asks worker {each.worker} for {each.migration}" for each in epoch.questions]
    parts += [_move_text(move) for move in epoch.moves]
    parts += [f"{each.id} worker {each.worker} {each.plan} by {each.strategy}" for each in epoch.plans]
    return f"epoch {epoch.number}: " + "; ".join(parts)


def _move_text(move: Move) -> str:
    groups = ",".join(map(str, move.groups))
    digest = ", package named" if move.digest else ""
    return f"{move.id} {move.kind} {move.sender} -> {move.receiver} groups {groups} {move.way}{digest}"


def happening_text(happening: Happening) -> str:
    name = type(happening).__name__
    if isinstance(happening, BatchCommitted):
        return f"{name} {happening.batch.batch}, epoch {happening.batch.bound.number}"
    if isinstance(happening, MovesAsked):
        return f"{name} {happening.request.id}"
    if isinstance(happening, CancelAsked):
        return f"{name} {happening.request.migration}"
    if isinstance(happening, ReplanAsked):
        return f"{name} {happening.request.id}"
    if isinstance(happening, ReplanCancelAsked):
        return f"{name} {happening.request.replan}"
    return name


def instruction_lines(instruction: Instruction) -> Iterator[str]:
    if isinstance(instruction, PublishEpoch):
        yield f"publish {epoch_text(instruction.epoch)}"
    elif isinstance(instruction, Write):
        records = [f"{each.id} {each.outcome or each.state}" for each in instruction.migrations]
        records += [f"rebalance {each.id} {each.state}" for each in instruction.rebalances]
        records += [f"{each.id} {each.state}" for each in instruction.replans]
        # A record without a word is an audit's: a move that is to be followed. Nothing at all answers a duplicate.
        silent = "" if instruction.events else "audit" if records else "nothing"
        yield f"write {instruction.point or silent}".strip() + (": " + ", ".join(records) if records else "")
        for event in instruction.events:
            yield f"  {event.kind}: {event.text}"
    elif not isinstance(instruction, Hold):
        yield str(instruction)


def worker_lines(before: Plane, after: Plane, epoch: Epoch, muted: frozenset[int]) -> Iterator[str]:
    """What each worker reports about the open moves (where they stood when the batch began), and where it got."""
    became = {(each.worker, each.move): each for each in levels(after, epoch)}
    for said in sorted(levels(before, epoch)):
        now = became[said.worker, said.move]
        verb = "reports nothing" if said.worker in muted else f"reports {_state(said)}"
        change = f", and gets to {_state(now)}" if (now.state, now.problem) != (said.state, said.problem) else ""
        yield f"worker {said.worker}, {said.side} of {said.move}: {verb}{change}"


def plan_lines(before: Plane, epoch: Epoch, muted: frozenset[int]) -> Iterator[str]:
    """What each worker that has a plan order says of it."""
    for worker, follower in enumerate(before.followers):
        if epoch.order(worker) is not None:
            said = follower.report()
            waits = f", waits for stream {said.waits_for}" if said.waits_for else ""
            verb = f"reports {said.plan} {said.state}{waits}" if worker not in muted else "reports nothing"
            yield f"worker {worker}, {follower.order or 'no order'}: {verb}"


def _state(told: Told) -> str:
    return f"{told.state} ({told.problem})" if told.problem else str(told.state)


def answer_lines(reports: dict[int, WorkerReport]) -> Iterator[str]:
    for worker, report in sorted(reports.items()):
        for migration, answer in report.chosen.items():
            groups = ",".join(map(str, answer.groups)) or "none"
            problem = f", {answer.problem}" if answer.problem else ""
            yield f"worker {worker} answers {migration}: groups {groups}{problem}"


def results_line(before: Plane, after: Plane, rows: int) -> str:
    """How many results the batch made, and how many wait for a package."""
    due_before, due_after = (sum(map(len, plane.due)) for plane in (before, after))
    line = f"{due_before + rows - due_after} results, none lost, none doubled"
    return ("" if rows else "no rows come: ") + line + (f", {due_after} wait" if due_after else "")
