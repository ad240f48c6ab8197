"""Reads a join graph for `trimtab plan`: streams with rates, edges with selectivities, a window (JTree section 2.1).

window: 15 seconds
lateness: 2 seconds                                  # none, if left out
streams:
  A: 20                                              # rows per second
  B: {rate: 20, row_bytes: 250}
  C: 50
edges:                                               # share of all pairs that join
  - [A, B, 0.02]
  - [B, C, 0.5]
conditions:                                          # evaluated on what the edges find
  - {streams: [A, C], selectivity: 0.3}
plan: ((A B) C)                                      # what runs now: says what a change would cost
batches_per_second: 0.5
costs_ns: {pair: 55}                                 # prices of work, where they were measured
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from commands.runner.yaml_text import fill_in, read_yaml
from plans.costs import CostModel
from plans.statistics import Condition, Statistics, from_graph
from plans.tree import Join, parse_plan
from plans.work import ACTIVITIES, DEFAULT_CONSTANTS, Constants
from trimtab.durations import parse_us
from trimtab.errors import InvalidInput

FIELDS: Final = ("window", "lateness", "streams", "edges", "conditions", "plan", "batches_per_second", "costs_ns")
ROW_BYTES: Final = 100.0
"""Payload of a row where the file does not say."""
STREAMS_MAX: Final = 32


@dataclass(frozen=True)
class GraphFile:
    model: CostModel
    plan: Join | None
    """What runs now, if the file says so."""


def read_graph(path: Path) -> GraphFile:
    content = fill_in(read_yaml(path), os.environ)
    _known(content, FIELDS, "")
    for field in ("window", "streams", "edges"):
        if field not in content:
            raise InvalidInput(field, None, "is missing", f"Add `{field}:`; see examples/graph.yaml.")
    rates, row_bytes = _streams(content["streams"])
    edges = _edges(content["edges"], tuple(rates))
    refuse_disconnected(tuple(rates), edges)
    window_s = _duration_s(content["window"], "window")
    if window_s <= 0:
        raise InvalidInput("window", content["window"], "is not positive", 'Write a duration such as "10 seconds".')
    lateness_s = _duration_s(content.get("lateness", "0 seconds"), "lateness")
    if lateness_s < 0:
        raise InvalidInput("lateness", content["lateness"], "is negative", 'Write "0 seconds" for none.')
    statistics = from_graph(
        rates,
        edges,
        window_s=window_s,
        lateness_s=lateness_s,
        conditions=_conditions(content.get("conditions", []), tuple(rates)),
        row_bytes=row_bytes,
    )
    batches = _number(
        content.get("batches_per_second", 1.0), "batches_per_second", "Write how many there are, such as 0.5."
    )
    model = CostModel(statistics, _constants(content.get("costs_ns", {})), batches_per_s=batches)
    return GraphFile(model, _plan(content.get("plan"), statistics))


def refuse_disconnected(streams: Sequence[str], edges: dict[tuple[str, str], float]) -> None:
    """All streams share the key, so without an edge everything inside a key meets everything: a cross product."""
    reached = {streams[0]}
    while True:
        more = {stream for pair in edges for stream in pair if reached & set(pair)} - reached
        if not more:
            break
        reached |= more
    apart = [stream for stream in streams if stream not in reached]
    if apart:
        raise InvalidInput(
            "edges",
            [list(pair) for pair in edges],
            f"do not connect {', '.join(apart)} with {', '.join(sorted(reached))}: "
            "their join is a cross product inside the key",
            f"Add an edge such as [{streams[0]}, {apart[0]}, 0.1], or plan the parts as queries of their own.",
        )


def _streams(value: Any) -> tuple[dict[str, float], dict[str, float]]:
    remedy = "Write `A: 20` for 20 rows per second, or `A: {rate: 20, row_bytes: 250}`."
    if not isinstance(value, dict):
        raise InvalidInput("streams", value, "is not a mapping of streams", remedy)
    if not 2 <= len(value) <= STREAMS_MAX:
        raise InvalidInput("streams", list(value), f"are {len(value)}", f"A join has 2 to {STREAMS_MAX} streams.")
    rates, row_bytes = {}, {}
    for name, each in value.items():
        field = f"streams.{name}"
        if not isinstance(name, str) or not name or any(char.isspace() or char in "()" for char in name):
            raise InvalidInput(field, name, "is not a stream's name", "Use a text without spaces and parentheses.")
        body = each if isinstance(each, dict) else {"rate": each}
        _known(body, ("rate", "row_bytes"), f"{field}.")
        rates[name] = _number(body.get("rate"), f"{field}.rate", remedy)
        row_bytes[name] = _number(body.get("row_bytes", ROW_BYTES), f"{field}.row_bytes", remedy)
    return rates, row_bytes


def _edges(value: Any, streams: Sequence[str]) -> dict[tuple[str, str], float]:
    remedy = "Write each edge as [A, B, 0.02]: two streams and the share of their pairs that join."
    if not isinstance(value, list):
        raise InvalidInput("edges", value, "is not a list", remedy)
    edges: dict[tuple[str, str], float] = {}
    for number, each in enumerate(value):
        field = f"edges[{number}]"
        if not isinstance(each, list) or len(each) != 3:
            raise InvalidInput(field, each, "is not an edge", remedy)
        one, two = (_stream(name, streams, field, each) for name in each[:2])
        if one == two:
            raise InvalidInput(field, each, f"joins {one} with itself", remedy)
        if (one, two) in edges or (two, one) in edges:
            raise InvalidInput(field, each, f"joins {one} and {two} a second time", "Multiply their selectivities.")
        edges[one, two] = _share(each[2], field, each)
    return edges


def _conditions(value: Any, streams: Sequence[str]) -> list[Condition]:
    remedy = "Write each condition as {streams: [A, C], selectivity: 0.3}."
    if not isinstance(value, list):
        raise InvalidInput("conditions", value, "is not a list", remedy)
    conditions = []
    for number, each in enumerate(value):
        field = f"conditions[{number}]"
        names = each.get("streams") if isinstance(each, dict) else None
        if not isinstance(each, dict) or not isinstance(names, list):
            raise InvalidInput(field, each, "is not a condition", remedy)
        _known(each, ("streams", "selectivity"), f"{field}.")
        wanted = frozenset(_stream(name, streams, f"{field}.streams", names) for name in names)
        if len(wanted) < 2:
            raise InvalidInput(
                f"{field}.streams",
                names,
                "are fewer than two streams",
                "A condition on one stream is a filter: put it into that stream's rate.",
            )
        conditions.append(Condition(wanted, _share(each.get("selectivity"), f"{field}.selectivity", each)))
    return conditions


def _constants(value: Any) -> Constants:
    remedy = f"Write nanoseconds for some of {', '.join(ACTIVITIES)}, such as {{pair: 55}}."
    if not isinstance(value, dict):
        raise InvalidInput("costs_ns", value, "is not a mapping", remedy)
    _known(value, ACTIVITIES, "costs_ns.")
    prices = {}
    for name, each in value.items():
        if isinstance(each, bool) or not isinstance(each, int | float) or not 0 <= each < math.inf:
            raise InvalidInput(f"costs_ns.{name}", each, "is not a number of nanoseconds", remedy)
        prices[f"{name}_s"] = each / 1e9
    return dataclasses.replace(DEFAULT_CONSTANTS, **prices)


def _plan(value: Any, statistics: Statistics) -> Join | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidInput("plan", value, "is not a text", 'Write it in quotes, such as "((A B) C)".')
    return parse_plan(value, statistics.streams)


def _known(body: dict[Any, Any], fields: Sequence[str], prefix: str) -> None:
    for name in body:
        if name not in fields:
            raise InvalidInput(f"{prefix}{name}", body[name], "is not known", f"Use {', '.join(fields)}.")


def _stream(name: Any, streams: Sequence[str], field: str, value: Any) -> str:
    if name not in streams:
        raise InvalidInput(
            field, value, f"names {name!r}, which is not a stream of this file", f"There are {', '.join(streams)}."
        )
    return str(name)


def _number(value: Any, field: str, remedy: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidInput(field, value, "is not a positive number", remedy)
    return float(value)


def _share(value: Any, field: str, shown: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise InvalidInput(
            field,
            shown,
            f"has the selectivity {value!r}",
            "A selectivity is the share of all pairs that join: above 0, at most 1.",
        )
    return float(value)


def _duration_s(value: Any, field: str) -> float:
    if not isinstance(value, str):
        raise InvalidInput(field, value, "is not a duration", 'Write it with its unit, such as "10 seconds".')
    return parse_us(value, field) / 1e6
