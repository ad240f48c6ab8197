"""Draws the benchmark's outcome."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot


class DrawnOutcome(Protocol):
    """One workload, as it is drawn."""

    name: str
    trimtab_ms: float
    native_ms: dict[str, float]

    def ratio(self, provider: str) -> float: ...


COLOURS = {"rocksdb": "#777777", "memory": "#bbbbbb", "trimtab": "#1f77b4"}


def draw(outcomes: Sequence[DrawnOutcome], path: Path) -> None:
    """Milliseconds a batch on a logarithmic axis: Spark's own join on each state store beside Trimtab."""
    providers = list(outcomes[0].native_ms) if outcomes else []
    engines = [*providers, "trimtab"]
    width = 0.8 / len(engines)
    figure, axes = pyplot.subplots(figsize=(max(6, 1.8 * len(outcomes)), 4.5))
    for number, engine in enumerate(engines):
        places = [place + (number - (len(engines) - 1) / 2) * width for place in range(len(outcomes))]
        heights = [each.trimtab_ms if engine == "trimtab" else each.native_ms[engine] for each in outcomes]
        label = "Trimtab" if engine == "trimtab" else f"Spark's own join ({engine})"
        axes.bar(places, heights, width, label=label, color=COLOURS.get(engine))
        if engine != "trimtab":
            for place, height, each in zip(places, heights, outcomes, strict=True):
                axes.annotate(f"{each.ratio(engine):.1f}x", (place, height), ha="center", va="bottom", fontsize=8)
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds a batch (log)")
    axes.set_xticks(list(range(len(outcomes))), [each.name.replace(" ", "\n", 1) for each in outcomes])
    axes.legend(fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
