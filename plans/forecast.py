"""How long a change of plans takes and what it costs, before it is begun.

    moving state     MS/PT eqs 1-3: matched states stay, the others are recomputed from the bottom up. Eq 1 compares all
                     pairs; our join hashes, so a state costs a probe per tuple, a look at each candidate of the same
                     key and an append per combination. Matching and moving (eq 3) are look-ups and cost nothing here.
    parallel track   MS/PT eqs 4-7: both plans run until the last old row is purged. Theirs purges a combination by its
                     newest row, hence 2W above one join; ours by its oldest: W plus the lateness, whatever the height
                     (HybMig section 3.5 says the same of its own rule).
    HybMig           sections 3.4 and 3.5: the same time at most; background state computation ends it earlier where
                     there is CPU to spare, with section 4.4's d = work / (1 - load of both plans).

Equation 6 as printed multiplies the integral of a growing state by W once more and takes λ_a for λ_c; equation 7
integrates a rate that is already λ t. Derived anew: a state of m streams that starts empty has (t/W)^m of its tuples
after t < W, so all work on combinations of m streams grows with (t/W)^(m-1) and comes to W/m of its full rate over the
first W (`growing_cpu_s`; for two streams the T_j λ_b λ_c W² that eq 6 means).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from plans.costs import CostModel
from plans.statistics import Floats, popcount
from plans.tree import Join, inner_states
from plans.work import ACTIVITIES, APPEND, CANDIDATE, CONDITION, EXPIRE, PAIR, PROBE, STEP

MigrationStrategy = Literal["ms", "pt", "hybmig"]
IDLE_RATE: Final = 1e-3
"""Event seconds per second: below, a stream is idle and no old row will ever be purged."""


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """A state that the new plan has and the old one does not."""

    streams: tuple[str, ...]
    rows: float
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class MigrationForecast:
    strategy: MigrationStrategy
    seconds: float
    """Until the new plan runs alone; infinite where it would not end."""
    work_s: float
    """CPU seconds on top of what the old plan needs anyway."""
    pause_s: float
    """Results come so much later at worst."""
    backlog_s: float
    """After a pause: until what came in the meantime has been worked off."""
    memory_bytes: float
    """Of all states that exist side by side."""
    payback_s: float
    """Until the new plan has saved what the change cost; infinite where it saves nothing."""
    recomputed: tuple[Recomputed, ...] = ()

    def to_json(self) -> dict[str, Any]:
        numbers = ("seconds", "work_s", "pause_s", "backlog_s", "memory_bytes", "payback_s")
        values = {name: getattr(self, name) for name in numbers}
        return {
            "strategy": self.strategy,
            # JSON has no infinity; null says that it would not end.
            **{name: value if math.isfinite(value) else None for name, value in values.items()},
            "recomputed": [
                {"streams": list(each.streams), "rows": each.rows, "cpu_s": each.cpu_s} for each in self.recomputed
            ],
        }


def states_to_recompute(model: CostModel, old: Join, new: Join) -> tuple[Recomputed, ...]:
    """MS/PT algorithms 1 and 2: states are matched by their set of streams; the rest bottom-up."""
    matched = {frozenset(node.streams) for node in inner_states(old)}
    found = []
    for node in inner_states(new):
        if frozenset(node.streams) not in matched:
            inputs = [model.statistics.mask(each.streams) for each in node.inputs]
            work = recomputing_work(model, inputs)
            found.append(
                Recomputed(
                    streams=node.streams,
                    rows=model.statistics.size_of(node.streams),
                    cpu_s=float(model.constants.seconds(work)),
                )
            )
    return tuple(found)


def recomputing_work(model: CostModel, inputs: Sequence[int]) -> Floats:
    """MS/PT eq 1 for a hash join: live tuples of the first input probe the states of the others in turn."""
    statistics = model.statistics
    work = np.zeros(len(ACTIVITIES))
    prefix = np.array([inputs[0]])
    for mask in inputs[1:]:
        other = np.array([mask])
        union = prefix | other
        both = statistics.density(union) * statistics.selectivity(prefix) * statistics.selectivity(other)
        pairs = both * statistics.live_s(popcount(union))
        work[PROBE] += statistics.size(prefix)[0]
        work[CANDIDATE] += (both * statistics.live_s(popcount(prefix)) * statistics.live_s(popcount(other)))[0]
        work[PAIR] += pairs[0]
        work[CONDITION] += (pairs * model.evaluations(prefix, other))[0]
        work[STEP] += 1
        prefix = union
    work[APPEND] = statistics.size(prefix)[0]
    return work


def purge_s(model: CostModel, event_rate: float = 1.0) -> float:
    """MS/PT eq 4 with our purge rule: until no row that is old now is left. `event_rate` is event time per time."""
    statistics = model.statistics
    return math.inf if event_rate < IDLE_RATE else (statistics.window_s + statistics.lateness_s) / event_rate


def growing_cpu_s(model: CostModel, plan: Join, seconds: float) -> float:
    """MS/PT eqs 6 and 7 for any tree: CPU seconds of a plan that starts with empty states, over its first `seconds`.

    Nothing is purged in the first window. With lateness, candidates are a little overrated in the first window.
    """
    window_s = model.statistics.window_s
    walk = model.walk(plan)
    steps = model.steps_work(walk.steps)
    full = np.empty_like(steps)
    joined = popcount(walk.steps.prefix | walk.steps.other)
    full[:] = _grown_s(joined, window_s, seconds)[:, None]
    full[:, PROBE] = _grown_s(popcount(walk.steps.prefix), window_s, seconds)
    full[:, STEP] = seconds
    appends = model.append_work(walk.kept)
    times = np.repeat(_grown_s(popcount(walk.kept), window_s, seconds)[:, None], len(ACTIVITIES), axis=1)
    times[:, EXPIRE] = max(0.0, seconds - window_s - model.statistics.lateness_s)
    work = (steps * full).sum(axis=0) + (appends * times).sum(axis=0)
    return float(model.constants.seconds(work))


def _grown_s(members: Any, window_s: float, seconds: float) -> Floats:
    """The integral of min(t/W, 1)^(m-1): seconds at the full rate that come to the same."""
    first = min(seconds, window_s)
    grown: Floats = first * (first / window_s) ** (members - 1.0) / members + (seconds - first)
    return grown


def backlog_s(pause_s: float, cpu: float, available: float = 1.0) -> float:
    """HybMig section 4.4, SpikeLen: how long a backlog of `pause_s` takes a plan that needs `cpu` of what there is."""
    return pause_s * cpu / (available - cpu) if cpu < available else math.inf if pause_s > 0 else 0.0


def background_s(work_s: float, cpu_old: float, cpu_new: float, available: float = 1.0) -> float:
    """HybMig section 4.4, d1 + d2 of GHM: work done beside both plans.

    As printed d2 lacks a factor T_new and the sum is garbled. From its own two equations d1 = work / (1 - cpu_old) and
    d2 = d1 cpu_new / (1 - cpu_new - cpu_old), so d1 + d2 = work / (1 - cpu_old - cpu_new).
    """
    spare = available - cpu_old - cpu_new
    return work_s / spare if spare > 0 else math.inf if work_s > 0 else 0.0


def forecast_migration(
    model: CostModel,
    old: Join,
    new: Join,
    *,
    available_cpu: float = 1.0,
    budget: float | None = None,
    event_rate: float = 1.0,
) -> dict[MigrationStrategy, MigrationForecast]:
    """All three, for one worker. `budget` is the share of a core that moving state may take; None: all at once."""
    before, after = model.cost(old), model.cost(new)
    states = states_to_recompute(model, old, new)
    work_s = sum(each.cpu_s for each in states)
    sizes = {frozenset(each.streams): each.bytes for each in (*before.states, *after.states)}
    purged_s = purge_s(model, event_rate)
    ms_seconds = work_s if budget is None else work_s / budget
    pause_s = work_s if budget is None else 0.0
    # Matched states are shared, so they are kept only once (HybMig section 3.2).
    common = {frozenset(each.streams) for each in before.states} & {frozenset(each.streams) for each in after.states}
    shared = np.array([model.statistics.mask(each) for each in common], np.int64)
    cpu_beside = max(0.0, after.cpu - float(model.append_cpu(shared).sum()))
    background = background_s(work_s, before.cpu, cpu_beside, available_cpu)
    hybrid_s = min(purged_s, background)
    done = work_s if background <= purged_s else 0.0
    saved = before.cpu - after.cpu

    def forecast(
        strategy: MigrationStrategy, seconds: float, work: float, pause: float = 0.0, again: bool = True
    ) -> MigrationForecast:
        return MigrationForecast(
            strategy=strategy,
            seconds=seconds if states else 0.0,
            work_s=work if states else 0.0,
            pause_s=pause,
            backlog_s=backlog_s(pause, after.cpu, available_cpu),
            memory_bytes=sum(sizes.values()),
            payback_s=0.0 if not states else work / saved if saved > 0 else math.inf,
            recomputed=states if again else (),
        )

    doubled = growing_cpu_s(model, new, purged_s) if math.isfinite(purged_s) else math.inf
    return {
        "ms": forecast("ms", ms_seconds, work_s, pause_s),
        "pt": forecast("pt", purged_s, doubled, again=False),
        "hybmig": forecast("hybmig", hybrid_s, done + (cpu_beside * hybrid_s if math.isfinite(hybrid_s) else math.inf)),
    }
