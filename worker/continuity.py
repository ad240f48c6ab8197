"""Whether a batch's epoch follows from what a worker applied before: groups come and go by moves only.

Checked where epochs are bound already (`trimtab.epochs.breaks_between`). Each worker checks its own groups once more,
against its own durable record: an epoch that it never saw may have been the only one that had a move in it.
"""

from __future__ import annotations

from trimtab.epochs import Epoch
from trimtab.errors import BindingError, CorruptState
from trimtab.moves import RoleState, Side
from worker.durable import Record, Role


def owned_groups(epoch: Epoch, worker: int) -> list[int]:
    return [group for group, owner in enumerate(epoch.owners) if owner == worker]


def check_continuity(record: Record, batch: int, epoch: Epoch, worker: int) -> None:
    """Refuse an epoch that this worker cannot go on with."""
    if epoch.fence < record.fence:
        raise BindingError(
            f"epoch {epoch.number} was published with fencing token {epoch.fence}, after one with {record.fence}: "
            "a manager that lost its lease has written it"
        )
    # One more epoch per batch at the most; a batch may have run no task at all, and then this worker missed it.
    newest = record.applied_epoch + max(1, batch - record.batch)
    if not record.applied_epoch <= epoch.number <= newest:
        raise CorruptState(
            f"batch {batch} is bound to epoch {epoch.number}, but worker {worker} applied epoch {record.applied_epoch} "
            f"in batch {record.batch}: only epochs from {record.applied_epoch} to {newest} can follow"
        )
    now, before = set(owned_groups(epoch, worker)), set(record.owned)
    closed = [role for role in record.roles if role.state != RoleState.CLOSED and not _is_open(role, epoch)]
    received = {group for role in closed if role.side == Side.RECEIVER for group in role.groups}
    sent = {group for role in closed if role.side == Side.SENDER for group in role.groups}
    for group in sorted(now - before - received):
        raise CorruptState(
            f"epoch {epoch.number} gives group {group} to worker {worker}, which did not own it in epoch "
            f"{record.applied_epoch} and took part in no move that brought it: its state is missing"
        )
    for group in sorted(before - now - sent):
        raise CorruptState(
            f"epoch {epoch.number} takes group {group} from worker {worker}, which owned it in epoch "
            f"{record.applied_epoch} and took part in no move that sent it: its state would be lost"
        )


def _is_open(role: Role, epoch: Epoch) -> bool:
    move = epoch.move(role.move)
    return move is not None and role.is_of(move)
