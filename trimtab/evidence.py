"""What split tasks and workers count around an open move, each in its own place, for the audit to compare.

A digest is a 64-bit number per row; sums of them modulo 2**64 do not depend on the rows' order, so rows can be compared
wherever they lie. There are two: of a row that *arrives* (stream, group, time: all that a split task knows) and of a
row that is *stored* (with the key's code as well). Payload columns are in neither: packages carry an HMAC of every byte
instead, and Spark's state store checksums of its own.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

UInt64s = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Rows, counted, and the sum of their digests modulo 2**64."""

    rows: int = 0
    digest: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(rows=self.rows + other.rows, digest=(self.digest + other.digest) % 2**64)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(rows=self.rows - other.rows, digest=(self.digest - other.digest) % 2**64)

    def __str__(self) -> str:
        return f"{self.rows} rows ({self.digest:016x})"

    def to_json(self) -> list[int]:
        return [self.rows, self.digest]


NOTHING = Tally()


def parse_tally(body: Any) -> Tally:
    rows, digest = body
    return Tally(rows=int(rows), digest=int(digest))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Rows of one group that split tasks saw in one batch, before routing."""

    rows: int = 0
    """All of them, late ones included."""
    on_time: Tally = NOTHING
    """Those after the watermark of the previous batch, as the split task reads it from the offset log itself."""

    def __add__(self, other: Seen) -> Seen:
        return Seen(rows=self.rows + other.rows, on_time=self.on_time + other.on_time)

    def to_json(self) -> list[int]:
        return [self.rows, *self.on_time.to_json()]


def parse_seen(body: Any) -> Seen:
    rows, *on_time = body
    return Seen(rows=int(rows), on_time=parse_tally(on_time))


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a worker found in its own buffers in one batch, for the groups of one move.

    Everything is counted where the rows lie, after the fact; nothing is repeated from a package's header or from a
    counter of the code that moved the rows. `stored_*` and `filed_package` use the digest of stored rows,
    the others that of arriving rows.
    """

    stored_before: Tally = NOTHING
    """Leaf rows in the buffers beside this batch's new ones: kept from the previous batch, taken in from a package, or
    put back silently after a recall."""
    stored_after: Tally = NOTHING
    """Leaf rows that must be there when the next batch begins: those above and the new ones, without what has expired.
    Nothing expires from groups that are frozen."""
    joined: Tally = NOTHING
    """New rows that this batch added to the buffers and joined; rows that had waited are among them."""
    joined_by_group: Mapping[int, int] = field(default_factory=dict)
    put_aside: Tally = NOTHING
    """Rows of this batch that were kept unjoined, counted in the frames that were written."""
    waiting_before: Tally = NOTHING
    """Rows that were kept unjoined when the batch began: as they were read, where this batch takes them up; until then
    as they were counted when they were put aside."""
    waiting_after: Tally = NOTHING
    """The same when it ended."""
    filed_package: Tally = NOTHING
    """Rows of a package that this batch took in, counted in the frames that were written under the keys that they are
    filed under: what a rebuild will find. With the digest of stored rows."""
    filed_waiting: Tally = NOTHING
    """The same of rows that had waited and are joined or put back in this batch."""
    frames_missing: int = 0
    """Frames of rows in the payload, of any group, that were looked up and that the durable state did not have when the
    batch began."""
    sampled_keys: int = 0
    """Keys whose results of this batch were computed once more, by the naive join of the rows in the buffers."""
    sampled_expected: Tally = NOTHING
    """Results of these keys by the naive join, with a digest of the rows that each is made of (`result_digests`)."""
    sampled_made: Tally = NOTHING
    """Results of these keys that the worker made, the same way."""

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {}
        for name, value in self.__dict__.items():
            if isinstance(value, Tally):
                body[name] = value.to_json()
            elif name == "joined_by_group":
                body[name] = {str(group): rows for group, rows in self.joined_by_group.items()}
            else:
                body[name] = value
        return body


def parse_evidence(body: Mapping[str, Any]) -> Evidence:
    fields: dict[str, Any] = dict(body)
    for name, value in body.items():
        if isinstance(value, list):
            fields[name] = parse_tally(value)
    fields["joined_by_group"] = {int(group): int(rows) for group, rows in body["joined_by_group"].items()}
    return Evidence(**fields)


# -- digests of rows


def salt(stream: str) -> np.uint64:
    """A number for a stream's name."""
    return np.uint64(int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little"))


def mixed(value: Any) -> Any:
    """One round of the finaliser that splitmix64 uses; for arrays of unsigned 64-bit numbers."""
    with np.errstate(over="ignore"):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


def group_digests(stream: str, group: npt.NDArray[Any]) -> UInt64s:
    """Of a stream and its groups: what the digests of rows begin with."""
    digests: UInt64s = mixed(group.astype(np.uint64) ^ salt(stream))
    return digests


def arriving_digests(stream: str, group: npt.NDArray[Any], time_us: npt.NDArray[np.int64]) -> UInt64s:
    """Of rows as they arrive."""
    with np.errstate(over="ignore"):
        digests: UInt64s = mixed(group_digests(stream, group) + time_us.astype(np.uint64))
    return digests


def stored_digests(
    stream: str, group: npt.NDArray[Any], time_us: npt.NDArray[np.int64], code: npt.NDArray[np.int64]
) -> UInt64s:
    """Of rows as the buffers have them."""
    digests: UInt64s = mixed(arriving_digests(stream, group, time_us) ^ mixed(code.astype(np.uint64)))
    return digests


def result_digests(parts: Mapping[str, npt.NDArray[Any]]) -> UInt64s:
    """Of combinations of one row per stream, by the numbers of these rows within their worker."""
    return functools.reduce(
        lambda digests, stream: mixed(digests ^ mixed(parts[stream].astype(np.uint64) ^ salt(stream))),
        sorted(parts),
        np.zeros(len(next(iter(parts.values()))), np.uint64),
    )


def tally_of(digests: UInt64s) -> Tally:
    return Tally(rows=int(digests.size), digest=int(digests.sum(dtype=np.uint64)))
