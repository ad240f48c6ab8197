"""The join of one batch as moves see it: an engine, what the batch makes of it, and which of its rows are new.

*New* are rows that this batch joins, with results; rows that were kept, taken in or added silently are *stored*. A
witness (`worker.witness`) counts both afterwards, so each group's boundary between them is kept here: a row number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from trimtab import frames
from trimtab.evidence import NOTHING, Tally, group_digests
from worker import kernels
from worker.buffers import Int64s, Refs, Tuples
from worker.engine import Census, Engine
from worker.load import GroupLoad
from worker.movable import ExportedGroups, FiledRows


class JoinState:
    """`MovableState` of the join, for one batch."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.load = GroupLoad.zero(engine.spec.partitions)
        self.results: list[Tuples] = []
        self.joined: list[Tuples] = []
        """New rows, as they were handed to the join."""
        self._census: Census | None = None
        self._boundaries: dict[str, Int64s] | None = None
        self._kept_since: Int64s | None = None
        self._thawing: set[int] = set()

    # -- what a witness needs

    def watch(self) -> None:
        """Note where each group's new rows begin and what was live when the batch began; called first of all."""
        partitions = self.engine.spec.partitions
        self._boundaries = {
            name: np.full(partitions, store.next_row, np.int64) for name, store in self.engine.payload.items()
        }
        self._kept_since = self.engine.limit.by_group(partitions)

    @property
    def boundaries(self) -> dict[str, Int64s]:
        """Stream -> the number of each group's first new row."""
        assert self._boundaries is not None
        return self._boundaries

    @property
    def kept_since(self) -> Int64s:
        """Each group's horizon when the batch began; that of its package, where one was taken in."""
        assert self._kept_since is not None
        return self._kept_since

    def _stored(self, groups: Collection[int]) -> None:
        """All that is here of these groups by now is stored; what comes is new."""
        for name, store in self.engine.payload.items():
            self.boundaries[name][list(groups)] = store.next_row

    # -- the join itself

    def insert(self, new: Tuples) -> None:
        """Join new rows of one stream; results leave with the batch."""
        self.joined.append(new)
        self.results.append(self.engine.insert(new, self.load))

    def census(self) -> Census:
        """What is live after the purge; counted once."""
        if self._census is None:
            self._census = self.engine.census()
        return self._census

    # -- MovableState

    def freeze(self, groups: Collection[int], horizon_us: int) -> None:
        self._thawing -= set(groups)
        self.engine.freeze(groups, horizon_us)
        # A batch that ran no task has purged nothing: what had expired by its watermark is not stored any more.
        self.kept_since[list(groups)] = np.maximum(self.kept_since[list(groups)], horizon_us)

    def unfreeze(self, groups: Collection[int]) -> None:
        """With the end of the batch. Rows that waited for long are joined in it and have expired by now: a buffer that
        makes room for others meanwhile must not drop them before they are counted."""
        self._thawing |= set(groups)

    def thaw(self) -> None:
        """The batch is joined and counted: what was unfrozen in it may expire."""
        if self._thawing:
            self.engine.unfreeze(self._thawing)
            self._thawing = set()

    def export(self, groups: Collection[int]) -> ExportedGroups:
        exported = self.engine.export(groups)
        leaves = tuple((stream, frames.encode(piece)) for stream, pieces in exported.leaves.items() for piece in pieces)
        tally = stored_tally(exported.rows.values(), self.engine.spec.partitions)
        return ExportedGroups(leaves, exported.combined, tally)

    def take_in(
        self,
        groups: Collection[int],
        rows: Sequence[FiledRows],
        combined: Mapping[tuple[str, ...], Refs],
        horizon_us: int,
    ) -> None:
        # Not `freeze`: nothing is purged before the groups are unfrozen, so no chunk must be looked at.
        self.engine.frozen |= dict.fromkeys(groups, horizon_us)
        self.kept_since[list(groups)] = horizon_us
        self.engine.take_in([self._loaded(each) for each in rows], combined)
        self._stored(groups)

    def join(self, rows: FiledRows) -> None:
        self.insert(self._loaded(rows))

    def add_silently(self, groups: Collection[int], rows: Sequence[FiledRows]) -> None:
        for each in rows:
            self.engine.insert(self._loaded(each), GroupLoad.zero(self.engine.spec.partitions))
        self._stored(groups)

    def expire(self, groups: Collection[int]) -> None:
        self.engine.expire(groups)

    def newest(self, groups: Collection[int], horizon_us: int) -> tuple[int, str] | None:
        return self.engine.newest(groups, horizon_us)

    def track(self, move: str, groups: Collection[int]) -> None:
        self.engine.track(move, groups)

    def untrack(self, move: str) -> None:
        self.engine.tracks.pop(move, None)

    def oldest_batch(self) -> int | None:
        stores = self.engine.payload.values()
        return min((batch for store in stores if (batch := store.oldest_batch()) is not None), default=None)

    def group_rows(self) -> Int64s:
        return self.census().group_rows

    def group_bytes(self) -> Int64s:
        return self.census().group_bytes

    def tally(self, groups: Collection[int]) -> Tally:
        wanted, limit = self.engine.flags(groups), self.engine.limit
        leaves = (b.live_of(wanted, limit) for b in self.engine.buffers.values() if b.is_leaf)
        return stored_tally(leaves, self.engine.spec.partitions)

    def _loaded(self, rows: FiledRows) -> Tuples:
        return self.engine.load_rows(rows.stream, frames.decode(rows.frame), rows.frame, rows.key)


def stored_tally(leaves: Iterable[Tuples], partitions: int) -> Tally:
    """Of leaf rows, wherever they lie."""
    groups = np.arange(partitions)
    tally = NOTHING
    for rows in leaves:
        base = group_digests(rows.streams[0], groups)
        digest = kernels.stored_digest(rows.code, rows.lo, rows.group, base)
        tally += Tally(rows=len(rows), digest=int(digest))
    return tally
