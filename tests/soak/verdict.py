"""The end of a soak in words: what was done to it, what came of it, and whether all is well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from commands.demo.oracle import JoinVerdict, committed_files, verdict
from tests.soak.feeder import LATE_BEFORE_US
from tests.soak.layout import STREAMS, WINDOW_US, Layout
from tests.soak.ledger import Ledger

RESULTS_MIN: Final = 1_000
PROTOCOLS: Final = ("mslb", "ptlb")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the soak came to its end."""

    seed: int
    judged: JoinVerdict | None
    """None: the input was not joined to its end."""
    still_open: tuple[str, ...]
    left_running: tuple[str, ...]
    ports_open: tuple[int, ...]
    batches: int
    rows: int
    late_rows: int
    driver_starts: int


def judge(layout: Layout) -> JoinVerdict:
    """DuckDB joins all that was fed, without the rows that are late for certain, and compares with the sink's files."""
    inputs = {stream: sorted((layout.input / stream).glob("*.parquet")) for stream in STREAMS}
    return verdict(inputs, committed_files(layout.output), window_us=WINDOW_US, late_before_us=LATE_BEFORE_US)


def complaints(ending: Ending, ledger: Ledger) -> list[str]:
    """Everything that is not as it must be; none: all is well."""
    found = list(ledger.failures)
    judged = ending.judged
    if judged is None:
        found.append("there is no verdict: the input was not joined to its end")
    elif not judged.good:
        found += [f"results: {judged}", *judged.examples]
    else:
        found += [f"this soak proves little: {each}" for each in _gaps(judged, ledger)]
    _, alarms = ledger.audits()
    right = judged is not None and judged.good
    found += [f"{'false alarm' if right else 'audit'}: {each}" for each in alarms]
    found += [f"still open: {each}" for each in ending.still_open]
    found += [f"still running: {each}" for each in ending.left_running]
    found += [f"port {each} is still open" for each in ending.ports_open]
    return found


def _gaps(judged: JoinVerdict, ledger: Ledger) -> list[str]:
    """Right results say nothing about moves that never took place: a starved machine must not pass for a sound one."""
    gaps = [] if judged.expected >= RESULTS_MIN else [f"only {judged.expected} results"]
    outcomes = ledger.outcomes()
    gaps += [f"no {each} move was committed" for each in PROTOCOLS if not outcomes[each, "committed"]]
    if not any(outcome == "committed" for _, outcome in ledger.replan_outcomes()):
        gaps.append("no change of plans was committed")
    if not ledger.audits()[0]["clean"]:
        gaps.append("no audit was clean")
    return gaps


def report(ending: Ending, ledger: Ledger) -> list[str]:
    audits, _ = ledger.audits()
    outcomes = ledger.outcomes()
    lines = [
        f"seed {ending.seed}: {ending.rows:,} rows fed, {ending.late_rows} of them late; {ending.batches} batches, "
        f"{ending.driver_starts} drivers",
        f"faults ({ledger.faults.total()}): {_counted(ledger.faults)}",
    ]
    if ledger.missed:
        lines.append(f"faults that found no victim or no time: {_counted(ledger.missed)}")
    lines.append(f"moves ({outcomes.total()}):")
    lines += [f"  {strategy:<5} {outcome:<30} {count:>5}" for (strategy, outcome), count in sorted(outcomes.items())]
    replans = ledger.replan_outcomes()
    lines.append(f"changes of plans ({replans.total()}):")
    lines += [f"  {strategy:<6} {outcome:<29} {count:>5}" for (strategy, outcome), count in sorted(replans.items())]
    lines.append(f"requests ({ledger.asked.total()}):")
    for what in sorted({what for what, _ in ledger.asked}):
        answers = {answer: count for (each, answer), count in ledger.asked.items() if each == what}
        lines.append(f"  {what:<13} {_counted(answers)}")
    lines.append(f"audits: {_counted(audits)}")
    lines.append(f"expected failures ({len(ledger.excused)}):")
    lines += [f"  {each}" for each in ledger.excused]
    lines.append(f"open migrations: {len(ending.still_open)}")
    lines.append(f"left running: {len(ending.left_running)} processes, {len(ending.ports_open)} ports")
    lines.append(f"verdict: {ending.judged if ending.judged is not None else 'none'}")
    return lines


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(Counter(counts).items())) or "none"
