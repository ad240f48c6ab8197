"""The states of partition groups as bytes: what a transfer carries from worker to worker.

    magic | length of header | header (JSON) | frames, one after the other | HMAC-SHA256 of all before

Nothing is parsed before length and HMAC have been found right. A leaf's rows are Arrow IPC frames as the durable state
keeps them; a state above the leaves is a frame of positions in those rows, from which key and times follow.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from trimtab import frames
from trimtab.errors import CorruptState
from trimtab.evidence import Tally
from worker.buffers import Refs

MAGIC: Final = b"TRIMTAB2"
BYTES_MAX: Final = 8 * 1024**3
_TAG_BYTES: Final = 32


@dataclass(frozen=True)
class Package:
    """What one worker hands to another for one move."""

    move: str
    batch: int
    """At whose end it was packed."""
    horizon_us: int
    """Rows that begin before this had expired when it was packed."""
    rows: int
    digest: str
    """Of the leaf rows in any order (`digest_text`): all honest packages of a move agree."""
    leaves: tuple[tuple[str, pa.Buffer], ...]
    """Stream and frame, in the order in which they arrived."""
    combined: Mapping[tuple[str, ...], Refs]
    bytes: int = 0
    """As it came from the transfer store."""


def pack(package: Package, key: bytes) -> bytes:
    bodies = [frame for _, frame in package.leaves] + [_positions(refs) for refs in package.combined.values()]
    header = {
        "move": package.move,
        "batch": package.batch,
        "horizon_us": package.horizon_us,
        "rows": package.rows,
        "digest": package.digest,
        "leaves": [stream for stream, _ in package.leaves],
        "combined": [list(streams) for streams in package.combined],
        "lengths": [body.size for body in bodies],
    }
    text = json.dumps(header).encode()
    parts: list[bytes | memoryview] = [
        MAGIC,
        len(text).to_bytes(8, "little"),
        text,
        *(memoryview(body) for body in bodies),
    ]
    return b"".join([*parts, _tag(parts, key)])


def unpack(data: bytes, key: bytes, move: str) -> Package:
    """The package in `data`; refuses it where any byte is not what was packed."""
    view = memoryview(data)
    if len(view) < len(MAGIC) + 8 + _TAG_BYTES or len(view) > BYTES_MAX or bytes(view[: len(MAGIC)]) != MAGIC:
        raise CorruptState(f"the package of {move} is not a package ({len(view)} bytes)")
    if not hmac.compare_digest(_tag([view[:-_TAG_BYTES]], key), bytes(view[-_TAG_BYTES:])):
        raise CorruptState(f"the package of {move} is not as it was packed (HMAC differs)")
    start = len(MAGIC) + 8
    end = start + int.from_bytes(view[len(MAGIC) : start], "little")
    header = json.loads(bytes(view[start:end]))
    if header["move"] != move:
        raise CorruptState(f"the package of {move} was packed for {header['move']}")
    whole = pa.py_buffer(data)
    bodies: list[pa.Buffer] = []
    for length in header["lengths"]:
        bodies.append(whole.slice(end, length))
        end += length
    leaves = tuple(zip(header["leaves"], bodies, strict=False))
    combined = {
        tuple(streams): _parsed_positions(body)
        for streams, body in zip(header["combined"], bodies[len(leaves) :], strict=True)
    }
    return Package(
        move=move,
        batch=header["batch"],
        horizon_us=header["horizon_us"],
        rows=header["rows"],
        digest=header["digest"],
        leaves=leaves,
        combined=combined,
        bytes=len(data),
    )


def digest_text(tally: Tally) -> str:
    """A package's rows as a name that may stand in a path."""
    return f"{tally.rows}-{tally.digest:016x}"


def _positions(refs: Refs) -> pa.Buffer:
    names = [str(index) for index in range(len(refs))]
    return frames.encode(pa.RecordBatch.from_arrays([pa.array(row) for row in refs], names=names))


def _parsed_positions(frame: pa.Buffer) -> Refs:
    return np.stack([column.to_numpy(zero_copy_only=False) for column in frames.decode(frame).columns])


def _tag(parts: Sequence[bytes | memoryview], key: bytes) -> bytes:
    tag = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        tag.update(part)
    return tag.digest()
