"""What moves read from the durable state and write to it in one batch, kept for the witness.

Reading frames back from the state store to count their rows would cost a batch more than the move itself. So the
frames are noted on their way: the bytes that are written, and the bytes that are read when rows that waited are joined.
"""

from __future__ import annotations

from worker.durable import Frames
from worker.payload import DurableKey

NotedFrame = tuple[str, bytes]
"""Stream and frame."""


class Ledger:
    """`Frames` of one batch; passes everything on."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self.written: dict[DurableKey, NotedFrame] = {}
        self.read: dict[DurableKey, NotedFrame] = {}

    def put_rows(self, key: DurableKey, stream: str, frame: bytes) -> None:
        self._frames.put_rows(key, stream, frame)
        self.written[key] = stream, frame

    def get_rows(self, key: DurableKey) -> NotedFrame:
        self.read[key] = self._frames.get_rows(key)
        return self.read[key]

    def remove_rows(self, key: DurableKey) -> None:
        self._frames.remove_rows(key)
