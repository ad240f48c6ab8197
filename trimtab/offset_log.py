"""Reads from a query's checkpoint what Spark recorded there: the query's id, a batch's epoch and watermark.

The control source's offset is the epoch. Spark writes `offsets/N` before batch N runs and
replays from it, so this file is the binding: tasks read it and never ask Redis.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import pyarrow.fs as pafs

from trimtab.epochs import Epoch, parse_epoch
from trimtab.errors import BindingError, InvalidInput
from trimtab.offset_mark import find_mark

DEFINITION_FILE: Final = "trimtab/query.json"
"""What the checkpoint was made for, written by `join`."""
TEXT_INLINE_MAX: Final = 16_384
"""Longer epoch texts are kept once in a file beside the checkpoint; the offset then has number and digest only."""


class Checkpoint:
    """A checkpoint directory on any file system that pyarrow reaches."""

    def __init__(self, location: str) -> None:
        self.location = location
        try:
            if "://" in location or location.startswith("file:"):
                uri = location.replace("s3a://", "s3://", 1)
                self.filesystem, self.root = pafs.FileSystem.from_uri(uri)
            else:
                self.filesystem, self.root = pafs.LocalFileSystem(), location
        except (OSError, ValueError) as error:
            raise InvalidInput(
                "checkpoint", location, f"cannot be opened ({error})", "Give a path or URI that pyarrow.fs can reach."
            ) from error

    def exists(self, name: str) -> bool:
        return bool(self.filesystem.get_file_info(f"{self.root}/{name}").type != pafs.FileType.NotFound)

    def read(self, name: str) -> str | None:
        try:
            with self.filesystem.open_input_stream(f"{self.root}/{name}") as source:
                return bytes(source.read()).decode()
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        """Write, then rename: a reader sees the whole text or none."""
        path = f"{self.root}/{name}"
        self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        with self.filesystem.open_output_stream(path + ".part") as sink:
            sink.write(text.encode())
        self.filesystem.move(path + ".part", path)

    def last_batch(self) -> int | None:
        """The newest batch in the offset log, or None for a query that never ran."""
        return max(self._batches("offsets"), default=None)

    def last_commit(self) -> int:
        """The newest batch that is committed, or -1."""
        return max(self._batches("commits"), default=-1)

    def _batches(self, folder: str) -> list[int]:
        selector = pafs.FileSelector(f"{self.root}/{folder}", allow_not_found=True)
        names = [info.base_name for info in self.filesystem.get_file_info(selector)]
        return [int(name) for name in names if name.isdigit()]

    def query_id(self) -> str | None:
        text = self.read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def control_offset(self, batch: int) -> dict[str, Any] | None:
        """The control source's offset that batch `batch` ends with."""
        for line in self._offset_lines(batch):
            found = find_mark(line)
            if found is not None:
                return found
        return None

    def watermark_us(self, batch: int) -> int:
        """The watermark that batch `batch` runs with."""
        return int(json.loads(self._offset_lines(batch)[0])["batchWatermarkMs"]) * 1000

    def _offset_lines(self, batch: int) -> list[str]:
        """What Spark recorded for a batch, without the line that names the format: metadata, then one line a source."""
        text = self.read(f"offsets/{batch}")
        if text is None:
            raise BindingError(f"{self.location}/offsets/{batch} is not there: is this the running query's checkpoint?")
        return text.splitlines()[1:]

    def bound_epoch(self, batch: int) -> Epoch:
        """The epoch that batch `batch` runs with."""
        offset = self.control_offset(batch)
        if offset is None:
            raise BindingError(f"{self.location}/offsets/{batch} has no offset of Trimtab's control source")
        return self.epoch_of(offset)

    def epoch_of(self, offset: dict[str, Any]) -> Epoch:
        text = offset.get("text") or self.read(epoch_file(offset["epoch"], offset["digest"]))
        if text is None:
            raise BindingError(f"the text of epoch {offset['epoch']} is missing beside {self.location}")
        return parse_epoch(text, offset["digest"])


def known_definition(checkpoint: Checkpoint) -> dict[str, Any]:
    """The query that a checkpoint was made for, as Redis shows it."""
    text = checkpoint.read(DEFINITION_FILE)
    if text is None:
        raise BindingError(f"{checkpoint.location}/{DEFINITION_FILE} is not there")
    return {"checkpoint": checkpoint.location, **json.loads(text)}


def epoch_file(number: int, digest: str) -> str:
    return f"trimtab/epochs/{number}-{digest[:16]}.json"


@dataclass(frozen=True)
class Binding:
    """What Spark has bound a batch to: the same again, whenever and wherever it is repeated."""

    epoch: Epoch
    watermark_us: int


@lru_cache(maxsize=8)
def binding(location: str, query_id: str, batch: int) -> Binding:
    """That of a running batch; refuses to run for a query that this checkpoint does not belong to."""
    checkpoint = Checkpoint(location)
    recorded = checkpoint.query_id()
    if recorded != query_id:
        raise BindingError(
            f"checkpoint = {location!r} belongs to query {recorded}, but the running query is {query_id}: "
            "start the query with option('checkpointLocation', ...) set to the checkpoint given to join()."
        )
    return Binding(checkpoint.bound_epoch(batch), checkpoint.watermark_us(batch))


def epoch_before(location: str, query_id: str, batch: int, epoch: Epoch) -> int:
    """Number of the epoch of the batch before. Looked up only where it matters: a move began with this epoch."""
    if batch == 0:
        return 0
    if any(move.epoch == epoch.number for move in epoch.moves):
        return binding(location, query_id, batch - 1).epoch.number
    # Epochs advance by at most one per batch, so every open move was open, or opening, in the batch before.
    return epoch.number - 1
