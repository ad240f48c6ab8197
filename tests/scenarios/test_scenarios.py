"""Scenarios as text: what happens, `----`, and the trace of what follows.

`pytest tests/scenarios --rewrite` writes the traces anew; commit only a difference that you can explain. The first line
of a file says what it shows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.player import Player

FILES = sorted(Path(__file__).parent.glob("*.txt"))
LINE = "----"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_follows_is_what_is_written(path: Path, rewrite: bool) -> None:
    head, line, expected = path.read_text(encoding="utf-8").partition(f"{LINE}\n")
    commands = [each for each in head.splitlines() if each and not each.startswith("#")]
    trace = "\n".join(Player().play(commands)) + "\n"
    if rewrite:
        path.write_text(f"{head}{LINE}\n{trace}", encoding="utf-8")
        return
    assert line, f"{path.name} has no line {LINE}: pytest tests/scenarios --rewrite"
    assert trace == expected


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_says_what_it_shows(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")
