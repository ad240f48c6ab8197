"""Draws the benchmark's outcome: what people would rather look at than read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot


class Bars(Protocol):
    """What a bar pair needs to know."""

    name: str
    trimtab_ms: float
    native_ms: float
    ratio: float


def draw(outcomes: Sequence[Bars], path: Path) -> None:
    """Milliseconds a batch on a logarithmic axis, Spark's own join beside Trimtab, the ratio above."""
    figure, axes = pyplot.subplots(figsize=(max(6, 1.6 * len(outcomes)), 4.5))
    places = range(len(outcomes))
    axes.bar(
        [p - 0.2 for p in places], [each.native_ms for each in outcomes], 0.4, label="Spark's own join", color="#999"
    )
    axes.bar([p + 0.2 for p in places], [each.trimtab_ms for each in outcomes], 0.4, label="Trimtab", color="#1f77b4")
    for place, each in zip(places, outcomes, strict=True):
        axes.annotate(f"{each.ratio:.1f}x", (place, max(each.native_ms, each.trimtab_ms)), ha="center", va="bottom")
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds a batch (log)")
    axes.set_xticks(list(places), [each.name.replace(" ", "\n", 1) for each in outcomes])
    axes.legend()
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
