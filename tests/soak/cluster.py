"""The query's driver as a user runs it, `trimtab run soak.yaml`, and its executors and Python workers."""

from __future__ import annotations

import random
import shutil
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.checkers.harness import executors, python_workers
from tests.soak.layout import Layout
from tests.soak.processes import TrimtabProcess


class Driver(TrimtabProcess):
    def __init__(self, layout: Layout, mark: str) -> None:
        super().__init__("driver", ["run", str(layout.job)], layout.logs, mark)
        self._work: set[Path] = set()

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs that are alive."""
        root = self.root
        if root is None:
            return []
        with suppress(psutil.NoSuchProcess):
            found = executors(root)
            for executor in found:
                with suppress(psutil.Error):
                    # local-cluster runs each in <Spark's home>/work/<application>/<executor>.
                    self._work.add(Path(executor.cwd()).parent)
            return found
        return []

    def busy_python_worker(self, rng: random.Random, sample_s: float = 0.3) -> psutil.Process | None:
        """A Python worker that has used CPU just now, so that a fault hits somebody who is at work."""
        before: dict[psutil.Process, float] = {}
        for executor in self.executors():
            with suppress(psutil.Error):
                before |= {fork: _cpu_s(fork) for fork in python_workers(executor)}
        time.sleep(sample_s)
        busy = []
        for fork, cpu_s in sorted(before.items(), key=lambda pair: pair[0].pid):
            with suppress(psutil.Error):
                if _cpu_s(fork) > cpu_s:
                    busy.append(fork)
        return rng.choice(busy) if busy else None

    def stop(self, deadline_s: float = 90.0) -> int | None:
        # A driver that ends in order removes its executors' directories.
        self._copy_executor_logs()
        return super().stop(deadline_s)

    def tidy(self) -> None:
        """Keep the logs and remove what killed drivers have left in Spark's own directory."""
        self._copy_executor_logs()
        for application in self._work:
            shutil.rmtree(application, ignore_errors=True)

    def _copy_executor_logs(self) -> None:
        self.executors()
        for application in self._work:
            target = self._logs / "executors" / application.name
            for log in application.glob("*/std*"):
                target.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(log, target / f"{log.parent.name}-{log.name}")


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
