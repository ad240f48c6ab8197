"""In CI a skipped test is a failed one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkers.no_skips import NO_SKIPS, OTHER_PLATFORM

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = """
import pytest

def test_passes(): pass
@pytest.mark.xfail
def test_expected(): raise AssertionError
"""
ONE = """
@pytest.mark.skipif(True, reason={reason!r})
def test_skipped(): pass
"""


def outcome(path: Path, text: str, *, strict: bool) -> tuple[int, str]:
    path.write_text(text)
    options = ["-p", "tests.checkers.no_skips", "-p", "no:cacheprovider", "--rootdir", str(path.parent), "-q"]
    environment = {name: value for name, value in os.environ.items() if name != NO_SKIPS} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(path)],
        env=environment | ({NO_SKIPS: "1"} if strict else {}),
        cwd=path.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (SKIPPED, 0),
        (SKIPPED + ONE.format(reason="no browser"), 1),
        (SKIPPED + ONE.format(reason=f"{OTHER_PLATFORM} no fork"), 0),
        (SKIPPED + "def test_inside(): pytest.skip('no browser')", 1),
        ("import pytest; pytest.skip('no browser', allow_module_level=True)", 2),
    ],
)
def test_what_is_skipped_has_failed(tmp_path: Path, text: str, code: int) -> None:
    found, said = outcome(tmp_path / "test_it.py", text, strict=True)
    assert found == code, said
    assert code == 0 or "no browser" in said


def test_elsewhere_it_may_be_skipped(tmp_path: Path) -> None:
    found, said = outcome(tmp_path / "test_it.py", SKIPPED + ONE.format(reason="no browser"), strict=False)
    assert found == 0, said
