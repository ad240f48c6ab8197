"""Evidence: what a worker's buffers hold of moving groups, counted after the fact, apart from the code that moved it.

The audit can trust a worker's word about a move only as far as the word does not come from the code that may be wrong.
So nothing here is taken from a package's header, from a counter, or from what the join returned about itself: rows are
counted in the columns where they lie (just before the purge, when all of the batch's rows are in them), rows that wait
are counted in the frames that go to the durable state and come from it (`worker.ledger`), and the results of some keys
are computed once more, naively, from the leaf rows.

It costs one pass over each leaf while the worker has a role in a move, and nothing otherwise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trimtab import conditions, evidence, frames
from trimtab.conditions import EvaluationError
from trimtab.evidence import NOTHING, Evidence, Tally
from worker import kernels
from worker.buffers import Flags, Int64s, Refs, Tuples
from worker.durable import DurableState, Role
from worker.engine import Engine
from worker.joining import JoinState, stored_tally
from worker.ledger import Ledger, NotedFrame
from worker.payload import DurableKey
from worker.protocol import WorkerMoves, arriving_tally

KEYS_OF_RESULTS: Final = 2
KEYS_OF_ROWS: Final = 2
COMBINATIONS_MAX: Final = 20_000
"""Of all keys that a batch looks at again: a key with more is left out."""
FRAMES_LOOKED_UP: Final = 1
"""Per batch, of the newest frames and of all others each."""


@dataclass(frozen=True)
class Key:
    """A key that is looked at again."""

    code: int
    group: int


@functools.cache
def prepare() -> None:
    """Load the compiled kernels, once per process: else the first batch of a move would, and take longer for it."""
    nothing = np.empty(0, np.int64)
    flags, groups, refs = np.zeros(1, np.bool_), np.empty(0, np.int16), np.empty(0, np.uint32)
    counts, digests = np.zeros((3, 1), np.int64), np.zeros((3, 1), np.uint64)
    limits, base, first = np.zeros(1, np.int64), np.zeros(1, np.uint64), np.zeros(1, np.uint32)
    kernels.tally_leaf(
        nothing, nothing, groups, refs, 0, 0, flags, first, limits, limits, base, nothing, counts, digests
    )
    best, code, group = np.zeros(1, np.uint64), np.zeros(1, np.int64), np.zeros(1, np.int16)
    arrived, in_groups = pa.array(nothing).to_numpy(), pa.array(groups).to_numpy()  # read-only: a type of its own
    for codes, of_groups in ((nothing, groups), (arrived, in_groups)):
        kernels.pick_keys(codes, of_groups, flags, np.uint64(0), best, code, group)
        kernels.stored_digest(codes, codes, of_groups, base)


def missing_frames(engine: Engine, durable: DurableState, batch: int) -> int:
    """Of the frames that the rows in the payload are filed under, those that the durable state does not have.

    The newest are looked up, and some of the others in turn: Spark reads a frame's bytes to say whether it is there.
    """
    named: set[DurableKey] = set().union(*(store.durable_keys for store in engine.payload.values()))
    keys = sorted(named, reverse=True)
    newest, others = keys[:FRAMES_LOOKED_UP], keys[FRAMES_LOOKED_UP:]
    at = batch * FRAMES_LOOKED_UP % max(len(others), 1)
    turn = (others + others)[at : at + min(FRAMES_LOOKED_UP, len(others))]
    return sum(not durable.has_rows(key) for key in (*newest, *turn))


class Filed:
    """Rows that wait unjoined, and rows that came from elsewhere, counted in the frames that moves wrote and read."""

    def __init__(self, moves: WorkerMoves, ledger: Ledger, engine: Engine) -> None:
        self._moves = moves
        self._ledger = ledger
        self._engine = engine

    def put_aside(self, move: str) -> Tally:
        return self._arrived(self._moves.aside_now.get(move, ()), self._ledger.written)

    def waiting_before(self, before: Role) -> Tally:
        """In the batch that takes them up, what it read of them; until then the record's own tally. So rows that are
        lost while they wait are missing when they are joined."""
        if before.move in self._moves.refiled_now:
            return self._arrived(_keys(before), self._ledger.read)
        return before.aside_rows

    def waiting_after(self, role: Role, before: Role) -> Tally:
        known, now = _keys(before), _keys(role)
        kept = before.aside_rows if known <= now else self._arrived(known & now, self._ledger.read)
        return kept + self._arrived(now - known, self._ledger.written)

    def refiled(self, move: str) -> Tally:
        """Rows that had waited, as they are filed now."""
        return self._arrived(self._moves.refiled_now.get(move, ()), self._ledger.written)

    def package(self, move: str) -> Tally:
        """Rows of a package, as they are filed now."""
        frames_ = self._decoded(self._moves.taken_now.get(move, ()), self._ledger.written)
        leaves = (self._engine.tuples_of(stream, rows) for stream, rows in frames_)
        return stored_tally(leaves, self._engine.spec.partitions)

    def _arrived(self, keys: Iterable[DurableKey], noted: Mapping[DurableKey, NotedFrame]) -> Tally:
        spec = self._engine.spec
        return sum((arriving_tally(spec, stream, rows) for stream, rows in self._decoded(keys, noted)), NOTHING)

    def _decoded(
        self, keys: Iterable[DurableKey], noted: Mapping[DurableKey, NotedFrame]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Frames that were not noted have no rows: the audit will say so."""
        for key in sorted(keys):
            if key in noted:
                stream, frame = noted[key]
                yield stream, frames.decode(frame)


