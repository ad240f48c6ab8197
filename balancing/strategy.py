"""PTLB or MSLB: the cost models of MS/PT section 5, adapted to micro-batches and fed with what was measured.

    T_MS (eqs 1-3)  the paper adds matching, moving and recomputing of states. Matching is a look-up; moving is real
                    here (state is packed, stored and unpacked): bytes x (export + import). Recomputing a state is
                    |SA||SB| comparisons in eq 1, by nested loops; our join hashes, so it costs an insertion and a
                    probe per leaf row and an insertion per combined tuple. It is due only where plans differ.
    T_PT (eq 4)     W for one join, 2W above. Our purge rule judges a combined tuple by its smallest timestamp: it is W
                    whatever the height, counted from the newest old row, which is a
                    lateness ahead of the watermark: W + lateness of event time.
    cost of PT      the old box goes on as before (eq 5); the new one starts empty, so over the first W it does half the
    (eqs 5-7)       probing (eq 6: the integral of a state that grows from nothing) and all of it afterwards.

What the paper measures in its section 5.3 (PTLB/MSLB) and the models leave out: until a move ends the sender keeps the
load that it should lose. So each strategy is charged the moved load for as long as it takes. PTLB wins where much state
would have to be shipped for little load (PTLB/MSLB figure 13), MSLB elsewhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from balancing.load import Snapshot
from balancing.policies.policy import SuggestedMove
from balancing.words import PROTOCOLS, STRATEGIES, Strategy
from plans.tree import inner_states, parse_plan
from trimtab.errors import InvalidInput

ASK_BATCHES: Final = 2
"""Steps 1-2 of both protocols: the question is bound to one batch and its answer counts when that is committed."""
WAVE_BATCHES: Final = 3
"""An MSLB wave: deactivated and packed, received, and one more until that is known and the next wave begins."""
CLOSE_BATCHES: Final = 1
IDLE_RATE: Final = 1e-3
"""Event seconds per second: below, a stream is idle and no old row will ever be purged."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one strategy for a set of moves."""

    strategy: Strategy
    seconds: float
    """Until all moves have ended; infinite where the watermark stands still."""
    pause_ms: float
    """How much longer the longest batch takes."""
    work_ns: float
    """CPU spent on moving, and on what is done twice."""
    unrelieved_ns: float
    """Load that stays at the senders in the meantime."""
    rows_duplicated: float
    waves: int

    @property
    def total_ns(self) -> float:
        return self.work_ns + self.unrelieved_ns

    def to_json(self) -> dict[str, Any]:
        # JSON has no infinity; null says that it would not end.
        numbers = {
            "seconds": self.seconds,
            "pause_ms": self.pause_ms,
            "work_ns": self.work_ns,
            "unrelieved_ns": self.unrelieved_ns,
            "rows_duplicated": self.rows_duplicated,
        }
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {"strategy": self.strategy, **finite, "waves": self.waves}


