"""A Redis in memory that can be hurt: it forgets its last writes, or all of them, stops answering, or answers late.

Values are never changed in place, so what it was before any of the last writes is still there to go back to. Scripts
are known by their text: each has a twin in Python (redis_scripts.py), and a test holds twin and script together on a
real server.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.simulator.clock import VirtualClock

WRITES_KEPT: Final = 500


@dataclass(frozen=True)
class Told:
    """An event or alarm that was written, whether or not Redis has forgotten it since."""

    at_ms: int
    kind: str
    text: str
    alarm: bool


class SimRedis:
    """Commands as redis-py names them, each one atomic."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.told: list[Told] = []
        self.writes = 0
        self._data: dict[str, Any] = {}
        self._ends_ms: dict[str, int] = {}
        self._history: deque[tuple[dict[str, Any], dict[str, int]]] = deque(maxlen=WRITES_KEPT)
        self._depth = 0

    # -- being hurt

    def forget(self, writes: int) -> None:
        """A failover to a replica that lagged."""
        for _ in range(min(writes, len(self._history))):
            self._data, self._ends_ms = self._history.pop()

    def flushall(self) -> None:
        self._history.clear()
        self._data, self._ends_ms = {}, {}

    # -- inside

    @contextmanager
    def writing(self) -> Iterator[None]:
        """All writes within are one."""
        if self._depth == 0:
            self.writes += 1
            self._history.append((self._data, self._ends_ms))
            self._data, self._ends_ms = dict(self._data), dict(self._ends_ms)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _value(self, key: str) -> Any:
        if self._ends_ms.get(key, self.clock.now_ms() + 1) <= self.clock.now_ms():
            return None
        return self._data.get(key)

    def _put(self, key: str, value: Any, *, lives_ms: int | None = None, keep_end: bool = False) -> None:
        with self.writing():
            if not keep_end or self._value(key) is None:
                self._ends_ms.pop(key, None)
            if value or isinstance(value, str):
                self._data[key] = value
            else:
                self._data.pop(key, None)
            if lives_ms is not None:
                self._ends_ms[key] = self.clock.now_ms() + lives_ms

    def dump(self) -> dict[str, Any]:
        """All that there is, for comparisons."""
        return {key: value for key in sorted(self._data) if (value := self._value(key)) is not None}

    # -- strings

    def get(self, key: str) -> str | None:
        value = self._value(key)
        assert value is None or isinstance(value, str), key
        return value

    def set(self, key: str, value: str, *, nx: bool = False, ex: int | None = None, px: int | None = None) -> bool:
        if nx and self._value(key) is not None:
            return False
        self._put(key, str(value), lives_ms=px if ex is None else ex * 1000)
        return True

    def delete(self, *keys: str) -> int:
        there = [key for key in keys if self._value(key) is not None]
        for key in there:
            self._put(key, None)
        return len(there)

    def mget(self, keys: Sequence[str]) -> list[str | None]:
        return [self.get(key) for key in keys]

    def expire(self, key: str, seconds: int) -> int:
        return self.pexpire(key, int(seconds) * 1000)

    def pexpire(self, key: str, ms: int) -> int:
        value = self._value(key)
        if value is None:
            return 0
        self._put(key, value, lives_ms=int(ms))
        return 1

    def ping(self) -> bool:
        return True

    # -- hashes

    def hgetall(self, key: str) -> dict[str, str]:
        return dict(self._value(key) or {})

    def hget(self, key: str, name: str) -> str | None:
        return self.hgetall(key).get(name)

    def hmget(self, key: str, names: Sequence[str]) -> list[str | None]:
        return [self.hgetall(key).get(name) for name in names]

    def hkeys(self, key: str) -> list[str]:
        return list(self.hgetall(key))

    def hset(
        self, key: str, name: str | None = None, value: Any = None, *, mapping: Mapping[str, Any] | None = None
    ) -> int:
        fields = dict(mapping or {})
        if name is not None:
            fields[name] = value
        before = self.hgetall(key)
        self._put(key, before | {each: str(text) for each, text in fields.items()}, keep_end=True)
        return len(fields.keys() - before.keys())

    def hsetnx(self, key: str, name: str, value: str) -> int:
        return 0 if name in self.hgetall(key) else self.hset(key, name, value)

    def hdel(self, key: str, name: str) -> int:
        fields = self.hgetall(key)
        if name not in fields:
            return 0
        self._put(key, {each: text for each, text in fields.items() if each != name}, keep_end=True)
        return 1

    # -- lists

    def lrange(self, key: str, first: int, last: int) -> list[str]:
        entries: list[str] = list(self._value(key) or [])
        return entries[first:] if last == -1 else entries[first : last + 1]

    def lindex(self, key: str, index: int) -> str | None:
        entries = self.lrange(key, 0, -1)
        return entries[index] if index < len(entries) else None

    def llen(self, key: str) -> int:
        return len(self.lrange(key, 0, -1))

    def lpush(self, key: str, text: str) -> None:
        if key.endswith(":alarms"):
            self._note(text, alarm=True)
        self._put(key, [text, *self.lrange(key, 0, -1)], keep_end=True)

    def rpush(self, key: str, text: str) -> None:
        self._put(key, [*self.lrange(key, 0, -1), text], keep_end=True)

    def ltrim(self, key: str, first: int, last: int) -> None:
        if self.llen(key) > last + 1:
            self._put(key, self.lrange(key, first, last), keep_end=True)

    def lrem(self, key: str, count: int, text: str) -> int:
        assert count == 1
        entries = self.lrange(key, 0, -1)
        if text not in entries:
            return 0
        entries.remove(text)
        self._put(key, entries, keep_end=True)
        return 1

    # -- sets and sorted sets

    def sadd(self, key: str, member: str) -> None:
        self._put(key, set(self._value(key) or ()) | {member})

    def _ranked(self, key: str) -> list[tuple[str, float]]:
        scores: dict[str, float] = self._value(key) or {}
        return sorted(scores.items(), key=lambda each: (each[1], each[0]))

    def zadd(self, key: str, scores: Mapping[str, float], *, nx: bool = False) -> None:
        before: dict[str, float] = self._value(key) or {}
        self._put(key, {**scores, **before} if nx else {**before, **scores}, keep_end=True)

    def zrem(self, key: str, member: str) -> None:
        scores: dict[str, float] = self._value(key) or {}
        if member in scores:
            self._put(key, {each: score for each, score in scores.items() if each != member}, keep_end=True)

    def zcard(self, key: str) -> int:
        return len(self._value(key) or {})

    def zrange(self, key: str, first: int, last: int) -> list[str]:
        assert (first, last) == (0, -1)
        return [member for member, _ in self._ranked(key)]

    # -- the stream of events

    def xadd(self, key: str, text: str) -> str:
        self._note(text, alarm=False)
        entries: list[tuple[str, dict[str, str]]] = list(self._value(key) or [])
        newest = tuple(map(int, entries[-1][0].split("-"))) if entries else (0, 0)
        now = (self.clock.now_ms(), 0)
        name = now if now > newest else (newest[0], newest[1] + 1)
        identity = f"{name[0]}-{name[1]}"
        self._put(key, [*entries, (identity, {"event": text})], keep_end=True)
        return identity

    def xrevrange(self, key: str, count: int | None = None) -> list[tuple[str, dict[str, str]]]:
        entries = list(reversed(self._value(key) or []))
        return entries if count is None else entries[:count]

    def _note(self, text: str, *, alarm: bool) -> None:
        body = json.loads(text)
        self.told.append(Told(self.clock.now_ms(), body["kind"], body["text"], alarm))


Script = Callable[[SimRedis, Sequence[str], Sequence[str]], Any]
