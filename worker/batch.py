"""One micro-batch of one worker, from frames in to results out. Knows neither Spark nor Redis.

Order of things: open moves, late rows out, join, evidence, purge, packages for moves, persist, publish. Late means at
or before the watermark of the batch before (Spark's rule); purging goes by this batch's. So no row that is not late can
miss a partner that was purged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plans.tree import parse_plan
from trimtab import frames
from trimtab.epochs import Epoch
from trimtab.evidence import Evidence
from trimtab.keys import GROUP, timestamps_us
from trimtab.moves import Answer
from trimtab.plan_orders import KeySample, PlanReport, StepCount
from trimtab.reports import MoveReport
from worker import sampling
from worker.answers import answers
from worker.buffers import Tuples
from worker.durable import DurableState, Keys, Record, Role, is_aside
from worker.engine import Engine, Track
from worker.joining import JoinState
from worker.ledger import Ledger
from worker.load import GroupLoad
from worker.planning import PlanRecord, plan_to_build, report_of
from worker.protocol import WorkerMoves, frozen_groups, tracked_roles
from worker.replanning import follow
from worker.resident import Residence, new_stamp
from worker.spec import JoinSpec
from worker.transfers import TransferStore
from worker.witness import Filed, evidence_of, missing_frames


@dataclass(frozen=True, kw_only=True)
class BatchInput:
    batch: int
    worker: int
    epoch: Epoch
    epoch_before: int
    """Number of the epoch that the batch before was bound to."""
    watermark_us: int
    watermark_before_us: Callable[[], int] | None = None
    """Looks up the watermark of the batch before: needed only where this worker did not run in it."""
    frames: Iterable[tuple[str, bytes]]
    """Stream name and frame."""
    plan: str
    clock: Callable[[], int] = time.perf_counter_ns
    """Tells how long background work has taken."""
    rebuild: bool = False
    """Ignore the resident state: must change nothing but the time it takes."""


@dataclass
class BatchOutcome:
    """What happened, for the report, and the results in pieces of at most a frame."""

    stamp: str = ""
    """Names this attempt."""
    stamp_before: str = ""
    """Names the attempt that this one goes on from: the committed one of the worker's previous batch."""
    pieces: list[pa.RecordBatch] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    results: int = 0
    hit: bool = False
    plan: str = ""
    state_rows: int = 0
    combined_rows: int = 0
    plan_states: dict[str, int] = field(default_factory=dict)
    index_bytes: int = 0
    payload_bytes: int = 0
    load: GroupLoad | None = None
    arrived: npt.NDArray[np.int64] | None = None
    """Rows that came in by partition group, late ones included."""
    moves: list[MoveReport] = field(default_factory=list)
    order: PlanReport | None = None
    steps: list[StepCount] = field(default_factory=list)
    keys: KeySample | None = None
    chosen: dict[str, Answer] = field(default_factory=dict)
    group_state_rows: npt.NDArray[np.int64] | None = None
    group_bytes: npt.NDArray[np.int64] | None = None
    phase_ns: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self.phase_ns[name] = self.phase_ns.get(name, 0) + time.perf_counter_ns() - start


def run_batch(
    spec: JoinSpec,
    given: BatchInput,
    durable: DurableState,
    residence: Residence,
    transfers: TransferStore,
    result_schema: pa.Schema,
) -> BatchOutcome:
    stamp = new_stamp(given.batch)
    outcome = BatchOutcome(stamp=stamp)
    with outcome.phase("state"):
        record = durable.record()
    outcome.stamp_before = "" if record is None else record.stamp
    ledger = Ledger(durable)
    moves = WorkerMoves(given.worker, given.batch, given.epoch, given.epoch_before, spec, record, ledger, transfers)
    committed = None if record is None or given.rebuild else record.stamp
    directory, saved = residence.claim(committed, stamp)
    try:
        with outcome.phase("attach"):
            if saved is not None:
                engine = Engine.attach(spec, directory, saved)
                outcome.hit = True
            else:
                engine = _rebuilt(spec, directory, durable, record, given)
                outcome.hit = record is None
        known = None if record is None else record.order
        outcome.order = report_of(known, str(engine.plan) if record is None else record.plan)
        state = JoinState(engine)
        planned = _Planned(known, given)
        witnessed = _join(
            state, given, _late_us(given, record), moves, planned, ledger, durable, outcome, result_schema
        )
        outcome.plan = str(engine.plan)
        assert outcome.arrived is not None
        outcome.moves = moves.reports(outcome.arrived, state.load, witnessed)
        outcome.chosen = answers(given.epoch, given.worker, state.load, state.group_bytes(), transfers)
        with outcome.phase("state"):
            durable.put_record(_record(given, stamp, moves, planned.known, engine))
        with outcome.phase("publish"):
            # Row numbers that are about to run out are drawn anew by a rebuild.
            saved = None if engine.worn else engine.saved()
            engine.close()
            if saved is None:
                residence.discard(stamp)
            else:
                residence.publish(stamp, saved)
    except BaseException:
        residence.discard(stamp)
        raise
    return outcome


