"""Driver and workers of a scenario: batches are bound as the control source does it, and run on the small plane."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace

from balancing.committed import CommittedBatch
from tests.scenarios.redis import Redis
from tests.scenarios.rendering import answer_lines, epoch_text, plan_lines, results_line, worker_lines
from tests.simulation import leading, plane
from tests.simulation.plane import LASTING, WINDOW, Luck, Plane, Told
from tests.simulation.plane_batch import run_batch
from trimtab.epochs import Epoch, breaks_between, check_epoch, first_epoch
from trimtab.reports import WorkerReport

LUCK = {name: Luck(**{name: True}) for name in Luck._fields}


class Cluster:
    def __init__(self, owners: tuple[int, ...], workers: int, plan: str = "") -> None:
        self.workers = workers
        self.bound = first_epoch("q", "life", owners)
        self.before = 0
        """Number of the epoch of the batch before."""
        self.plane: Plane = plane.start(owners, workers, plan)
        self.batch = 0
        self.lasting = ""
        self.committed = CommittedBatch(batch=0, bound=self.bound, at_ms=0, reports=self._reports(frozenset(), ""))
        self.past = {0: self.committed}
        self._begun: Epoch | None = None
        """The epoch of a batch that was tried and is not committed yet: it stays bound to it."""

    def attempt(self, redis: Redis, how: Sequence[str]) -> Iterator[str]:
        """The next batch is tried, and the attempt comes to nothing."""
        yield from self._bind(redis)
        luck = self._luck(how)
        after = run_batch(self.plane, self.bound, self.before, luck)
        yield f"batch {self.batch} is tried, {epoch_text(self.bound)}"
        for line in worker_lines(self.plane, after, self.bound, frozenset()):
            yield f"  {line}"
        yield "  the attempt is not committed"
        self.plane = plane.with_traces(self.plane, after)
        self._begun = self.bound

    def run(self, redis: Redis | None, how: Sequence[str]) -> Iterator[str]:
        """The next batch; `redis` is None where nobody reaches it."""
        yield from self._bind(redis)
        yield f"batch {self.batch}, {epoch_text(self.bound)}"
        muted = frozenset({int(how[how.index("mute") + 1])}) if "mute" in how else frozenset()
        reports = {}
        if "without" in how:
            self.plane = plane.run_no_task(self.plane)
            yield "  no worker runs"
        else:
            luck, before = self._luck(how), self.plane
            rows = 0 if plane.too_old(before) else WINDOW * len(self.bound.owners)
            after = run_batch(before, self.bound, self.before, luck)
            for line in worker_lines(before, after, self.bound, muted):
                yield f"  {line}"
            problem = "the store is full" if luck.full else ""
            reports = self._reports(plane.reported(before, after, self.bound), problem)
            reports = {worker: report for worker, report in reports.items() if worker not in muted}
            for line in plan_lines(before, self.bound, muted):
                yield f"  {line}"
            after = after._replace(followers=plane.followed(before, self.bound))
            for line in answer_lines(reports):
                yield f"  {line}"
            yield f"  {results_line(before, after, rows)}"
            self.plane = after
        self.committed = CommittedBatch(
            batch=self.batch, bound=self.bound, at_ms=1_000 * self.batch, reports=reports if redis is not None else {}
        )
        self.past[self.batch] = self.committed
        self._begun = None
        if redis is not None:
            redis.batch = self.committed
            if not self.bound.moves and "without" not in how:
                plane.settled(self.plane, self.bound)

    def _bind(self, redis: Redis | None) -> Iterator[str]:
        """To the successor of the bound epoch, or again to that one, which Redis must have."""
        if self._begun is not None:
            return
        self.batch += 1
        self.before = self.bound.number
        if redis is None or redis.newest == self.bound:
            return
        newest = redis.newest
        if newest is not None and not any(breaks_between(self.bound, newest)):
            check_epoch(newest, len(self.bound.owners), self.workers)
            self.bound = newest
            return
        redis.newest = self.bound
        yield f"the driver restores epoch {self.bound.number} in Redis"

    def _luck(self, how: Sequence[str]) -> Luck:
        luck = LASTING[self.lasting]
        for name in how:
            luck = Luck(*map(operator.or_, luck, LUCK.get(name, Luck())))
        return luck

    def stand(self, *, stands: bool) -> None:
        """A stream is idle, and HybMig waits for it; or it goes on."""
        followers = tuple(replace(each, stands=stands) for each in self.plane.followers)
        self.plane = self.plane._replace(followers=followers)

    def _reports(self, told: frozenset[Told], problem: str) -> dict[int, WorkerReport]:
        return {
            worker: leading.report_of(
                worker,
                self.batch,
                self.bound,
                sorted(told),
                store_problem=problem,
                at_ms=1_000 * self.batch,
                order=self.plane.followers[worker].report() if self.plane.followers else None,
            )
            for worker in range(self.workers)
        }
