"""Where a worker's resident state lives between micro-batches, and who may touch it.

    <executor's local dir>/trimtab/<query id>/<worker>/ready-<stamp>    published, waiting for the next batch
                                                       busy-<stamp>     claimed by one attempt

A stamp is the batch and a nonce drawn by each attempt; the durable record names the stamp of the attempt that Spark
committed. An attempt claims the directory of exactly that stamp by renaming it, works in it, and publishes it under
its own stamp by renaming it again. A retry, a replay, a zombie or another executor finds no directory of the stamp it
looks for and rebuilds from the durable state. Nobody ever writes into a directory that somebody else could claim.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from worker.spec import Saved

_META = "meta.json"


def new_stamp(batch: int) -> str:
    return f"{batch}-{secrets.token_hex(8)}"


def local_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """The executor's own scratch directory, which its cluster manager cleans up after it."""
    for name in ("SPARK_EXECUTOR_DIRS", "LOCAL_DIRS", "SPARK_LOCAL_DIRS"):
        for entry in environ.get(name, "").replace(",", os.pathsep).split(os.pathsep):
            if entry and os.access(entry, os.W_OK):
                return Path(entry)
    return Path(tempfile.gettempdir())


class Residence:
    """The directories of one worker on one executor."""

    def __init__(self, local: Path, query_id: str, worker: int) -> None:
        self.root = local / "trimtab" / query_id / str(worker)

    def claim(self, committed: str | None, stamp: str) -> tuple[Path, Saved | None]:
        """A directory to work in: with the committed state if it is here, else empty."""
        busy = self.root / f"busy-{stamp}"
        self._sweep(_batch_of(stamp))
        if committed is not None:
            try:
                os.rename(self.root / f"ready-{committed}", busy)
                return busy, json.loads((busy / _META).read_text())
            except (FileNotFoundError, json.JSONDecodeError):
                shutil.rmtree(busy, ignore_errors=True)
        busy.mkdir(parents=True, mode=0o700)
        return busy, None

    def publish(self, stamp: str, saved: Saved) -> None:
        """Make the state of this attempt claimable; if the directory was swept away, the next batch rebuilds."""
        busy = self.root / f"busy-{stamp}"
        try:
            (busy / _META).write_text(json.dumps(saved))
            os.rename(busy, self.root / f"ready-{stamp}")
        except OSError:
            shutil.rmtree(busy, ignore_errors=True)

    def discard(self, stamp: str) -> None:
        shutil.rmtree(self.root / f"busy-{stamp}", ignore_errors=True)

    def _sweep(self, batch: int) -> None:
        """Remove what attempts of earlier batches left: the last batch's published state is the only one wanted."""
        try:
            entries = list(os.scandir(self.root))
        except FileNotFoundError:
            return
        for entry in entries:
            kind, _, stamp = entry.name.partition("-")
            age = batch - _batch_of(stamp)
            if age > 1 or (kind == "busy" and age > 0):
                shutil.rmtree(entry.path, ignore_errors=True)


def _batch_of(stamp: str) -> int:
    return int(stamp.partition("-")[0])
