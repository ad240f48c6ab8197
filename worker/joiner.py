"""One step of a plan: tuples are joined with one state. Keys, times, and the conditions that can be evaluated here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trimtab import conditions
from worker.buffers import Int64s, StateBuffer, Tuples
from worker.payload import PayloadStore
from worker.spec import ConditionSpec, JoinSpec


@dataclass
class Condition:
    """A condition over several streams, ready to be evaluated."""

    spec: ConditionSpec
    tree: Any


@dataclass
class StepWork:
    """What one step of a plan has handled (see `trimtab.plan_orders.StepCount`)."""

    tuples: int = 0
    candidates: int = 0
    matched: int = 0
    passed: list[int] = field(default_factory=list)


class Joiner:
    """Joins tuples with states; the payload is looked at where keys are hashes, and for conditions."""

    def __init__(self, spec: JoinSpec, payload: Mapping[str, PayloadStore]) -> None:
        self.spec = spec
        self.payload = payload
        self.conditions = [Condition(c, conditions.from_json(c.tree)) for c in spec.conditions]

    def joined(self, new: Tuples, buffer: StateBuffer, work: Int64s, counts: StepWork | None = None) -> Tuples:
        """`work` gains the tuples looked at, by group; `counts` what the step has handled."""
        before = int(work.sum()) if counts is not None else 0
        left, right = buffer.probe(new, self.spec.window_us, work)
        joined = buffer.joined(new, left, right)
        joined = self._with_equal_keys(joined, new.streams[0], buffer.streams[0])
        if counts is not None:
            counts.tuples += len(new)
            counts.candidates += int(work.sum()) - before - len(new)
            counts.matched += len(joined)
        number = 0
        for condition in self.conditions:
            wanted = condition.spec.streams
            if wanted <= set(joined.streams) and not wanted <= set(new.streams) and not wanted <= set(buffer.streams):
                joined = self._where(joined, condition)
                if counts is not None:
                    counts.passed += [0] * (number + 1 - len(counts.passed))
                    counts.passed[number] += len(joined)
                number += 1
        return joined

    def _with_equal_keys(self, joined: Tuples, left: str, right: str) -> Tuples:
        compared = [self.spec.stream(name).key.compared for name in (left, right)]
        if compared[0] is None or compared[1] is None or len(joined) == 0:
            return joined
        (left_key,) = self.payload[left].gather(joined.ref(left), [compared[0]])
        (right_key,) = self.payload[right].gather(joined.ref(right), [compared[1]])
        equal = pc.equal(left_key, right_key)
        return joined if pc.all(equal).as_py() else joined.take(_true_positions(equal))

    def _where(self, joined: Tuples, condition: Condition) -> Tuples:
        if len(joined) == 0:
            return joined
        columns: dict[tuple[str, str], pa.Array] = {}
        for stream in sorted(condition.spec.streams):
            names = [column for owner, column in condition.spec.columns if owner == stream]
            arrays = self.payload[stream].gather(joined.ref(stream), names)
            columns |= {(stream, name): array for name, array in zip(names, arrays, strict=True)}
        return joined.take(_true_positions(conditions.mask(condition.tree, columns)))


def _true_positions(mask: pa.Array) -> Int64s:
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False))
