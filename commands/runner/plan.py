"""`trimtab plan graph.yaml`: the best plan for a join graph within limits, what it costs, and why not others."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.markup import escape
from rich.table import Table

from commands.runner.graph_file import GraphFile, read_graph
from commands.tables import print_table
from plans.costs import PlanCost, canonical
from plans.drawing import draw
from plans.forecast import MigrationForecast, forecast_migration
from plans.optimiser import Answer, Limits, Method, bytes_text, cpu_text, optimise
from trimtab.errors import InvalidInput

_UNITS: Final[dict[str, int]] = {"b": 1, "": 1} | {
    f"{letter}{unit}": int(base**power)
    for power, letter in enumerate("kmgt", start=1)
    for unit, base in (("b", 1000), ("ib", 1024), ("", 1000))
}
_SIZE = re.compile(r"\s*([+-]?[0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    cpu: str | None
    memory: str | None
    method: Method | None
    as_json: bool


def show_plan(path: Path, options: PlanOptions) -> None:
    limits = parse_limits(options)
    graph = read_graph(path)
    # Sizes that no float holds are refused below, by name.
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            answer = optimise(graph.model, limits, options.method)
        except InvalidInput as error:
            raise error.at(f"--{error.field}") from None
        _refuse_endless(answer, graph)
        changes = _changes(graph, answer)
    if options.as_json:
        print(json.dumps(_body(graph, answer, changes), indent=1))
    else:
        _print(graph, answer, changes)
    if answer.chosen is None:
        raise none_qualifies(answer, options)


def parse_limits(options: PlanOptions) -> Limits:
    try:
        return Limits(
            cpu=math.inf if options.cpu is None else _cpu(options.cpu),
            memory_bytes=math.inf if options.memory is None else parse_bytes(options.memory, "memory"),
        )
    except InvalidInput as error:
        typed = options.cpu if error.field == "cpu" else options.memory
        raise InvalidInput(f"--{error.field}", typed, error.problem, error.remedy) from None


def parse_bytes(text: str, field: str) -> float:
    """300MB, 1.5 GiB, or plain bytes."""
    match = _SIZE.fullmatch(text)
    factor = _UNITS.get(match[2].lower()) if match else None
    try:
        number = float(match[1]) if match else math.nan
    except ValueError:
        number = math.nan
    if factor is None or not math.isfinite(number):
        raise InvalidInput(field, text, "is not a size", "Write a number and a unit, such as 300MB or 1.5GiB.")
    return number * factor


def _cpu(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput("cpu", text, "is not a number of cores", "Write CPU seconds per second, such as 1.0.")
    return number


def none_qualifies(answer: Answer, options: PlanOptions) -> InvalidInput:
    """Which limit to raise, and how far."""
    enough = [
        f"--{miss.limit} {math.ceil(miss.needed * 100) / 100:g}"
        if miss.limit == "cpu"
        else f"--memory {math.ceil(miss.needed / 1e4) / 100:g}MB"
        for miss in answer.misses
    ]
    alone = "Within the memory limit" in answer.explanation
    remedy = (
        f"Give {' or '.join(enough) if alone else ' and '.join(enough)} at least, "
        "or make the window shorter, or spread the load over more workers."
    )
    typed = {"cpu": options.cpu, "memory": options.memory}
    fields = [f"--{miss.limit}" for miss in answer.misses]
    values = [str(typed[miss.limit]) for miss in answer.misses]
    return InvalidInput(", ".join(fields), ", ".join(values), answer.explanation.rstrip("."), remedy)


def _refuse_endless(answer: Answer, graph: GraphFile) -> None:
    costs = [each.cost for each in answer.rejected] + ([answer.chosen] if answer.chosen else [])
    if not all(math.isfinite(each.cpu) and math.isfinite(each.memory_bytes) for each in costs):
        raise InvalidInput(
            "streams",
            list(graph.model.statistics.streams),
            "make states larger than any number",
            "Check the rates, the selectivities and the window: they multiply.",
        )


@dataclass(frozen=True)
class Changes:
    """From the plan that runs now."""

    now: PlanCost
    forecasts: tuple[MigrationForecast, ...]


def _changes(graph: GraphFile, answer: Answer) -> Changes | None:
    if graph.plan is None:
        return None
    now = graph.model.cost(canonical(graph.plan, graph.model.statistics.streams))
    if answer.chosen is None or answer.chosen.plan == now.plan:
        return Changes(now, ())
    return Changes(now, tuple(forecast_migration(graph.model, now.plan, answer.chosen.plan).values()))


def _body(graph: GraphFile, answer: Answer, changes: Changes | None) -> dict[str, Any]:
    body = {"streams": list(graph.model.statistics.streams), **answer.to_json()}
    if changes is not None:
        body["now"] = changes.now.to_json()
        body["change"] = [each.to_json() for each in changes.forecasts]
    return body


def _print(graph: GraphFile, answer: Answer, changes: Changes | None) -> None:
    if answer.chosen is not None:
        print(f"{answer.chosen.plan}  ({answer.kind})\n{answer.explanation}\n")
        print("\n".join(draw(answer.chosen)), end="\n\n")
        print(_against_limit("CPU", cpu_text, answer.chosen.cpu, answer.limits.cpu))
        print(_against_limit("memory", bytes_text, answer.chosen.memory_bytes, answer.limits.memory_bytes))
    if changes is not None:
        _print_changes(answer, changes)
    if answer.rejected:
        print(f"\nNot taken (of {'all trees' if answer.method == 'exact' else 'the two layers'}):")
        print_table(_rejected_table(answer))


def _against_limit(name: str, shown: Any, needed: float, limit: float) -> str:
    of = f" of {shown(limit)} ({needed / limit:.0%})" if math.isfinite(limit) else ", no limit given"
    return f"{name:<7} {shown(needed)}{of}"


def _print_changes(answer: Answer, changes: Changes) -> None:
    now = changes.now
    needs = f"{cpu_text(now.cpu)} and {bytes_text(now.memory_bytes)}"
    if answer.chosen is None:
        print(f"Now runs {now.plan}: {needs}.")
    elif not changes.forecasts:
        print(f"\n{now.plan} runs already.")
    else:
        saved = 1 - answer.chosen.cpu / now.cpu if now.cpu > 0 else 0.0
        print(f"\nNow runs {now.plan}: {needs}. The change saves {saved:.1%} CPU:")
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("strategy", "takes", "CPU spent", "pause", "memory meanwhile", "pays back in"):
            table.add_column(name, justify="left" if name == "strategy" else "right")
        for each in changes.forecasts:
            table.add_row(
                each.strategy,
                _seconds(each.seconds),
                _seconds(each.work_s),
                _seconds(each.pause_s),
                bytes_text(each.memory_bytes),
                _seconds(each.payback_s),
            )
        print_table(table)


def _rejected_table(answer: Answer) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("plan", "kind", "CPU", "memory", "why"):
        table.add_column(name, justify="right" if name in ("CPU", "memory") else "left")
    for each in answer.rejected:
        cost = each.cost
        # Text from users is text: a stream may be called [red].
        table.add_row(escape(str(cost.plan)), cost.kind, cpu_text(cost.cpu), bytes_text(cost.memory_bytes), each.reason)
    return table


def _seconds(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "never"
    return f"{seconds:,.1f} s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:,.3g} ms"
