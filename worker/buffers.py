"""One join state's columns and index in one memory-mapped file.

The file lives in the executor's local directory, so that every Python process of the executor can attach to it: Spark
hands the tasks of one worker to different processes. Space is reserved before it is mapped: a full disk is an
error here and not a bus error later.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trimtab.errors import CorruptState
from worker import kernels

MIN_CAPACITY: Final = 1024
GROWTH: Final = 1.5
FULL_SHARE: Final = 2 / 3
"""A buffer that is more than this full of live tuples grows instead of only dropping the expired ones."""

NEARLY_FULL: Final = 0.8
"""From here on a buffer is cleaned up (or grows) in a batch of its own choosing."""

NEVER: Final = -(2**62)
"""A time before all others, whose distance to any of them still fits into 64 bits."""

AFTER_ALL: Final = 2**62
"""A time after all others."""

Flags = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int16s = npt.NDArray[np.int16]
Refs = npt.NDArray[np.uint32]


_NONE_FROZEN: Final = np.empty(0, np.int64)


@dataclass(frozen=True)
class Horizon:
    """Tuples that begin before `us` have expired, but for those of frozen groups, which have a horizon each."""

    us: int
    floors: Int64s = field(default_factory=lambda: _NONE_FROZEN)
    """Empty, or a horizon for each group: that of a frozen one, else AFTER_ALL."""

    @classmethod
    def of(cls, us: int, frozen: Mapping[int, int], partitions: int) -> Horizon:
        if not frozen:
            return cls(us)
        floors = np.full(partitions, AFTER_ALL, np.int64)
        floors[list(frozen)] = list(frozen.values())
        return cls(us, floors)

    def by_group(self, partitions: int) -> Int64s:
        """The horizon of each group."""
        return np.minimum(self.us, self.floors) if self.floors.size else np.full(partitions, self.us, np.int64)


def flags_of(groups: Iterable[int], partitions: int) -> Flags:
    """A flag for each partition group."""
    flags = np.zeros(partitions, np.bool_)
    flags[list(groups)] = True
    return flags


@dataclass
class Tuples:
    """A run of (combined) tuples on its way through a plan. `refs[s]` are row numbers in stream s of `streams`."""

    streams: tuple[str, ...]
    code: Int64s
    lo: Int64s
    hi: Int64s
    group: Int16s
    refs: Refs

    def __len__(self) -> int:
        return int(self.code.size)

    def take(self, positions: npt.NDArray[Any]) -> Tuples:
        return Tuples(
            self.streams,
            self.code[positions],
            self.lo[positions],
            self.hi[positions],
            self.group[positions],
            self.refs[:, positions],
        )

    def ref(self, stream: str) -> Refs:
        rows: Refs = self.refs[self.streams.index(stream)]
        return rows

    def ordered(self, streams: tuple[str, ...]) -> Tuples:
        """The same with references in another order of streams."""
        if streams == self.streams:
            return self
        order = [self.streams.index(stream) for stream in streams]
        return Tuples(streams, self.code, self.lo, self.hi, self.group, self.refs[order])


def concatenated(parts: Sequence[Tuples]) -> Tuples:
    """Runs of tuples of one state as one."""
    streams = parts[0].streams
    return Tuples(
        streams,
        np.concatenate([part.code for part in parts]),
        np.concatenate([part.lo for part in parts]),
        np.concatenate([part.hi for part in parts]),
        np.concatenate([part.group for part in parts]),
        np.concatenate([part.ordered(streams).refs for part in parts], axis=1),
    )


class StateBuffer:
    """Columns of one state: appended in arrival order, probed from new to old, purged from the old end."""

    code: Int64s
    lo: Int64s
    hi: Int64s
    group: Int16s
    refs: Refs
    following: Int32s
    slots: Int32s

    def __init__(self, directory: Path, streams: tuple[str, ...], generation: int, capacity: int) -> None:
        self.directory = directory
        self.streams = streams
        self.generation = generation
        self.capacity = capacity
        self.head = 0
        self.tail = 0
        self.mark: int | None = None
        """A position that stays with its tuple when room is made: where somebody has read to (worker.background)."""

    @classmethod
    def create(cls, directory: Path, streams: tuple[str, ...], capacity: int = 0) -> StateBuffer:
        """With room for so many tuples, or a few."""
        buffer = cls(directory, streams, 0, max(capacity, MIN_CAPACITY))
        buffer._map(new=True)
        buffer.slots[:] = kernels.EMPTY
        return buffer

    @classmethod
    def attach(cls, directory: Path, saved: dict[str, Any]) -> StateBuffer:
        buffer = cls(directory, tuple(saved["streams"]), saved["generation"], saved["capacity"])
        buffer.head = saved["head"]
        buffer.tail = saved["tail"]
        buffer.mark = saved["mark"]
        buffer._map(new=False)
        return buffer

    def saved(self) -> dict[str, Any]:
        """What `attach` needs beside the file itself."""
        return {
            "streams": list(self.streams),
            "generation": self.generation,
            "capacity": self.capacity,
            "head": self.head,
            "tail": self.tail,
            "mark": self.mark,
        }

    @property
    def path(self) -> Path:
        return self.directory / f"state-{'-'.join(self.streams)}-{self.generation}"

    @property
    def is_leaf(self) -> bool:
        return len(self.streams) == 1

    @property
    def nbytes(self) -> int:
        return len(self._memory)

    @property
    def tuple_bytes(self) -> int:
        """What one tuple takes up in the columns: key, span, group, references, link."""
        spans = 1 if self.is_leaf else 2
        return 8 + 8 * spans + 2 + 4 * len(self.streams) + 4

    def append(self, tuples: Tuples, horizon: Horizon) -> None:
        """Add tuples and index them; makes room first, by dropping what expired before `horizon` or by growing."""
        count = len(tuples)
        if count == 0:
            return
        if self.head + count > self.capacity:
            self._make_room(count, horizon)
        start, end = self.head, self.head + count
        self.code[start:end] = tuples.code
        self.lo[start:end] = tuples.lo
        if not self.is_leaf:
            self.hi[start:end] = tuples.hi
        self.group[start:end] = tuples.group
        self.refs[:, start:end] = tuples.refs
        kernels.link(self.slots, self.following, self.code, start, end, self._shift)
        self.head = end

    def probe(self, new: Tuples, window: int, work: Int64s) -> tuple[Int32s, Int32s]:
        """Positions (in `new`, in this state) of the pairs that join."""
        left, right = kernels.probe(
            self.slots,
            self.following,
            self.code,
            self.lo,
            self.hi,
            self._shift,
            self.tail,
            new.code,
            new.lo,
            new.hi,
            new.group,
            window,
            work,
        )
        return left, right

    def joined(self, new: Tuples, left: Int32s, right: Int32s) -> Tuples:
        """The combined tuples of pairs that `probe` found."""
        lo, hi = kernels.merge_spans(self.lo, self.hi, right, new.lo, new.hi, left)
        refs = np.empty((len(new.streams) + len(self.streams), left.size), np.uint32)
        for row, source in enumerate(new.refs):
            np.take(source, left, out=refs[row], mode="clip")
        for row, source in enumerate(self.refs):
            np.take(source, right, out=refs[len(new.streams) + row], mode="clip")
        return Tuples(new.streams + self.streams, new.code[left], lo, hi, new.group[left], refs)

    def purge(self, horizon: Horizon) -> None:
        """Move the tail past what began before `horizon`. Out-of-order rows behind it wait for the next clean-up."""
        self.tail = kernels.advance_tail(self.lo, self.group, self.tail, self.head, horizon.us, horizon.floors)

    @property
    def size(self) -> int:
        """Tuples, some of which may have expired."""
        return self.head - self.tail

    @property
    def full_share(self) -> float:
        return self.head / self.capacity

    def make_room_ahead(self, horizon: Horizon) -> None:
        if self.full_share > NEARLY_FULL:
            self._make_room(0, horizon)

    def live(self, horizon: Horizon) -> Tuples:
        """Copies of the live tuples in arrival order."""
        return self.at(self.live_positions(self.tail, self.head, horizon))

    def live_positions(self, start: int, end: int, horizon: Horizon) -> Int32s:
        """Of the tuples from one position to another those that are live, in arrival order."""
        positions: Int32s = kernels.live_positions(self.lo, self.group, start, end, horizon.us, horizon.floors)
        return positions

    def live_of(self, wanted: Flags, horizon: Horizon) -> Tuples:
        """Copies of the live tuples of some groups in arrival order."""
        positions = kernels.live_positions_of(
            self.lo, self.group, self.tail, self.head, horizon.us, horizon.floors, wanted
        )
        return self.at(positions)

    def expire(self, gone: Flags) -> None:
        """Forget the tuples of some groups; their space is freed with that of the expired ones."""
        kernels.expire(self.lo, self.group, self.tail, self.head, gone, NEVER)

    def count_live(self, horizon: Horizon, counts: Int64s) -> int:
        columns = self.lo, self.group, self.tail, self.head
        return int(kernels.count_live(*columns, horizon.us, horizon.floors, counts))

    def multiply_matches(self, codes: Int64s, counts: npt.NDArray[np.float64]) -> None:
        """Multiply each count by the number of tuples here that have the code: what a join would look at."""
        kernels.multiply_matches(self.slots, self.following, self.code, self._shift, self.tail, codes, counts)

    def sample_keys(self, zeros: int, horizon: Horizon) -> tuple[Int64s, Int64s]:
        """Codes whose hash begins with so many zero bits, and the live tuples of each. Costs these, and no more."""
        columns = self.code, self.lo, self.group, self.tail
        codes, counts = kernels.sample_keys(self.slots, self.following, *columns, zeros, horizon.us, horizon.floors)
        return codes, counts

    def has_live_before(self, cut: int, horizon_us: int, passed_over: Flags) -> bool:
        """Leaf: whether a row with a smaller number than `cut` is live, groups that are passed over apart."""
        columns = self.lo, self.group, self.refs[0], self.tail, self.head
        return bool(kernels.has_live_before(*columns, np.uint32(cut & 0xFFFFFFFF), horizon_us, passed_over))

    def close(self) -> None:
        """Unmap, so that the file's space can go as soon as its name does."""
        self.code = self.lo = self.hi = np.empty(0, np.int64)
        self.group = np.empty(0, np.int16)
        self.refs = np.empty((0, 0), np.uint32)
        self.following = self.slots = np.empty(0, np.int32)
        del self._memory

    def drop(self) -> None:
        """Unmap, and remove the file."""
        self.close()
        self.path.unlink(missing_ok=True)

    def at(self, positions: Int32s) -> Tuples:
        """Copies of the tuples at some positions."""
        return Tuples(
            self.streams,
            self.code[positions],
            self.lo[positions],
            self.hi[positions],
            self.group[positions],
            self.refs[:, positions],
        )

    def _make_room(self, count: int, horizon: Horizon) -> None:
        positions = self.live_positions(self.tail, self.head, horizon)
        if self.mark is not None:
            self.mark = int(np.searchsorted(positions, self.mark))
        kept = self.at(positions)
        needed = len(kept) + count
        capacity = self.capacity
        if needed > capacity * FULL_SHARE:
            capacity = int(needed * GROWTH)
        elif needed < capacity / 8:
            capacity = max(MIN_CAPACITY, needed * 3)
        old_path = self.path
        self.capacity = capacity
        self.generation += 1
        self._map(new=True)
        old_path.unlink(missing_ok=True)
        self.slots[:] = kernels.EMPTY
        self.head = self.tail = 0
        self.append(kept, horizon)

    def _map(self, *, new: bool) -> None:
        capacity = self.capacity
        bits = max(int(capacity * 1.3).bit_length(), 1)
        width = capacity * self.tuple_bytes + 16
        total = width + 4 * (1 << bits)
        if new:
            # Another file under an old name: somebody may still have that one mapped.
            self.path.unlink(missing_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if new else 0), 0o600)
        try:
            if new:
                os.posix_fallocate(handle, 0, total)
            elif os.fstat(handle).st_size != total:
                raise CorruptState(f"{self.path} has {os.fstat(handle).st_size} bytes, not {total}")
            self._memory = mmap.mmap(handle, total)
        finally:
            os.close(handle)
        self._shift = 64 - bits
        offset = 0

        def column(dtype: Any, count: int) -> Any:
            nonlocal offset
            offset += -offset % 8
            array: Any = np.frombuffer(self._memory, dtype, count, offset)
            offset += array.nbytes
            return array

        self.code = column(np.int64, capacity)
        self.lo = column(np.int64, capacity)
        self.hi = self.lo if self.is_leaf else column(np.int64, capacity)
        self.refs = column(np.uint32, capacity * len(self.streams)).reshape(len(self.streams), capacity)
        self.following = column(np.int32, capacity)
        self.slots = column(np.int32, 1 << bits)
        self.group = column(np.int16, capacity)
