"""Epochs: canonical text, lineage, and what refuses to be one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.epochs import check_owners, dealt_in_turn, first_epoch, parse_epoch
from trimtab.errors import CorruptState, InvalidInput


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