def _keys(role: Role) -> set[DurableKey]:
    return {(batch, number) for batch, number in role.aside}


def evidence_of(
    moves: WorkerMoves, state: JoinState, filed: Filed, horizon_us: int, batch: int, frames_missing: int
) -> dict[str, Evidence]:
    """By move, for every role of this worker. `horizon_us` is watermark - window when the batch ends."""
    watched = state.engine.flags({group for role in moves.roles for group in role.groups})
    keys = sampled_keys(state, watched, batch)
    counts, digests, rows = _tallies(moves, state, watched, keys, horizon_us)
    expected = expected_results(state, rows, keys)
    found: dict[str, Evidence] = {}
    for role, before in zip(moves.roles, moves.before, strict=True):
        groups = role.groups
        stored_before, joined, stored_after = (
            Tally(rows=int(counts[n, groups].sum()), digest=int(digests[n, groups].sum(dtype=np.uint64)))
            for n in range(3)
        )
        mine = [key for key in expected if key.group in set(groups)]
        found[role.move] = Evidence(
            stored_before=stored_before,
            stored_after=stored_after,
            joined=joined,
            joined_by_group={group: int(counts[1, group]) for group in groups if counts[1, group]},
            put_aside=filed.put_aside(role.move),
            waiting_before=filed.waiting_before(before),
            waiting_after=filed.waiting_after(role, before),
            filed_package=filed.package(role.move),
            filed_waiting=filed.refiled(role.move),
            frames_missing=frames_missing,
            sampled_keys=len(mine),
            sampled_expected=sum((expected[key] for key in mine), NOTHING),
            sampled_made=sum((_made(state.results, key) for key in mine), NOTHING),
        )
    return found


def _tallies(
    moves: WorkerMoves, state: JoinState, watched: Flags, keys: Sequence[Key], horizon_us: int
) -> tuple[Int64s, npt.NDArray[np.uint64], dict[str, Tuples]]:
    """Rows and digests by group (stored before, joined, to be kept), and the rows of the keys, by stream."""
    engine, partitions = state.engine, state.engine.spec.partitions
    after = np.full(partitions, horizon_us, np.int64)
    for group, floor in moves.frozen.items():
        after[group] = floor
    counts, digests = np.zeros((3, partitions), np.int64), np.zeros((3, partitions), np.uint64)
    groups = np.arange(partitions)
    codes = np.array(sorted({key.code for key in keys}), np.int64)
    rows: dict[str, Tuples] = {}
    for buffer in engine.buffers.values():
        if buffer.is_leaf:
            (stream,) = buffer.streams
            positions = kernels.tally_leaf(
                buffer.code,
                buffer.lo,
                buffer.group,
                buffer.refs[0],
                buffer.tail,
                buffer.head,
                watched,
                state.boundaries[stream].astype(np.uint32),
                state.kept_since,
                after,
                evidence.group_digests(stream, groups),
                codes,
                counts,
                digests,
            )
            rows[stream] = buffer.at(positions)
    return counts, digests, rows


# -- results of some keys, once more


def sampled_keys(state: JoinState, watched: Flags, batch: int) -> list[Key]:
    """Some keys of this batch's results and some of its new rows; the same ones whenever the batch is repeated."""
    chosen: dict[Key, None] = {}
    salt = evidence.mixed(np.array([batch], np.uint64))[0]
    for tuples, wanted in ((state.results, KEYS_OF_RESULTS), (state.joined, KEYS_OF_ROWS)):
        best = np.full(wanted, 2**64 - 1, np.uint64)
        code, group = np.zeros(wanted, np.int64), np.full(wanted, -1, np.int16)
        for each in tuples:
            kernels.pick_keys(each.code, each.group, watched, salt, best, code, group)
        chosen |= dict.fromkeys(Key(int(c), int(g)) for c, g in zip(code, group, strict=True) if g >= 0)
    return list(chosen)


