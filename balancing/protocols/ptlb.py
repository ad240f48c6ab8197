"""PTLB, parallel track load balancing: the paper's 5 steps (PTLB/MSLB section 3.2, Algorithm 1) on epochs.

Theory. Nothing is shipped. Rows that arrive after the epoch of step 3 go to both workers; at the sender they are *new*,
and its root leaves out combinations that are all new, because the receiver, which has only such rows, makes exactly
those. Once no old row is live at the sender, every result of the groups comes from the receiver, and the sender's copy
can go. We wait for one window, not the paper's two: a combination is live while its *oldest* part is within the window
of the watermark, so an old row and all combinations with it expire together.

    1 ComputePartitionsToMove  manager -> sender   a command in the epoch
    2 PartitionsToMove         sender -> manager   report.chosen
    3 DuplicatePartitions      manager -> split    the epoch that opens the duplicate
    4 AllOldPurged             sender -> manager   "all-old-purged", in a committed batch
    5 DeletePartitions         manager -> split    the epoch without the duplicate: the receiver is the owner

Until step 5 is journaled the move can be cancelled at no cost: an epoch without it that leaves the sender the owner.
RETURNING waits until the move has been seen open, as in mslb.py, so that the closing epoch surely comes after it.
"""

from __future__ import annotations

from typing import Final

from balancing.protocols.events import (
    AllOldPurged,
    Applied,
    Begin,
    CancelRequested,
    NothingToMove,
    PartitionsToMove,
    Proceed,
    Returned,
    WaveAllowed,
)
from balancing.protocols.table import Row, State, Table
from trimtab.moves import Kind

PTLB: Final = Table(
    name="ptlb",
    title="PTLB, parallel track",
    steps=5,
    kind=Kind.DUPLICATE,
    paced=False,
    waits_for_expiry=True,
    rows=(
        Row(State.NEW, Begin, State.CHOOSING, 1, "ComputePartitionsToMove", publishes=True),
        Row(State.CHOOSING, PartitionsToMove, State.CHOSEN, 2, "PartitionsToMove"),
        Row(State.CHOSEN, WaveAllowed, State.DUPLICATING, 3, "DuplicatePartitions", publishes=True),
        Row(State.DUPLICATING, AllOldPurged, State.ALL_OLD_PURGED, 4, "AllOldPurged"),
        Row(State.ALL_OLD_PURGED, Proceed, State.DELETING, 5, "DeletePartitions", publishes=True),
        Row(State.DELETING, Applied, State.COMMITTED, 0, "Applied"),
        # Nothing has moved yet.
        Row(State.NEW, CancelRequested, State.ROLLED_BACK, 0, "Cancel"),
        Row(State.CHOOSING, NothingToMove, State.ROLLED_BACK, 0, "NothingToMove", publishes=True),
        Row(State.CHOOSING, CancelRequested, State.ROLLED_BACK, 0, "Cancel", publishes=True),
        Row(State.CHOSEN, CancelRequested, State.ROLLED_BACK, 0, "Cancel", publishes=True),
        # The way back.
        Row(State.DUPLICATING, CancelRequested, State.RETURNING, 0, "Cancel", publishes=True),
        Row(State.ALL_OLD_PURGED, CancelRequested, State.RETURNING, 0, "Cancel", publishes=True),
        Row(State.RETURNING, Returned, State.CLEARING, 0, "Returned", publishes=True),
        Row(State.CLEARING, Applied, State.ROLLED_BACK, 0, "Applied"),
    ),
    repeated=frozenset({PartitionsToMove, NothingToMove, AllOldPurged, Proceed, Returned, Applied}),
    refusing=frozenset({State.DELETING, State.COMMITTED}),
    shipping=frozenset(),
    opening=State.DUPLICATING,
    closing=State.DELETING,
)