def parse_cost(body: dict[str, Any]) -> Cost:
    names = ("seconds", "pause_ms", "work_ns", "unrelieved_ns", "rows_duplicated")
    numbers = {name: math.inf if body[name] is None else float(body[name]) for name in names}
    return Cost(strategy=body["strategy"], waves=int(body["waves"]), **numbers)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A strategy, why, and what the other one would have cost."""

    strategy: Strategy
    explanation: str
    ptlb: Cost
    mslb: Cost

    @property
    def cost(self) -> Cost:
        return {"ptlb": self.ptlb, "mslb": self.mslb}[self.strategy]

    def to_json(self) -> dict[str, Any]:
        return {
            "strategy": self.strategy,
            "explanation": self.explanation,
            "ptlb": self.ptlb.to_json(),
            "mslb": self.mslb.to_json(),
        }


def parse_choice(body: dict[str, Any]) -> Choice:
    return Choice(
        strategy=body["strategy"],
        explanation=body["explanation"],
        ptlb=parse_cost(body["ptlb"]),
        mslb=parse_cost(body["mslb"]),
    )


def mslb_cost(snapshot: Snapshot, moves: Sequence[SuggestedMove], wave_bytes: float | None = None) -> Cost:
    """Eqs 1-3; `wave_bytes` is what an executor may ship at a time (balancing/pacing.py), None for all at once."""
    batch_s = snapshot.batch_ms / 1000
    work_ns = unrelieved_ns = 0.0
    exports: dict[str, float] = {}
    imports: dict[str, float] = {}
    shipped: dict[str, list[float]] = {}
    """Sizes of the groups that an executor packs or takes in."""
    for move in moves:
        sizes = [snapshot.group_bytes[group] for group in move.groups]
        export_ns = sum(sizes) * snapshot.export_ns_per_byte
        import_ns = sum(sizes) * snapshot.import_ns_per_byte + recomputing_ns(snapshot, move)
        work_ns += export_ns + import_ns
        sender, receiver = snapshot.executor_of(move.sender), snapshot.executor_of(move.receiver)
        exports[sender] = exports.get(sender, 0.0) + export_ns
        imports[receiver] = imports.get(receiver, 0.0) + import_ns
        for executor in (sender, receiver):
            shipped.setdefault(executor, []).extend(sizes)
    shares = {executor: _share_at_a_time(sizes, wave_bytes) for executor, sizes in shipped.items()}
    waves = {executor: math.ceil(1 / share) for executor, share in shares.items()}
    for move in moves:
        # Waves relieve the sender little by little: half of the time, on the whole.
        load = sum(snapshot.group_cpu[group] for group in move.groups)
        most = max(waves[snapshot.executor_of(worker)] for worker in (move.sender, move.receiver))
        unrelieved_ns += load * batch_s * (ASK_BATCHES + WAVE_BATCHES * (most + 1) / 2)
    waves_most = max(waves.values(), default=0)
    pauses_ns = [ns * shares[executor] for each in (exports, imports) for executor, ns in each.items()]
    seconds = (ASK_BATCHES + WAVE_BATCHES * waves_most + CLOSE_BATCHES) * batch_s + work_ns / 1e9 if moves else 0.0
    return Cost(
        strategy="mslb",
        seconds=seconds,
        pause_ms=max(pauses_ns, default=0.0) / 1e6,
        work_ns=work_ns,
        unrelieved_ns=unrelieved_ns,
        rows_duplicated=0.0,
        waves=waves_most,
    )


def _share_at_a_time(sizes: Sequence[float], wave_bytes: float | None) -> float:
    """Of all that an executor ships; a group is not divided, so no wave is smaller than the largest one."""
    total = sum(sizes)
    return 1.0 if wave_bytes is None or total <= 0 else min(1.0, max(wave_bytes, *sizes) / total)


def recomputing_ns(snapshot: Snapshot, move: SuggestedMove) -> float:
    """Eq 1 for a hash join: states, by their sets of streams, that only the plan which the receiver has, or is ordered
    to have, keeps. Each costs an insertion and a probe per leaf row of its streams, and an insertion per tuple.

    How many tuples it will have follows from the receiver's own state of that kind; where it has none yet, its plan
    being new, from what the sender keeps for a row.
    """
    plan = snapshot.ordered.get(move.receiver) or snapshot.plans.get(move.receiver, "")
    unmatched = kept_states(plan) - kept_states(snapshot.plans.get(move.sender, ""))
    if not unmatched:
        return 0.0
    rows = sum(snapshot.group_state_rows[group] for group in move.groups)
    known = {frozenset(name.split()): size for name, size in snapshot.plan_states.get(move.receiver, {}).items()}
    receiver, sender = snapshot.workers[move.receiver], snapshot.workers[move.sender]
    streams = max(len(_words(plan)), 1)
    work = 0.0
    for state in unmatched:
        if state in known and receiver.state_rows:
            per_row = known[state] / receiver.state_rows
        else:
            per_row = sender.combined_rows / sender.state_rows if sender.state_rows else 0.0
        work += rows * (2 * len(state) / streams + per_row)
    return work * snapshot.ns_per_work


def kept_states(plan: str) -> frozenset[frozenset[str]]:
    """The states above the streams that a plan keeps, each as its set of streams; none for a text that is no tree."""
    if len(_words(plan)) < 2:
        return frozenset()
    try:
        return frozenset(frozenset(node.streams) for node in inner_states(parse_plan(plan, _words(plan))))
    except InvalidInput:
        return frozenset()


def _words(plan: str) -> list[str]:
    return re.findall(r"[^\s()]+", plan)


def ptlb_cost(snapshot: Snapshot, moves: Sequence[SuggestedMove]) -> Cost:
    """Eqs 4-7."""
    groups = [group for move in moves for group in move.groups]
    rows_per_s = sum(snapshot.group_rows[group] for group in groups)
    load = sum(snapshot.group_cpu[group] for group in groups)
    overhead_s = (ASK_BATCHES + CLOSE_BATCHES) * snapshot.batch_ms / 1000
    if not groups:
        purge_s = window_s = 0.0
        overhead_s = 0.0
    elif snapshot.event_time_rate < IDLE_RATE:
        purge_s = window_s = math.inf
    else:
        purge_s = (snapshot.window_s + snapshot.lateness_s) / snapshot.event_time_rate
        window_s = snapshot.window_s / snapshot.event_time_rate
    doubled_s = purge_s - window_s / 2 if math.isfinite(purge_s) else math.inf
    return Cost(
        strategy="ptlb",
        seconds=purge_s + overhead_s,
        pause_ms=0.0,
        work_ns=_product(load, doubled_s),
        unrelieved_ns=_product(load, purge_s + overhead_s),
        rows_duplicated=_product(rows_per_s, purge_s),
        waves=1 if groups else 0,
    )


def choose(
    snapshot: Snapshot,
    moves: Sequence[SuggestedMove],
    *,
    strategy: str = "auto",
    wave_bytes: float | None = None,
    max_pause_ms: float | None = None,
) -> Choice:
    """The cheaper strategy, or the one asked for, with the figures of both."""
    ptlb = ptlb_cost(snapshot, moves)
    mslb = mslb_cost(snapshot, moves, wave_bytes)
    chosen: Strategy
    if strategy != "auto":
        chosen, reason = _asked(strategy), f"{strategy.upper()} was asked for."
    elif not math.isfinite(ptlb.seconds):
        chosen, reason = "mslb", "MSLB: the watermark stands still, so PTLB's old rows would never be purged."
    elif max_pause_ms is not None and mslb.pause_ms > max_pause_ms:
        chosen = "ptlb"
        reason = (
            f"PTLB: even in waves MSLB would lengthen a batch by {mslb.pause_ms:,.0f} ms, "
            f"more than the {max_pause_ms:,.0f} ms allowed; PTLB pauses nothing."
        )
    else:
        chosen = "mslb" if mslb.total_ns <= ptlb.total_ns else "ptlb"
        reason = f"{chosen.upper()} costs less."
    return Choice(
        strategy=chosen, explanation=f"{reason} {_figures(snapshot, moves, ptlb, mslb)}", ptlb=ptlb, mslb=mslb
    )


def _asked(strategy: str) -> Strategy:
    for protocol in PROTOCOLS:
        if strategy == protocol:
            return protocol
    raise InvalidInput("strategy", strategy, "is not a strategy", f"Use one of {', '.join(STRATEGIES)}.")


def _figures(snapshot: Snapshot, moves: Sequence[SuggestedMove], ptlb: Cost, mslb: Cost) -> str:
    size = sum(snapshot.group_bytes[group] for move in moves for group in move.groups)
    recompute_ns = sum(recomputing_ns(snapshot, move) for move in moves)
    known = "measured" if {"export", "import"} <= snapshot.measured else "assumed"
    return (
        f"MSLB (MS/PT eqs 1-3): {size / 1e6:,.1f} MB x ({snapshot.export_ns_per_byte:.1f} + "
        f"{snapshot.import_ns_per_byte:.1f}) ns/B ({known}) + {recompute_ns / 1e6:,.0f} ms of recomputed states, "
        f"{_time(mslb.work_ns)} of work in {mslb.waves} wave(s), {mslb.seconds:,.1f} s, "
        f"with {_time(mslb.unrelieved_ns)} of load left at the senders meanwhile. "
        f"PTLB (eqs 4-7): window {snapshot.window_s:g} s + lateness "
        f"{snapshot.lateness_s:g} s at {snapshot.event_time_rate:.2f} event seconds per second, "
        f"{_parallel(ptlb)}"
    )


def _product(rate: float, seconds: float) -> float:
    """Nothing for ever is nothing."""
    return rate * seconds if rate > 0 else 0.0


def _parallel(ptlb: Cost) -> str:
    if not math.isfinite(ptlb.seconds):
        return "so the old rows would never expire and the move would not end."
    return (
        f"{ptlb.rows_duplicated:,.0f} rows processed twice, {_time(ptlb.work_ns)} of work, {ptlb.seconds:,.1f} s, "
        f"with {_time(ptlb.unrelieved_ns)} of load left at the senders meanwhile."
    )


def _time(ns: float) -> str:
    return f"{ns / 1e6:,.0f} ms CPU"
