"""Writes the tables of docs/metrics.md from manager/metrics.py: `python -m manager.metrics_page docs/metrics.md`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from manager.metrics import FAMILIES, Family, Scope, series_budget

BEGIN: Final = "<!-- made by manager/metrics_page.py: begin -->"
END: Final = "<!-- end -->"
_TITLES: Final[tuple[tuple[Scope, str], ...]] = (
    ("worker", "Of each worker, from the query's leader"),
    ("query", "Of each query, from its leader"),
    ("instance", "Of each instance"),
)


def tables() -> str:
    lines = [BEGIN, "", "## How many series", "", *_budget()]
    for scope, title in _TITLES:
        lines += ["", f"## {title}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        lines += [_row(family) for family in FAMILIES.values() if family.scope == scope]
    return "\n".join([*lines, "", END])


def _budget() -> list[str]:
    budget = series_budget()
    return [
        f"A query with W workers and P partition groups has at most **{budget.per_worker} W + {budget.per_query}** "
        "series, whatever P is:",
        "",
        "| W | P | series |",
        "|---|---|---|",
        *(f"| {workers} | {groups:,} | {budget.of_query(workers):,} |" for workers, groups in ((4, 64), (64, 4_096))),
        "",
        f"Each instance adds {budget.instance} of its own, {budget.instance_per_query} for each query that it knows, "
        "and those of the process (`process_*`, `python_*`).",
    ]


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.all_labels) or "-"
    kind = family.kind + (f" ({len(family.buckets) + 1} buckets)" if family.buckets else "")
    return f"| `{family.name}` | {kind} | {labels} | {family.help} |"


def renewed(page: str) -> str:
    """The page with its tables made anew."""
    before, _, rest = page.partition(BEGIN)
    return before + tables() + rest.partition(END)[2]


def main(arguments: Sequence[str]) -> int:
    path = Path(arguments[0])
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
