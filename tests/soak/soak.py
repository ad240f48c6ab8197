"""One soak: set up, hurt, mend, wait, stop, judge; and everything is torn down whatever happens."""

from __future__ import annotations

import json
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from commands.demo.oracle import JoinVerdict
from commands.runner.stopping import StopRequest
from tests.soak.chaos import Chaos, World
from tests.soak.cluster import Driver
from tests.soak.feeder import Feeder
from tests.soak.layout import Layout
from tests.soak.ledger import Ledger
from tests.soak.managers import Manager
from tests.soak.operating import Operator
from tests.soak.processes import left_running, still_listening
from tests.soak.progress import Progress
from tests.soak.redis_process import RedisProcess
from tests.soak.rest import Away, Rest
from tests.soak.schedule import make_schedule
from tests.soak.transfer_store import StoreBlock
from tests.soak.verdict import Ending, complaints, judge, report

MANAGERS: Final = 2
TICK_S: Final = 0.1
TELL_EVERY_S: Final = 10.0
FIRST_BATCH_S: Final = 600.0
QUIET_S: Final = 300.0
"""For all migrations to end once everything is mended."""
READ_S: Final = 300.0
FAILURES_MAX: Final = 12
"""So many ends of the driver in a row without a batch in between: the query cannot go on."""
AFTERMATH_S: Final = 20.0
"""For so long after a fault its consequences are put down to it."""


class Interrupted(Exception):
    pass


class Hopeless(Exception):
    """It makes no sense to go on."""


@dataclass(frozen=True, kw_only=True)
class SoakOptions:
    seconds: float
    seed: int
    rows_per_s: int
    kinds: tuple[str, ...]
    mark: str


