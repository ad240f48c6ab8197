"""What a worker keeps in Spark's state store: leaf rows in frames, and one small record.

Intermediate states are not kept: over live tuples they are a function of the leaves (architecture, section 2), so a
rebuild recomputes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

from trimtab.errors import CorruptState
from worker.payload import DurableKey

RECORD_FORMAT: Final = 2


@dataclass
class Role:
    """A worker's part in an open move (`trimtab.moves`): all that it must know of it from batch to batch."""

    move: str
    role: str
    """sender or receiver"""
    kind: str
    groups: list[int]
    state: str = "active"
    since_batch: int = 0
    """The batch in which the worker first saw the move. PTLB: rows of this batch and later ones are new."""
    undoes: str = ""
    rows: int = 0
    bytes: int = 0
    digest: str = ""
    horizon_us: int = 0
    """Sender of a transfer: what was live when the groups were frozen is kept until the move is closed."""
    held: list[list[int]] = field(default_factory=list)
    """Receiver of a transfer: durable keys of the rows that wait for the package."""
    held_rows: int = 0
    newest_old_us: int | None = None
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Record:
    """The worker's state at the end of a committed batch, as far as rows cannot tell it."""

    batch: int
    stamp: str
    """Names the resident state that equals this durable state (see `resident.py`)."""
    applied_epoch: int
    fence: int
    """Of the manager whose epoch was applied: an epoch of an older one is refused."""
    watermark_us: int
    horizon_us: int
    """Behind watermark - window while groups are frozen: nothing is purged then."""
    plan: str
    groups: list[int]
    """The partition groups that this worker has a part in."""
    barriers: dict[str, int] = field(default_factory=dict)
    """Group -> batch: rows of the group from before have left this worker, and a rebuild must not bring them back."""
    roles: list[Role] = field(default_factory=list)

    def to_text(self) -> str:
        return json.dumps({"format": RECORD_FORMAT, **asdict(self)}, separators=(",", ":"))


def parse_record(text: str) -> Record:
    body = json.loads(text)
    if body.pop("format", None) != RECORD_FORMAT:
        raise CorruptState(f"the state store holds a record of another format than {RECORD_FORMAT}: {text[:200]}")
    roles: list[dict[str, Any]] = body.pop("roles")
    return Record(**body, roles=[Role(**role) for role in roles])


class DurableState(Protocol):
    """One worker's part of the state store. Each call is a round trip: a batch makes a handful."""

    def record(self) -> Record | None: ...

    def put_record(self, record: Record) -> None: ...

    def put_rows(self, key: DurableKey, stream: str, frame: bytes) -> None: ...

    def remove_rows(self, key: DurableKey) -> None: ...

    def get_rows(self, key: DurableKey) -> tuple[str, bytes]: ...

    def rows(self) -> Iterator[tuple[DurableKey, str, bytes]]:
        """All frames in the order in which they arrived."""
        ...