class _Planned:
    """The plan order of one worker in one batch."""

    def __init__(self, known: PlanRecord | None, given: BatchInput) -> None:
        self.known = known
        self._given = given

    def follow(self, engine: Engine, arrived: Set[str]) -> None:
        given = self._given
        order = given.epoch.order(given.worker)
        self.known = follow(engine, self.known, order, given.batch, arrived, given.clock)


def _record(given: BatchInput, stamp: str, moves: WorkerMoves, known: PlanRecord | None, engine: Engine) -> Record:
    return Record(
        batch=given.batch,
        stamp=stamp,
        applied_epoch=given.epoch.number,
        fence=given.epoch.fence,
        watermark_us=given.watermark_us,
        horizon_us=engine.horizon,
        plan=str(engine.plan),
        groups=moves.groups,
        owned=moves.owned,
        barriers={str(group): since for group, since in moves.barriers.items()},
        roles=moves.roles,
        order=known,
    )


def _late_us(given: BatchInput, record: Record | None) -> int:
    """Rows at or before this are late: the watermark of the batch before."""
    if record is None or given.batch == 0:
        return given.watermark_us
    if record.batch == given.batch - 1 or given.watermark_before_us is None:
        return record.watermark_us
    # The batch before ran no task at all (files of zero bytes, say): no worker has seen its watermark.
    return given.watermark_before_us()


def _rebuilt(
    spec: JoinSpec, directory: Path, durable: DurableState, record: Record | None, given: BatchInput
) -> Engine:
    """The engine as it was when the record was written, but for a plan that was changing: the new one is built whole.

    Rows that wait are not loaded: they were not joined. Groups that were frozen keep their own horizon. Rows of groups
    that left this worker stay behind their barrier, though a frame that has other groups' rows, too, still holds them.
    """
    known, running = (None, given.plan) if record is None else (record.order, record.plan)
    plan = plan_to_build(known, given.epoch.order(given.worker), running, first=record is None)
    engine = Engine.create(spec, parse_plan(plan, spec.names), directory)
    if record is not None:
        engine.frozen = frozen_groups(record.roles)
        barriers = np.zeros(spec.partitions, np.int64)
        for group, since in record.barriers.items():
            barriers[int(group)] = since
        leaves: list[Tuples] = []
        first_rows: dict[str, list[tuple[int, int]]] = {}
        for key, stream, frame in durable.rows():
            if not is_aside(key, len(spec.names)):
                first_rows.setdefault(stream, []).append((key[0], engine.payload[stream].next_row))
                tuples = engine.load_rows(stream, frames.decode(frame), pa.py_buffer(frame), key)
                leaves.append(tuples.take(np.flatnonzero(barriers[tuples.group] <= key[0])))
        engine.restore(leaves, record.horizon_us)
        _restore_tracks(engine, record.roles, first_rows)
    return engine


def _restore_tracks(engine: Engine, roles: Iterable[Role], first_rows: Mapping[str, list[tuple[int, int]]]) -> None:
    """Old and new after a rebuild: by the batch that rows are filed under.

    `first_rows[stream]` lists (batch, row number) of each frame in the order it was loaded.
    """
    for role in tracked_roles(roles):
        first_new = {}
        for stream, store in engine.payload.items():
            later = (row for batch, row in first_rows.get(stream, ()) if batch >= role.since_batch)
            first_new[stream] = next(later, store.next_row)
        engine.tracks[role.move] = Track(engine.flags(role.groups), first_new)


