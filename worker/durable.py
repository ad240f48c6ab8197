"""What a worker keeps in Spark's state store: leaf rows in frames, and one small record.

Intermediate states are not kept: over live tuples they are a function of the leaves (architecture, section 2), so a
rebuild recomputes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from trimtab.errors import CorruptState
from worker.payload import DurableKey

RECORD_FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """The worker's state at the end of a committed batch, as far as rows cannot tell it."""

    batch: int
    stamp: str
    """Names the resident state that equals this durable state (see `resident.py`)."""
    applied_epoch: int
    watermark_us: int
    plan: str

    def to_text(self) -> str:
        return json.dumps({"format": RECORD_FORMAT, **asdict(self)}, separators=(",", ":"))


def parse_record(text: str) -> Record:
    body = json.loads(text)
    if body.pop("format", None) != RECORD_FORMAT:
        raise CorruptState(f"the state store holds a record of another format than {RECORD_FORMAT}: {text[:200]}")
    return Record(**body)


class DurableState(Protocol):
    """One worker's part of the state store. Each call is a round trip: a batch makes a handful."""

    def record(self) -> Record | None: ...

    def put_record(self, record: Record) -> None: ...

    def put_rows(self, key: DurableKey, stream: str, frame: bytes) -> None: ...

    def remove_rows(self, key: DurableKey) -> None: ...

    def rows(self) -> Iterator[tuple[DurableKey, str, bytes]]:
        """All frames in the order in which they arrived."""
        ...
