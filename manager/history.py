"""What the leader remembers of a query's last hours, so that a page that is opened now can show them.

Three lists in Redis, all bounded: a row for each of the newest batches, a column every ten seconds for an hour, and a
column every minute for twelve hours. A column has every group's load and owner. Loads are shares of the total on a
logarithmic scale of 256 steps: each is right to 3 %, and a group that has a millionth of the load still shows.

No I/O here: `manager.journal` writes what `manager.chronicle` has put together, `manager.store` reads it.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

BATCHES_KEPT: Final = 300
FINE_S: Final = 10
FINE_KEPT: Final = 360
COARSE_S: Final = 60
COARSE_KEPT: Final = 720
HISTORY_TTL_S: Final = COARSE_S * COARSE_KEPT
"""After the last column all of it is forgotten."""
COLUMNS_MAX: Final = 400
CELLS_MAX: Final = 800_000
"""Both in one answer: columns, and columns times groups."""
LOAD_UNIT: Final = "1/10000 of the total"

_STEPS: Final = 255
_FINEST: Final = 100.0
"""A load of 0.01 units is the smallest that differs from none."""
_SCALE: Final = math.log1p(10_000 * _FINEST) / _STEPS
_VALUES: Final = np.expm1(np.arange(_STEPS + 1) * _SCALE) / _FINEST
_SHOWN: Final = tuple(float(f"{value:.3g}") for value in _VALUES)
"""What each step stands for, in units of 1/10000 of the total."""
_TEXTS: Final = tuple(f"{value:g}" for value in _SHOWN)

Codes = npt.NDArray[np.uint8]


def load_codes(loads: Sequence[float]) -> Codes:
    """Each load as a step of the scale; all zero where nothing was measured."""
    values = np.asarray(loads, np.float64)
    total = float(values.sum())
    if total <= 0:
        return np.zeros(values.size, np.uint8)
    units = np.clip(values / total * 10_000, 0, 10_000)
    return np.round(np.log1p(units * _FINEST) / _SCALE).astype(np.uint8)


def load_values(codes: Codes) -> list[float]:
    """The loads that the steps stand for, in 1/10000 of the total."""
    return [_SHOWN[code] for code in codes.tolist()]


class BatchRow(NamedTuple):
    """One batch, as a chart shows it."""

    at_ms: int
    """When its last report was written."""
    batch: int
    batch_ms: float
    """By the driver's own word; where it says nothing, the time since the batch before it."""
    rows_per_s: float
    """Since the batch before it."""
    results_per_s: float
    ratio: float

    def to_text(self) -> str:
        return json.dumps(
            [
                self.at_ms,
                self.batch,
                round(self.batch_ms, 1),
                round(self.rows_per_s, 1),
                round(self.results_per_s, 1),
                round(self.ratio, 4),
            ],
            separators=(",", ":"),
        )


def parse_batch_row(text: str) -> BatchRow:
    at_ms, batch, *rest = json.loads(text)
    batch_ms, rows_per_s, results_per_s, ratio = map(float, rest)
    return BatchRow(int(at_ms), int(batch), batch_ms, rows_per_s, results_per_s, ratio)


@dataclass(frozen=True, kw_only=True)
class Column:
    """The query at one moment, or over a minute: then loads and rates are means, ratio and batch time the largest.

    A peak that is averaged away cannot be found again.
    """

    at_ms: int
    epoch: int
    ratio: float
    batch_ms: float
    rows_per_s: float
    loads: bytes
    """A step of the scale for each group."""
    owners: tuple[int, ...]

    def to_text(self) -> str:
        body = {
            "at_ms": self.at_ms,
            "epoch": self.epoch,
            "ratio": round(self.ratio, 4),
            "batch_ms": round(self.batch_ms, 1),
            "rows_per_s": round(self.rows_per_s, 1),
            "loads": _packed(self.loads),
            "owners": _packed(np.array(self.owners, "<u2").tobytes()),
        }
        return json.dumps(body, separators=(",", ":"))

    @property
    def load_values(self) -> list[float]:
        return load_values(np.frombuffer(self.loads, np.uint8))


def parse_column(text: str) -> Column:
    body: dict[str, Any] = json.loads(text)
    owners = np.frombuffer(_unpacked(body.pop("owners")), "<u2")
    return Column(**{**body, "loads": _unpacked(body["loads"]), "owners": tuple(owners.tolist())})


def merged(columns: Sequence[Column]) -> Column:
    """One column for all of these, which follow each other. Another number of groups begins anew."""
    last = columns[-1]
    same = [each for each in columns if len(each.loads) == len(last.loads)]
    loads = np.mean([_VALUES[np.frombuffer(each.loads, np.uint8)] for each in same], axis=0)
    return Column(
        at_ms=last.at_ms,
        epoch=last.epoch,
        ratio=max(each.ratio for each in same),
        batch_ms=max(each.batch_ms for each in same),
        rows_per_s=sum(each.rows_per_s for each in same) / len(same),
        loads=load_codes(loads.tolist()).tobytes(),
        owners=last.owners,
    )


def reaches_back(fine: Sequence[Column], since_ms: int) -> bool:
    """Whether the fine columns tell all that is known since then: one picture has one step."""
    return len(fine) < FINE_KEPT or since_ms >= fine[0].at_ms - COARSE_S * 1000


def thinned(columns: Sequence[Column], since_ms: int) -> tuple[list[Column], int]:
    """Columns from `since_ms` on, oldest first, so few that an answer can be sent; and how many became one."""
    wanted = [each for each in columns if each.at_ms >= since_ms]
    groups = max((len(each.loads) for each in wanted), default=1)
    stride = math.ceil(len(wanted) / min(COLUMNS_MAX, max(1, CELLS_MAX // groups)))
    if stride <= 1:
        return wanted, 1
    ends = range(len(wanted) % stride or stride, len(wanted) + 1, stride)
    return [merged(wanted[max(0, end - stride) : end]) for end in ends], stride


def columns_text(columns: Sequence[Column]) -> str:
    """A JSON list, as the API shows it: owners only where they differ from those of the column before.

    Put together column by column: one call for a million numbers would stop everything else in this process.
    """
    texts: list[str] = []
    before: tuple[int, ...] | None = None
    for each in columns:
        head = json.dumps(
            {
                "at_ms": each.at_ms,
                "epoch": each.epoch,
                "ratio": each.ratio,
                "batch_ms": each.batch_ms,
                "rows_per_s": each.rows_per_s,
            },
            separators=(",", ":"),
        )
        loads = ",".join([_TEXTS[code] for code in each.loads])
        owners = "null" if each.owners == before else f"[{','.join(map(str, each.owners))}]"
        texts.append(f'{head[:-1]},"loads":[{loads}],"owners":{owners}}}')
        before = each.owners
    return f"[{','.join(texts)}]"


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()


def _unpacked(text: str) -> bytes:
    # Redis may hold anything: what is larger than the largest query is not ours.
    engine = zlib.decompressobj()
    data = engine.decompress(base64.b64decode(text, validate=True), 4_000_000)
    if engine.unconsumed_tail or not engine.eof:
        raise ValueError("not a column: too long, or cut off")
    return data
