"""Waits are announced once, with reason and remedy, and once more when they are over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from balancing.committed import CommittedBatch
from balancing.instructions import Notice
from balancing.protocols.migration import Migration, Request, Wave
from balancing.protocols.table import State
from balancing.stalls import Stalls
from tests.unit.audit_plane import make_report
from trimtab.epochs import Epoch, first_epoch
from trimtab.moves import Kind, Move, RoleState, Side
from trimtab.reports import MoveReport

EPOCH = first_epoch("q", "i", (0, 1))
MOVE = Move(id="m.w1", kind=Kind.DUPLICATE, groups=(0,), sender=0, receiver=1, epoch=2)
SHIPPED = Migration(
    id="m",
    query="q",
    incarnation="i",
    strategy="mslb",
    sender=0,
    receiver=1,
    request=Request(groups=(0,)),
    chosen=(0,),
    first_state=State.CHOSEN,
    waves=(Wave(groups=(0,), state=State.RECEIVING, seen=1),),
)
TRACK = replace(SHIPPED, strategy="ptlb", waves=(Wave(groups=(0,), state=State.DUPLICATING, seen=1),))
SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
NOON_US = 1_767_268_800_000_000
"""2026-01-01T12:00:00Z"""
FUTURE_US = 1_924_992_000_000_000
"""2031-01-01T00:00:00Z"""

OLD: dict[str, Any] = {
    "bound": EPOCH.successor(EPOCH.owners, moves=(MOVE,)),
    "state": RoleState.OLD_REMAINS,
    "newest_old_stream": "B",
}
"""What the sender of a parallel track says while old rows remain."""


class World:
    """Calls `look` as a leader does, and keeps what it answers."""

    def __init__(self, **settings: Any) -> None:
        self.stalls = Stalls(patience_ms=30_000, **settings)
        self.batch = 0

    def look(
        self,
        now_s: float,
        *migrations: Migration,
        watermark_us: int = NOON_US,
        workers: tuple[int, ...] = (0, 1),
        bound: Epoch = EPOCH,
        **sender: Any,
    ) -> list[Notice]:
        self.batch += 1
        moves = [MoveReport(move=MOVE.id, side=Side.SENDER, **sender)] if sender else []
        reports = {
            worker: make_report(
                worker, self.batch, bound.number, watermark_us=watermark_us, moves=moves if worker == 0 else []
            )
            for worker in workers
        }
        committed = CommittedBatch(batch=self.batch, bound=bound, at_ms=0, reports=reports)
        self.stalls, notices = self.stalls.look(committed, migrations, int(now_s * 1000))
        return notices


def test_a_batch_without_reports_says_nothing_about_event_time() -> None:
    world = World()
    assert world.look(86_400, TRACK, workers=()) == []
    world.look(86_401, TRACK)
    assert world.look(86_450, TRACK, workers=(1,))[0].kind == "stalled"


def test_event_time_that_stands_still_is_announced_once_and_once_more_when_it_goes_on() -> None:
    world = World()
    assert world.look(0, TRACK) == world.look(29, TRACK) == []
    (notice,) = world.look(31, TRACK)
    assert notice == Notice(
        kind="stalled",
        text=(
            "m: event time has stood still for 31 s, so its old rows do not expire. Is a stream idle? "
            "Let it go on, or take the move back: trimtab cancel m"
        ),
        data={"migration": "m"},
    )
    assert world.look(61, TRACK) == world.look(62, TRACK, workers=(0, 1)) == []
    goes_on = Notice(kind="goes-on", text="m: event time advances again", data={"migration": "m"})
    assert world.look(63, TRACK, watermark_us=NOON_US + 1) == [goes_on]
    assert world.look(64, TRACK, watermark_us=NOON_US + 1) == []
    assert [each.kind for each in world.look(99, TRACK, watermark_us=NOON_US + 1)] == ["stalled"]


def test_a_track_that_is_cancelled_or_ended_waits_for_nothing() -> None:
    world = World()
    world.look(0, TRACK)
    assert world.look(31, TRACK)
    returning = replace(TRACK, waves=(replace(TRACK.waves[0], state=State.RETURNING),))
    assert world.look(62, returning) == []
    assert world.look(63) == world.look(64, replace(TRACK, outcome="committed")) == []
    assert world.look(65, SHIPPED) == [], "a transfer does not wait for event time"


def test_only_a_track_that_is_open_waits_for_event_time() -> None:
    """Before it is open nothing is old; on its way back it does not wait for old rows."""
    asking = replace(TRACK, first_state=State.CHOOSING, waves=(), chosen=())
    for migration in (asking, replace(TRACK, waves=(replace(TRACK.waves[0], state=State.RETURNING),))):
        world = World()
        assert world.look(0, migration) == world.look(31, migration) == []


def test_the_wait_for_a_far_row_begins_when_the_track_is_open() -> None:
    world = World()
    world.look(0, replace(TRACK, first_state=State.CHOOSING, waves=(), chosen=()))
    for now_s, told in ((40, 0), (69, 0), (71, 1)):
        event_time_us = NOON_US + now_s * SECOND_US
        assert len(world.look(now_s, TRACK, **OLD, newest_old_us=FUTURE_US, watermark_us=event_time_us)) == told


def waiting(ahead_us: int, **settings: Any) -> list[Notice]:
    """A parallel track behind a row so far ahead of event time, which goes on: what is told after 31 seconds."""
    world = World(**settings)
    told = world.look(0, TRACK, **OLD, newest_old_us=NOON_US + ahead_us)
    assert told == [] == world.look(29, TRACK, **OLD, newest_old_us=NOON_US + ahead_us, watermark_us=NOON_US + 1)
    return world.look(31, TRACK, **OLD, newest_old_us=NOON_US + ahead_us, watermark_us=NOON_US + SECOND_US)


def test_a_row_from_the_future_is_named() -> None:
    """Mend 6: event time goes on, and the move waits for years all the same."""
    world = World(window_us=60 * SECOND_US, lateness_us=5 * SECOND_US)
    assert world.look(0, TRACK, **OLD, newest_old_us=FUTURE_US) == [], "nobody is impatient yet"
    (notice,) = world.look(31, TRACK, **OLD, newest_old_us=FUTURE_US, watermark_us=NOON_US + 1)
    assert (notice.kind, notice.data) == ("stalled", {"migration": "m"})
    assert notice.text == (
        "m: waits for a row of stream B with timestamp 2031-01-01T00:00:00Z, 1825 days ahead of event time: it is an "
        "old row, and expires only when event time is beyond it by the window. Take the move back (trimtab cancel m), "
        "or move the groups by MSLB."
    )
    assert world.look(32, TRACK, **OLD, newest_old_us=FUTURE_US, watermark_us=NOON_US + 2) == []
    bound = OLD["bound"]
    assert world.look(33, TRACK, workers=(1,), bound=bound, watermark_us=NOON_US + 3) == [], "the sender says nothing"
    (over,) = world.look(34, TRACK, **OLD, newest_old_us=FUTURE_US, watermark_us=FUTURE_US - 4 * SECOND_US)
    assert (over.kind, over.data["migration"]) == ("goes-on", "m")


def test_what_makes_a_parallel_track_longer_than_window_and_lateness_is_told() -> None:
    """Whatever the window is; a row that makes it longer by less than the patience is not worth a word."""
    usual: dict[str, Any] = {"window_us": 60 * SECOND_US, "lateness_us": 5 * SECOND_US}
    for ahead_s, words in ((3_000, "49 minutes ahead"), (96, "95 seconds ahead"), (7_300, "2 hours ahead")):
        (notice,) = waiting(ahead_s * SECOND_US, **usual)
        assert words in notice.text and "stream B with timestamp 2026-01-01T" in notice.text
    assert waiting(5 * SECOND_US, **usual) == waiting(34 * SECOND_US, **usual) == []
    assert "59 minutes ahead" in waiting(HOUR_US, window_us=24 * HOUR_US)[0].text
    assert f"timestamp {2**62} us" in waiting(2**62 - NOON_US)[0].text


def test_no_watermark_yet_is_not_the_year_1970() -> None:
    world = World()
    for now_s in (0, 31):
        notices = world.look(now_s, TRACK, **OLD, newest_old_us=NOON_US, watermark_us=0)
        assert not any("waits for a row" in each.text for each in notices)
    purged = {**OLD, "state": RoleState.ALL_OLD_PURGED}
    assert world.look(32, TRACK, **purged, newest_old_us=FUTURE_US, watermark_us=1)[0].kind == "goes-on"
    assert world.look(70, TRACK, **purged, newest_old_us=FUTURE_US, watermark_us=2) == []


def test_groups_that_wait_for_room_are_told() -> None:
    """Before the first wave, and between two of them."""
    for waves in ((), (Wave(groups=(0,), state=State.COMMITTED, seen=1),)):
        world = World()
        wanting = replace(SHIPPED, request=Request(groups=(0, 1)), chosen=(0, 1), remaining=(1,), waves=waves)
        assert wanting.wants_wave
        assert world.look(0, wanting) == world.look(29, wanting) == []
        (notice,) = world.look(31, wanting)
        assert notice.kind == "stalled" and "m: its next groups have waited for 31 s: there is no room" in notice.text
        assert world.look(32, wanting) == []
        (over,) = world.look(33, SHIPPED)
        assert (over.kind, over.text) == ("goes-on", "m: there is room for its next groups")


def test_a_worker_that_stops_reporting_is_named_with_what_is_waited_for() -> None:
    world = World()
    assert world.look(0, SHIPPED) == world.look(29, SHIPPED, workers=(0,)) == []
    (notice,) = world.look(31, SHIPPED, workers=(0,), watermark_us=NOON_US + 1)
    assert (notice.kind, notice.data) == ("stalled", {"migration": "m"})
    assert notice.text.startswith(
        "m: waits for the receiver to take the package in, and worker 1 has not reported for 31 s."
    )
    assert world.look(60, SHIPPED, workers=(0,)) == []
    assert world.look(61, SHIPPED) == [
        Notice(kind="goes-on", text="m: worker 1 reports again", data={"migration": "m"})
    ]


def test_either_worker_of_a_transfer_may_be_silent_and_only_the_sender_of_a_track() -> None:
    for state, told in (
        (State.DEACTIVATING, "freeze"),
        (State.DEACTIVATED, "pack"),
        (State.SENDING, "pack"),
        (State.RETURNING, "joined"),
        (State.RESTORING, "back"),
    ):
        world = World()
        migration = replace(SHIPPED, waves=(replace(SHIPPED.waves[0], state=state),))
        world.look(0, migration)
        (notice,) = world.look(31, migration, workers=(1,))
        assert "worker 0 has not" in notice.text and told in notice.text
    world = World()
    world.look(0, TRACK)
    silent = world.look(31, TRACK, workers=(0,), watermark_us=NOON_US + 1)
    assert silent == []
    assert "worker 0 has not" in world.look(62, TRACK, workers=(1,), watermark_us=NOON_US + 2)[0].text


def test_nobody_is_awaited_where_the_next_epoch_is() -> None:
    world = World()
    received = replace(SHIPPED, waves=(replace(SHIPPED.waves[0], state=State.RECEIVED),))
    world.look(0, received)
    assert world.look(31, received, workers=()) == []


def test_silence_begins_when_a_worker_is_awaited() -> None:
    """A leader that has just taken over has heard nobody yet."""
    world = World()
    assert world.look(86_400, SHIPPED, workers=(0,)) == world.look(86_429, SHIPPED, workers=(0,)) == []
    assert len(world.look(86_431, SHIPPED, workers=(0,))) == 1
    ended = replace(SHIPPED, outcome="committed", waves=(replace(SHIPPED.waves[0], state=State.COMMITTED),))
    assert world.look(86_432, ended, workers=(0,)) == []
    assert world.look(86_433, SHIPPED, workers=(0,)) == [], "awaited anew"


def test_what_was_heard_before_a_worker_is_awaited_does_not_count() -> None:
    world = World()
    assert world.look(0) == world.look(40, SHIPPED, workers=(0,)) == []


def test_reports_of_another_batch_say_nothing_about_event_time() -> None:
    stale = {0: make_report(0, 3, 1, watermark_us=NOON_US), 1: make_report(1, 3, 1, watermark_us=NOON_US)}
    committed = CommittedBatch(batch=4, bound=EPOCH, at_ms=0, reports=stale)
    assert Stalls(patience_ms=30_000).look(committed, [TRACK], 86_400_000)[1] == []


def test_a_track_without_old_rows_waits_for_none() -> None:
    world = World()
    world.look(0, TRACK, **OLD)
    assert world.look(31, TRACK, **OLD, watermark_us=NOON_US + 1) == []


def test_a_sender_that_does_not_name_groups() -> None:
    world = World()
    asking = replace(SHIPPED, first_state=State.CHOOSING, waves=(), chosen=())
    world.look(0, asking)
    assert world.look(31, asking, workers=(0,), watermark_us=NOON_US + 1) == []
    assert "waits for the sender to name the groups" in world.look(62, asking, workers=(1,))[0].text


def test_looking_changes_nothing_but_what_it_returns() -> None:
    stalls = Stalls(patience_ms=1)
    committed = CommittedBatch(batch=1, bound=EPOCH, at_ms=0, reports={0: make_report(0, 1, 1, watermark_us=5)})
    after, _ = stalls.look(committed, [TRACK], 10)
    assert stalls == Stalls(patience_ms=1) and after != stalls
    assert stalls.look(committed, [TRACK], 10)[0] == after
