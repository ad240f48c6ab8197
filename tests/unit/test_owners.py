"""The owners that a query begins with: the grammar, its errors, and what a checkpoint makes of another wish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_union.definition import claim_checkpoint
from split_union.query import JoinQuery, Stream
from trimtab.embedded import EmbeddedRedis
from trimtab.epochs import check_owners, dealt_in_turn
from trimtab.errors import CheckpointMismatch, InvalidInput
from trimtab.offset_log import Checkpoint
from trimtab.offset_mark import MARK
from trimtab.owners import first_owners, parse_first_owners
from trimtab.store import Store


def owners_of(wish: Any, partitions: int = 8, workers: int = 4) -> tuple[int, ...]:
    return first_owners(parse_first_owners(wish), partitions, workers)


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({}, (0, 1, 2, 3, 0, 1, 2, 3)),
        ({0: "50%"}, (0, 0, 0, 0, 1, 2, 3, 1)),
        ({2: "100%"}, (2, 2, 2, 2, 2, 2, 2, 2)),
        ({3: [0, 7]}, (3, 0, 1, 2, 0, 1, 2, 3)),
        ({3: [], 2: []}, (0, 1, 0, 1, 0, 1, 0, 1)),
        ({1: [5], 0: "25%"}, (0, 0, 2, 3, 2, 1, 3, 2)),
        ({"1": "12.5 %"}, (1, 0, 2, 3, 0, 2, 3, 0)),
        ({0: "25%", 1: "25%", 2: "25%", 3: [7]}, (0, 0, 1, 1, 2, 2, 0, 3)),
        ({0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6, 7]}, (0, 0, 1, 1, 2, 2, 3, 3)),
    ],
)
def test_shares_and_lists(wish: Any, expected: tuple[int, ...]) -> None:
    assert owners_of(wish) == expected


def test_two_halves_of_five_groups() -> None:
    assert owners_of({0: "50%", 1: "50%"}, 5, 2) == (0, 0, 0, 1, 1)


@pytest.mark.parametrize(
    ("wish", "field", "value", "words"),
    [
        ("50%", "owners", "50%", "is not a dictionary"),
        ([0, 1], "owners", [0, 1], "is not a dictionary"),
        ({"a": "50%"}, "owners", "a", "not the number of a worker"),
        ({True: "50%"}, "owners", True, "not the number of a worker"),
        ({0: "50%", "0": [1]}, "owners", "0", "twice"),
        ({4: "50%"}, "owners", 4, "is not a worker of this query"),
        ({-1: "50%"}, "owners", -1, "is not a worker of this query"),
        ({0: "half"}, "owners[0]", "half", "is not a share"),
        ({0: "0%"}, "owners[0]", "0%", "a worker that owns nothing has []"),
        ({0: "101%"}, "owners[0]", "101%", "out of range"),
        ({0: 0.5}, "owners[0]", 0.5, "neither a share nor a list"),
        ({0: None}, "owners[0]", None, "neither a share nor a list"),
        ({0: [1, "2"]}, "owners[0]", "2", "not the number of a group"),
        ({0: [8]}, "owners[0]", 8, "not a partition group of this query"),
        ({0: [-1]}, "owners[0]", -1, "not a partition group of this query"),
        ({0: [3], 1: [2, 3]}, "owners[1]", 3, "belongs to worker 0 already"),
        ({0: [3, 3]}, "owners[0]", 3, "belongs to worker 0 already"),
        ({0: "60%", 1: "50%"}, "owners", {0: "60%", 1: "50%"}, "adds up to 110%"),
        ({0: "75%", 1: [0, 1, 2]}, "owners", {0: "75%"}, "the lists leave only 5 of 8"),
        ({0: "1%"}, "owners[0]", "1%", "less than one of 8 groups"),
        ({0: [0], 1: [1], 2: [2], 3: [3]}, "owners", [4, 5, 6, 7], "belong to nobody"),
    ],
)
def test_bad_wishes(wish: Any, field: str, value: object, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        owners_of(wish)
    assert caught.value.field == field
    assert caught.value.value == value
    assert words in str(caught.value)
    assert caught.value.remedy


@given(
    partitions=st.integers(1, 40),
    workers=st.integers(1, 6),
    shares=st.dictionaries(st.integers(0, 5), st.integers(1, 100)),
    named=st.lists(st.integers(0, 39), unique=True, max_size=10),
)
def test_every_group_has_an_owner_or_the_wish_is_refused(
    partitions: int, workers: int, shares: dict[int, int], named: list[int]
) -> None:
    wish: dict[int, Any] = {worker: f"{share}%" for worker, share in shares.items()}
    wish.setdefault(workers - 1, named)
    try:
        owners = owners_of(wish, partitions, workers)
    except InvalidInput:
        return
    check_owners(owners, partitions, workers)
    for worker, part in wish.items():
        if isinstance(part, list):
            assert sorted(part) == [group for group, owner in enumerate(owners) if owner == worker]
        else:
            assert owners.count(worker) >= shares[worker] * partitions // 100


def query(**changes: Any) -> JoinQuery:
    streams = [Stream(name, key="user", time="at") for name in "AB"]
    return JoinQuery(name="orders", window="1 second", streams=streams, partitions=8, workers=2, **changes)


def test_a_query_takes_them() -> None:
    assert query().first_owners == dealt_in_turn(8, 2)
    assert query(owners={1: "75%"}).first_owners == (1, 1, 1, 1, 1, 1, 0, 0)
    with pytest.raises(InvalidInput, match="is not a worker of this query") as caught:
        query(owners={2: "75%"})
    assert caught.value.field == "owners"


def claim(wish: Any, location: Path, store: Store) -> tuple[int, ...]:
    return claim_checkpoint(query(owners=wish), {"window": 1}, str(location), store)[0].owners


def bind(location: Path, store: Store) -> None:
    """As Spark does with batch 0: from here on the checkpoint has a mapping of its own."""
    epoch = store.epoch("orders", 1)
    assert epoch is not None
    offset = {MARK: {"epoch": epoch.number, "digest": epoch.digest, "text": epoch.to_text()}}
    Checkpoint(str(location)).write("offsets/0", "\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps(offset)]))


@pytest.mark.redis
def test_a_checkpoint_keeps_its_mapping(server: EmbeddedRedis, tmp_path: Path) -> None:
    """Before the first batch the wish may still change. Afterwards the same wish goes on, another one is refused: it
    would change nothing, and silence would look like success."""
    store = Store(server.url)
    store.client.flushall()
    wish = {0: "75%", 1: [7]}
    assert claim({0: "50%"}, tmp_path, store) == (0, 0, 0, 0, 1, 1, 1, 1)
    assert claim(wish, tmp_path, store) == (0, 0, 0, 0, 0, 0, 0, 1)
    bind(tmp_path, store)
    assert claim(wish, tmp_path, store) == (0, 0, 0, 0, 0, 0, 0, 1)
    for other in ({0: "50%"}, {}):
        with pytest.raises(CheckpointMismatch, match="keeps the mapping that it has") as caught:
            claim(other, tmp_path, store)
        assert caught.value.field == "owners"
        assert "trimtab rebalance" in caught.value.remedy


@pytest.mark.redis
def test_a_checkpoint_of_a_query_without_wishes(server: EmbeddedRedis, tmp_path: Path) -> None:
    store = Store(server.url)
    store.client.flushall()
    assert claim({}, tmp_path, store) == dealt_in_turn(8, 2)
    bind(tmp_path, store)
    assert claim({}, tmp_path, store) == dealt_in_turn(8, 2)
    with pytest.raises(CheckpointMismatch, match="began with"):
        claim({0: "50%"}, tmp_path, store)
