"""One run of all that `benchmarks.seen` runs."""

from __future__ import annotations

import pytest

from benchmarks.seen import PROGRAMS, main


@pytest.mark.parametrize("fails", [None, *PROGRAMS])
def test_all_of_them_are_run_and_all_of_them_count(fails: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[list[str]] = []

    def run(command: list[str]) -> int:
        ran.append(command)
        return int(command[2] == f"benchmarks.{fails}")

    assert main([], run) == (fails is not None)
    assert [command[2:] for command in ran] == [[f"benchmarks.{name}"] for name in PROGRAMS]
    said = capsys.readouterr().out
    assert said.count("NOT reached") == (fails is not None)
    assert fails is None or f"{fails}: NOT reached" in said


def test_an_impression_of_one() -> None:
    ran: list[list[str]] = []

    def run(command: list[str]) -> int:
        ran.append(command)
        return 0

    assert main(["--short", "--only", "live"], run) == 0
    assert [command[2:] for command in ran] == [["benchmarks.live", "--seconds", "8"]]
