"""Two drivers on one checkpoint: the second is refused, or the first is fenced; each says so."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands.runner.failures import root_cause_of_text
from split_union import driver_claim
from split_union.control_source import ControlReader
from split_union.driver_claim import CHECK_S, FILE, DriverClaim, SecondDriver
from tests.checkers.clock import ManualClock
from trimtab.epochs import first_epoch
from trimtab.offset_log import Checkpoint


def nobody() -> None:
    return None


def claim(tmp_path: Path, clock: ManualClock | None = None, beat: driver_claim.Beat = nobody) -> DriverClaim:
    clock = clock or ManualClock()

    def sleep(seconds: float) -> None:
        clock.now_s += seconds

    return DriverClaim(Checkpoint(str(tmp_path)), beat, clock, sleep)


def by_another(tmp_path: Path, host: str, jvm: int, started: str | None) -> None:
    body = {"host": host, "jvm": jvm, "jvm_started": started, "token": "other", "at_ms": 1_767_225_600_000}
    Checkpoint(str(tmp_path)).write(FILE, json.dumps(body))


def test_a_driver_that_is_overtaken_stops_before_its_next_batch(tmp_path: Path) -> None:
    clock = ManualClock()
    first = claim(tmp_path, clock)
    first.hold()
    first.hold()
    claim(tmp_path).hold()  # in the same JVM: Spark has seen to it that the first has ended
    first.hold()  # looked at a moment ago
    clock.now_s += CHECK_S
    with pytest.raises(SecondDriver, match=r"another driver has taken over.*process .* on .*stops before"):
        first.hold()


def test_a_driver_whose_process_runs_is_left_alone(tmp_path: Path) -> None:
    me = driver_claim._self()
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        by_another(tmp_path, me["host"], other.pid, driver_claim._started(other.pid))
        with pytest.raises(SecondDriver, match=r"another driver runs this query .*2026-01-01 00:00:00 UTC"):
            claim(tmp_path).hold()
        assert json.loads((tmp_path / FILE).read_text())["token"] == "other"
    finally:
        other.kill()
        other.wait()
    claim(tmp_path).hold()  # killed: taken over at once


def test_a_process_id_that_was_given_again_is_nobody(tmp_path: Path) -> None:
    by_another(tmp_path, driver_claim._self()["host"], 1, "0")
    claim(tmp_path).hold()


def test_a_driver_elsewhere_counts_by_its_signs_of_life(tmp_path: Path) -> None:
    now_ms = int(time.time() * 1000)
    by_another(tmp_path, "elsewhere", 7, "1")
    beats = iter([(now_ms, 2000), (now_ms, 2000), (now_ms + 300, 2000)])
    with pytest.raises(SecondDriver, match="process 7 on elsewhere"):
        claim(tmp_path, beat=lambda: next(beats)).hold()
    clock = ManualClock(0.0)
    claim(tmp_path, clock, beat=lambda: (now_ms, 2000)).hold()
    assert 3.0 <= clock.now_s < 3.5, "silent for longer than it ever was: gone"
    by_another(tmp_path, "elsewhere", 7, "1")
    clock = ManualClock(0.0)
    claim(tmp_path, clock, beat=lambda: (now_ms - 60_000, 2000)).hold()
    assert clock.now_s == 0.0, "silent for long: not waited for"
    by_another(tmp_path, "elsewhere", 7, "1")
    claim(tmp_path, beat=nobody).hold()


def test_rubbish_in_the_file_stops_nobody(tmp_path: Path) -> None:
    for text in ("", "[]", '{"host": 1}', "{"):
        Checkpoint(str(tmp_path)).write(FILE, text)
        claim(tmp_path).hold()


def test_the_control_source_holds_the_claim(tmp_path: Path) -> None:
    """It is asked before each batch, and for the plan of a batch that is run again."""
    first = first_epoch("orders", "abc", (0, 1))

    def reader() -> ControlReader:
        return ControlReader(
            query="orders",
            checkpoint=str(tmp_path),
            redis_url=None,
            first=first.to_text(),
            workers=2,
            streams=("A", "B"),
            tick_s=0.0,
        )

    start = {"trimtab": {"epoch": 0, "digest": "", "tick": 0}}
    one = reader()
    bound = one.latestOffset(start, None)  # type: ignore[arg-type]
    two = reader()
    two.partitions(start, bound)
    one._claim._checked_at -= CHECK_S
    with pytest.raises(SecondDriver):
        one.latestOffset(bound, None)  # type: ignore[arg-type]
    two.latestOffset(start, None)  # type: ignore[arg-type]


def test_the_message_reaches_the_user_without_what_spark_adds() -> None:
    told = "split_union.driver_claim.SecondDriver: checkpoint = 'x': another driver runs this query."
    added = " SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\n"
    text = f"Traceback (most recent call last):\n  File ...\n{told}\n{added}"
    assert root_cause_of_text(text) == told
