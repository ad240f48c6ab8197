"""The parts of the soak that can be wrong without anybody noticing: schedule, feed, blocked store, ledger, verdict."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from commands.demo.oracle import JoinVerdict
from commands.runner.job import load_job
from tests.soak.chaos import DRIVER_FAULTS, QUERY_FAULTS, SETTLED_BATCHES, Chaos, World
from tests.soak.feeder import DISORDER_US, LATE_BEFORE_US, LATE_ROWS, SLICE_US, START_US, Feeder
from tests.soak.layout import STREAMS, Layout
from tests.soak.ledger import Ledger
from tests.soak.schedule import KINDS, Fault, make_schedule
from tests.soak.soak import shielded
from tests.soak.transfer_store import StoreBlock
from tests.soak.verdict import Ending, complaints


def test_a_seed_decides_the_schedule() -> None:
    schedule = make_schedule(7, 1200)
    assert schedule == make_schedule(7, 1200)
    assert schedule != make_schedule(8, 1200)
    assert {fault.kind for fault in schedule} == set(KINDS)
    assert {fault.kind for fault in schedule[: len(KINDS)]} == set(KINDS)
    assert all(fault.at_s < 1200 for fault in schedule)
    assert min(fault.pause_s for fault in schedule if fault.kind == "python-worker-stopped") > 6.0
    assert make_schedule(7, 1200, ()) == []


def test_every_fault_has_somebody_who_does_it() -> None:
    assert set(KINDS) >= QUERY_FAULTS
    for kind in KINDS:
        assert callable(getattr(Chaos, "_" + kind.replace("-", "_")))


def test_the_query_recovers_before_it_is_hurt_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By batches, not by the clock. Seen on a busy machine: 34 faults, six drivers and five batches in ten minutes."""
    now, committed, kills = [0.0], [0], list[float]()
    monkeypatch.setattr("tests.soak.chaos.time.monotonic", lambda: now[0])
    driver = SimpleNamespace(executors=lambda: [1], kill=lambda pause_s, tree: kills.append(now[0]))
    world = SimpleNamespace(driver=driver, progress=SimpleNamespace(committed=lambda: committed[0]))
    ledger = Ledger()
    kinds = sorted(DRIVER_FAULTS)
    schedule = [Fault(float(at), kinds[at % 2], 0.0) for at in range(4)]
    chaos = Chaos(cast(World, world), schedule, ledger, 1)
    chaos.begin()
    for second in range(1000):
        now[0] = float(second)
        committed[0] = second // 60
        chaos.step()
    assert len(kills) == 4
    gaps = [round((later - before) / 60) for before, later in itertools.pairwise(kills)]
    assert gaps == [SETTLED_BATCHES] * 3


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "soak")
    layout.prepare("redis://127.0.0.1:1/0")
    return layout


def test_the_job_is_one_that_trimtab_takes(layout: Layout) -> None:
    query = load_job(layout.job).join_query()
    assert query.first_owners.count(0) * 2 == len(query.first_owners)
    assert len(set(query.plans)) == 3


def times_of(layout: Layout, stream: str, number: int) -> list[int]:
    table = pq.read_table(layout.input / stream / f"{number:06d}.parquet")
    return [int(at) for at in table.column("at").cast("int64").to_pylist()]


def test_no_row_is_late_by_chance(layout: Layout) -> None:
    feeder = Feeder(layout, seed=1, rows_per_s=300)
    for number in range(6):
        feeder.write_slice(late=number == 4)
    for stream in STREAMS:
        for number in range(6):
            times = times_of(layout, stream, number)
            in_time = [at for at in times if at >= LATE_BEFORE_US]
            assert len(times) - len(in_time) == (LATE_ROWS if number == 4 else 0)
            begin = START_US + number * SLICE_US
            assert begin - DISORDER_US <= min(in_time)
            assert max(in_time) < begin + SLICE_US
    stamps = [path.stat().st_mtime for path in sorted((layout.input / "A").iterdir())]
    assert stamps == sorted(set(stamps))


