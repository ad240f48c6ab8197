"""Forecast against outcome: what a rebalance was to bring and to cost, and what it did.

The forecast is made when the leader first sees the rebalance under way, from the loads of that moment, and the first
one stays: a leader that takes over in the middle does not replace it. What was measured follows when the rebalance has
ended and enough batches have run under the new mapping.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from balancing.forecast import forecast
from balancing.load import Snapshot
from balancing.policies.policy import SuggestedMove
from balancing.protocols.migration import TABLES, Migration
from balancing.requests import Rebalance
from balancing.settings import Settings
from balancing.steering import Steering
from balancing.strategy import choose
from balancing.triggers import largest_ratio
from manager.history import BATCHES_KEPT, BatchRow

PATIENCE_MS: Final = 60_000
"""After this time the ratio is read as it is: the stream may be idle."""
BEFORE: Final = 10
"""Batches before a rebalance whose median its pause is measured against."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of a rebalance, foreseen or measured."""

    ratio_before: float | None
    """None: not measured, since a leader took over too late to see it."""
    ratio_after: float
    pause_ms: float | None
    """How much longer the longest batch takes. None: no batch was seen before it."""
    bytes: int
    seconds: float | None
    """None: would not end, since a stream is idle."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class OutcomeNote(NamedTuple):
    kind: Literal["forecast", "measured"]
    rebalance: str
    outcome: Outcome


@dataclass
class Outcomes:
    _rows: deque[BatchRow] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    _open: dict[str, float | None] = field(default_factory=dict)
    """Rebalances under way -> the ratio when they were foreseen; None: nothing was measured so far."""
    _notes: list[OutcomeNote] = field(default_factory=list)

    def saw(self, steering: Steering) -> None:
        """A leader that takes over may see a rebalance end before it has measured any load."""
        for record in steering.rebalances:
            self._open.setdefault(record.id, None)

    def note(self, steering: Steering, snapshot: Snapshot, settings: Settings, rows: Iterable[BatchRow]) -> None:
        self._rows += rows
        ended = {each.id: each for each in steering.ended_rebalances}
        migrations = {each.id: each for each in (*steering.ended, *steering.migrations)}
        for record in steering.rebalances:
            parts = _parts(record, migrations)
            if self._open.get(record.id) is None and parts and all(_groups(each) for each in parts):
                foreseen = foresee(parts, snapshot, settings)
                self._open[record.id] = foreseen.ratio_before
                self._notes.append(OutcomeNote("forecast", record.id, foreseen))
        under_way = {each.id for each in steering.rebalances}
        for name in [name for name in self._open if name not in under_way]:
            closed = ended.get(name)
            if closed is None or closed.closed_ms is None:
                del self._open[name]  # forgotten: too many others ended meanwhile
            elif self._is_settled(closed.closed_ms, snapshot, settings):
                ratio = largest_ratio(snapshot, settings)[1]
                found = measure(closed, _parts(closed, migrations), self._open.pop(name), ratio, self._rows)
                self._notes.append(OutcomeNote("measured", name, found))

    def unwritten(self) -> tuple[OutcomeNote, ...]:
        return tuple(self._notes)

    def written(self, notes: Sequence[OutcomeNote]) -> None:
        del self._notes[: len(notes)]

    def _is_settled(self, closed_ms: int, snapshot: Snapshot, settings: Settings) -> bool:
        waited_ms = snapshot.at_ms - closed_ms
        return waited_ms > PATIENCE_MS or (waited_ms > 0 and snapshot.batches >= settings.min_batches)


def foresee(migrations: Sequence[Migration], snapshot: Snapshot, settings: Settings) -> Outcome:
    """What moving the groups of these migrations brings and costs, as if none of them had begun."""
    before = replace(snapshot, moving={})
    moves = [SuggestedMove(sender=each.sender, receiver=each.receiver, groups=_groups(each)) for each in migrations]
    pace = migrations[0].pace
    choice = choose(
        before,
        moves,
        strategy=migrations[0].strategy,
        wave_bytes=before.wave_bytes(pace.max_pause_ms),
        max_pause_ms=pace.max_pause_ms,
    )
    foreseen = forecast(before, moves, settings.measure, choice.cost)
    return Outcome(
        ratio_before=round(foreseen.ratio_before, 4),
        ratio_after=round(foreseen.ratio_after, 4),
        pause_ms=round(foreseen.pause_ms, 1),
        bytes=foreseen.bytes if TABLES[choice.strategy].ships else 0,
        seconds=None if foreseen.seconds is None else round(foreseen.seconds, 2),
    )


def measure(
    record: Rebalance,
    migrations: Sequence[Migration],
    ratio_before: float | None,
    ratio: float,
    rows: Iterable[BatchRow],
) -> Outcome:
    assert record.closed_ms is not None
    seen = list(rows)
    before = [each.batch_ms for each in seen if each.at_ms <= record.created_ms][-BEFORE:]
    during = [each.batch_ms for each in seen if record.created_ms < each.at_ms <= record.closed_ms]
    pause_ms = max(0.0, max(during) - statistics.median(before)) if before and during else None
    return Outcome(
        ratio_before=ratio_before,
        ratio_after=round(ratio, 4),
        pause_ms=None if pause_ms is None else round(pause_ms, 1),
        bytes=sum(wave.bytes for each in migrations for wave in each.waves),
        seconds=round((record.closed_ms - record.created_ms) / 1000, 2),
    )


def _parts(record: Rebalance, migrations: dict[str, Migration]) -> list[Migration]:
    return [migrations[name] for name in record.migrations if name in migrations]


def _groups(migration: Migration) -> tuple[int, ...]:
    return migration.chosen or migration.request.groups
