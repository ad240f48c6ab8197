"""The witness looks frames up in turn: each one within some batches, the newest at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.checkers.cluster import HeapState
from worker.payload import DurableKey
from worker.witness import FRAMES_LOOKED_UP, missing_frames

KEYS: list[DurableKey] = [(batch, number) for batch in range(10) for number in (0, 4)]


class CountingState(HeapState):
    looked_up = 0

    def has_rows(self, key: DurableKey) -> bool:
        self.looked_up += 1
        return super().has_rows(key)


def engine_with(keys: list[DurableKey]) -> Any:
    """As much of an engine as is asked: the keys that the rows of two streams are filed under."""
    stores = {name: SimpleNamespace(durable_keys=set(keys[index::2])) for index, name in enumerate("AB")}
    return SimpleNamespace(payload=stores)


def state_with(keys: list[DurableKey]) -> CountingState:
    return CountingState(dict.fromkeys(keys, ("A", b"")))


@pytest.mark.parametrize("count", range(len(KEYS) + 1))
def test_nothing_is_missing_and_few_are_looked_up(count: int) -> None:
    state = state_with(KEYS[:count])
    for batch in range(20):
        state.looked_up = 0
        assert missing_frames(engine_with(KEYS[:count]), state, batch) == 0
        assert state.looked_up == min(count, 2 * FRAMES_LOOKED_UP)


@pytest.mark.parametrize("gone", KEYS)
def test_a_frame_that_is_gone_is_found_when_its_turn_comes(gone: DurableKey) -> None:
    state = state_with([key for key in KEYS if key != gone])
    found = [missing_frames(engine_with(KEYS), state, batch) for batch in range(10, 32)]
    assert any(found)
    if gone in KEYS[-FRAMES_LOOKED_UP:]:
        assert all(found)
