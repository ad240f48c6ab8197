"""The file system of the transfer store, in memory, with faults that pass and faults that last.

Only what `worker.transfers.TransferStore` asks of pyarrow's file systems is here; the store itself is production's.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any

import pyarrow.fs as pafs

from worker.transfers import FOLDER, TransferStore

CHECKPOINT = "/memory"
ROOT = f"{CHECKPOINT}/{FOLDER}"


class StoreFault(StrEnum):
    """What is wrong with the transfer store."""

    NONE = "none"
    FULL = "full"
    """Nothing can be written."""
    NEARLY_FULL = "nearly-full"
    """The probe can be written, packages cannot."""
    READ_ONLY = "read-only"
    """Nothing can be written, renamed or deleted."""
    TORN = "torn"
    """A package's file is begun, and cannot be finished."""
    FORGETFUL = "forgetful"
    """Packages are gone as soon as they are written."""
    CORRUPTING = "corrupting"
    """Packages are not what was written."""
    UNLISTABLE = "unlistable"
    """Nobody can say what is there."""
    UNREADABLE = "unreadable"
    """Nothing can be read."""


PROBE_BYTES = 128


@dataclass
class Sink:
    parts: list[bytes] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.parts.append(bytes(data))


@dataclass
class Source:
    data: bytes

    def read(self) -> bytes:
        return self.data


@dataclass(frozen=True)
class Entry:
    path: str
    type: Any
    size: int

    @property
    def base_name(self) -> str:
        return self.path.rpartition("/")[2]


class MemoryFiles:
    """Paths and bytes."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.fault = StoreFault.NONE
        self.unlistable = 0
        """So many of the next listings fail."""
        self.unreadable = 0
        """So many of the next reads fail."""

    # -- as pyarrow's

    def create_dir(self, path: str, recursive: bool = False) -> None:
        self._may_change(StoreFault.READ_ONLY)

    @contextmanager
    def open_output_stream(self, path: str) -> Iterator[Sink]:
        self._may_change(StoreFault.READ_ONLY, StoreFault.FULL)
        sink = Sink()
        yield sink
        data = b"".join(sink.parts)
        if len(data) > PROBE_BYTES:
            if self.fault == StoreFault.TORN:
                self.files[path] = data[: len(data) // 2]
            self._may_change(StoreFault.NEARLY_FULL, StoreFault.TORN)
            if self.fault == StoreFault.CORRUPTING:
                data = data[:-1] + bytes([data[-1] ^ 1])
        self.files[path] = data

    @contextmanager
    def open_input_stream(self, path: str) -> Iterator[Source]:
        if self.unreadable or self.fault == StoreFault.UNREADABLE:
            self.unreadable = max(0, self.unreadable - 1)
            raise OSError(errno.EIO, f"{path} cannot be read")
        if path not in self.files:
            raise FileNotFoundError(path)
        yield Source(self.files[path])

    def move(self, old: str, new: str) -> None:
        self._may_change(StoreFault.READ_ONLY)
        data = self.files.pop(old)
        if self.fault != StoreFault.FORGETFUL or len(data) <= PROBE_BYTES:
            self.files[new] = data

    def delete_file(self, path: str) -> None:
        self._may_change(StoreFault.READ_ONLY)
        if path not in self.files:
            raise FileNotFoundError(path)
        del self.files[path]

    def delete_dir(self, path: str) -> None:
        self._may_change(StoreFault.READ_ONLY)
        inside = [each for each in self.files if each.startswith(path + "/")]
        if not inside:
            raise FileNotFoundError(path)
        for each in inside:
            del self.files[each]

    def get_file_info(self, selector: Any) -> list[Entry]:
        if self.unlistable or self.fault == StoreFault.UNLISTABLE:
            self.unlistable = max(0, self.unlistable - 1)
            raise OSError(errno.EIO, f"{selector.base_dir} cannot be listed")
        entries: dict[str, Entry] = {}
        for path, data in self.files.items():
            if path.startswith(selector.base_dir + "/"):
                name, _, rest = path[len(selector.base_dir) + 1 :].partition("/")
                where = f"{selector.base_dir}/{name}"
                kind = pafs.FileType.Directory if rest else pafs.FileType.File
                entries[where] = Entry(where, kind, 0 if rest else len(data))
        return list(entries.values())

    def _may_change(self, *faults: StoreFault) -> None:
        if self.fault in faults:
            raise OSError(errno.ENOSPC, f"the store is {self.fault}")

    # -- being hurt

    @property
    def packages(self) -> list[str]:
        return sorted(path for path in self.files if path.endswith(".package"))

    def corrupt(self, number: int) -> None:
        """One byte of one package changes."""
        packages = self.packages
        if packages:
            path = packages[number % len(packages)]
            data = bytearray(self.files[path])
            place = Random(number).randrange(len(data))
            data[place] ^= 1 << number % 8
            self.files[path] = bytes(data)

    def lose(self, number: int) -> None:
        """One package is gone."""
        packages = self.packages
        if packages:
            del self.files[packages[number % len(packages)]]


def transfer_store(files: MemoryFiles, key: bytes = b"key", *, insists: bool = True) -> TransferStore:
    """The production store, on files in memory."""
    store = TransferStore(CHECKPOINT, key, insists=insists)
    store._filesystem = files
    return store
