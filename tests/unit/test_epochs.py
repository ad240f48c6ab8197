"""Epochs: canonical text, lineage, and what refuses to be one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.epochs import (
    FORMAT,
    WITHOUT_PLANS,
    Epoch,
    breaks_between,
    check_epoch,
    check_owners,
    dealt_in_turn,
    first_epoch,
    parse_epoch,
)
from trimtab.errors import CorruptState, InvalidInput
from trimtab.moves import ComputePartitionsToMove, Kind, Move, Way, parse_move, parse_question


@given(owners=st.lists(st.integers(0, 500), max_size=200), name=st.text(min_size=1, max_size=20))
def test_an_epoch_survives_its_text(owners: list[int], name: str) -> None:
    epoch = first_epoch(name, "abc", owners)
    assert parse_epoch(epoch.to_text(), epoch.digest) == epoch


def test_a_successor_names_its_predecessor() -> None:
    first = first_epoch("orders", "abc", dealt_in_turn(4, 2))
    second = first.successor([1, 1, 0, 0], fence=3)
    assert (second.number, second.predecessor, second.incarnation) == (2, first.digest, "abc")
    assert second.fence == 3


def test_a_changed_text_is_not_taken() -> None:
    epoch = first_epoch("orders", "abc", (0, 1))
    with pytest.raises(CorruptState, match="digest"):
        parse_epoch(epoch.to_text().replace("0,1", "1,1"), epoch.digest)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format":9}', "not json"])
def test_what_is_no_epoch_is_refused(text: str) -> None:
    with pytest.raises(CorruptState):
        parse_epoch(text)


def test_an_epoch_of_another_version_is_refused_though_it_reads_like_one() -> None:
    text = first_epoch("orders", "abc", (0, 1)).to_text()
    other = text.replace(f'"format":{WITHOUT_PLANS}', f'"format":{FORMAT + 1}')
    assert other != text
    with pytest.raises(CorruptState, match="another version"):
        parse_epoch(other)


def test_groups_are_dealt_in_turn() -> None:
    assert dealt_in_turn(5, 2) == (0, 1, 0, 1, 0)


def test_an_epoch_reads_as_a_table() -> None:
    text = first_epoch("orders", "abc", (0, 1, 0)).render()
    assert "worker 0: 0 2" in text
    assert "worker 1: 1" in text


@pytest.mark.parametrize(("owners", "field"), [((0, 1), "owners"), ((0, 1, 2), "owners[2]"), ((0, -1, 1), "owners[1]")])
def test_a_mapping_that_routes_rows_nowhere_is_refused(owners: tuple[int, ...], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_owners(owners, 3, 2)
    assert caught.value.field == field


FIRST = first_epoch("orders", "abc", (0, 0, 1))
THERE = Move(id="m.w1", kind=Kind.TRANSFER, groups=(0, 1), sender=0, receiver=1, epoch=2)
BOTH = replace(THERE, kind=Kind.DUPLICATE)
ASKED = ComputePartitionsToMove(migration="m", worker=0, share=0.5, ships=True)
OPEN = FIRST.successor((0, 0, 1), moves=(THERE,), questions=(ASKED,))


def test_moves_and_questions_survive_the_text() -> None:
    assert parse_epoch(OPEN.to_text(), OPEN.digest) == OPEN
    assert (OPEN.move("m.w1"), OPEN.move("other"), OPEN.moving) == (THERE, None, {0: THERE, 1: THERE})


@pytest.mark.parametrize("way", [Way.JOINED, Way.HELD])
def test_epochs_that_follow_each_other(way: Way) -> None:
    recalled = OPEN.successor((0, 0, 1), moves=(replace(THERE, way=Way.RECALLED),))
    back = recalled.successor((0, 0, 1), moves=(replace(THERE, way=way),))
    duplicated = FIRST.successor((0, 0, 1), moves=(BOTH,))
    for before, after in (
        (FIRST, OPEN),
        (OPEN, OPEN.successor((1, 1, 1))),
        (OPEN, OPEN.successor((0, 0, 1), moves=(replace(THERE, digest="d"),))),
        (OPEN, recalled),
        (recalled, recalled.successor((0, 0, 1), moves=recalled.moves)),
        (recalled, back),
        (back, back.successor((0, 0, 1), moves=back.moves)),
        (back, back.successor((0, 0, 1))),
        (duplicated, duplicated.successor((1, 1, 1))),
        (duplicated, duplicated.successor((0, 0, 1))),
    ):
        assert list(breaks_between(before, after)) == []


RECALLED = OPEN.successor((0, 0, 1), moves=(replace(THERE, way=Way.RECALLED),))


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (FIRST, FIRST.successor((1, 0, 1)), "group 0 goes from worker 0 to 1, and no move says so"),
        (FIRST, replace(FIRST.successor((0, 0, 1)), number=3), "does not follow"),
        (FIRST, replace(FIRST.successor((0, 0, 1)), predecessor="x"), "does not follow"),
        (FIRST, replace(FIRST.successor((0, 0, 1)), incarnation="x"), "another one"),
        (replace(FIRST, fence=3), replace(FIRST, fence=3).successor((0, 0, 1), fence=2), "fencing token 2"),
        (FIRST, FIRST.successor((0, 0)), "2 groups instead of 3"),
        (FIRST, FIRST.successor((0, 0, 1), moves=(replace(THERE, epoch=1),)), "begins in the middle"),
        (FIRST, FIRST.successor((0, 0, 1), moves=(replace(THERE, way=Way.RECALLED),)), "begins in the middle"),
        (OPEN, OPEN.successor((0, 0, 1)), "group 0 goes from worker 0 to 0, and no move says so"),
        (OPEN, OPEN.successor((1, 1, 1), moves=(THERE,)), "group 0 goes from worker 0 to 1"),
        (OPEN, OPEN.successor((2, 2, 1)), "group 0 goes from worker 0 to 2"),
        (OPEN, OPEN.successor((0, 0, 1), moves=(replace(THERE, receiver=2),)), "changes"),
        (OPEN, OPEN.successor((0, 0, 1), moves=(replace(THERE, groups=(0,)),)), "changes"),
        (OPEN, OPEN.successor((0, 0, 1), moves=(replace(THERE, way=Way.HELD),)), "from there to held"),
        (OPEN, OPEN.successor((1, 1, 1), moves=(replace(THERE, id="n.w1", epoch=3, sender=1, receiver=0),)), "moving"),
        (RECALLED, RECALLED.successor((1, 1, 1)), "group 0 goes from worker 0 to 1"),
        (RECALLED, RECALLED.successor((0, 0, 1)), "group 0 goes from worker 0 to 0"),
        (RECALLED, RECALLED.successor((0, 0, 1), moves=(THERE,)), "from recalled to there"),
    ],
)
def test_what_cannot_follow(before: Epoch, after: Epoch, problem: str) -> None:
    """Groups change hands by a move only, and a move changes as it is meant to."""
    assert problem in "; ".join(breaks_between(before, after))


@pytest.mark.parametrize(
    ("moves", "problem"),
    [
        ((replace(THERE, groups=(9,)),), "does not have"),
        ((replace(THERE, receiver=5),), "does not have"),
        ((replace(THERE, sender=5),), "does not have"),
        ((replace(THERE, groups=(2,)),), "worker 1 owns it"),
        ((THERE, replace(THERE, id="n.w1", groups=(1,))), "group 1 is in move m.w1 and in move n.w1"),
    ],
)
def test_an_epoch_that_cannot_be_run_is_refused(moves: tuple[Move, ...], problem: str) -> None:
    with pytest.raises(CorruptState, match=problem):
        check_epoch(FIRST.successor((0, 0, 1), moves=moves), 3, 2)


def test_an_epoch_with_owners_that_the_query_does_not_have_is_refused() -> None:
    for partitions, workers in ((4, 2), (3, 1)):
        with pytest.raises(InvalidInput, match="owners"):
            check_epoch(FIRST, partitions, workers)
    check_epoch(FIRST, 3, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "../x"},
        {"id": 5},
        {"kind": "other"},
        {"sender": 1},
        {"groups": ["x"]},
        {"way": "away"},
        {"epoch": None},
        {"digest": 5},
    ],
)
def test_what_is_not_a_move_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(CorruptState):
        parse_move({**THERE.to_json(), **changes})


def test_what_is_not_a_question_is_refused() -> None:
    assert parse_question(ASKED.to_json()) == ASKED
    for changes in ({"share": "much"}, {"groups": 5}, {"colour": "red"}):
        with pytest.raises(CorruptState, match="a question cannot be read"):
            parse_question({**ASKED.to_json(), **changes})


def test_a_duplicate_is_never_recalled() -> None:
    with pytest.raises(CorruptState, match="duplicate"):
        parse_move({**BOTH.to_json(), "way": "recalled"})
