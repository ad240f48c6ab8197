"""Which plan to run: the cheapest within both limits (JTree definition 2), or which limit stands in the way.

Answers are JTree's four (its section 5.1): a qualified mjoin, bjtree or jtree, or none. Of several qualified plans the
one with the least CPU is taken, the smaller one where two cost the same (its section 3.3 leaves the choice open).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from plans import exact, two_layer
from plans.costs import CostModel, PlanCost, canonical
from plans.tree import Join, mjoin
from trimtab.errors import InvalidInput

Method = Literal["exact", "two-layer"]
METHODS: Final[tuple[Method, ...]] = ("exact", "two-layer")
NEAREST: Final = 3
"""So many plans that miss a limit are named."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Inclusive; infinite where there is none."""

    cpu: float = math.inf
    """CPU seconds per second."""
    memory_bytes: float = math.inf

    def __post_init__(self) -> None:
        for field, value, example in (("cpu", self.cpu, "1.0"), ("memory", self.memory_bytes, "300MB")):
            if not value > 0:
                raise InvalidInput(
                    field, value, "is not positive", f"Give what there is, such as {example}, or leave it out."
                )


@dataclass(frozen=True, kw_only=True)
class Miss:
    """A limit, what is needed at least, and how much is missing."""

    limit: Literal["cpu", "memory"]
    allowed: float
    needed: float

    @property
    def excess(self) -> float:
        return self.needed - self.allowed

    def __str__(self) -> str:
        shown = cpu_text if self.limit == "cpu" else bytes_text
        name = "CPU" if self.limit == "cpu" else "memory"
        share = f"{self.excess / self.allowed:.0%}" if self.excess < 100 * self.allowed else "more than 100 times"
        return f"needs {shown(self.needed)} of {name}, {shown(self.excess)} ({share}) over the limit"

    def to_json(self) -> dict[str, Any]:
        return {"limit": self.limit, "allowed": self.allowed, "needed": self.needed, "excess": self.excess}


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A plan that was not taken, and why."""

    cost: PlanCost
    misses: tuple[Miss, ...]
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": str(self.cost.plan),
            "kind": self.cost.kind,
            "cpu": self.cost.cpu,
            "memory_bytes": self.cost.memory_bytes,
            "misses": [each.to_json() for each in self.misses],
            "reason": self.reason,
        }


@dataclass(frozen=True, kw_only=True)
class Answer:
    limits: Limits
    method: Method
    chosen: PlanCost | None
    rejected: tuple[Rejected, ...]
    misses: tuple[Miss, ...] = ()
    """Where there is no qualified plan: which limit is missed, and by how much."""
    explanation: str = ""

    @property
    def kind(self) -> str:
        """Mjoin, bjtree, jtree or none."""
        return "none" if self.chosen is None else self.chosen.kind

    def to_json(self) -> dict[str, Any]:
        limits = {"cpu": self.limits.cpu, "memory_bytes": self.limits.memory_bytes}
        return {
            "answer": self.kind,
            "explanation": self.explanation,
            "method": self.method,
            # JSON has no infinity; null is no limit.
            "limits": {name: value if math.isfinite(value) else None for name, value in limits.items()},
            "chosen": None if self.chosen is None else self.chosen.to_json(),
            "misses": [each.to_json() for each in self.misses],
            "rejected": [each.to_json() for each in self.rejected],
        }


def optimise(model: CostModel, limits: Limits | None = None, method: Method | None = None) -> Answer:
    """The cheapest qualified plan; exact up to 8 streams unless the paper's two layers are asked for."""
    limits = limits or Limits()
    streams = model.statistics.streams
    method = method or ("exact" if len(streams) <= exact.STREAMS_MAX else "two-layer")
    if method == "exact" and len(streams) > exact.STREAMS_MAX:
        raise InvalidInput(
            "method",
            method,
            f"takes up to {exact.STREAMS_MAX} streams, and there are {len(streams)}",
            "Use two-layer, or leave the method out.",
        )
    plans = _exact_plans(model) if method == "exact" else _two_layer_plans(model, limits)
    costs = [model.cost(plan) for plan in plans]
    qualified = [each for each in costs if not misses_of(each, limits)]
    chosen = min(qualified, key=lambda each: (each.cpu, each.memory_bytes), default=None)
    if chosen is not None:
        missed: tuple[Miss, ...] = ()
        explanation = _why(chosen, limits, method)
    else:
        missed, explanation = _why_none(costs, limits, method)
    return Answer(
        limits=limits,
        method=method,
        chosen=chosen,
        rejected=_rejected(model, costs, chosen, limits),
        misses=missed,
        explanation=explanation,
    )


def misses_of(cost: PlanCost, limits: Limits) -> tuple[Miss, ...]:
    found = []
    if cost.cpu > limits.cpu:
        found.append(Miss(limit="cpu", allowed=limits.cpu, needed=cost.cpu))
    if cost.memory_bytes > limits.memory_bytes:
        found.append(Miss(limit="memory", allowed=limits.memory_bytes, needed=cost.memory_bytes))
    return tuple(found)


