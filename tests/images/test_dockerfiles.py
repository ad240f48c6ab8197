"""The Dockerfiles as hadolint reads them, without an exception."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.images.tools import ROOT


def hadolint(*files: Path) -> tuple[int, str]:
    tool = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert tool is not None, "hadolint is missing: run these tests with `make images`"
    done = subprocess.run(
        [tool, "--no-color", "--disable-ignore-pragma", *map(str, files)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["manager", "spark"])
def test_hadolint_finds_nothing(name: str) -> None:
    assert hadolint(ROOT / f"deploy/docker/{name}.Dockerfile") == (0, "")


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN cd /srv && sudo apt-get install python3\n")
    code, said = hadolint(bad)
    assert code == 1
    assert "DL3006" in said and "DL3004" in said
