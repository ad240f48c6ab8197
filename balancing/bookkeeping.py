"""One happening, worked out step by step: the instructions so far, and the steering that holds after them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from balancing.instructions import Hold, Instruction, Notice, Write

if TYPE_CHECKING:
    from balancing.steering import Steering


class Bookkeeping:
    """`now` is the steering after the instructions so far."""

    def __init__(self, steering: Steering, now_ms: int) -> None:
        self.now = steering
        self.now_ms = now_ms
        self._instructions: list[Instruction] = []
        self._held = steering

    def instructions(self) -> list[Instruction]:
        if self.now != self._held:
            self._instructions.append(Hold(then=self.now))
        return self._instructions

    def _add(self, instruction: Instruction) -> None:
        self._held = self.now
        self._instructions.append(instruction)

    def _write(self, **fields: Any) -> None:
        self._add(Write(then=self.now, **fields))

    def _tell(self, kind: str, text: str, **data: Any) -> None:
        self._write(events=(Notice(kind=kind, text=text, data=data),))

    def _alarm(self, kind: str, text: str) -> None:
        alarm = Notice(kind=kind, text=text)
        self._write(alarms=(alarm,), events=(Notice(kind="alarm", text=text, data={"kind": kind}),))
