"""Migrations: events in, whole lists of instructions out."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from balancing.compose import NotComposable, compose
from balancing.protocols import (
    TABLES,
    AllOldPurged,
    Applied,
    Begin,
    CancelRequested,
    Deactivated,
    Event,
    ExportFailed,
    HeldTooLong,
    Holding,
    JournalStep,
    Migration,
    NothingToMove,
    PackageReady,
    PartitionsToMove,
    Proceed,
    ProtocolError,
    RecallAnswered,
    Received,
    Request,
    Returned,
    State,
    StoreRefused,
    Tell,
    Wave,
    WaveAllowed,
    adopt,
    parse_migration,
    reconcile,
    taken_groups,
)
from balancing.protocols.diagram import pages
from balancing.protocols.migration import STORY_KEPT
from balancing.protocols.ptlb import PTLB
from balancing.protocols.table import check
from trimtab.epochs import Epoch, first_epoch
from trimtab.moves import Kind, Move, Way

M = "m1"


def mslb(*groups: int) -> Migration:
    return Migration(
        id=M, query="q", incarnation="i", strategy="mslb", sender=0, receiver=1, request=Request(groups=groups or (0,))
    )


def ptlb(*groups: int) -> Migration:
    return replace(mslb(*groups), strategy="ptlb")


def after(migration: Migration, *events: Event) -> Migration:
    """The migration after these events, each journaled."""
    for event in events:
        for instruction in migration.handle(event):
            if isinstance(instruction, JournalStep):
                migration = instruction.migration
    return migration


def points(migration: Migration, *events: Event) -> list[str]:
    found = []
    for event in events:
        for instruction in migration.handle(event):
            if isinstance(instruction, JournalStep):
                found.append(instruction.point)
                migration = instruction.migration
    return found


def asked(*groups: int) -> list[Event]:
    chosen = groups or (0,)
    return [Begin(migration=M), PartitionsToMove(migration=M, epoch=2, groups=chosen)]


def wave(number: int = 1, *groups: int) -> list[Event]:
    at: dict[str, Any] = {"migration": M, "wave": number, "epoch": 2 + number}
    return [
        WaveAllowed(migration=M, groups=groups or (0,), epoch=1 + number),
        Deactivated(**at),
        Proceed(**at),
        PackageReady(**at, rows=5, bytes=80, digest="d"),
        Received(**at, rows=5, digest="d"),
        Proceed(**at),
    ]


def applied(number: int = 1, epoch: int = 9) -> Applied:
    return Applied(migration=M, wave=number, epoch=epoch)


def way_back(joined: bool = True) -> list[Event]:
    return [
        RecallAnswered(migration=M, wave=1, epoch=5, joined=joined),
        Returned(migration=M, wave=1, epoch=6),
    ]


def cancel() -> CancelRequested:
    return CancelRequested(migration=M, by="ops", cause="too slow")


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_whole(name: str) -> None:
    assert list(check(TABLES[name])) == []


def test_a_table_with_two_rows_for_one_case_or_without_a_step_is_told() -> None:
    rows = PTLB.rows
    twice = replace(PTLB, rows=(*rows, replace(rows[0], next=State.CHOSEN)))
    assert list(check(twice)) == ["two rows for Begin in new"]
    left_out = replace(PTLB, rows=tuple(row for row in rows if row.step not in (4, 5)))
    assert "no row for steps [4, 5]" in list(check(left_out))
    assert "no way out of duplicating" in list(check(replace(PTLB, rows=rows[:3], steps=3)))


def test_the_documented_diagrams_are_those_of_the_tables() -> None:
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, "run: python -m balancing.protocols.diagram"


def test_every_step_of_mslb_is_a_write_of_its_own() -> None:
    steps = points(mslb(), *asked(), *wave(), applied())
    assert steps == [f"mslb:{step}" for step in range(1, 9)] + ["mslb:committed"]


def test_every_step_of_ptlb_is_a_write_of_its_own() -> None:
    purged: list[Event] = [AllOldPurged(migration=M, wave=1, epoch=3), Proceed(migration=M, wave=1, epoch=3)]
    allowed = WaveAllowed(migration=M, groups=(0,), epoch=2)
    steps = points(ptlb(), *asked(), allowed, *purged, applied())
    assert steps == [f"ptlb:{step}" for step in range(1, 6)] + ["ptlb:committed"]


def test_the_next_migration_is_in_the_journal_instruction() -> None:
    before = mslb()
    instructions = before.handle(Begin(migration=M, now_ms=7))
    journal = instructions[0]
    assert isinstance(journal, JournalStep)
    assert instructions == [JournalStep(journal.migration, 1, "mslb:1")]
    assert (before.state, journal.migration.state) == (State.NEW, State.CHOOSING)
    assert journal.migration.story[0].render() == "7 step 1 ComputePartitionsToMove -> choosing"


def test_a_duplicate_changes_nothing() -> None:
    events = [*asked(), *wave()]
    migration = mslb()
    handled: list[Event] = []
    for event in events:
        migration = after(migration, event)
        handled += [event] if not isinstance(event, Begin | WaveAllowed) else []
        if migration.state != State.DEACTIVATED and migration.state != State.RECEIVED:
            assert [migration.handle(again) for again in handled] == [[]] * len(handled)


def test_a_premature_event_changes_nothing() -> None:
    migration = after(mslb(), *asked(), wave()[0])
    received = Received(migration=M, wave=1, epoch=3, rows=5, digest="d")
    assert migration.handle(received) == []
    assert migration.handle(applied()) == []


@pytest.mark.parametrize(
    "event",
    [
        Begin(migration=M),
        WaveAllowed(migration=M, groups=(1,)),
        AllOldPurged(migration=M, wave=1),
        Deactivated(migration=M, wave=2),
        Deactivated(migration="other", wave=1),
    ],
)
def test_the_impossible_tells_the_story(event: Event) -> None:
    migration = after(mslb(), *asked(), wave()[0])
    with pytest.raises(ProtocolError, match="step 3 DeactivatePartitions -> deactivating"):
        migration.handle(event)


def test_waves_follow_each_other_and_share_an_epoch() -> None:
    migration = after(mslb(0, 1), *asked(0, 1), *wave(1, 0))
    assert (migration.state, migration.wants_wave, migration.remaining) == (State.REACTIVATING, True, (1,))
    opened = compose(first_epoch("q", "i", (0, 0)), [after(mslb(0, 1), *asked(0, 1), wave(1, 0)[0])], 1)
    assert opened is not None
    migration = after(migration, wave(2, 1)[0])
    both = compose(opened, [migration], 1)
    assert both is not None
    assert both.owners == (1, 0)
    assert [(move.id, move.epoch, move.groups) for move in both.moves] == [("m1.w2", both.number, (1,))]
    migration = after(migration, applied(1), *wave(2, 1)[1:], applied(2))
    assert (migration.outcome, migration.moved_groups) == ("committed", (0, 1))


def test_a_wave_is_wanted_once_those_before_are_where_they_belong() -> None:
    opened = after(mslb(0, 1), *asked(0, 1), wave(1, 0)[0])
    assert (opened.wants_wave, opened.remaining) == (False, (1,))
    arrived = after(opened, *wave(1, 0)[1:], applied(1))
    assert (arrived.wants_wave, arrived.outcome) == (True, "")
    assert not after(mslb(), *asked(), *wave()).wants_wave
    assert not after(mslb(0, 1), *asked(0, 1), cancel()).wants_wave


@pytest.mark.parametrize("groups", [(), (1, 2), (2,)])
def test_a_wave_has_groups_that_remain(groups: tuple[int, ...]) -> None:
    with pytest.raises(ProtocolError, match="cannot happen in state"):
        after(mslb(0, 1), *asked(0, 1)).handle(WaveAllowed(migration=M, groups=groups))


def test_a_wave_waits_for_the_one_before() -> None:
    opened = after(mslb(0, 1), *asked(0, 1), wave(1, 0)[0])
    with pytest.raises(ProtocolError, match="cannot happen in state"):
        opened.handle(WaveAllowed(migration=M, groups=(1,)))


def test_a_migration_that_has_ended_does_not_go_on() -> None:
    """Even one whose wave was under way when its query was started anew."""
    opened = after(mslb(), *asked(), wave()[0])
    (ended,) = journaled(reconcile([opened], first_epoch("q", "another", (0, 0)), 0))
    assert (ended.done, ended.state) == (True, State.DEACTIVATING)
    assert ended.handle(wave()[1]) == []
    with pytest.raises(ProtocolError, match="cannot happen in state rolled-back"):
        ended.handle(Begin(migration=M))


def test_the_newest_step_is_one_of_the_paper() -> None:
    assert after(mslb(), *asked(), *wave()[:4], cancel()).step == 6


def test_ptlb_has_one_wave() -> None:
    migration = after(ptlb(0, 1), *asked(0, 1))
    with pytest.raises(ProtocolError, match="splits ptlb into waves"):
        migration.handle(WaveAllowed(migration=M, groups=(0,)))


def test_cancel_brings_back_and_drops_later_waves() -> None:
    migration = after(mslb(0, 1), *asked(0, 1), *wave(1, 0)[:4], cancel())
    assert (migration.state, migration.remaining) == (State.RETURNING, ())
    assert migration.handle(cancel()) == []
    migration = after(migration, *way_back(), applied())
    assert (migration.outcome, migration.problem) == ("rolled-back", "cancelled by ops: too slow")


def test_cancel_on_the_way_back_changes_nothing() -> None:
    returning = after(mslb(), *asked(), *wave()[:4], cancel())
    back = [returning, after(returning, *way_back()[:1]), after(returning, *way_back())]
    assert [each.state for each in back] == [State.RETURNING, State.RESTORING, State.CLEARING]
    assert [each.handle(cancel()) for each in back] == [[], [], []]


@pytest.mark.parametrize("migration", [mslb(), ptlb()], ids=["mslb", "ptlb"])
def test_cancel_before_the_beginning_ends_it(migration: Migration) -> None:
    cancelled = after(migration, cancel())
    assert (cancelled.outcome, cancelled.state) == ("rolled-back", State.ROLLED_BACK)
    assert cancelled.problem == "cancelled by ops: too slow"


def test_cancel_after_the_point_of_no_return_is_refused() -> None:
    migration = after(mslb(), *asked(), *wave())
    assert migration.handle(cancel()) == [Tell("refused", "m1 cannot be cancelled any more: it is reactivating", M)]


def test_cancel_between_waves_keeps_what_has_moved() -> None:
    migration = after(mslb(0, 1), *asked(0, 1), *wave(1, 0), cancel())
    assert (migration.state, migration.remaining, migration.outcome) == (State.REACTIVATING, (), "")
    assert after(migration, applied()).outcome == "committed-in-part"


def test_nothing_to_move_ends_it() -> None:
    migration = after(mslb(), Begin(migration=M), NothingToMove(migration=M, problem="worker 0 does not have group 0"))
    assert (migration.outcome, migration.problem) == ("rolled-back", "worker 0 does not have group 0")
    assert compose(first_epoch("q", "i", (0,)), [migration], 1) is None


def test_a_failed_export_leads_back() -> None:
    migration = after(mslb(), *asked(), wave()[0], ExportFailed(migration=M, wave=1, epoch=3, problem="no space left"))
    assert (migration.state, migration.problem) == (State.RETURNING, "no space left")


def test_packages_that_differ_are_settled_by_the_digest_in_the_epoch() -> None:
    opening = after(mslb(), *asked(), wave()[0])
    opened = compose(first_epoch("q", "i", (0,)), [opening], 1)
    assert opened is not None
    holding = Holding(migration=M, wave=1, epoch=3, batch=7, problem="two packages", digest="d")
    migration = after(opening, *wave()[1:4], holding)
    settled = compose(opened, [migration], 1)
    assert settled is not None
    assert [(move.digest, move.epoch) for move in settled.moves] == [("d", opened.number)]
    too_long = HeldTooLong(migration=M, wave=1, epoch=3, problem="two packages")
    assert after(migration, too_long).state == State.RETURNING


def test_a_store_that_does_not_work_is_refused_before_anything_is_opened() -> None:
    choosing = after(mslb(), Begin(migration=M))
    instructions = choosing.handle(StoreRefused(migration=M, epoch=2, problem="read-only file system"))
    (refused,) = journaled(instructions)
    assert (refused.outcome, refused.problem, refused.waves) == ("rolled-back", "read-only file system", ())
    assert instructions[1:] == [
        Tell("refused", "m1 is refused: read-only file system", M),
        Tell("finished", "m1 rolled-back: read-only file system", M),
    ]


@pytest.mark.parametrize(("joined", "way"), [(True, Way.JOINED), (False, Way.HELD)])
def test_the_way_back_is_said_one_step_at_a_time(joined: bool, way: Way) -> None:
    opening = after(mslb(), *asked(), wave()[0])
    returning = after(mslb(), *asked(), *wave()[:4], cancel())
    restoring = after(returning, way_back(joined)[0])
    clearing = after(restoring, way_back(joined)[1])
    epoch = first_epoch("q", "i", (0,))
    ways = []
    for migration in (opening, returning, restoring, clearing):
        following = compose(epoch, [migration], 1)
        assert following is not None
        assert compose(following, [migration], 1) is None
        ways.append([(move.id, move.way) for move in following.moves])
        epoch = following
    name = "m1.w1"
    assert ways == [[(name, Way.THERE)], [(name, Way.RECALLED)], [(name, way)], []]
    assert epoch.owners == (0,)


def test_a_wave_is_recalled_only_once_it_was_open() -> None:
    cancelled = after(mslb(), *asked(), wave()[0], cancel())
    opened = compose(first_epoch("q", "i", (0,)), [cancelled], 1)
    assert opened is not None
    assert [move.way for move in opened.moves] == [Way.THERE]


def test_composing_the_same_again_changes_nothing() -> None:
    migrations = [after(mslb(), *asked(), wave()[0])]
    opened = compose(first_epoch("q", "i", (0, 0)), migrations, 1)
    assert opened is not None
    assert compose(opened, migrations, 2) is None


def test_what_has_ended_opens_nothing() -> None:
    opening, first = after(mslb(0, 1), *asked(0, 1), wave(1, 0)[0]), first_epoch("q", "i", (0, 0))
    assert compose(first, [replace(opening, incarnation="another life")], 1) is None
    assert compose(first, [replace(opening, outcome="rolled-back")], 1) is None
    given_up = opening.with_wave(2, Wave(groups=(1,), state=State.ROLLED_BACK, seen=2))
    epoch = compose(first, [given_up], 1)
    assert epoch is not None and [move.groups for move in epoch.moves] == [(0,)]


def test_what_does_not_follow_from_the_epoch_is_left_to_reconcile() -> None:
    opening, closing = after(mslb(), *asked(), wave()[0]), after(mslb(), *asked(), *wave())
    recalled = epochs_of(opening, after(mslb(), *asked(), *wave()[:4], cancel()))
    assert compose(recalled, [closing], 1) is None
    assert compose(recalled, [opening], 1) is None
    assert compose(first_epoch("q", "i", (1, 0)), [opening], 1) is None
    assert compose(first_epoch("q", "i", (0, 0)), [after(mslb(), *asked(), *wave()[:4])], 1) is None
    assert compose(first_epoch("q", "i", (0, 0)), [closing], 1) is None
    held = after(mslb(), *asked(), *wave()[:4], cancel(), way_back(joined=False)[0])
    joined = replace(recalled, moves=(replace(recalled.moves[0], way=Way.JOINED),))
    assert compose(joined, [held], 1) is None


def test_a_parallel_track_ends_at_either_worker() -> None:
    opened = after(ptlb(), *asked(), WaveAllowed(migration=M, groups=(0,), epoch=2))
    purged = after(opened, AllOldPurged(migration=M, wave=1, epoch=3), Proceed(migration=M, wave=1, epoch=3))
    cancelled = after(opened, cancel(), Returned(migration=M, wave=1, epoch=3))
    for migration, owner in ((purged, 1), (cancelled, 0)):
        epoch = epochs_of(opened, migration)
        assert (epoch.owners, epoch.moves) == ((owner, 0), ())


def test_a_question_leaves_out_what_others_move() -> None:
    first = after(mslb(0), *asked(0))
    second = replace(mslb(), id="m2", request=Request(share=0.5), excluded=(3,))
    second = after(second, Begin(migration="m2"))
    epoch = compose(first_epoch("q", "i", (0, 0, 0, 0)), [first, second], 1)
    assert epoch is not None
    assert [(command.migration, command.excluded) for command in epoch.questions] == [("m2", (0, 3))]


def test_one_group_in_two_moves_is_never_published() -> None:
    first = after(mslb(0), *asked(0), wave()[0])
    second = replace(first, id="m2")
    with pytest.raises(NotComposable, match=r"m2\.w1 takes groups that m1\.w1 moves"):
        compose(first_epoch("q", "i", (0,)), [first, second], 1)


def test_an_epoch_that_cannot_follow_is_not_composed() -> None:
    """Of a manager that has lost its lease, for example: a younger one has published the newest epoch."""
    opening = after(mslb(), *asked(), wave()[0])
    with pytest.raises(NotComposable, match="fencing token 1 is older than 5"):
        compose(replace(first_epoch("q", "i", (0, 0)), fence=5), [opening], 1)


def test_groups_of_migrations_under_way_are_taken() -> None:
    first, second = after(mslb(0), *asked(0)), replace(mslb(1, 2), id="m2")
    assert taken_groups([first, second]) == {0, 1, 2}
    assert taken_groups([first, second], but="m2") == {0}
    done = replace(first, outcome="committed")
    assert taken_groups([done]) == frozenset()


def test_a_long_story_keeps_its_beginning_and_its_end() -> None:
    migration = mslb()
    for number in range(2 * STORY_KEPT):
        migration = journaled(migration.noted("Note", number, "again"))[0]
    assert len(migration.story) == STORY_KEPT
    assert [migration.story[0].at_ms, migration.story[-1].at_ms] == [0, 2 * STORY_KEPT - 1]


def test_json_there_and_back() -> None:
    for events in (asked(), [*asked(), *wave()], [*asked(), *wave()[:4], cancel()]):
        migration = after(mslb(), *events)
        assert parse_migration(json.loads(json.dumps(migration.to_json()))) == migration


def test_json_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 0"):
        parse_migration({**mslb().to_json(), "format": 0})


def epochs_of(*migrations: Migration) -> Epoch:
    """The newest epoch after publishing for each of these in turn."""
    epoch = first_epoch("q", "i", (0, 0))
    for migration in migrations:
        epoch = compose(epoch, [migration], 1) or epoch
    return epoch


def journaled(instructions: list[JournalStep | Tell]) -> list[Migration]:
    return [each.migration for each in instructions if isinstance(each, JournalStep)]


def test_reconcile_says_nothing_where_nothing_is_off() -> None:
    migration = after(mslb(), *asked(), wave()[0])
    assert reconcile([migration], epochs_of(migration), 0) == []
    assert reconcile([migration], first_epoch("q", "i", (0, 0)), 0) == []


def test_a_journal_behind_a_commit_catches_up() -> None:
    opening, closing = after(mslb(), *asked(), wave()[0]), after(mslb(), *asked(), *wave())
    bound = replace(epochs_of(opening, closing), number=9)
    behind = after(mslb(), *asked(), *wave()[:4])
    (caught_up,) = journaled(reconcile([behind], bound, 0))
    assert caught_up.outcome == "committed"
    assert "the receiver's already" in caught_up.render_story()


def test_a_wave_that_has_arrived_may_have_gone_on_with_another_migration() -> None:
    on = Move(id="other.w1", kind=Kind.TRANSFER, groups=(0,), sender=1, receiver=0, epoch=9)
    bound = replace(first_epoch("q", "i", (1, 0)), number=9, moves=(on,))
    (caught_up,) = journaled(reconcile([after(mslb(), *asked(), *wave()[:4])], bound, 0))
    assert caught_up.outcome == "committed"


def test_a_wave_that_was_not_open_yet_waits_or_comes_too_late() -> None:
    allowed = after(mslb(), *asked(), WaveAllowed(migration=M, groups=(0,), epoch=4))

    def reconciled(number: int, owner: int) -> list[str]:
        bound = replace(first_epoch("q", "i", (owner, 0)), number=number)
        return [each.outcome for each in journaled(reconcile([allowed], bound, 0))]

    assert reconciled(5, 0) == []
    assert (reconciled(4, 1), reconciled(5, 1)) == ([], ["committed"])
    assert (reconciled(4, 2), reconciled(5, 2)) == ([], ["rolled-back"])


def test_a_journal_that_forgot_a_wave_finds_out_what_has_left_the_sender() -> None:
    chosen = after(mslb(0, 1), *asked(0, 1))
    assert reconcile([chosen], replace(first_epoch("q", "i", (0, 0)), number=9), 0) == []
    (found,) = journaled(reconcile([chosen], replace(first_epoch("q", "i", (1, 0)), number=9), 0))
    assert (found.moved_groups, found.remaining) == ((0,), (1,))


def test_a_migrations_own_moves_are_not_those_of_others() -> None:
    opened = after(mslb(0, 1), *asked(0, 1), wave(1, 0)[0])
    bound = epochs_of(opened)
    wider = replace(bound, moves=(replace(bound.moves[0], groups=(0, 1)),))
    assert reconcile([opened], wider, 0) == []


def test_a_journal_that_forgot_a_wave_finds_it_open() -> None:
    opening = after(mslb(0, 1), *asked(0, 1), wave(1, 0)[0])
    (found,) = journaled(reconcile([after(mslb(0, 1), *asked(0, 1))], epochs_of(opening), 0))
    assert (found.state, found.remaining, found.waves[0].groups) == (State.DEACTIVATING, (1,), (0,))


def test_a_migration_lets_go_of_groups_that_another_one_moves() -> None:
    """Let in while the journal did not know of the other: waiting for ever it would keep all epochs from being made."""
    bound = epochs_of(after(mslb(0), *asked(0), wave()[0]))
    for behind in (after(mslb(0, 1), *asked(0, 1)), after(mslb(0, 1), *asked(0, 1), wave(1, 0, 1)[0])):
        another = replace(behind, id="another")
        (ended,) = journaled(reconcile([another], bound, 0))
        assert (ended.outcome, ended.remaining) == ("rolled-back", ())
        assert f"group 0 is in move {M}.w1" in ended.problem
    seen_later = replace(after(mslb(0, 1), *asked(0, 1)), id="another", since=bound.number + 1)
    assert reconcile([seen_later], bound, 0) == []
    allowed = after(seen_later, WaveAllowed(migration="another", groups=(0, 1), epoch=bound.number + 1))
    assert reconcile([allowed], bound, 0) == []


def test_groups_that_are_back_may_go_on_with_another_migration() -> None:
    """The move is closed as it was to be closed, and `observe` says so. It was open, so nothing kept it from that."""
    clearing = after(mslb(), *asked(), *wave()[:4], cancel(), *way_back())
    assert clearing.waves[0].was_open
    onward = replace(after(mslb(), *asked(), wave()[0]), id="onward")
    bound = compose(replace(first_epoch("q", "i", (0, 0)), number=9), [onward], 1)
    assert bound is not None and bound.moving[0].migration == "onward"
    assert reconcile([clearing], bound, 0) == []


def test_what_has_ended_is_not_reconciled() -> None:
    """Groups may have gone on since, and the query may have been started anew."""
    first_of_two = after(mslb(0, 1), *asked(0, 1), *wave(1, 0), applied(1))
    gone_on = replace(first_epoch("q", "i", (2, 0)), number=20)
    assert reconcile([first_of_two], gone_on, 0) == []
    ended = after(mslb(), *asked(), *wave(), applied())
    assert reconcile([ended], first_epoch("q", "another", (0, 0)), 0) == []


def test_groups_that_arrived_and_go_on_by_another_migration_are_committed() -> None:
    """The journal forgot that the wave was opened at all; since then its groups came to the receiver and left again."""
    behind = after(mslb(), *asked(), wave()[0])
    onward = replace(after(mslb(), *asked(), wave()[0]), id="onward", sender=1, receiver=0)
    bound = compose(replace(first_epoch("q", "i", (1, 0)), number=9), [onward], 1)
    assert bound is not None and bound.moving[0].migration == "onward"
    (ended,) = journaled(reconcile([behind], bound, 0))
    assert ended.outcome == "committed"


def test_a_cancel_reaches_the_wave_under_way_behind_one_that_was_given_up() -> None:
    first = after(mslb(0, 1), *asked(0, 1), *wave(1, 0)[:2])
    given_up = first.with_wave(
        2, Wave(groups=(1,), state=State.ROLLED_BACK, seen=1), problem="group 1 is in another move"
    )
    assert not given_up.done and given_up.state == first.state
    (step, *_) = given_up.handle(cancel())
    assert isinstance(step, JournalStep) and step.migration.waves[0].state == State.RETURNING


def test_another_life_of_the_query_ends_its_migrations() -> None:
    migration = after(mslb(), *asked(), wave()[0])
    (ended,) = journaled(reconcile([migration], first_epoch("q", "another", (0, 0)), 0))
    assert (ended.outcome, ended.problem) == ("rolled-back", "the query was started again with another checkpoint")


def test_open_moves_without_a_journal_are_adopted() -> None:
    opening = after(mslb(), *asked(), wave()[0])
    (adopted,) = journaled(adopt(epochs_of(opening), [], 5))
    assert (adopted.id, adopted.state, adopted.adopted) == (M, State.DEACTIVATING, True)
    assert "journal was gone" in adopted.render_story()
    assert adopt(epochs_of(opening), [adopted], 5) == []
    allowed = WaveAllowed(migration=M, groups=(0,), epoch=2)
    (parallel,) = journaled(adopt(epochs_of(after(ptlb(), *asked(), allowed)), [], 5))
    assert (adopted.strategy, parallel.strategy, parallel.state) == ("mslb", "ptlb", State.DUPLICATING)
    back = after(mslb(), *asked(), *wave()[:4], cancel())
    (returning,) = journaled(adopt(epochs_of(opening, back), [], 5))
    assert returning.state == State.RETURNING
    answered = after(back, way_back(joined=False)[0])
    (restoring,) = journaled(adopt(epochs_of(opening, back, answered), [], 5))
    assert (restoring.state, restoring.waves[0].way) == (State.RESTORING, Way.HELD)


def test_a_move_that_is_old_news_or_nobodys_is_not_adopted() -> None:
    opened = epochs_of(after(mslb(), *asked(), wave()[0]))
    ended = after(mslb(), *asked(), *wave(), applied(epoch=9))
    assert adopt(replace(opened, number=9), [ended], 5) == []
    (adopted,) = journaled(adopt(replace(opened, number=10), [ended], 5))
    assert (adopted.outcome, adopted.state) == ("", State.DEACTIVATING)
    strange = replace(opened, moves=(replace(opened.moves[0], id="strange"),))
    assert adopt(strange, [], 5) == []


def test_a_cancelled_migration_that_is_adopted_again_goes_on_without_the_reason_of_its_end() -> None:
    opening = after(mslb(), *asked(), wave()[0])
    cancelled = after(mslb(), *asked(), cancel())
    assert (cancelled.outcome, "cancelled" in cancelled.problem) == ("rolled-back", True)
    (adopted,) = journaled(adopt(epochs_of(opening), [cancelled], 5))
    assert (adopted.outcome, adopted.problem, adopted.state) == ("", "", State.DEACTIVATING)
    back = after(mslb(), *asked(), *wave()[:4], cancel())
    (returning,) = journaled(adopt(epochs_of(opening, back), [cancelled], 5))
    assert (returning.state, returning.problem) == (State.RETURNING, cancelled.problem)
    first_of_two = after(mslb(0, 1), *asked(0, 1), wave(1, 0)[0])
    (in_part,) = journaled(adopt(epochs_of(first_of_two), [after(mslb(0, 1), *asked(0, 1), cancel())], 5))
    assert in_part.problem == cancelled.problem, "the second group stays, and this is why"


def test_a_journal_behind_a_recall_catches_up() -> None:
    opening = after(mslb(), *asked(), wave()[0])
    back = after(mslb(), *asked(), *wave()[:4], cancel())
    answered = after(back, way_back()[0])
    (recalled,) = journaled(reconcile([opening], epochs_of(opening, back), 0))
    assert recalled.state == State.RETURNING
    assert "the reason was lost" in recalled.problem
    for behind in (opening, back):
        (restoring,) = journaled(reconcile([behind], epochs_of(opening, back, answered), 0))
        assert (restoring.state, restoring.waves[0].way) == (State.RESTORING, Way.JOINED)


def test_nobody_compares_a_protocols_name() -> None:
    """What differs between the protocols is a trait of their tables (Table)."""
    root = Path(__file__).resolve().parents[2]
    found = [
        f"{file.relative_to(root)}:{node.lineno}"
        for package in ("trimtab", "plans", "balancing", "worker", "split_union", "manager", "api", "commands")
        for file in sorted((root / package).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare | ast.MatchValue)
        and any(isinstance(part, ast.Constant) and part.value in TABLES for part in ast.walk(node))
    ]
    assert found == []