@contextmanager
def shielded() -> Iterator[None]:
    """No signal breaks off what is inside: an impatient second Ctrl-C would leave a cluster running."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Soak:
    def __init__(self, options: SoakOptions, layout: Layout, stop: StopRequest) -> None:
        self._options = options
        self._layout = layout
        self._stop = stop
        self._ledger = Ledger()
        self._redis = RedisProcess()
        self._managers = tuple(
            Manager(number, self._redis.url, layout, options.mark) for number in range(1, MANAGERS + 1)
        )
        self._driver = Driver(layout, options.mark)
        self._store = StoreBlock(layout.transfers)
        self._progress = Progress(layout)
        world = World(layout, self._driver, self._managers, self._redis, self._store, self._progress)
        schedule = make_schedule(options.seed, options.seconds, options.kinds)
        self._chaos = Chaos(world, schedule, self._ledger, options.seed)
        self._rest = Rest([manager.url for manager in self._managers], self._redis.url, self._ledger)
        self._feeder = Feeder(layout, seed=options.seed, rows_per_s=options.rows_per_s)
        self._operator = Operator(self._rest, self._ledger, options.seed)
        self._begun = time.monotonic()
        self._told_at = 0.0
        self._ends_in_a_row = 0
        self._batch_at_end = -1
        self._store_blocked_at = -1e9
        self._failures_told = 0

    def run(self) -> bool:
        """Whether all is well."""
        still_open: list[str] = []
        finished = False
        try:
            self._set_up()
            self._hurt()
            still_open = self._mend()
            finished = self._finish()
        except Interrupted:
            print("interrupted: everything is stopped, and there is no verdict", flush=True)
        except Hopeless as error:
            self._ledger.fail(str(error))
        except Exception:
            self._ledger.fail(traceback.format_exc())
        finally:
            with shielded():
                left, ports = self._tear_down()
        judged: JoinVerdict | None = None
        if finished:
            print("DuckDB joins the same input files ...", flush=True)
            judged = judge(self._layout)
        ending = Ending(
            seed=self._options.seed,
            judged=judged,
            still_open=tuple(still_open),
            left_running=tuple(left),
            ports_open=tuple(ports),
            batches=self._progress.committed() + 1,
            rows=self._feeder.rows_written,
            late_rows=self._feeder.late_written,
            driver_starts=self._driver.starts,
        )
        lines = report(ending, self._ledger)
        wrong = complaints(ending, self._ledger)
        lines += [f"NOT WELL: {each}" for each in wrong] or ["all is well"]
        print("\n".join(lines), flush=True)
        with suppress(OSError):
            (self._layout.logs / "verdict.txt").write_text("\n".join(lines) + "\n")
            (self._layout.logs / "migrations.json").write_text(json.dumps(self._ledger.migrations, indent=1))
        return not wrong

    def _set_up(self) -> None:
        self._layout.prepare(self._redis.url)
        for manager in self._managers:
            manager.start()
        for _ in range(2):
            self._feeder.write_slice(late=False)
        self._driver.start()
        self._until(lambda: self._progress.committed() >= 0, FIRST_BATCH_S, "the first batch", "starting")

    def _hurt(self) -> None:
        self._begun = time.monotonic()
        self._chaos.begin()
        self._feeder.start()
        self._operator.start()
        end = self._begun + self._options.seconds
        while time.monotonic() < end:
            self._tick("faults and moves")

    def _mend(self) -> list[str]:
        """Rows go on arriving while open moves end: a parallel track needs event time. What stays open is told."""
        self._operator.stop()
        self._chaos.mend_all()
        with suppress(Hopeless):
            self._until(self._operator.calm, QUIET_S, "a manager that answers", "mended")
            self._until(lambda: not self._open(), QUIET_S, "the end of all migrations", "mended")
        return self._open()

    def _open(self) -> list[str]:
        """Open by anyone's account: the bound epoch's, the migrations', the rebalances'."""
        time.sleep(1.0)
        found = [f"move in the bound epoch: {each}" for each in self._progress.open_moves()]
        try:
            migrations, rebalances = self._operator.look(limit=1000), self._operator.open_rebalances()
            replans = self._operator.open_replans()
        except Away:
            return [*found, "no manager answers"]
        if migrations is None or rebalances is None or replans is None:
            return [*found, "no manager knows the query"]
        for each in migrations:
            story = "; ".join(str(entry.get("message", entry)) for entry in each["story"][-4:])
            found.append(f"{each['id']} ({each['strategy']}, {each['state']}, {each['problem']}): ... {story}")
        return found + rebalances + replans

    def _finish(self) -> bool:
        """Whether all input was joined and the query ended in order."""
        self._feeder.stop()
        self._until(lambda: self._progress.all_read(self._feeder.slices), READ_S, "the last file", "draining")
        code = self._driver.stop()
        if code != 0:
            self._ledger.fail(f"the driver ended with code {code} when it was asked to stop")
        return True

    def _until(self, done: Callable[[], bool], deadline_s: float, what: str, phase: str) -> None:
        end = time.monotonic() + deadline_s
        while not done():
            if time.monotonic() > end:
                raise Hopeless(f"waited {deadline_s:g} s in vain for {what}")
            self._tick(phase)

    def _tick(self, phase: str) -> None:
        if self._stop.wait(TICK_S):
            raise Interrupted
        for thread in (self._feeder, self._operator):
            if thread.error is not None:
                raise thread.error
        self._chaos.step()
        if self._store.blocked:
            self._store_blocked_at = time.monotonic()
        for process in (*self._managers, self._driver):
            words = process.ended_by_itself()
            if words is not None:
                self._judge_end(words, process is self._driver)
            process.restart_if_due()
        for text in self._ledger.failures[self._failures_told :]:
            self._failures_told += 1
            print(f"NOT WELL: {text}", flush=True)
        if time.monotonic() - self._told_at >= TELL_EVERY_S:
            self._told_at = time.monotonic()
            self._driver.executors()  # notes where their logs are
            print(self._line(phase), flush=True)

    def _judge_end(self, words: str, is_driver: bool) -> None:
        """A process ended that nobody killed. A driver may fail to start without Redis, as it says it does, and Spark
        gives up on tasks that cannot read the transfer store; anything else is a failure."""
        now = time.monotonic()
        redis_away = self._redis.away_since is not None or now - self._redis.troubled_at < AFTERMATH_S
        store_away = now - self._store_blocked_at < AFTERMATH_S
        excused = (redis_away and "does not answer" in words) or (store_away and "transfers" in words and is_driver)
        at_s = now - self._begun
        (self._ledger.excuse if excused else self._ledger.fail)(f"after {at_s:.0f} s {words}")
        if is_driver:
            batch = self._progress.committed()
            self._ends_in_a_row = self._ends_in_a_row + 1 if batch == self._batch_at_end else 1
            self._batch_at_end = batch
            if self._ends_in_a_row >= FAILURES_MAX:
                raise Hopeless(f"the query cannot go on after batch {batch}: {words}")

    def _line(self, phase: str) -> str:
        lag = "-"
        with suppress(Exception):
            lag = f"{self._feeder.lag_s:.0f}"
        return (
            f"{time.monotonic() - self._begun:6.0f} s  {phase}: batch {self._progress.committed()}, "
            f"{self._feeder.rows_written:,} rows, lag {lag} s, driver {self._driver.starts}, "
            f"faults {self._ledger.faults.total()} ({self._chaos.news}), moves ended {self._ledger.ended()}"
        )

    def _tear_down(self) -> tuple[list[str], list[int]]:
        """Everything ends; returns what did not."""
        with suppress(Exception):
            self._chaos.mend_all()
        self._store.free()
        for thread in (self._feeder, self._operator):
            with suppress(Exception):
                thread.stop()
        self._driver.stop()
        self._driver.tidy()
        ports = [self._redis.port, *(manager.port for manager in self._managers)]
        for manager in self._managers:
            manager.stop(deadline_s=20.0)
        self._rest.close()
        self._redis.stop()
        left = left_running(self._options.mark)
        shutil.rmtree(self._layout.base / "spark", ignore_errors=True)
        return left, still_listening(ports)
