"""Tools that no package index has: from the PATH, or out of Debian's package, unpacked beside the virtual environment.

Nothing is installed: `apt-get download` needs no root, and `dpkg -x` only unpacks. Prometheus is one file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

PACKAGE: Final = "prometheus"
"""Debian's; it holds both `prometheus` and `promtool`."""
CACHE: Final = Path(sys.prefix) / "outside"
WAIT_S: Final = 300


class ToolMissing(Exception):
    """What these tests need is not there and cannot be fetched from here."""


@cache
def tool(name: str) -> str:
    """The path of `prometheus` or `promtool`."""
    if (found := shutil.which(name)) is not None:
        return found
    unpacked = CACHE / PACKAGE / "usr" / "bin" / name
    if not unpacked.exists():
        _unpack()
    if not unpacked.exists():
        raise ToolMissing(f"Debian's package {PACKAGE} has no {name}: put one on the PATH.")
    return str(unpacked)


def _unpack() -> None:
    missing = [each for each in ("apt-get", "dpkg") if shutil.which(each) is None]
    if missing:
        raise ToolMissing(
            f"These tests need prometheus and promtool. To fetch Debian's package, {' and '.join(missing)} is missing. "
            "Put both on the PATH: https://prometheus.io/download/"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        failed = _run(["apt-get", "-q", "download", PACKAGE], scratch)
        if failed and os.geteuid() == 0:
            # The lists of packages may be missing, as in a fresh container.
            _run(["apt-get", "-q", "update"], scratch)
            failed = _run(["apt-get", "-q", "download", PACKAGE], scratch)
        packages = sorted(Path(scratch).glob(f"{PACKAGE}_*.deb"))
        if failed or not packages:
            raise ToolMissing(
                f"These tests need prometheus and promtool. `apt-get download {PACKAGE}` failed:\n{failed}\n"
                "Put both on the PATH, or run `apt-get update` as root and try again."
            )
        if failed := _run(["dpkg", "-x", str(packages[0]), "unpacked"], scratch):
            raise ToolMissing(f"{packages[0].name} cannot be unpacked:\n{failed}")
        shutil.rmtree(CACHE / PACKAGE, ignore_errors=True)
        (Path(scratch) / "unpacked").rename(CACHE / PACKAGE)


def _run(command: list[str], directory: str) -> str:
    """Nothing, or what went wrong."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=WAIT_S, check=False)
    return "" if done.returncode == 0 else (done.stderr or done.stdout)[-2000:] or f"exit code {done.returncode}"
