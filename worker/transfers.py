"""The transfer store: a directory beside the checkpoint through which packages go from worker to worker.

    <checkpoint>/trimtab/transfers/<move>/<batch>-<digest>-<nonce>.package

Every attempt writes a file of its own, under another name first: a reader sees whole packages or none, and a zombie
overwrites nobody's. A package that is not as it was packed is put aside under `.corrupt`, and the sender, which looks
for a good one in every batch until the move is closed, packs again from what it has frozen.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import shutil
from contextlib import suppress
from typing import Final

import pyarrow.fs as pafs

from trimtab.errors import CorruptState
from trimtab.offset_log import Checkpoint
from worker.package import BYTES_MAX, Package, unpack

FOLDER: Final = "trimtab/transfers"
_BEGUN: Final = ".part"
_READY: Final = ".package"
_CORRUPT: Final = ".corrupt"
_PROBES: Final = "probe"
"""A folder beside those of the moves, whose names have a wave and so are never this one."""


INSISTS_MAX: Final = 2
"""Attempts at one task that the store may fail. Others are left for troubles of another kind."""


def insists(attempt: int, attempts: int) -> bool:
    """Whether an attempt at a task, counted from 0, may fail because of the store: never the last that Spark makes.

    Attempts that Spark does not hold against the task are counted, too, so there may be more of them, never fewer.
    """
    return attempt < min(INSISTS_MAX, attempts - 1)


class TransferStore:
    """`insists`: a store that cannot be read is an error, which Spark answers with another attempt: the trouble may
    pass, and the package is there. A store that is gone for good must not stop the query, so the last attempt takes
    what it cannot read for missing: rows wait, and the manager recalls the move, which needs no store."""

    def __init__(self, checkpoint: str, key: bytes, *, insists: bool = True) -> None:
        where = Checkpoint(checkpoint)
        self._filesystem = where.filesystem
        self._root = f"{where.root}/{FOLDER}"
        self._insists = insists
        self.key = key

    def put(self, move: str, batch: int, digest: str, data: bytes) -> None:
        """Raises OSError where there is no room or no way."""
        folder = f"{self._root}/{move}"
        self._filesystem.create_dir(folder, recursive=True)
        path = f"{folder}/{batch}-{digest}-{secrets.token_hex(6)}"
        try:
            with self._filesystem.open_output_stream(path + _BEGUN) as sink:
                sink.write(data)
            self._filesystem.move(path + _BEGUN, path + _READY)
        except OSError:
            # What is there of it must not keep room that others need.
            with suppress(OSError):
                self._filesystem.delete_file(path + _BEGUN)
            raise

    def has(self, move: str, since_batch: int, digest: str) -> bool:
        """Whether there is a package with these rows, by its name. May raise OSError (see `insists`)."""
        return any(f"-{digest}-" in path for path, _ in self._ready(move, since_batch))

    def packages(self, move: str, since_batch: int = 0) -> list[Package]:
        """The good packages of a move, packed in `since_batch` or later: an earlier move of the same name may have left
        some. Those that are not good are put aside. May raise OSError (see `insists`)."""
        found: list[Package] = []
        for path, size in self._ready(move, since_batch):
            try:
                if size > BYTES_MAX:
                    raise CorruptState(f"{path} has {size} bytes")
                with self._filesystem.open_input_stream(path) as source:
                    data = bytes(source.read())
                found.append(unpack(data, self.key, move))
            except (CorruptState, ValueError, KeyError):
                # Where nothing may be renamed it stays, and is not good next time either.
                with suppress(OSError):
                    self._filesystem.move(path, path + _CORRUPT)
            except OSError:
                if self._insists:
                    raise
        return found

    def probe(self, bytes_needed: int) -> str:
        """Why the store would not take a package of this size now, or nothing.

        A small signed file is written, read back and deleted; on a local file system there must be room, too.
        """
        folder = f"{self._root}/{_PROBES}"
        path = f"{folder}/{secrets.token_hex(6)}"
        text = secrets.token_bytes(64)
        data = text + hmac.digest(self.key, text, hashlib.sha256)
        try:
            self._filesystem.create_dir(folder, recursive=True)
            with self._filesystem.open_output_stream(path + _BEGUN) as sink:
                sink.write(data)
            self._filesystem.move(path + _BEGUN, path + _READY)
            with self._filesystem.open_input_stream(path + _READY) as source:
                if bytes(source.read()) != data:
                    return "the transfer store gives back other bytes than it was given"
            if isinstance(self._filesystem, pafs.LocalFileSystem):
                free = shutil.disk_usage(folder).free
                if free < bytes_needed:
                    return f"the transfer store has {free} bytes free, and the groups take up {bytes_needed}"
        except OSError as error:
            return f"the transfer store takes no package: {error}"
        finally:
            for name in (path + _BEGUN, path + _READY):
                with suppress(OSError):
                    self._filesystem.delete_file(name)
        return ""

    def remove(self, move: str) -> None:
        # Gone already, or not to be reached: what is left behind is collected when the query starts.
        with suppress(OSError):
            self._filesystem.delete_dir(f"{self._root}/{move}")

    def collect(self, open_moves: set[str]) -> None:
        """Remove what moves that are not open any more have left behind."""
        selector = pafs.FileSelector(self._root, allow_not_found=True)
        try:
            entries = self._filesystem.get_file_info(selector)
        except OSError:
            return
        for entry in entries:
            if entry.type == pafs.FileType.Directory and entry.base_name not in open_moves:
                self.remove(entry.base_name)

    def _ready(self, move: str, since_batch: int) -> list[tuple[str, int]]:
        """A store that cannot be listed says nothing about what is in it: an error, as long as it `insists`."""
        selector = pafs.FileSelector(f"{self._root}/{move}", allow_not_found=True)
        try:
            entries = self._filesystem.get_file_info(selector)
        except OSError:
            if self._insists:
                raise
            return []
        ready = [entry for entry in entries if entry.base_name.endswith(_READY)]
        return sorted((e.path, e.size) for e in ready if int(e.base_name.partition("-")[0]) >= since_batch)