def expected_results(state: JoinState, leaves: Mapping[str, Tuples], keys: Sequence[Key]) -> dict[Key, Tally]:
    """The results that each key has in this batch by the naive join; keys with too many combinations are left out.

    `leaves` has the keys' rows of each stream that are stored or new.
    """
    expected: dict[Key, Tally] = {}
    room = COMBINATIONS_MAX
    for key in keys:
        rows = [
            leaf.take(np.flatnonzero((leaf.code == key.code) & (leaf.group == key.group)))
            for leaf in (leaves[name] for name in state.engine.spec.names)
        ]
        combinations = math.prod(map(len, rows))
        if combinations > room:
            continue
        room -= combinations
        try:
            expected[key] = _naive_join(state, rows, key.group) if combinations else NOTHING
        except EvaluationError:
            # The naive join asks conditions about pairs that the plan never brings together.
            continue
    return expected


def _is_new(state: JoinState, leaf: Tuples) -> Flags:
    return _at_or_after(leaf.refs[0], state.boundaries[leaf.streams[0]][leaf.group])


def _at_or_after(rows: Refs, first: Int64s | int) -> Flags:
    """Numbers are kept modulo 2**32; the distance tells which side of the first one a row is on."""
    distance = rows - np.asarray(first, np.int64).astype(np.uint32)
    return distance < np.uint32(2**31)


def _naive_join(state: JoinState, rows: Sequence[Tuples], group: int) -> Tally:
    """All combinations of one row per stream: those that have a new row, fit the window and meet all conditions."""
    places = [grid.ravel() for grid in np.meshgrid(*(np.arange(len(each)) for each in rows), indexing="ij")]
    times = np.stack([each.lo[place] for each, place in zip(rows, places, strict=True)])
    wanted = times.max(axis=0) - times.min(axis=0) <= state.engine.spec.window_us
    wanted &= np.any([_is_new(state, each)[place] for each, place in zip(rows, places, strict=True)], axis=0)
    for track in state.engine.tracks.values():
        if track.groups[group]:  # PTLB step 3: the receiver makes those that are all new
            news = [_at_or_after(each.refs[0], track.first_new[each.streams[0]]) for each in rows]
            wanted &= ~np.all([new[place] for new, place in zip(news, places, strict=True)], axis=0)
    wanted &= _equal_keys(state.engine, rows, places)
    refs = {each.streams[0]: each.refs[0][place[wanted]] for each, place in zip(rows, places, strict=True)}
    return _meeting_conditions(state.engine, refs)


def _equal_keys(engine: Engine, rows: Sequence[Tuples], places: Sequence[npt.NDArray[np.int64]]) -> Flags:
    """Codes that are hashes may be equal where keys are not."""
    equal = np.ones(places[0].size, np.bool_)
    numbers: dict[object, int] = {}
    first: npt.NDArray[np.int64] | None = None
    for each, place in zip(rows, places, strict=True):
        stream = each.streams[0]
        compared = engine.spec.stream(stream).key.compared
        if compared is None:
            return equal
        (values,) = engine.payload[stream].gather(each.refs[0], [compared])
        same = np.array([numbers.setdefault(value, len(numbers)) for value in values.to_pylist()], np.int64)[place]
        first = same if first is None else first
        equal &= same == first
    return equal


def _meeting_conditions(engine: Engine, refs: dict[str, Refs]) -> Tally:
    count = next(iter(refs.values())).size
    for condition in engine.joiner.conditions:
        if count == 0:
            return NOTHING
        columns: dict[tuple[str, str], pa.Array] = {}
        for stream, name in condition.spec.columns:
            (columns[stream, name],) = engine.payload[stream].gather(refs[stream], [name])
        mask = pc.fill_null(conditions.mask(condition.tree, columns), False)
        wanted = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        refs = {stream: rows[wanted] for stream, rows in refs.items()}
        count = wanted.size
    return evidence.tally_of(evidence.result_digests(refs))


def _made(results: Sequence[Tuples], key: Key) -> Tally:
    made = NOTHING
    for each in results:
        places = np.flatnonzero((each.code == key.code) & (each.group == key.group))
        if places.size:
            refs = {stream: refs[places] for stream, refs in zip(each.streams, each.refs, strict=True)}
            made += evidence.tally_of(evidence.result_digests(refs))
    return made
