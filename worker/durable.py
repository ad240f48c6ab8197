"""What a worker keeps in Spark's state store: leaf rows in frames, and one small record.

Intermediate states are not kept: over live tuples they are a function of the leaves, so a rebuild recomputes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

from trimtab.errors import CorruptState
from trimtab.evidence import Tally, parse_tally
from trimtab.moves import Kind, Move, RoleState, Side
from worker.payload import DurableKey
from worker.planning import PlanRecord, parse_plan_record

RECORD_FORMAT: Final = 3
FRAMES_PER_STREAM_MAX: Final = 100_000


@dataclass(frozen=True)
class Keys:
    """Under which keys a batch files rows: those that arrive, that come from elsewhere, and that wait unjoined.

    Each has a range of its own, so that a rebuild never takes rows that wait for rows that were joined.
    """

    batch: int
    streams: tuple[str, ...]

    def arrived(self, stream: str, number: int) -> DurableKey:
        return self._key(0, stream, number)

    def taken_in(self, stream: str, number: int) -> DurableKey:
        return self._key(1, stream, number)

    def aside(self, stream: str, number: int) -> DurableKey:
        return self._key(2, stream, number)

    def _key(self, range_: int, stream: str, number: int) -> DurableKey:
        index = range_ * len(self.streams) + self.streams.index(stream)
        return self.batch, index * FRAMES_PER_STREAM_MAX + number


def is_aside(key: DurableKey, streams: int) -> bool:
    """Whether the rows under a key wait unjoined, in a query of so many streams."""
    return key[1] >= 2 * streams * FRAMES_PER_STREAM_MAX


@dataclass
class Role:
    """A worker's part in a move (`worker.roles`): all that it must know of it from batch to batch."""

    move: str
    kind: Kind
    side: Side
    groups: list[int]
    epoch: int
    """The epoch that opened the move: a manager that lost its journal may use a name again."""
    state: RoleState = RoleState.ACTIVE
    since_batch: int = 0
    """The batch in which the worker first saw the move. PTLB: rows of this batch and later ones are new."""
    closed_batch: int = -1
    """The batch in which the worker saw that the move was closed."""
    rows: int = 0
    bytes: int = 0
    digest: str = ""
    horizon_us: int = 0
    """Sender of a transfer: what was live when the groups were frozen is kept until the move is closed."""
    aside: list[list[int]] = field(default_factory=list)
    """Transfer: durable keys of the rows that are kept unjoined, in order of arrival."""
    aside_tally: list[int] = field(default_factory=lambda: [0, 0])
    """These rows, as they were counted when they were put aside."""
    newest_old_us: int | None = None
    newest_old_stream: str = ""
    problem: str = ""

    @property
    def aside_rows(self) -> Tally:
        return parse_tally(self.aside_tally)

    def is_of(self, move: Move) -> bool:
        return self.move == move.id and self.epoch == move.epoch


def parse_role(body: dict[str, Any]) -> Role:
    enums = {"kind": Kind(body["kind"]), "side": Side(body["side"]), "state": RoleState(body["state"])}
    return Role(**{**body, **enums})


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
    """watermark - window: what begins before it has expired, but for frozen groups (`Role.horizon_us`)."""
    plan: str
    """The one that runs; while it changes, the former one."""
    groups: list[int]
    """The partition groups that this worker has a part in."""
    owned: list[int]
    """Those that it owns by the epoch that was applied."""
    barriers: dict[str, int] = field(default_factory=dict)
    """Group -> batch: rows of the group from before have left this worker, and a rebuild must not bring them back."""
    roles: list[Role] = field(default_factory=list)
    order: PlanRecord | None = None
    """The plan order that this worker knows, if it ever had one."""

    def to_text(self) -> str:
        body = {"format": RECORD_FORMAT, **asdict(self)}
        if self.order is None:
            del body["order"]  # as versions before plan orders write it, and read it
        return json.dumps(body, separators=(",", ":"))


def parse_record(text: str) -> Record:
    body = json.loads(text)
    if body.pop("format", None) != RECORD_FORMAT:
        raise CorruptState(f"the state store holds a record of another format than {RECORD_FORMAT}: {text[:200]}")
    try:
        roles: list[dict[str, Any]] = body.pop("roles")
        order = body.pop("order", None)
        known = None if order is None else parse_plan_record(order)
        return Record(**body, roles=list(map(parse_role, roles)), order=known)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptState(f"the state store holds a record that cannot be read ({error}): {text[:200]}") from error


class Frames(Protocol):
    """Frames of rows in one worker's part of the state store. Each call is a round trip: a batch makes a handful."""

    def put_rows(self, key: DurableKey, stream: str, frame: bytes) -> None: ...

    def remove_rows(self, key: DurableKey) -> None: ...

    def get_rows(self, key: DurableKey) -> tuple[str, bytes]:
        """Raises CorruptState where there are none."""
        ...


class DurableState(Frames, Protocol):
    """All of one worker's part of the state store."""

    def record(self) -> Record | None: ...

    def put_record(self, record: Record) -> None: ...

    def has_rows(self, key: DurableKey) -> bool:
        """Cheaper than to get them, by the way to Python."""
        ...

    def rows(self) -> Iterator[tuple[DurableKey, str, bytes]]:
        """All frames in the order in which they arrived."""
        ...
