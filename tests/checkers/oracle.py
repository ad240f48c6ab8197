"""What a join must give, found by other means than the join: plain Python over what Spark wrote down.

The offset log of a checkpoint tells the watermark of each batch, the file sources' own logs tell which file was read in
which batch. So a test need not control the batches, it only has to look them up afterwards. The rule (architecture,
section 2): a row read in batch N is late if its time is at or before the watermark of batch N-1 (batch 0: its own).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from tests.checkers.multiset import Frozen, Multiset, frozen

Row = dict[str, Any]
Combination = dict[str, Row]


@dataclass(frozen=True)
class Condition:
    """A condition twice: as SQL for the query, and in Python (three-valued: None is unknown) for the oracle."""

    sql: str
    streams: tuple[str, ...]
    holds: Callable[[Combination], bool | None]


@dataclass(frozen=True)
class Recorded:
    """What the checkpoint says about a run."""

    watermarks_us: dict[int, int]
    batch_of: dict[str, int]
    """File name -> the batch that read it."""

    def late_us(self, batch: int) -> int:
        return self.watermarks_us[max(0, batch - 1)]


def recorded(checkpoint: Path) -> Recorded:
    watermarks: dict[int, int] = {}
    positions: dict[int, list[int | None]] = {}
    for path in (checkpoint / "offsets").iterdir():
        if not path.name.isdigit():
            continue
        _, metadata, *offsets = path.read_text().splitlines()
        watermarks[int(path.name)] = json.loads(metadata)["batchWatermarkMs"] * 1000
        positions[int(path.name)] = [_log_offset(line) for line in offsets]
    batch_of: dict[str, int] = {}
    for source in (checkpoint / "sources").iterdir():
        for name, log_offset in _files_of(source).items():
            # A file is in the source's log a moment before the batch that reads it is in the offset log.
            batches = [
                batch
                for batch, ends in positions.items()
                if (end := ends[int(source.name)]) is not None and end >= log_offset
            ]
            if batches:
                batch_of[name] = min(batches)
    return Recorded(watermarks, batch_of)


def _log_offset(line: str) -> int | None:
    body = None if line == "-" else json.loads(line)
    return body.get("logOffset") if isinstance(body, dict) else None


def _files_of(source: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for log in source.iterdir():
        if log.name.removesuffix(".compact").isdigit():
            for line in log.read_text().splitlines()[1:]:
                entry = json.loads(line)
                path = unquote(urlparse(entry["path"]).path)
                found["/".join(path.split("/")[-2:])] = entry["batchId"]
    return found


@dataclass
class Oracle:
    """The join in words: every combination of one row of each stream that is not late, each exactly once."""

    window_us: int
    keys: Mapping[str, Sequence[str]]
    times: Mapping[str, str]
    columns: Mapping[str, Sequence[str]]
    conditions: Sequence[Condition] = ()
    same_key: Callable[[Any], Any] = field(default=lambda value: same_value(value))

    def expected(self, files: Mapping[str, Mapping[str, Sequence[Row]]], run: Recorded) -> Multiset:
        """`files`: stream -> file ("STREAM/NAME") -> rows. A file that no batch has read counts for nothing."""
        by_key: dict[Any, dict[str, list[tuple[int, Row]]]] = defaultdict(lambda: defaultdict(list))
        self.late = Counter[str]()
        self.bad = Counter[str]()
        alone = [c for c in self.conditions if len(c.streams) == 1]
        for stream, batches in files.items():
            for name, rows in batches.items():
                if name not in run.batch_of:
                    continue
                late_us = run.late_us(run.batch_of[name])
                for row in rows:
                    if any(c.streams == (stream,) and c.holds({stream: row}) is not True for c in alone):
                        continue
                    time = row[self.times[stream]]
                    key = [row[column] for column in self.keys[stream]]
                    if time is None or any(part is None for part in key):
                        self.bad[stream] += 1
                        continue
                    time_us = frozen(time)[2]
                    if time_us <= late_us:
                        self.late[stream] += 1
                        continue
                    by_key[self.same_key(key)][stream].append((time_us, row))
        found: Multiset = Counter()
        for streams in by_key.values():
            if len(streams) == len(files):
                for combination in self._combinations(streams, {}, None, None, list(files)):
                    found[self._result(combination)] += 1
        return found

    def _combinations(
        self,
        streams: Mapping[str, list[tuple[int, Row]]],
        chosen: Combination,
        first: int | None,
        last: int | None,
        rest: list[str],
    ) -> Iterator[Combination]:
        if not rest:
            yield chosen
            return
        stream = rest[0]
        for time_us, row in streams[stream]:
            low = time_us if first is None else min(first, time_us)
            high = time_us if last is None else max(last, time_us)
            if high - low > self.window_us:
                continue
            together = {**chosen, stream: row}
            ready = [c for c in self.conditions if stream in c.streams and together.keys() >= set(c.streams)]
            if all(condition.holds(together) is True for condition in ready):
                yield from self._combinations(streams, together, low, high, rest[1:])

    def _result(self, combination: Combination) -> Frozen:
        return tuple(frozen(combination[s][column]) for s, columns in self.columns.items() for column in columns)

    @property
    def result_columns(self) -> list[str]:
        return [f"{stream}_{column}" for stream, columns in self.columns.items() for column in columns]


def same_value(value: Any) -> Any:
    """Equal for values that are equal keys in Spark: every NaN is one value, -0.0 is 0.0, nulls inside are equal."""
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    if isinstance(value, Mapping):
        return tuple(same_value(part) for part in value.values())
    if isinstance(value, list | tuple):
        return tuple(same_value(part) for part in value)
    return frozen(value)