@pytest.mark.parametrize("readable", [True, False])
def test_a_blocked_store_takes_nothing(tmp_path: Path, readable: bool) -> None:
    transfers = tmp_path / "transfers"
    (transfers / "m1").mkdir(parents=True)
    (transfers / "m1" / "package").write_text("rows")
    local = pafs.LocalFileSystem()
    block = StoreBlock(transfers)
    block.block(readable=readable)
    for folder in ("m1", "m2"):
        with pytest.raises(OSError, match=str(transfers)):
            local.create_dir(f"{transfers}/{folder}", recursive=True)
        with pytest.raises(OSError, match=str(transfers)):
            local.open_output_stream(f"{transfers}/{folder}/package")
    selector = pafs.FileSelector(f"{transfers}/m1", allow_not_found=True)
    if readable:
        assert local.get_file_info(selector) == []
    else:
        with pytest.raises(OSError, match=str(transfers)):
            local.get_file_info(selector)
    block.free()
    assert (transfers / "m1" / "package").read_text() == "rows"
    local.create_dir(f"{transfers}/m2", recursive=True)
    block.block(readable=readable)
    block.free()
    assert sorted(path.name for path in transfers.iterdir()) == ["m1", "m2"]


def test_a_second_signal_does_not_break_off_the_teardown() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with shielded():
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def view(name: str, outcome: str | None, **audit: Any) -> dict[str, Any]:
    strategy = "ptlb" if name.startswith("p") else "mslb"
    checked = {"clean": True, "finished": True, "problems": [], "checked_batches": 3, "unchecked_batches": 0}
    return {"id": name, "strategy": strategy, "outcome": outcome, "audit": {**checked, **audit}}


def busy_ledger() -> Ledger:
    """Of a soak in which both protocols moved something, and a plan was changed."""
    ledger = Ledger()
    ledger.see([view("m", "committed"), view("p", "committed")])
    ledger.see_replans([{"id": "r", "strategy": "hybmig", "state": "committed", "open": False}])
    return ledger


def test_the_ledger_remembers_what_redis_forgets() -> None:
    ledger = Ledger()
    ledger.see([view("a", None), view("b", None)])
    ledger.see([view("a", "committed")])
    ledger.see([view("a", None)])
    assert ledger.outcomes() == {("mslb", "committed"): 1, ("mslb", "forgotten by Redis while open"): 1}


def test_the_ledger_remembers_changes_of_plans_too() -> None:
    ledger = Ledger()
    asked = {"strategy": "ms", "state": "migrating", "open": True}
    ledger.see_replans([{"id": "a", **asked}, {"id": "b", **asked}])
    ledger.see_replans([{"id": "a", "strategy": "ms", "state": "committed", "open": False}])
    ledger.see_replans([{"id": "a", **asked}])
    assert ledger.replan_outcomes() == {("ms", "committed"): 1, ("ms", "forgotten by Redis while open"): 1}


def ending(**changes: Any) -> Ending:
    values: dict[str, Any] = {
        "seed": 1,
        "judged": JoinVerdict(5_000, 5_000, 0, 0),
        "still_open": (),
        "left_running": (),
        "ports_open": (),
        "batches": 9,
        "rows": 9,
        "late_rows": 0,
        "driver_starts": 1,
    }
    return Ending(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"judged": None}, "no verdict"),
        ({"judged": JoinVerdict(5_000, 4_999, 1, 0, ("missing: {}",))}, "missing 1"),
        ({"judged": JoinVerdict(5_000, 5_001, 0, 1)}, "extra 1"),
        ({"judged": JoinVerdict(3, 3, 0, 0)}, "proves little"),
        ({"still_open": ("r-1",)}, "still open"),
        ({"left_running": ("17 java",)}, "still running"),
        ({"ports_open": (6379,)}, "port 6379"),
    ],
)
def test_what_is_not_well(changes: dict[str, Any], words: str) -> None:
    assert complaints(ending(), busy_ledger()) == []
    assert any(words in each for each in complaints(ending(**changes), busy_ledger()))


def test_a_soak_in_which_nothing_moved_is_not_well() -> None:
    """Seen on a starved machine: seven batches, no move committed, right results."""
    ledger = Ledger()
    ledger.see([view("m", None, checked_batches=0), view("p", "rolled-back", checked_batches=0)])
    assert ledger.audits()[0] == {"nothing to check": 2}
    assert [each.partition(": ")[2] for each in complaints(ending(), ledger)] == [
        "no mslb move was committed",
        "no ptlb move was committed",
        "no change of plans was committed",
        "no audit was clean",
    ]


def test_an_audit_that_complains_of_right_results_is_a_false_alarm() -> None:
    ledger = busy_ledger()
    ledger.see([view("b", "committed", clean=False), view("c", None, clean=False, lost=2, doubled=0)])
    ledger.see([view("d", "committed", clean=False, finished=False)])
    assert ledger.audits()[0] == {"clean": 2, "incomplete": 1, "complaining": 1, "unfinished": 1}
    (complaint,) = complaints(ending(), ledger)
    assert complaint.startswith("false alarm: c (mslb, None): lost 2")
