"""Workers' reports as a table: how the load is shared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from commands.tables import PlainTable
from trimtab.reports import WorkerReport


def shares(loads: Sequence[float]) -> list[float]:
    """Each load as a part of the whole; all zero if there is no load."""
    whole = sum(loads)
    return [load / whole if whole else 0.0 for load in loads]


def newest_reports(reports: Iterable[WorkerReport]) -> Table:
    """One line per worker, from its newest report."""
    ordered = sorted(reports, key=lambda report: report.worker)
    table = PlainTable(box=None, pad_edge=False, header_style="bold")
    for name in ("worker", "executor", "batch", "epoch", "rows", "results", "late", "null"):
        table.add_column(name, justify="right")
    for name in ("state rows", "state MB", "CPU ms", "share", "resident"):
        table.add_column(name, justify="right")
    for report, share in zip(ordered, shares([report.work for report in ordered]), strict=True):
        table.add_row(
            str(report.worker),
            report.executor,
            str(report.batch),
            str(report.epoch),
            f"{sum(report.rows.values()):,}",
            f"{report.results:,}",
            f"{sum(report.late_rows.values()):,}",
            f"{sum(report.bad_rows.values()):,}",
            f"{report.state_rows:,}",
            f"{report.state_bytes / 1e6:.1f}",
            f"{report.cpu_ns / 1e6:.0f}",
            f"{share:.0%}",
            report.resident,
        )
    return table
