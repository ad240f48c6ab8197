"""How far the query is, from its checkpoint alone: nobody has to be alive to answer."""

from __future__ import annotations

import json
from pathlib import Path

from tests.soak.layout import LATENESS_US, STREAMS, Layout
from trimtab.errors import TrimtabError
from trimtab.offset_log import Checkpoint


class Progress:
    def __init__(self, layout: Layout) -> None:
        self._path = layout.checkpoint
        self._checkpoint = Checkpoint(str(layout.checkpoint))

    def committed(self) -> int:
        """The newest committed batch, -1 for none."""
        return self._checkpoint.last_commit()

    def watermark_us(self) -> int:
        """That of the newest bound batch; 0 where there is none yet."""
        newest = self._checkpoint.last_batch()
        return 0 if newest is None else self._checkpoint.watermark_us(newest)

    def lag_us(self, written_until_us: int, start_us: int) -> int:
        """Event time that is written and that no batch before the newest one has read."""
        watermark_us = self.watermark_us()
        read_until_us = watermark_us + LATENESS_US if watermark_us else start_us
        return max(0, written_until_us - read_until_us)

    def open_moves(self) -> list[str]:
        """Ids of the moves in the newest bound epoch: what is open there is open, whatever Redis remembers."""
        newest = self._checkpoint.last_batch()
        if newest is None:
            return []
        try:
            return [move.id for move in self._checkpoint.bound_epoch(newest).moves]
        except TrimtabError as error:
            return [f"unknown ({error})"]

    def all_read(self, files: int) -> bool:
        """Whether a committed batch has read the last of `files` files of each stream."""
        newest = self._checkpoint.last_batch()
        if newest is None or self.committed() != newest:
            return False
        try:
            return self._all_named(newest, files)
        except FileNotFoundError:
            return False  # the query runs, and Spark deletes what it has compacted: the next look will tell

    def _all_named(self, newest: int, files: int) -> bool:
        _, _, *offsets = (self._path / "offsets" / str(newest)).read_text().splitlines()
        # The fourth source is the control source, which reads no files. Spark knows sources by their place.
        logs = [log for log in sorted((self._path / "sources").iterdir()) if any(log.glob("[0-9]*"))]
        complete = 0
        for log in logs:
            named = _files_of(log)
            last = f"{files - 1:06d}.parquet"
            end = json.loads(offsets[int(log.name)])
            if last in named and isinstance(end, dict) and int(end["logOffset"]) >= named[last]:
                complete += 1
        return complete == len(STREAMS)


def _files_of(log: Path) -> dict[str, int]:
    """File name -> entry of the source's log that first names it."""
    named: dict[str, int] = {}
    for entry in log.iterdir():
        if entry.name.removesuffix(".compact").isdigit():
            for line in entry.read_text().splitlines()[1:]:
                body = json.loads(line)
                named[str(body["path"]).rpartition("/")[2]] = int(body["batchId"])
    return named