def _exact_plans(model: CostModel) -> list[Join]:
    front = [point.plan for point in exact.pareto_front(model)]
    # Named whatever they cost, so that people see why not.
    return list(dict.fromkeys([*front, mjoin(model.statistics.streams), exact.best_bjtree(model)]))


def _two_layer_plans(model: CostModel, limits: Limits) -> list[Join]:
    found = two_layer.candidates(model, limits.memory_bytes)
    return list(dict.fromkeys(canonical(each.plan, model.statistics.streams) for each in found))


def _why_none(costs: Sequence[PlanCost], limits: Limits, method: Method) -> tuple[tuple[Miss, ...], str]:
    """Which limit no plan can keep; where each can be kept alone, what keeping one costs of the other."""
    known = "No plan qualifies" if method == "exact" else "The two layers found no plan that qualifies"
    cheapest = min(costs, key=lambda each: each.cpu)
    smallest = min(costs, key=lambda each: each.memory_bytes)
    small = [miss for miss in misses_of(smallest, limits) if miss.limit == "memory"]
    # The two layers stop at the mjoin where even that is too large: then nothing is known about the cheapest.
    cheap = [miss for miss in misses_of(cheapest, limits) if miss.limit == "cpu" and (method == "exact" or not small)]
    if cheap or small:
        even = [f"even the cheapest, {cheapest.plan}, {miss}" for miss in cheap]
        even += [f"even the smallest, {smallest.plan}, {miss}" for miss in small]
        return (*cheap, *small), f"{known}: {'; '.join(even)}."
    within_memory = min((each for each in costs if each.memory_bytes <= limits.memory_bytes), key=lambda each: each.cpu)
    within_cpu = min((each for each in costs if each.cpu <= limits.cpu), key=lambda each: each.memory_bytes)
    (cpu,), (memory,) = misses_of(within_memory, limits), misses_of(within_cpu, limits)
    return (cpu, memory), (
        f"{known}. Within the memory limit the cheapest, {within_memory.plan}, {cpu}; "
        f"within the CPU limit the smallest, {within_cpu.plan}, {memory}."
    )


def _rejected(
    model: CostModel, costs: Sequence[PlanCost], chosen: PlanCost | None, limits: Limits
) -> tuple[Rejected, ...]:
    """The mjoin, the best bjtree, and the plans that come nearest: first those that would be cheaper but do not fit."""
    streams = len(model.statistics.streams)
    known = {"mjoin": 1, "bjtree": 1}
    named: list[PlanCost] = []
    for each in sorted((each for each in costs if each is not chosen), key=lambda each: each.cpu):
        if known.get(each.kind, 0) and (streams > 2 or each.kind == "mjoin"):
            known[each.kind] -= 1
            named.append(each)
    others = [each for each in costs if each is not chosen and each not in named]
    others.sort(key=lambda each: (_distance(each, limits), each.cpu))
    listed = named + others[:NEAREST]
    return tuple(
        Rejected(cost=each, misses=misses_of(each, limits), reason=_reason(each, chosen, limits))
        for each in sorted(listed, key=lambda each: each.cpu)
    )


def _distance(cost: PlanCost, limits: Limits) -> float:
    return max((miss.excess / miss.allowed for miss in misses_of(cost, limits)), default=0.0)


def _reason(cost: PlanCost, chosen: PlanCost | None, limits: Limits) -> str:
    missed = misses_of(cost, limits)
    if missed:
        return "; ".join(map(str, missed))
    assert chosen is not None
    if chosen.cpu <= 0 or cost.cpu <= chosen.cpu:
        return "costs the same CPU"
    extra = cost.cpu / chosen.cpu - 1
    smaller = chosen.memory_bytes - cost.memory_bytes
    saved = f", though it saves {bytes_text(smaller)}" if smaller >= 1 else ""
    if extra < 100:
        return f"costs {extra:.0%} more CPU{saved}" if extra >= 0.1 else f"costs {extra:.2%} more CPU{saved}"
    return f"costs {extra + 1:,.0f} times the CPU{saved}"


def _why(chosen: PlanCost, limits: Limits, method: Method) -> str:
    searched = "of all plans" if method == "exact" else "of the plans that the two layers made"
    within = " that stay within the limits" if limits != Limits() else ""
    return f"{chosen.plan} has the least CPU {searched}{within}."


def cpu_text(cpu: float) -> str:
    if cpu >= 1e4:
        return f"{cpu:.2g} cores"
    return f"{cpu:,.2f} cores" if cpu >= 0.1 else f"{cpu * 1000:,.3g} ms/s"


def bytes_text(size: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.3g} {unit}" if size < 1e15 else f"{size / 1e12:.2g} TB"
    return f"{size:,.0f} B"