def _join(
    state: JoinState,
    given: BatchInput,
    late_us: int,
    moves: WorkerMoves,
    planned: _Planned,
    ledger: Ledger,
    durable: DurableState,
    outcome: BatchOutcome,
    result_schema: pa.Schema,
) -> dict[str, Evidence]:
    engine = state.engine
    spec = engine.spec
    outcome.load = state.load
    outcome.arrived = np.zeros(spec.partitions, np.int64)
    missing = 0
    if moves.roles:
        with outcome.phase("evidence"):
            state.watch()
            missing = missing_frames(engine, durable, given.batch)
    with outcome.phase("take in"):
        moves.begin(state, late_us - spec.window_us)
    with outcome.phase("decode"):
        arrived = _decode(spec, given.frames, late_us, outcome)
    with outcome.phase("put aside"):
        arrived = moves.put_aside(arrived, outcome.arrived)
    keys = Keys(given.batch, spec.names)
    for stream in spec.names:
        for number, piece in enumerate(arrived.get(stream, ())):
            key = keys.arrived(stream, number)
            with outcome.phase("decode"):
                frame = frames.encode(piece)
                new = engine.load_rows(stream, piece, frame, key)
            with outcome.phase("join"):
                state.insert(new)
            with outcome.phase("state"):
                durable.put_rows(key, stream, frame.to_pybytes())
    state.results = [tuples for tuples in state.results if len(tuples)]
    outcome.results = sum(map(len, state.results))
    with outcome.phase("encode"):
        if state.results:
            outcome.pieces = list(engine.results(state.results, result_schema))
    horizon = given.watermark_us - spec.window_us
    witnessed: dict[str, Evidence] = {}
    if moves.roles:
        with outcome.phase("evidence"):
            witnessed = evidence_of(moves, state, Filed(moves, ledger, engine), horizon, given.batch, missing)
    with outcome.phase("join"):
        state.thaw()
        expired = engine.purge(horizon)
    with outcome.phase("replan"):
        outcome.steps = engine.steps()
        planned.follow(engine, arrived.keys())
    if (given.batch + given.worker) % sampling.EVERY == 0:
        with outcome.phase("sample"):
            outcome.keys = sampling.sample_of(engine)
    with outcome.phase("join"):
        census = state.census()
        outcome.state_rows, outcome.combined_rows = census.state_rows, census.combined_rows
        outcome.plan_states = census.states
        outcome.group_state_rows, outcome.group_bytes = census.group_rows, census.group_bytes
        outcome.index_bytes, outcome.payload_bytes = engine.state_bytes()
    with outcome.phase("pack"):
        moves.end(horizon)
    with outcome.phase("state"):
        for key in expired:
            durable.remove_rows(key)
    return witnessed


def _decode(
    spec: JoinSpec, given: Iterable[tuple[str, bytes]], late_us: int, outcome: BatchOutcome
) -> dict[str, list[pa.RecordBatch]]:
    """The rows of each stream in pieces of at most a frame, without the late ones."""
    arrived: dict[str, list[pa.RecordBatch]] = {}
    for stream, frame in given:
        batch = frames.decode(frame)
        on_time = timestamps_us(batch.column(spec.stream(stream).time)) > late_us
        late = batch.num_rows - int(np.count_nonzero(on_time))
        outcome.rows[stream] = outcome.rows.get(stream, 0) + batch.num_rows
        outcome.late[stream] = outcome.late.get(stream, 0) + late
        assert outcome.arrived is not None
        outcome.arrived += np.bincount(batch.column(GROUP).to_numpy(zero_copy_only=False), minlength=spec.partitions)
        if late:
            batch = batch.filter(pa.array(on_time))
        if batch.num_rows:
            arrived.setdefault(stream, []).append(batch)
    return {stream: list(_packed(batches)) for stream, batches in arrived.items()}


def _packed(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Few large pieces instead of one for each split task."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if pending and size + batch.nbytes > frames.FRAME_BYTES_MAX:
            yield _one(pending)
            pending, size = [], 0
        pending.append(batch)
        size += batch.nbytes
    yield _one(pending)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
