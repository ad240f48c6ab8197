"""When to act: the ratio of the largest load to the mean, with hysteresis, cool-down and a minimum gain.

Two looks. `decide` is cheap and looks at the loads: is a proposal worth making? `accept` looks at the proposal: is it
worth executing? What they remember from one look to the next is a `TriggerState`, which the caller keeps (and may lose:
the worst that follows is one rebalance too early).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from balancing.forecast import load_ratio
from balancing.load import Snapshot
from balancing.policies.policy import executors_taking_part, taking_part
from balancing.proposal import Proposal
from balancing.settings import Settings

Code = Literal[
    "act",
    "off",
    "moving",
    "cooling-down",
    "too-few-batches",
    "idle",
    "level",
    "nowhere",
    "no-moves",
    "too-little-gain",
    "plans-first",
]
ADVICE: Final = {
    "off": "Switch it on, or rebalance by hand.",
    "nowhere": "Include a worker on another executor, or wait until one is up.",
}


@dataclass(frozen=True, kw_only=True)
class TriggerState:
    """What has to be remembered between looks."""

    balancing: bool = False
    """The start ratio was reached, and the stop ratio not yet."""
    rest_until_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_trigger_state(body: dict[str, Any]) -> TriggerState:
    return TriggerState(balancing=bool(body["balancing"]), rest_until_ms=int(body["rest_until_ms"]))


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether to act, why, and what to remember."""

    act: bool
    code: Code
    why: str
    ratio: float
    """Largest executor load over the mean, or the largest straggling worker's inside an executor."""
    level: Literal["executor", "worker"]
    state: TriggerState

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def decide(snapshot: Snapshot, settings: Settings, state: TriggerState, now_ms: int) -> Decision:
    """Whether to make a proposal now. Checks in order of what a person would want to be told first."""
    level, ratio = largest_ratio(snapshot, settings)
    limit = settings.stop_ratio if state.balancing else settings.start_ratio
    loads = executors_taking_part(snapshot, settings.measure)
    busiest = max(loads.values(), default=0.0)

    def no(code: Code, why: str, after: TriggerState = state) -> Decision:
        return Decision(act=False, code=code, why=why, ratio=ratio, level=level, state=after)

    if not settings.auto:
        return no("off", f"Automatic balancing is off. {ADVICE['off']}")
    if snapshot.moving:
        return no("moving", f"{len(snapshot.moving)} groups are moving; their end is awaited first.")
    if now_ms < state.rest_until_ms:
        return no("cooling-down", f"It rests for another {(state.rest_until_ms - now_ms) / 1000:.1f} s.")
    if snapshot.batches < settings.min_batches:
        return no(
            "too-few-batches",
            f"{snapshot.batches} batches with rows were measured since the mapping changed, "
            f"{settings.min_batches} are needed.",
        )
    if sum(map(len, taking_part(snapshot).values())) < 2:
        return no("nowhere", f"Fewer than two workers take part. {ADVICE['nowhere']}")
    if settings.measure == "cpu" and busiest < settings.min_busy * 1e9:
        return no(
            "idle",
            f"The busiest executor uses {busiest / 1e9:.1%} of a core, less than {settings.min_busy:.1%}: "
            "nothing waits for it.",
            replace(state, balancing=False),
        )
    if ratio < limit:
        why = f"The largest {level} load is {ratio:.2f} times the mean, below {limit:.2f}."
        return no("level", why, replace(state, balancing=False))
    why = f"The largest {level} load is {ratio:.2f} times the mean, not below {limit:.2f}."
    return Decision(act=True, code="act", why=why, ratio=ratio, level=level, state=replace(state, balancing=True))


def accept(decision: Decision, proposal: Proposal, settings: Settings, now_ms: int) -> Decision:
    """Whether the proposal that followed from `decision` is worth executing. Where not, rest: nothing has changed."""
    if not decision.act:
        return decision
    gain = proposal.forecast.gain
    if proposal.moves and gain >= settings.min_gain:
        why = f"{decision.why} {proposal.forecast.groups} groups to move lower it by {gain:.0%}."
        return replace(decision, why=why)
    code: Code = "too-little-gain" if proposal.moves else "no-moves"
    found = " ".join(finding.text for finding in proposal.findings)
    said = (
        f"the best that was found lowers it by {gain:.1%}, less than {settings.min_gain:.1%}."
        if proposal.moves
        else "no move would lower it."
    )
    why = f"{decision.why} But {said} {found}".strip()
    return replace(decision, act=False, code=code, why=why, state=resting(settings, now_ms))


def resting(settings: Settings, now_ms: int, *, balancing: bool = False) -> TriggerState:
    """To be remembered when a rebalance has ended, with `balancing` so that it goes on to the stop ratio."""
    return TriggerState(balancing=balancing, rest_until_ms=now_ms + round(settings.cool_down_s * 1000))


def largest_ratio(snapshot: Snapshot, settings: Settings) -> tuple[Literal["executor", "worker"], float]:
    """Executors first. Where they are level, the worker that most outlasts its executor's other slots, if it does."""
    executors = load_ratio(executors_taking_part(snapshot, settings.measure))
    if executors >= settings.start_ratio:
        return "executor", executors
    workers = _straggler_ratio(snapshot, settings)
    return ("worker", workers) if workers > executors else ("executor", executors)


def _straggler_ratio(snapshot: Snapshot, settings: Settings) -> float:
    """Largest worker over its executor's load per slot; matters only where an executor runs workers side by side."""
    loads = snapshot.worker_loads(settings.measure)
    ratio = 1.0
    for executor, members in taking_part(snapshot).items():
        slots = min(snapshot.slots.get(executor, 1), len(members))
        total = float(loads[members].sum())
        if slots > 1 and total > 0:
            ratio = max(ratio, float(loads[members].max()) * slots / total)
    return ratio
