"""What a stateful operator must be able to do so that its partition groups can move from worker to worker.

The worker's side of the protocols (`worker.protocol`) speaks to state through this, and knows nothing else of it. The
join (`worker.joining`) is the first operator that has it; a group-by or a distinct can have it too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from trimtab.evidence import Tally
from worker.buffers import Int64s, Refs
from worker.payload import DurableKey


@dataclass(frozen=True)
class FiledRows:
    """Rows of one stream, and where the durable state has them."""

    key: DurableKey
    stream: str
    frame: pa.Buffer


@dataclass(frozen=True)
class ExportedGroups:
    """All states of some groups: rows as frames, and the states above them as positions in those rows."""

    leaves: tuple[tuple[str, pa.Buffer], ...]
    """Stream and frame, in the order in which they arrived."""
    combined: Mapping[tuple[str, ...], Refs]
    tally: Tally
    """Of the rows, by the digest of stored rows."""


class MovableState(Protocol):
    """The state of one worker in one batch."""

    def freeze(self, groups: Collection[int], horizon_us: int) -> None:
        """Keep what is live by `horizon_us`; nothing of these groups expires until they are unfrozen."""

    def unfreeze(self, groups: Collection[int]) -> None: ...

    def export(self, groups: Collection[int]) -> ExportedGroups:
        """What is live of the groups (PTLB/MSLB section 4.2, step 6). Changes nothing."""

    def take_in(
        self,
        groups: Collection[int],
        rows: Sequence[FiledRows],
        combined: Mapping[tuple[str, ...], Refs],
        horizon_us: int,
    ) -> None:
        """Add what another worker exported of groups that this one has nothing of (step 7), without results.

        What was live by `horizon_us`, when it was exported, is kept until the groups are unfrozen.
        """

    def join(self, rows: FiledRows) -> None:
        """Add rows; their results leave with this batch's."""

    def add_silently(self, groups: Collection[int], rows: Sequence[FiledRows]) -> None:
        """Add rows whose results another worker has made."""

    def expire(self, groups: Collection[int]) -> None:
        """Forget all of some groups, at once."""

    def newest(self, groups: Collection[int], horizon_us: int) -> tuple[int, str] | None:
        """Time and stream of the newest live row of some groups."""

    def track(self, move: str, groups: Collection[int]) -> None:
        """What is here of the groups is old, what comes is new; results that are all new are left out (PTLB step 3)."""

    def untrack(self, move: str) -> None: ...

    def oldest_batch(self) -> int | None:
        """The oldest batch that rows of this state are filed under."""

    def group_rows(self) -> Int64s:
        """Live rows of each group."""

    def group_bytes(self) -> Int64s:
        """Bytes that each group takes up."""

    def tally(self, groups: Collection[int]) -> Tally:
        """Live rows of some groups and their digests, counted where they lie."""
