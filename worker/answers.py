"""PartitionsToMove: step 2 of both protocols, answering each ComputePartitionsToMove in the epoch."""

from __future__ import annotations

from balancing.selection import nearest
from trimtab.epochs import Epoch
from trimtab.moves import Answer, ComputePartitionsToMove
from worker.buffers import Int64s
from worker.continuity import owned_groups
from worker.load import GroupLoad
from worker.transfers import TransferStore


def answers(
    epoch: Epoch, worker: int, load: GroupLoad, group_bytes: Int64s, transfers: TransferStore
) -> dict[str, Answer]:
    """By migration. Groups that are moving are neither offered nor counted."""
    return {
        question.migration: _answer(question, epoch, load, group_bytes, transfers)
        for question in epoch.questions
        if question.worker == worker
    }


def _answer(
    question: ComputePartitionsToMove,
    epoch: Epoch,
    load: GroupLoad,
    group_bytes: Int64s,
    transfers: TransferStore,
) -> Answer:
    mine = set(owned_groups(epoch, question.worker)) - set(epoch.moving)
    if question.groups:
        groups = tuple(group for group in question.groups if group in mine)
    else:
        work = load.rows + load.probes + load.results
        # A batch without rows says nothing about work; state is the next best measure.
        measure = work if question.measure == "cpu" and work.sum() else group_bytes
        loads = {group: float(measure[group]) for group in mine}
        amount = question.share * sum(loads.values())
        groups = nearest(loads, amount, excluded=set(question.excluded))
    problem = transfers.probe(int(group_bytes[list(groups)].sum())) if question.ships and groups else ""
    return Answer(groups=groups, problem=problem)
