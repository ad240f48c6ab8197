"""The transfer store: whole packages or none, and nothing left behind."""

from __future__ import annotations

import resource
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from worker import transfers
from worker.package import Package, pack
from worker.transfers import FOLDER, TransferStore

KEY = b"k" * 32


def package(move: str) -> bytes:
    empty = Package(move=move, batch=3, horizon_us=0, rows=0, digest="0-0", leaves=(), combined={})
    return pack(empty, KEY)


def test_what_a_sender_that_died_had_begun_is_no_package(tmp_path: Path) -> None:
    store = TransferStore(str(tmp_path), KEY)
    folder = tmp_path / FOLDER / "m.w1"
    folder.mkdir(parents=True)
    begun = folder / "3-0-0-abcdef.part"
    begun.write_bytes(package("m.w1")[:-5])
    assert not store.has("m.w1", 3, "0-0")
    assert store.packages("m.w1") == []
    assert begun.exists(), "its sender may still be at it"
    store.put("m.w1", 3, "0-0", package("m.w1"))
    assert len(store.packages("m.w1")) == 1
    assert store.has("m.w1", 3, "0-0")
    assert not store.has("m.w1", 4, "0-0"), "of an earlier move of the name"
    assert not store.has("m.w1", 3, "1-0"), "of other rows"


def test_a_package_that_is_too_large_is_put_aside_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TransferStore(str(tmp_path), KEY)
    store.put("m.w1", 3, "0-0", package("m.w1"))
    monkeypatch.setattr(transfers, "BYTES_MAX", len(package("m.w1")) - 1)
    assert store.packages("m.w1") == []
    assert [path.suffix for path in (tmp_path / FOLDER / "m.w1").iterdir()] == [".corrupt"]


class Unreadable:
    """A file system that lists files and does not read them."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open_input_stream(self, path: str) -> None:
        raise OSError(f"cannot read {path}")


@pytest.mark.parametrize("insists", [True, False])
def test_a_package_that_cannot_be_read_fails_the_task_as_long_as_it_insists(tmp_path: Path, insists: bool) -> None:
    store = TransferStore(str(tmp_path), KEY, insists=insists)
    store.put("m.w1", 3, "0-0", package("m.w1"))
    store._filesystem = Unreadable(store._filesystem)
    with pytest.raises(OSError, match="cannot read") if insists else nullcontext():
        assert store.packages("m.w1") == []


def test_what_closed_moves_left_behind_is_collected(tmp_path: Path) -> None:
    store = TransferStore(str(tmp_path), KEY)
    for move in ("open.w1", "closed.w1"):
        store.put(move, 3, "0-0", package(move))
    (tmp_path / FOLDER / "closed.w1" / "4-abcdef.part").write_bytes(b"begun")
    store.collect({"open.w1"})
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["open.w1"]
    assert store.has("open.w1", 3, "0-0")


def test_nothing_to_collect(tmp_path: Path) -> None:
    TransferStore(str(tmp_path / "new"), KEY).collect(set())


def test_no_way_to_the_store_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "trimtab").write_text("a file where a folder should be")
    with pytest.raises(OSError, match="trimtab"):
        TransferStore(str(tmp_path), KEY).put("m.w1", 3, "0-0", package("m.w1"))


def test_a_store_that_is_full_is_not_filled_further(tmp_path: Path) -> None:
    store = TransferStore(str(tmp_path), KEY)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            store.put("m.w1", 3, "0-0", b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / FOLDER / "m.w1").iterdir()) == []


def unreadable(directory: Path) -> str:
    """A checkpoint whose transfer store cannot be listed: a link that leads to itself."""
    folder = directory / "trimtab"
    folder.mkdir()
    (folder / "transfers").symlink_to(folder / "transfers")
    return str(directory)


def test_a_store_that_cannot_be_listed_fails_the_task(tmp_path: Path) -> None:
    """The trouble may pass: Spark tries again."""
    store = TransferStore(unreadable(tmp_path), b"key")
    with pytest.raises(OSError, match="transfers"):
        store.packages("m.w1")
    with pytest.raises(OSError, match="transfers"):
        store.has("m.w1", 0, "digest")


def test_a_store_that_is_gone_for_good_does_not_stop_the_query(tmp_path: Path) -> None:
    """A later attempt goes on without it: rows wait, and the manager recalls the move."""
    store = TransferStore(unreadable(tmp_path), b"key", insists=False)
    assert store.packages("m.w1") == []
    assert not store.has("m.w1", 0, "digest")
    assert store.probe(1)
