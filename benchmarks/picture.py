"""Draws the benchmark's outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot


class DrawnOutcome(Protocol):
    """One workload, as it is drawn."""

    @property
    def name(self) -> str: ...

    @property
    def trimtab_ms(self) -> float: ...

    @property
    def native_ms(self) -> dict[str, float]: ...

    def ratio(self, form: str) -> float: ...


COLOURS = {"memory": "#bbbbbb", "rocksdb": "#777777", "rocksdb-v4": "#999999", "trimtab": "#1f77b4"}
LABELS = {
    "memory": "Spark's own join, in memory",
    "rocksdb": "Spark's own join, RocksDB",
    "rocksdb-v4": "Spark's own join, RocksDB, format 4",
    "trimtab": "Trimtab",
}


def draw(outcomes: Sequence[DrawnOutcome], path: Path) -> None:
    """Milliseconds a batch on a logarithmic axis: every form of Spark's own join beside Trimtab."""
    forms = list(outcomes[0].native_ms) if outcomes else []
    engines = [*forms, "trimtab"]
    width = 0.8 / len(engines)
    figure, axes = pyplot.subplots(figsize=(max(6, 2.2 * len(outcomes)), 4.5))
    for number, engine in enumerate(engines):
        places = [place + (number - (len(engines) - 1) / 2) * width for place in range(len(outcomes))]
        heights = [each.trimtab_ms if engine == "trimtab" else each.native_ms[engine] for each in outcomes]
        axes.bar(places, heights, width, label=LABELS.get(engine, engine), color=COLOURS.get(engine))
        if engine != "trimtab":
            for place, height, each in zip(places, heights, outcomes, strict=True):
                axes.annotate(f"{each.ratio(engine):.1f}x", (place, height), ha="center", va="bottom", fontsize=8)
    axes.set_yscale("log")
    shortest = min((ms for each in outcomes for ms in (each.trimtab_ms, *each.native_ms.values())), default=1.0)
    # From a power of ten: an axis that begins at the shortest bar would hide it.
    axes.set_ylim(bottom=10 ** math.floor(math.log10(shortest / 2)))
    axes.set_ylabel("milliseconds a batch (log)")
    axes.set_xticks(list(range(len(outcomes))), [each.name.replace(" ", "\n", 1) for each in outcomes])
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.02), ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def draw_axes(axes_ms: Mapping[str, Sequence[tuple[str, float, float]]], path: Path) -> None:
    """One small picture for each axis: batch time and CPU of each of its points."""
    columns = min(4, max(len(axes_ms), 1))
    rows = -(-len(axes_ms) // columns) or 1
    figure, places = pyplot.subplots(rows, columns, figsize=(3.2 * columns, 2.8 * rows), squeeze=False)
    for place in places.flat[len(axes_ms) :]:
        place.set_visible(False)
    for place, (name, points) in zip(places.flat, axes_ms.items(), strict=False):
        labels = [label for label, _, _ in points]
        at = list(range(len(points)))
        place.plot(at, [ms for _, ms, _ in points], marker="o", label="batch", color=COLOURS["trimtab"])
        place.plot(at, [cpu for _, _, cpu in points], marker=".", label="CPU", color=COLOURS["rocksdb"])
        place.set_xticks(at, labels, fontsize=7)
        place.set_title(name, fontsize=9)
        place.set_ylim(bottom=0)
        place.tick_params(axis="y", labelsize=7)
        place.spines[["top", "right"]].set_visible(False)
    places.flat[0].set_ylabel("ms a batch", fontsize=8)
    places.flat[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
