"""What the demo shows while it runs, and its summary at the end."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Group
from rich.text import Text

from commands.runner.progress import BatchProgress, plain_watermark
from commands.runner.worker_table import shares
from commands.tables import PlainTable
from trimtab.plain_text import plain_text
from trimtab.reports import WorkerReport

SPEED_BATCHES: Final = 5
RECENT_S: Final = 6.0
"""Rates are means over about this time, so that the table does not flicker."""


@dataclass(frozen=True)
class WorkerLine:
    worker: int
    rows_per_s: float
    state_rows: int
    state_mb: float
    cpu_percent: float
    share: float
    hits: int
    rebuilds: int
    executor: str


class Board:
    """Adds up batches."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, dict[int, WorkerReport]]] = deque()
        self._batch_end_s: float | None = None
        self._hits: dict[int, int] = {}
        self._rebuilds: dict[int, int] = {}
        self._batch_ms: list[int] = []
        self.batch = -1
        self.input_rows = 0
        """Rows that Spark has read, those with null keys included."""
        self.results = 0
        self.late = 0
        self.null = 0
        self.watermark_us = 0
        self.news = ""
        """The manager's newest event."""
        self._speeds: list[tuple[int, float]] = []
        """Epoch and rows per second of each batch with rows."""
        self._homes: dict[int, int] = {}
        self._moved: set[int] = set()

    def add(self, progress: BatchProgress, reports: Mapping[int, WorkerReport], now_s: float) -> None:
        """A batch that had finished at `now_s`, on any monotonic clock."""
        span_s = progress.ms / 1000 if self._batch_end_s is None else max(0.001, now_s - self._batch_end_s)
        self._batch_end_s = now_s
        self.batch = progress.batch
        self.input_rows += progress.rows
        if progress.rows:
            # A batch without rows says nothing about the load.
            self._batch_ms.append(progress.ms)
            self._speeds.append((max((r.epoch for r in reports.values()), default=0), progress.rows_per_s))
            self._recent.append((span_s, dict(reports)))
        while len(self._recent) > 1 and sum(span for span, _ in self._recent) > RECENT_S:
            self._recent.popleft()
        for worker, report in reports.items():
            self._note_homes(worker, report)
            self.results += report.results
            self.late += sum(report.late_rows.values())
            self.null += sum(report.bad_rows.values())
            self.watermark_us = max(self.watermark_us, report.watermark_us)
            counts = self._hits if report.resident == "hit" else self._rebuilds
            counts[worker] = counts.get(worker, 0) + 1

    def _note_homes(self, worker: int, report: WorkerReport) -> None:
        """Note the groups whose rows go to another worker than at first."""
        for group, rows in zip(report.groups, report.group_rows, strict=True):
            if rows and self._homes.setdefault(group, worker) != worker:
                self._moved.add(group)

    def lines(self) -> list[WorkerLine]:
        """One line per worker: its newest state, and its rates over the recent batches."""
        if not self._recent:
            return []
        newest = {worker: report for _, reports in self._recent for worker, report in reports.items()}
        seconds = max(0.001, sum(span for span, _ in self._recent))
        workers = sorted(newest)
        recent = {worker: [reports[worker] for _, reports in self._recent if worker in reports] for worker in workers}
        parts = shares([sum(report.work for report in recent[worker]) for worker in workers])
        return [
            WorkerLine(
                worker=worker,
                rows_per_s=sum(sum(report.rows.values()) for report in recent[worker]) / seconds,
                state_rows=newest[worker].state_rows,
                state_mb=newest[worker].state_bytes / 1e6,
                cpu_percent=sum(report.cpu_ns for report in recent[worker]) / seconds / 1e7,
                share=share,
                hits=self._hits.get(worker, 0),
                rebuilds=self._rebuilds.get(worker, 0),
                executor=newest[worker].executor,
            )
            for worker, share in zip(workers, parts, strict=True)
        ]

    def headline(self, phase: str) -> str:
        return (
            f"{phase} | batch {max(self.batch, 0)} | watermark {plain_watermark(self.watermark_us)} UTC | "
            f"{self.input_rows:,} rows | {self.results:,} results | {self.late} late, {self.null} null keys"
        )

    def plain(self, phase: str) -> str:
        """One line, without a terminal."""
        if self.batch < 0:
            return phase
        parts = " ".join(f"w{line.worker} {line.rows_per_s:,.0f}/s {line.share:.0%}" for line in self.lines())
        return f"{self.headline(phase)} | {parts}" + (f"\n    manager: {plain_text(self.news)}" if self.news else "")

    def table(self, phase: str) -> Group:
        table = PlainTable(header_style="bold", title_justify="left")
        for name in ("worker", "executor", "rows/s", "state rows", "state MB", "CPU %", "hit/rebuild"):
            table.add_column(name, justify="right")
        table.add_column("share of load", justify="left", min_width=28)
        for line in self.lines():
            bar = "█" * round(line.share * 22)
            style = "bold red" if line.share > 0.5 else ""
            table.add_row(
                str(line.worker),
                line.executor,
                f"{line.rows_per_s:,.0f}",
                f"{line.state_rows:,}",
                f"{line.state_mb:.1f}",
                f"{line.cpu_percent:.0f}",
                f"{line.hits}/{line.rebuilds}",
                Text(f"{line.share:>4.0%} {bar}", style=style),
            )
        speed = f"{self._speeds[-1][1]:,.0f} rows/s" if self._speeds else ""
        return Group(Text(self.headline(phase)), table, Text(f"{speed}   {plain_text(self.news)}", no_wrap=True))

    def summary(self, streamed_s: float) -> dict[str, Any]:
        hits, rebuilds = sum(self._hits.values()), sum(self._rebuilds.values())
        return {
            "rows": self.input_rows,
            "results": self.results,
            "late_rows": self.late,
            "null_key_rows": self.null,
            "rows_per_s": round(self.input_rows / streamed_s, 1) if streamed_s > 0 else 0.0,
            "batches": len(self._batch_ms),
            "median_batch_ms": round(statistics.median(self._batch_ms)) if self._batch_ms else 0,
            "resident_hit_rate": round(hits / (hits + rebuilds), 4) if hits + rebuilds else 0.0,
            **self._gain(),
        }

    def _gain(self) -> dict[str, Any]:
        """Rows per second in the last batches before the manager's first epoch, and in the last batches of the run."""
        first = min((epoch for epoch, _ in self._speeds), default=0)
        before = [speed for epoch, speed in self._speeds if epoch == first][-SPEED_BATCHES:]
        after = [speed for epoch, speed in self._speeds if epoch > first][-SPEED_BATCHES:]
        low, high = (round(statistics.median(part)) if part else 0 for part in (before, after))
        return {
            "rows_per_s_before": low,
            "rows_per_s_after": high,
            "gain": round(high / low, 2) if low else 0.0,
            "groups_moved": len(self._moved),
        }
