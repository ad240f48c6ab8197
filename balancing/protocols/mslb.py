"""MSLB, moving state load balancing: the paper's 8 steps (PTLB/MSLB section 4.2, Algorithm 3) on epochs.

Theory. The groups' rows must stop at the sender before its states can be packed, and must not be joined anywhere else
until the states are there. The paper does it with buffers at the split and a flag in every queue
(EndOfPartitionInputFlag). Here the end of a micro-batch is that flag: the epoch that opens the move (step 3) lets the
sender finish one batch, at whose end it packs and freezes the groups; from the next batch on rows go to the receiver,
which takes the package in first or, without one, holds the rows (the paper's buffers). Steps 4, 5 and 6 thus happen in
one batch and the manager learns of them together; each is journaled on its own all the same.

    1 ComputePartitionsToMove  manager -> sender    a command in the epoch
    2 PartitionsToMove         sender -> manager    report.chosen
    3 DeactivatePartitions     manager -> split     the epoch that opens the transfer
    4 Deactivated              sender -> manager    "exported": all that came before is joined
    5 SendPartitions           manager -> sender    granted by the same epoch; journaled
    6 ReceivePartitions        sender -> receiver   the package, in the transfer store
    7 Received                 receiver -> manager  "received", in a committed batch
    8 ReactivatePartitions     manager -> split     the epoch without the transfer: the receiver is the owner

Until step 8 is journaled everything can be taken back, and nothing is needed for it but the two workers: the sender
gets a copy of every row meanwhile and puts it aside. RETURNING: the epoch recalls the transfer; the receiver stops
taking in and says whether it had joined the rows or held them. RESTORING: the epoch repeats that to the sender, which
unfreezes its groups and adds the rows that it put aside, without results where the receiver has made them. CLEARING:
the epoch is without the move. After step 8 the only way is forward. A wave that was never opened is opened, and then
recalled: that its epoch cannot be seen yet does not prove that no batch is bound to it.
"""

from __future__ import annotations

from typing import Final

from balancing.protocols.events import (
    Applied,
    Begin,
    CancelRequested,
    Deactivated,
    ExportFailed,
    HeldTooLong,
    Holding,
    NothingToMove,
    PackageReady,
    PartitionsToMove,
    Proceed,
    RecallAnswered,
    Received,
    Returned,
    StoreRefused,
    WaveAllowed,
)
from balancing.protocols.table import Row, State, Table
from trimtab.moves import Kind

MSLB: Final = Table(
    name="mslb",
    title="MSLB, moving state",
    steps=8,
    kind=Kind.TRANSFER,
    paced=True,
    waits_for_expiry=False,
    rows=(
        Row(State.NEW, Begin, State.CHOOSING, 1, "ComputePartitionsToMove", publishes=True),
        Row(State.CHOOSING, PartitionsToMove, State.CHOSEN, 2, "PartitionsToMove"),
        Row(State.CHOSEN, WaveAllowed, State.DEACTIVATING, 3, "DeactivatePartitions", publishes=True),
        Row(State.DEACTIVATING, Deactivated, State.DEACTIVATED, 4, "Deactivated"),
        Row(State.DEACTIVATED, Proceed, State.SENDING, 5, "SendPartitions"),
        Row(State.SENDING, PackageReady, State.RECEIVING, 6, "ReceivePartitions"),
        Row(State.RECEIVING, Received, State.RECEIVED, 7, "Received"),
        Row(State.RECEIVED, Proceed, State.REACTIVATING, 8, "ReactivatePartitions", publishes=True),
        Row(State.REACTIVATING, Applied, State.COMMITTED, 0, "Applied"),
        # Later waves: step 3 of the next one may share the epoch with step 8 of this one.
        Row(State.REACTIVATING, WaveAllowed, State.DEACTIVATING, 3, "DeactivatePartitions", publishes=True),
        Row(State.COMMITTED, WaveAllowed, State.DEACTIVATING, 3, "DeactivatePartitions", publishes=True),
        # Nothing has moved yet.
        Row(State.NEW, CancelRequested, State.ROLLED_BACK, 0, "Cancel"),
        Row(State.CHOOSING, StoreRefused, State.ROLLED_BACK, 0, "StoreRefused", publishes=True),
        Row(State.CHOOSING, NothingToMove, State.ROLLED_BACK, 0, "NothingToMove", publishes=True),
        Row(State.CHOOSING, CancelRequested, State.ROLLED_BACK, 0, "Cancel", publishes=True),
        Row(State.CHOSEN, CancelRequested, State.ROLLED_BACK, 0, "Cancel", publishes=True),
        # Rows wait at the receiver: say which package is the one, and not for ever.
        Row(State.RECEIVING, Holding, State.RECEIVING, 0, "Holding", publishes=True),
        Row(State.RECEIVING, HeldTooLong, State.RETURNING, 0, "HeldTooLong", publishes=True),
        # The way back.
        Row(State.DEACTIVATING, ExportFailed, State.RETURNING, 0, "ExportFailed", publishes=True),
        # Steps 4 to 6 are learnt together, but a manager may die between them, and the package may be lost by then.
        Row(State.DEACTIVATED, ExportFailed, State.RETURNING, 0, "ExportFailed", publishes=True),
        Row(State.SENDING, ExportFailed, State.RETURNING, 0, "ExportFailed", publishes=True),
        Row(State.DEACTIVATING, CancelRequested, State.RETURNING, 0, "Cancel", publishes=True),
        Row(State.DEACTIVATED, CancelRequested, State.RETURNING, 0, "Cancel", publishes=True),
        Row(State.SENDING, CancelRequested, State.RETURNING, 0, "Cancel", publishes=True),
        Row(State.RECEIVING, CancelRequested, State.RETURNING, 0, "Cancel", publishes=True),
        Row(State.RECEIVED, CancelRequested, State.RETURNING, 0, "Cancel", publishes=True),
        Row(State.RETURNING, RecallAnswered, State.RESTORING, 0, "RecallAnswered", publishes=True),
        Row(State.RESTORING, Returned, State.CLEARING, 0, "Returned", publishes=True),
        Row(State.CLEARING, Applied, State.ROLLED_BACK, 0, "Applied"),
    ),
    repeated=frozenset(
        {
            PartitionsToMove,
            NothingToMove,
            Deactivated,
            Proceed,
            PackageReady,
            Received,
            ExportFailed,
            Holding,
            HeldTooLong,
            StoreRefused,
            RecallAnswered,
            Returned,
            Applied,
        }
    ),
    refusing=frozenset({State.REACTIVATING, State.COMMITTED}),
    shipping=frozenset({State.DEACTIVATING, State.DEACTIVATED, State.SENDING, State.RECEIVING}),
    opening=State.DEACTIVATING,
    closing=State.REACTIVATING,
)
