"""A data plane in one process: production routing and production workers (`run_batch`) on epochs, without Spark.

Two streams (or more) that are joined by group: in each batch stream A has as many rows of a group as its weight, each
other stream one.
Event time is the number of the batch, in seconds. `verdict()` compares the multiset of results with the naive join.

As in the real one: one epoch is bound per batch, if it follows the bound one; the binding is written before the batch
runs; a batch that is not committed is run again with the same binding; what a worker does follows from the bound epoch,
the epoch number of the batch before and its own durable state; reports, heartbeat and restored epochs go to Redis if
it answers, and are not missed if it does not.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import redis

from plans.orders import check_orders
from plans.tree import parse_plan
from split_union.routing import Routes, routes_of
from split_union.split import Watcher
from tests.checkers.cluster import TIME, HeapState
from tests.checkers.followers import Follower
from trimtab import frames
from trimtab.epochs import Epoch, dealt_in_turn, first_epoch
from trimtab.errors import CorruptState
from trimtab.evidence import Seen
from trimtab.keys import GROUP, KeySpec
from trimtab.moves import RoleState
from trimtab.plan_orders import KeySample
from trimtab.reports import WorkerReport
from trimtab.store import Store, successor
from worker import reference
from worker.arriving import SplitCounts
from worker.batch import BatchInput, BatchOutcome, run_batch
from worker.reporting import Attempt, worker_report
from worker.resident import Residence
from worker.spec import JoinSpec, StreamSpec
from worker.transfers import TransferStore

Row = tuple[int, int, int]
"""Group (which is the key), time, id."""
Rows = dict[str, list[Row]]
SECOND = 1_000_000
ROW_BYTES = 100
CPU_NS_PER_ROW = 1_000_000
_KEY = KeySpec(("key",), "exact")
_COLUMNS = (("key", pa.int64()), ("at", TIME), ("id", pa.int64()))


class FailingStore(TransferStore):
    """A transfer store that can be made to take no package."""

    fails = False
    """Packages are refused."""
    broken = False
    """The trial before a transfer is opened fails, too."""

    def put(self, move: str, batch: int, digest: str, data: bytes) -> None:
        if self.fails or self.broken:
            raise OSError("transfer store full")
        super().put(move, batch, digest, data)

    def probe(self, bytes_needed: int) -> str:
        return "transfer store full" if self.broken else super().probe(bytes_needed)


class DataPlane:
    """A running query. `step()` runs one batch."""

    def __init__(
        self,
        url: str,
        *,
        query: str = "orders",
        partitions: int = 6,
        workers: int = 3,
        executors: int = 2,
        window: int = 3,
        weights: Sequence[int] | None = None,
        incarnation: str = "abc",
        streams: str = "AB",
        plan: str = "left-deep",
    ) -> None:
        self.names, self.plan = streams, str(parse_plan(plan, streams))
        self._schema = pa.schema([(f"{name}_{column}", kind) for name in streams for column, kind in _COLUMNS])
        self.query, self.partitions, self.workers, self.window = query, partitions, workers, window
        self.executors = executors
        self.weights = tuple(weights) if weights is not None else (1,) * partitions
        """Rows of each group in each batch, of stream A."""
        self.store = Store(url, timeout_s=0.2)
        self.incarnation = incarnation
        self.offsets: list[Epoch] = []
        """The offset log: the epoch that each batch is bound to."""
        self.watermarks: list[int] = []
        self.committed = -1
        self._directory = tempfile.TemporaryDirectory(prefix="trimtab-plane-")
        root = Path(self._directory.name)
        self._local = root / "local"
        self.transfers = FailingStore(str(root / "checkpoint"), b"key")
        specs = tuple(StreamSpec(name, "at", _KEY, ("key", "at", "id")) for name in streams)
        self.spec = JoinSpec(specs, window * SECOND, partitions)
        self.durable = [HeapState() for _ in range(workers)]
        self.results: list[tuple[int, ...]] = []
        self.sent: Rows = {name: [] for name in streams}
        self.rates = dict.fromkeys(streams[1:], 1)
        """Rows of each group in each batch, of the other streams."""
        self.one_in = 1
        """Each key is said to stand for so many: with one, what a step costs is all that a plan costs."""
        self.followers = [Follower(plan=self.plan) for _ in range(workers)]
        """What each worker's record would say of its plan order."""
        self.plays_orders = False
        """Reports say that, not what the workers themselves say: a change takes as long as a test wants."""
        self.silent: set[int] = set()
        """Workers whose reports get lost."""
        self.watermark_stalls = False
        """An idle stream: nothing expires any more."""
        self._state_groups: list[set[int]] = [set() for _ in range(workers)]
        self._attempts = 0
        self._redis_away = False
        """Asked once per batch: one that does not answer is not waited for again and again."""
        self.restored = 0
        self._lock = threading.RLock()
        """Batches may run beside whoever looks: a verdict is given between two of them."""
        self._ended = False
        self.first = first_epoch(query, incarnation, dealt_in_turn(partitions, workers))
        self.define()

    @property
    def exports_fail(self) -> bool:
        return self.transfers.fails

    @exports_fail.setter
    def exports_fail(self, fails: bool) -> None:
        self.transfers.fails = fails

    def define(self) -> None:
        """What `join` does when the query starts."""
        bound = self.offsets[-1] if self.offsets else self.first
        if self.store.epoch(self.query, bound.number) != bound:
            self.store.restore(bound)
        self.store.define(
            self.query,
            {
                "checkpoint": "/nowhere",
                "incarnation": self.incarnation,
                "name": self.query,
                "partitions": self.partitions,
                "workers": self.workers,
                "window": self.window * SECOND,
                "lateness": 0,
                "streams": [{"name": name, "key": ["key"], "time": "at"} for name in self.names],
            },
        )

    @property
    def bound(self) -> Epoch:
        return self.offsets[-1]

    @property
    def owners(self) -> tuple[int, ...]:
        return self.bound.owners

    def step(self, *, crash: bool = False, rows: bool = True) -> None:
        """One batch: bind, run, commit, say so. With `crash` the batch is run and then lost before its commit."""
        with self._lock:
            if not self._ended:
                self._step(crash, rows)

    def end(self) -> None:
        """After the batch that runs now there is none."""
        with self._lock:
            self._ended = True

    def _step(self, crash: bool, rows: bool) -> None:
        batch = self.committed + 1
        self._redis_away = False
        if len(self.offsets) == batch:
            self.offsets.append(self._bind())
            stands = self.watermark_stalls and self.watermarks
            self.watermarks.append(self.watermarks[-1] if stands else batch * SECOND)
        arriving = self._rows_of(batch) if rows else {name: [] for name in self.names}
        durable = [HeapState(dict(state.rows_kept), state.text) for state in self.durable]
        outcomes = self._run(batch, arriving, durable)
        if crash:
            return
        self.durable = durable
        self.followers = [each.after(self.bound, worker, batch) for worker, each in enumerate(self.followers)]
        self.committed = batch
        for name, each in arriving.items():
            self.sent[name] += each
        for worker, outcome in enumerate(outcomes):
            self.results += self._ids(outcome)
            assert outcome.group_state_rows is not None
            self._state_groups[worker] = set(outcome.group_state_rows.nonzero()[0].tolist())
        self.beat()

    def beat(self) -> None:
        bound = self.bound
        self._to_redis(lambda: self.store.beat(self.query, self.committed, bound.number, bound.digest))

    # -- binding, as the control source does it

    def _bind(self) -> Epoch:
        if not self.offsets:
            return self.first
        bound = self.bound
        try:
            current, known = self.store.beat(self.query, self.committed, bound.number, bound.digest)
            if current is None or current < bound.number or known != bound.digest:
                return self._put_back(bound)
            if current == bound.number:
                return bound
            try:
                return self._following(bound) or self._put_back(bound)
            except CorruptState:
                return self._put_back(bound)
        except (redis.RedisError, OSError):
            self._redis_away = True
            return bound

    def _following(self, bound: Epoch) -> Epoch | None:
        following = successor(self.store, self.query, bound, self.workers)
        if following is not None:
            check_orders(following, self.names)
        return following

    def _put_back(self, bound: Epoch) -> Epoch:
        self.store.restore(bound)
        self.store.alarm(self.query, "redis-went-back", f"epoch {bound.number} published again")
        self.restored += 1
        return bound

    # -- the batch

    def _run(self, batch: int, rows: Rows, durable: list[HeapState]) -> list[BatchOutcome]:
        epoch = self.offsets[batch]
        before = self.offsets[batch - 1].number if batch else 0
        routes = routes_of(epoch, before)
        seen = self._seen(epoch, rows, self.watermarks[batch - 1] if batch else self.watermarks[0])
        outcomes = []
        for worker in range(self.workers):
            given = BatchInput(
                batch=batch,
                worker=worker,
                epoch=epoch,
                epoch_before=before,
                watermark_us=self.watermarks[batch],
                watermark_before_us=lambda: self.watermarks[batch - 1],
                frames=list(self._frames(worker, rows, routes)),
                plan=self.plan,
            )
            residence = Residence(self._local, self.query, worker)
            outcome = run_batch(self.spec, given, durable[worker], residence, self.transfers, self._schema)
            outcomes.append(outcome)
            if worker not in self.silent:
                # Split tasks tell one worker.
                counts = SplitCounts(seen=seen if worker == 0 else {})
                self._to_redis(partial(self.store.report, self._report(given, outcome, counts)))
        return outcomes

    def _rows_of(self, batch: int) -> Rows:
        rows: Rows = {name: [] for name in self.names}
        for group, weight in enumerate(self.weights):
            for number in range(weight):
                rows["A"].append((group, batch * SECOND + 1, batch * 10_000 + number))
            for name, rate in self.rates.items():
                for number in range(rate):
                    rows[name].append((group, batch * SECOND + 2, batch * 10_000 + number if number else batch))
        return rows

    def _seen(self, epoch: Epoch, rows: Rows, late_us: int) -> dict[int, Seen]:
        seen: dict[int, Seen] = {}
        for name, each in rows.items():
            watcher = Watcher(name, sorted(epoch.moving), self.partitions, late_us)
            if each and epoch.moves:
                batch = frames.decode(_frame(each))
                watcher.add(batch.column(GROUP), batch.column("at"))
            for group, counted in watcher.seen.items():
                seen[group] = seen.get(group, Seen()) + counted
        return seen

    def _frames(self, worker: int, rows: Rows, routes: Routes) -> Iterator[tuple[str, bytes]]:
        for name, each in rows.items():
            mine = [row for row in each if worker in (routes.owner[row[0]], routes.also[row[0]])]
            if mine:
                yield name, _frame(mine)

    def _report(self, batch: BatchInput, outcome: BatchOutcome, counts: SplitCounts) -> WorkerReport:
        """The production report, with a CPU time and sizes that do not depend on the machine."""
        assert outcome.load is not None
        self._attempts += 1
        attempt = Attempt(
            query=self.query,
            attempt=self._attempts,
            executor=str(batch.worker % self.executors),
            process=1,
            run=self.incarnation,
            at_ms=time.time_ns() // 1_000_000,
            cpu_ns=int(outcome.load.rows.sum()) * CPU_NS_PER_ROW,
        )
        report = worker_report(attempt, batch, outcome, counts, emitted=sum(piece.num_rows for piece in outcome.pieces))
        order = self.followers[batch.worker].report() if self.plays_orders else report.order
        sizes = [ROW_BYTES * rows for rows in report.group_state_rows]
        keys = report.keys or self._key_sample(batch)
        return replace(report, phase_ns={}, group_bytes=sizes, order=order, keys=keys)

    def _key_sample(self, batch: BatchInput) -> KeySample:
        """Every key, as often as it is in the window in the long run."""
        mine = [group for group, owner in enumerate(batch.epoch.owners) if owner == batch.worker]
        counts = {self.names[0]: tuple(self.weights[group] * self.window for group in mine)}
        counts |= {name: (rate * self.window,) * len(mine) for name, rate in self.rates.items()}
        return KeySample(one_in=self.one_in, counts=counts)

    def _ids(self, outcome: BatchOutcome) -> Iterator[tuple[int, ...]]:
        names = (f"{self.names[0]}_key", *(f"{name}_id" for name in self.names))
        for piece in outcome.pieces:
            yield from zip(*(piece.column(name).to_pylist() for name in names), strict=True)

    def _to_redis(self, write: Callable[[], object]) -> None:
        # What cannot be said now is said again with the next batch.
        if self._redis_away:
            return
        try:
            write()
        except (redis.RedisError, OSError):
            self._redis_away = True

    # -- verdict

    def verdict(self) -> tuple[int, int]:
        """Results that are missing, results that are too many."""
        with self._lock:
            expected = Counter(_expected(self.sent, self.window * SECOND))
            results = Counter(self.results)
        return sum((expected - results).values()), sum((results - expected).values())

    def leftovers(self) -> list[str]:
        """What workers still have of moves that are closed, or of groups that are not theirs."""
        with self._lock:
            return list(self._leftovers())

    def _leftovers(self) -> Iterator[str]:
        for worker, state in enumerate(self.durable):
            record = state.record()
            assert record is not None
            for role in record.roles:
                if role.state != RoleState.CLOSED:
                    yield f"worker {worker} is {role.state} in {role.move}"
            owned = {group for group, owner in enumerate(self.owners) if owner == worker}
            if self._state_groups[worker] - owned:
                yield f"worker {worker} has rows of groups {sorted(self._state_groups[worker] - owned)}"


def _expected(sent: Rows, window_us: int) -> Iterator[tuple[int, ...]]:
    """Group by group: the naive join looks at every combination."""
    for group in {row[0] for each in sent.values() for row in each}:
        rows = {name: [row for row in each if row[0] == group] for name, each in sent.items()}
        yield from ((group, *ids) for ids in reference.join(rows, window_us))


def _frame(rows: Sequence[Row]) -> bytes:
    columns = {
        "key": pa.array([row[0] for row in rows], pa.int64()),
        "at": pa.array([row[1] for row in rows], TIME),
        "id": pa.array([row[2] for row in rows], pa.int64()),
        GROUP: pa.array([row[0] for row in rows], pa.int16()),
    }
    return bytes(frames.encode(pa.RecordBatch.from_pydict(columns)).to_pybytes())
